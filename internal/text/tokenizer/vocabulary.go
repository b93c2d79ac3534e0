package tokenizer

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// maxVocabulary bounds token ids: every table is indexed by id.
const maxVocabulary = 1 << 22

// maxID returns the bound for ids in a file with n tokens. Vocabularies have small holes at most,
// and a large id in a small file must not cost memory.
func maxID(n int) int { return min(8*n+1<<16, maxVocabulary) }

// vocabulary is the two-way map between tokens, spelled as in the file, and ids. All spellings lie
// in one block of memory.
type vocabulary struct {
	index  tokenIndex
	text   []string
	origin []origin
}

// origin says where an id comes from.
type origin uint8

const (
	absent origin = iota
	fromModel
	fromAdded // added_tokens, and not in the model's vocabulary
)

// newVocabulary builds the maps: token i is block[ends[i-1]:ends[i]] and has id ids[i].
func newVocabulary(block string, ends []uint32, ids []int32) (*vocabulary, error) {
	size := 0
	limit := maxID(len(ids))
	for _, id := range ids {
		size = max(size, int(id)+1)
	}
	v := &vocabulary{index: newTokenIndex(len(ids))}
	if size > limit {
		return nil, fmt.Errorf("token id %d is out of range for a vocabulary of %d tokens", size-1,
			len(ids))
	}
	v.text = make([]string, size)
	v.origin = make([]origin, size)
	start := uint32(0)
	for i, id := range ids {
		token := block[start:ends[i]]
		start = ends[i]
		if v.origin[id] != absent {
			return nil, fmt.Errorf("tokens %q and %q have the same id %d", v.text[id], token, id)
		}
		v.text[id] = token
		v.origin[id] = fromModel
		if !v.index.enter(id, v.text) {
			return nil, fmt.Errorf("token %q is listed twice", token)
		}
	}
	return v, nil
}

// add gives a token beyond the model's vocabulary its id.
func (v *vocabulary) add(id int32, token string) error {
	if v.has(id) {
		return fmt.Errorf("token %q has id %d, which token %q has already", token, id, v.text[id])
	}
	for int(id) >= len(v.text) {
		v.text = append(v.text, "")
		v.origin = append(v.origin, absent)
	}
	token = strings.Clone(token)
	v.text[id] = token
	v.origin[id] = fromAdded
	v.index.enter(id, v.text)
	return nil
}

// rename gives a token of the vocabulary another spelling, as tokenizer_config.json does to pieces
// that were kept free.
func (v *vocabulary) rename(id int32, token string) error {
	if other, ok := v.id(token); ok && other != id {
		return fmt.Errorf("token %q has id %d and is given id %d", token, other, id)
	}
	v.index.remove(v.text[id], v.text)
	v.text[id] = strings.Clone(token)
	v.index.enter(id, v.text)
	return nil
}

// size is the number of tokens.
func (v *vocabulary) size() int { return v.index.count }

// id returns the id of a token, and whether there is one.
func (v *vocabulary) id(token string) (int32, bool) {
	_, id := v.index.find(maphash.String(v.index.seed, token), token, v.text)
	return id, id >= 0
}

// find returns the id of a token that must be there.
func (v *vocabulary) find(token string) (int32, error) {
	id, ok := v.id(token)
	if !ok {
		return 0, fmt.Errorf("token %q is not in the vocabulary", token)
	}
	return id, nil
}

func (v *vocabulary) has(id int32) bool {
	return id >= 0 && int(id) < len(v.origin) && v.origin[id] != absent
}

// modelID returns the id of a token of the model's own vocabulary.
func (v *vocabulary) modelID(token []byte) (int32, bool) {
	id, ok := v.id(string(token))
	return id, ok && v.origin[id] == fromModel
}
