package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Limits on tokenizer.json. Names are checked for duplicates here: the library's check would copy a
// vocabulary that goes into a table of its own anyway.
var (
	fileLimits    = jsonx.Limits{Depth: maxJSONDepth, Members: maxVocabulary, Duplicates: true}
	sectionLimits = jsonx.Limits{Depth: maxJSONDepth}
)

// maxJSONDepth is the deepest nesting of tokenizer.json.
const maxJSONDepth = 64

// file is tokenizer.json taken apart: small sections as they are, the model's lists read already.
type file struct {
	sections map[string]json.RawMessage
	model    *modelFile
}

// modelFile is the model section.
type modelFile struct {
	fields  map[string]json.RawMessage
	vocab   *vocabulary
	scores  []float64   // by id, where vocab is a list of tokens with scores
	list    *mergeList  // nil when there is none
	pairs   []mergePair // what list was, where parsePlain has read it
	merges  *mergeTable
	wordEnd bool // some merge joins a character with a word mark after it
}

func parseFile(data []byte) (*file, error) {
	if f, ok := parsePlain(data); ok {
		return f, nil
	}
	return parseWhole(data)
}

func parseWhole(data []byte) (*file, error) {
	f := &file{sections: map[string]json.RawMessage{}}
	err := jsonx.Read(data, fileLimits, func(r *jsonx.Reader) error {
		return r.Object(func(key string) (err error) {
			if key == "model" {
				if f.model != nil {
					return errors.New("model is listed twice")
				}
				f.model, err = parseModelFile(r)
				return err
			}
			return readSection(r, f.sections, key)
		})
	})
	if err != nil {
		return nil, err
	}
	if f.model == nil {
		return nil, errors.New("there is no model section")
	}
	return f, nil
}

