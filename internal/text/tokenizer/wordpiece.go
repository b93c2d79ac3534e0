package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// defaultWordChars is max_input_chars_per_word where a file does not say.
const defaultWordChars = 100

// wordPiece is BERT's model: of each word the longest token from its start, then the longest from
// there on, where all but the first are spelled with a prefix ("##"). A word that does not divide
// so is the unknown token.
type wordPiece struct {
	vocab    *vocabulary
	prefix   string
	unknown  int32
	maxChars int // longer words are unknown
	longest  int // bytes of the longest token
}

// newWordPiece builds the model from the section of tokenizer.json.
func newWordPiece(v *vocabulary, spec modelSpec) (*wordPiece, error) {
	m := &wordPiece{vocab: v, prefix: "##", maxChars: defaultWordChars}
	unknown := "[UNK]"
	if spec.UnkToken != nil {
		unknown = *spec.UnkToken
	}
	id, ok := v.id(unknown)
	if !ok {
		return nil, fmt.Errorf("model unk_token %q is not in the vocabulary", unknown)
	}
	m.unknown = id
	if spec.Prefix != nil {
		m.prefix = *spec.Prefix
	}
	if spec.MaxChars != nil {
		if m.maxChars = *spec.MaxChars; m.maxChars < 0 {
			return nil, fmt.Errorf("model max_input_chars_per_word %d is negative", m.maxChars)
		}
	}
	for id, token := range v.text {
		if len(token) > maxPiece {
			return nil, fmt.Errorf("token %d has %d bytes, more than %d", id, len(token), maxPiece)
		}
		m.longest = max(m.longest, len(token))
	}
	return m, nil
}

func (m *wordPiece) encode(dst []int32, word string, sc *scratch) []int32 {
	if utf8.RuneCountInString(word) > m.maxChars {
		return append(dst, m.unknown)
	}
	start := len(dst)
	for i := 0; i < len(word); {
		id, size := m.find(word, i, sc)
		if size == 0 {
			return append(dst[:start], m.unknown)
		}
		dst = append(dst, id)
		i += size
	}
	return dst
}

// find returns the longest token that goes on at word[i], and how much of the word it is: 0 when
// there is none.
func (m *wordPiece) find(word string, i int, sc *scratch) (id int32, size int) {
	prefix := ""
	if i > 0 {
		prefix = m.prefix
	}
	rest := word[i:]
	if most := max(m.longest-len(prefix), 0); len(rest) > most {
		rest = rest[:most]
	}
	sc.bytes = append(append(sc.bytes[:0], prefix...), rest...)
	for end := len(rest); end > 0 && !sc.done(end); end-- {
		if end < len(word)-i && !utf8.RuneStart(word[i+end]) {
			continue
		}
		if id, ok := m.vocab.modelID(sc.bytes[:len(prefix)+end]); ok {
			return id, end
		}
	}
	return 0, 0
}
