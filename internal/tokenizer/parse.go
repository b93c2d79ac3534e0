package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// file is tokenizer.json taken apart: small sections as they are, the model's lists read already.
type file struct {
	sections map[string]json.RawMessage
	model    *modelFile
}

// modelFile is the model section. Vocabulary and merges are read by hand, the rest is left as text.
type modelFile struct {
	fields map[string]json.RawMessage
	vocab  *vocabulary
	// vocabOther says that vocab is not an object, as in models that are not BPE.
	vocabOther bool
	mergesAt   int // where the first merge is, 0 when there are none
	mergeCount int
	merges     *mergeTable
	wordEnd    bool // some merge joins a character with a word mark after it
}

func parseFile(data []byte) (*file, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("file is not UTF-8")
	}
	f := &file{sections: map[string]json.RawMessage{}}
	s := &jsonScanner{data: data}
	err := s.object(func(key string) (err error) {
		if key == "model" {
			if f.model != nil {
				return errors.New("model is listed twice")
			}
			f.model, err = parseModelFile(s)
			return err
		}
		f.sections[key], err = s.raw()
		return err
	})
	if err != nil {
		return nil, err
	}
	if !s.atEnd() {
		return nil, s.errorf("JSON goes on after its end")
	}
	if f.model == nil {
		return nil, errors.New("there is no model section")
	}
	return f, nil
}