// readSection enters the text of a small value into sections.
func readSection(r *jsonx.Reader, sections map[string]json.RawMessage, key string) error {
	if _, ok := sections[key]; ok {
		return fmt.Errorf("%s is listed twice", key)
	}
	text, err := r.Raw()
	if err != nil {
		return err
	}
	sections[key] = text
	if err := jsonx.Read(text, sectionLimits, (*jsonx.Reader).Skip); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func parseModelFile(r *jsonx.Reader) (*modelFile, error) {
	m := &modelFile{fields: map[string]json.RawMessage{}}
	err := r.Object(func(key string) (err error) {
		switch key {
		case "vocab":
			if m.vocab != nil {
				return errors.New("vocab is listed twice")
			}
			if r.Kind() == '[' {
				m.vocab, m.scores, err = parseScored(r)
				return err
			}
			m.vocab, err = parseVocabulary(r)
			return err
		case "merges":
			if m.list != nil {
				return errors.New("merges are listed twice")
			}
			m.list, err = readMerges(r)
			return err
		}
		return readSection(r, m.fields, key)
	})
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return m, nil
}

// parseVocabulary reads {"token": id, …}.
func parseVocabulary(r *jsonx.Reader) (*vocabulary, error) {
	var (
		block = make([]byte, 0, r.Left()/4)
		ends  []uint32
		ids   []int32
	)
	err := r.Names(func() (err error) {
		start := len(block)
		if block, err = r.AppendText(block); err != nil {
			return err
		}
		id, err := r.Natural(maxVocabulary - 1)
		if err != nil {
			return fmt.Errorf("id of token %q: %w", block[start:], err)
		}
		ends = append(ends, uint32(len(block)))
		ids = append(ids, int32(id))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return newVocabulary(string(block), ends, ids)
}

// parseScored reads [["token", score], …], where ids count from 0.
func parseScored(r *jsonx.Reader) (*vocabulary, []float64, error) {
	var (
		block  = make([]byte, 0, r.Left()/4)
		ends   []uint32
		ids    []int32
		scores []float64
	)
	err := r.Array(func(id int) error {
		if id >= maxVocabulary {
			return fmt.Errorf("vocab has more than %d tokens", maxVocabulary)
		}
		parts := 0
		err := r.Array(func(i int) (err error) {
			parts = i + 1
			switch i {
			case 0:
				block, err = r.AppendText(block)
				return err
			case 1:
				var score float64
				text, err := r.Raw()
				if err == nil {
					err = json.Unmarshal(text, &score)
				}
				scores = append(scores, score)
				return err
			}
			return r.Skip()
		})
		if err == nil && parts != 2 {
			err = fmt.Errorf("%d values instead of a token and its score", parts)
		}
		if err != nil {
			return fmt.Errorf("vocab %d: %w", id, err)
		}
		ends = append(ends, uint32(len(block)))
		ids = append(ids, int32(id))
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	v, err := newVocabulary(string(block), ends, ids)
	return v, scores, err
}

// mergeList holds the merges as the file has them. They are looked up when the vocabulary is known,
// which may come after them.
type mergeList struct {
	block []byte   // left and right parts, one after the other
	ends  []uint32 // of each part in block
}

// readMerges reads the merges, each "a b" or ["a", "b"].
func readMerges(r *jsonx.Reader) (*mergeList, error) {
	l := &mergeList{block: make([]byte, 0, r.Left()/4)}
	err := r.Array(func(int) error {
		read := l.readLine
		if r.Kind() == '[' {
			read = l.readPair
		}
		rank := len(l.ends) / 2
		if err := read(r); err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
		return nil
	})
	return l, err
}

// readLine reads "a b", and skips the "#version" line of the older form.
func (l *mergeList) readLine(r *jsonx.Reader) (err error) {
	start := len(l.block)
	if l.block, err = r.AppendText(l.block); err != nil {
		return err
	}
	line := l.block[start:]
	if bytes.HasPrefix(line, []byte("#version")) {
		l.block = l.block[:start]
		return nil
	}
	cut := bytes.IndexByte(line, ' ')
	if cut < 0 || bytes.IndexByte(line[cut+1:], ' ') >= 0 {
		return fmt.Errorf("%q is not two tokens with a space between them", line)
	}
	l.block = append(l.block[:start+cut], line[cut+1:]...)
	l.ends = append(l.ends, uint32(start+cut), uint32(len(l.block)))
	return nil
}

// readPair reads ["a", "b"].
func (l *mergeList) readPair(r *jsonx.Reader) error {
	parts := 0
	err := r.Array(func(i int) (err error) {
		parts = i + 1
		l.block, err = r.AppendText(l.block)
		l.ends = append(l.ends, uint32(len(l.block)))
		return err
	})
	if err == nil && parts != 2 {
		err = fmt.Errorf("%d tokens instead of two", parts)
	}
	return err
}

// addMerges enters the list into the table. skip is the length of the continuing-subword prefix
// that the right part loses in the merged token.
func (m *modelFile) addMerges(skip int) error {
	count := len(m.list.ends) / 2
	if m.pairs != nil {
		count = len(m.pairs)
	}
	m.merges = newMergeTable(count)
	var (
		spelled []byte
		last    int32
		err     error
	)
	for rank := range count {
		if last, spelled, err = m.addMerge(rank, skip, last, spelled); err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
	}
	return nil
}

// addMerge enters a merge and returns the id of the merged token. Most often that is the one after
// the last one's. spelled is memory to use.
func (m *modelFile) addMerge(rank, skip int, last int32, spelled []byte) (int32, []byte, error) {
	pair, err := m.pair(rank)
	if err != nil {
		return 0, spelled, err
	}
	left, right := m.vocab.text[pair.left], m.vocab.text[pair.right]
	m.wordEnd = m.wordEnd || joinsWords(left, right)
	if len(right) < skip {
		return 0, spelled, fmt.Errorf("token %q is shorter than the continuing_subword_prefix",
			right)
	}
	spelled = append(append(spelled[:0], left...), right[skip:]...)
	merged, ok := last+1, m.vocab.has(last+1) && m.vocab.text[last+1] == string(spelled)
	if !ok {
		merged, ok = m.vocab.id(string(spelled))
	}
	if !ok {
		return 0, spelled, fmt.Errorf("merged token %q is not in the vocabulary", spelled)
	}
	m.merges.put(pair.left, pair.right, rank, merged)
	return merged, spelled, nil
}

// pair returns the tokens of a merge.
func (m *modelFile) pair(rank int) (p mergePair, err error) {
	if m.pairs != nil {
		return m.pairs[rank], nil
	}
	start, cut, end := uint32(0), m.list.ends[2*rank], m.list.ends[2*rank+1]
	if rank > 0 {
		start = m.list.ends[2*rank-1]
	}
	if p.left, err = m.vocab.find(string(m.list.block[start:cut])); err == nil {
		p.right, err = m.vocab.find(string(m.list.block[cut:end]))
	}
	return p, err
}

// joinsWords reports whether a merge joins a character with a word mark after it.
func joinsWords(left, right string) bool {
	return strings.HasPrefix(right, wordMark) && !strings.HasSuffix(left, wordMark)
}

// modelSpec holds the model's settings.
type modelSpec struct {
	Type         *string  `json:"type"`
	Dropout      *float64 `json:"dropout"`
	UnkToken     *string  `json:"unk_token"`
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	FuseUnk      bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
	MaxChars     *int     `json:"max_input_chars_per_word"`
	UnkID        *int64   `json:"unk_id"`
}

// kind is the type of the model. Old files leave it out, and other fields tell.
func (s modelSpec) kind(m *modelFile) string {
	switch {
	case s.Type != nil:
		return *s.Type
	case m.list != nil:
		return "BPE"
	case s.MaxChars != nil:
		return "WordPiece"
	case m.scores != nil:
		return "Unigram"
	}
	return ""
}

// newModel builds the model.
func newModel(m *modelFile) (encoder, error) {
	text, err := json.Marshal(m.fields)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	var spec modelSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	kind := spec.kind(m)
	if kind == "" {
		return nil, errors.New("model has neither a type nor merges")
	}
	form := "object"
	if kind == "Unigram" {
		form = "list"
	}
	if m.vocab == nil || (m.scores != nil) != (form == "list") {
		return nil, fmt.Errorf("model of type %q has no vocab %s", kind, form)
	}
	switch kind {
	case "BPE":
		return newBPE(m, spec)
	case "WordPiece":
		return newWordPiece(m.vocab, spec)
	case "Unigram":
		return newUnigram(m, spec)
	}
	return nil, fmt.Errorf("model type %q is not supported", kind)
}

// newBPE builds the model of byte-pair encoding.
func newBPE(m *modelFile, spec modelSpec) (*bpe, error) {
	if spec.Dropout != nil && *spec.Dropout != 0 {
		return nil, fmt.Errorf("model dropout %v is not supported", *spec.Dropout)
	}
	b := &bpe{vocab: m.vocab, ignoreMerges: spec.IgnoreMerges, unknown: -1,
		fuseUnknown: spec.FuseUnk}
	if spec.Prefix != nil {
		b.prefix = *spec.Prefix
	}
	if spec.Suffix != nil {
		b.suffix = *spec.Suffix
	}
	if spec.UnkToken != nil {
		id, ok := m.vocab.id(*spec.UnkToken)
		if !ok {
			return nil, fmt.Errorf("model unk_token %q is not in the vocabulary", *spec.UnkToken)
		}
		b.unknown = id
	}
	if m.list != nil {
		if err := m.addMerges(len(b.prefix)); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
	} else {
		m.merges = newMergeTable(0)
	}
	b.merges = m.merges
	b.index(spec.ByteFallback, m.wordEnd)
	return b, nil
}

// index fills the tables by character and by byte. wordEnd says that some merge joins a character
// with a word mark after it.
func (b *bpe) index(byteFallback, wordEnd bool) {
	b.indexSymbols(byteFallback)
	_, hasMark := b.charID['▁']
	// A character that vanishes would bring what is on its sides together.
	vanishes := b.unknown < 0 && (b.fallback == nil || slices.Contains(b.fallback[:], -1))
	b.cutWords = hasMark && !vanishes && !wordEnd && !b.ignoreMerges && b.prefix == "" &&
		b.suffix == ""
	b.cache = newPieceCache(b.vocab.size())
}

func (b *bpe) indexSymbols(byteFallback bool) {
	b.charID = make(map[rune]int32)
	for id, token := range b.vocab.text {
		if r, n := utf8.DecodeRuneInString(token); n > 0 && n == len(token) {
			b.charID[r] = int32(id)
		}
	}
	complete := b.prefix == "" && b.suffix == ""
	for i, r := range byteChars {
		id, ok := b.charID[r]
		b.byteID[i] = id
		complete = complete && ok
	}
	b.rawBytes = complete
	if byteFallback {
		b.fallback = byteTokens(b.vocab)
	}
}

// byteTokens returns the ids of <0x00> … <0xFF>, -1 for those missing.
func byteTokens(v *vocabulary) *[256]int32 {
	ids := new([256]int32)
	for i := range ids {
		ids[i] = -1
		if id, ok := v.id(fmt.Sprintf("<0x%02X>", i)); ok {
			ids[i] = id
		}
	}
	return ids
}