func parseModelFile(s *jsonScanner) (*modelFile, error) {
	m := &modelFile{fields: map[string]json.RawMessage{}}
	err := s.object(func(key string) (err error) {
		switch {
		case key == "vocab" && s.peek() == '{' && m.vocab == nil:
			m.vocab, err = parseVocabulary(s)
		case key == "vocab":
			m.vocabOther = true
			err = s.skip(0)
		case key == "merges" && m.mergesAt == 0:
			if err = s.expect('['); err != nil {
				return err
			}
			m.mergesAt = s.pos
			m.mergeCount, err = skipElements(s)
		default:
			m.fields[key], err = s.raw()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return m, nil
}

// parseVocabulary reads {"token": id, …}.
func parseVocabulary(s *jsonScanner) (*vocabulary, error) {
	if err := s.expect('{'); err != nil {
		return nil, err
	}
	var (
		block []byte
		ends  []uint32
		ids   []int32
	)
	for first := true; ; first = false {
		more, err := s.more('}', first)
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		start := len(block)
		if block, err = s.text(block); err != nil {
			return nil, err
		}
		if err := s.expect(':'); err != nil {
			return nil, err
		}
		id, err := s.natural(maxVocabulary)
		if err != nil {
			return nil, fmt.Errorf("id of token %q: %w", block[start:], err)
		}
		ends = append(ends, uint32(len(block)))
		ids = append(ids, int32(id))
	}
	return newVocabulary(string(block), ends, ids)
}

// parseMerges reads the merges, each "a b" or ["a", "b"]. skip is the length of the
// continuing-subword prefix that the right part loses in the merged token.
func (m *modelFile) parseMerges(data []byte, skip int) error {
	s := &jsonScanner{data: data, pos: m.mergesAt}
	m.merges = newMergeTable(m.mergeCount)
	var buf []byte
	rank := 0
	for first := true; ; first = false {
		more, err := s.more(']', first)
		if err != nil || !more {
			return err
		}
		var cut int
		if buf, cut, err = readMerge(s, buf[:0]); err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
		if cut < 0 {
			continue
		}
		if err := m.addMerge(buf, cut, skip, rank); err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
		rank++
	}
}

// skipElements skips the rest of an array whose opening bracket has been read, and counts its elements.
func skipElements(s *jsonScanner) (int, error) {
	n := 0
	for first := true; ; first = false {
		more, err := s.more(']', first)
		if err != nil || !more {
			return n, err
		}
		if err := s.skip(0); err != nil {
			return n, err
		}
		n++
	}
}

// readMerge reads one merge into buf, both parts together, and returns where the right one begins;
// -1 for the "#version" line of the older form.
func readMerge(s *jsonScanner, buf []byte) ([]byte, int, error) {
	var err error
	if s.peek() == '"' {
		if buf, err = s.text(buf); err != nil {
			return buf, 0, err
		}
		line := string(buf)
		if strings.HasPrefix(line, "#version") {
			return buf, -1, nil
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return buf, 0, fmt.Errorf("%q is not two tokens with a space between them", line)
		}
		return append(append(buf[:0], left...), right...), len(left), nil
	}
	if err := s.expect('['); err != nil {
		return buf, 0, err
	}
	if buf, err = s.text(buf); err != nil {
		return buf, 0, err
	}
	cut := len(buf)
	if err := s.expect(','); err != nil {
		return buf, 0, err
	}
	if buf, err = s.text(buf); err != nil {
		return buf, 0, err
	}
	return buf, cut, s.expect(']')
}

func (m *modelFile) addMerge(pair []byte, cut, skip, rank int) error {
	left, ok := m.vocab.ids[string(pair[:cut])]
	if !ok {
		return fmt.Errorf("token %q is not in the vocabulary", pair[:cut])
	}
	right, ok := m.vocab.ids[string(pair[cut:])]
	if !ok {
		return fmt.Errorf("token %q is not in the vocabulary", pair[cut:])
	}
	if strings.HasPrefix(m.vocab.text[right], wordMark) && !strings.HasSuffix(m.vocab.text[left], wordMark) {
		m.wordEnd = true
	}
	if skip > 0 {
		if len(pair)-cut < skip {
			return fmt.Errorf("token %q is shorter than the continuing_subword_prefix", pair[cut:])
		}
		pair = append(pair[:cut], pair[cut+skip:]...)
	}
	merged, ok := m.vocab.ids[string(pair)]
	if !ok {
		return fmt.Errorf("merged token %q is not in the vocabulary", pair)
	}
	m.merges.put(left, right, rank, merged)
	return nil
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
}

// newBPE builds the model. data is the whole file.
func newBPE(m *modelFile, data []byte) (*bpe, error) {
	text, err := json.Marshal(m.fields)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	var spec modelSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if spec.Type != nil && *spec.Type != "BPE" {
		return nil, fmt.Errorf("model type %q is not supported", *spec.Type)
	}
	if spec.Type == nil && m.mergesAt == 0 {
		return nil, errors.New("model has neither a type nor merges")
	}
	if m.vocab == nil || m.vocabOther {
		return nil, errors.New("model has no vocab object")
	}
	if spec.Dropout != nil && *spec.Dropout != 0 {
		return nil, fmt.Errorf("model dropout %v is not supported", *spec.Dropout)
	}
	b := &bpe{vocab: m.vocab, ignoreMerges: spec.IgnoreMerges, unknown: -1, fuseUnknown: spec.FuseUnk}
	if spec.Prefix != nil {
		b.prefix = *spec.Prefix
	}
	if spec.Suffix != nil {
		b.suffix = *spec.Suffix
	}
	if spec.UnkToken != nil {
		id, ok := m.vocab.ids[*spec.UnkToken]
		if !ok {
			return nil, fmt.Errorf("model unk_token %q is not in the vocabulary", *spec.UnkToken)
		}
		b.unknown = id
	}
	if m.mergesAt > 0 {
		if err := m.parseMerges(data, len(b.prefix)); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
	} else {
		m.merges = newMergeTable(0)
	}
	b.merges = m.merges
	b.index(spec.ByteFallback)
	_, hasMark := b.charID['▁']
	// A character that vanishes would bring what is on its sides together.
	vanishes := b.unknown < 0 && (b.fallback == nil || slices.Contains(b.fallback[:], -1))
	b.cutWords = hasMark && !vanishes && !m.wordEnd && !b.ignoreMerges && b.prefix == "" && b.suffix == ""
	b.cache = newPieceCache(len(m.vocab.ids))
	return b, nil
}

// index fills the tables by character and by byte.
func (b *bpe) index(byteFallback bool) {
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
	if !byteFallback {
		return
	}
	b.fallback = new([256]int32)
	for i := range b.fallback {
		b.fallback[i] = -1
		if id, ok := b.vocab.ids[fmt.Sprintf("<0x%02X>", i)]; ok {
			b.fallback[i] = id
		}
	}
}
