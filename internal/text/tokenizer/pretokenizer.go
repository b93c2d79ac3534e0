package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// piece is a part of the text on its way to the model. atStart says that it begins where the whole
// input begins; one kind of Metaspace treats that piece alone.
type piece struct {
	text    string
	atStart bool
}

// preTokenizer is one step that cuts pieces further and may rewrite them.
type preTokenizer interface {
	// split appends to dst what becomes of one piece, which is not empty.
	split(p piece, dst []piece, sc *scratch) []piece
}

// splitter cuts by a pattern: Split, Digits, Punctuation, Whitespace, WhitespaceSplit.
type splitter struct {
	pattern  pattern
	behavior behavior
	invert   bool
}

func (s *splitter) split(p piece, dst []piece, sc *scratch) []piece {
	spans := s.pattern.find(p.text, sc.spans[:0], &sc.work)
	sc.spans = spans
	if s.invert {
		for i := range spans {
			spans[i].match = !spans[i].match
		}
	}
	for _, sp := range s.behavior.apply(spans) {
		if sp.start < sp.end {
			dst = append(dst, piece{p.text[sp.start:sp.end], p.atStart && sp.start == 0})
		}
	}
	return dst
}

// bertWords is BertPreTokenizer: it cuts at white space, which goes, and makes a word of every
// punctuation mark.
type bertWords struct{}

func (bertWords) split(p piece, dst []piece, sc *scratch) []piece {
	start := 0
	word := func(end int) {
		if start < end {
			dst = append(dst, piece{p.text[start:end], p.atStart && start == 0})
		}
	}
	for i, r := range p.text {
		space := isSpace(r)
		if !space && !isPunctuation(r) {
			continue
		}
		size := utf8.RuneLen(r)
		if sc.done(size) {
			break
		}
		word(i)
		if start = i + size; !space {
			dst = append(dst, piece{p.text[i:start], p.atStart && i == 0})
		}
	}
	word(len(p.text))
	return dst
}

// byteLevel is the ByteLevel pre-tokenizer. rewrite spells every byte in the byte-level alphabet;
// it is off where the model takes raw bytes, which is the same thing without the detour.
type byteLevel struct {
	scanner        *scanner
	addPrefixSpace bool
	rewrite        bool
}

func (b *byteLevel) split(p piece, dst []piece, sc *scratch) []piece {
	if b.addPrefixSpace && p.text[0] != ' ' {
		p.text = " " + p.text
	}
	if b.scanner == nil {
		return append(dst, piece{b.spell(p.text), p.atStart})
	}
	for i := 0; i < len(p.text); {
		end := b.scanner.next(p.text, i)
		if sc.done(end - i) {
			break
		}
		dst = append(dst, piece{b.spell(p.text[i:end]), p.atStart && i == 0})
		i = end
	}
	return dst
}

func (b *byteLevel) spell(s string) string {
	if !b.rewrite {
		return s
	}
	return toByteAlphabet(s)
}

type prependScheme uint8

const (
	prependAlways prependScheme = iota
	prependFirst
	prependNever
)

// metaspace is the Metaspace pre-tokenizer: spaces become a visible character, which may also be
// put in front, and words are cut before it.
type metaspace struct {
	replacement string
	prepend     prependScheme
	cut         bool
}

func (m *metaspace) split(p piece, dst []piece, sc *scratch) []piece {
	p.text = replaceAll(p.text, " ", m.replacement, &sc.work)
	if !strings.HasPrefix(p.text, m.replacement) &&
		(m.prepend == prependAlways || m.prepend == prependFirst && p.atStart) {
		p.text = m.replacement + p.text
	}
	if !m.cut {
		return append(dst, p)
	}
	s := splitter{pattern: literalPattern(m.replacement), behavior: mergedWithNext}
	return s.split(p, dst, sc)
}

// metaspaceSpec is the JSON form of Metaspace, as a pre-tokenizer and as a decoder.
type metaspaceSpec struct {
	Replacement    string  `json:"replacement"`
	AddPrefixSpace *bool   `json:"add_prefix_space"`
	PrependScheme  *string `json:"prepend_scheme"`
	Split          *bool   `json:"split"`
}

func (s metaspaceSpec) compile() (*metaspace, error) {
	m := &metaspace{replacement: s.Replacement, cut: s.Split == nil || *s.Split}
	if len([]rune(s.Replacement)) != 1 {
		return nil, fmt.Errorf("replacement %q is not one character", s.Replacement)
	}
	scheme := "always"
	if s.PrependScheme != nil {
		scheme = *s.PrependScheme
	}
	switch scheme {
	case "always":
	case "first":
		m.prepend = prependFirst
	case "never":
		m.prepend = prependNever
	default:
		return nil, fmt.Errorf("prepend_scheme %q is not supported", scheme)
	}
	if s.AddPrefixSpace == nil || *s.AddPrefixSpace || m.prepend == prependNever {
		return m, nil
	}
	// Files older than prepend_scheme say "never" by add_prefix_space alone.
	if s.PrependScheme != nil {
		return nil, fmt.Errorf("add_prefix_space false contradicts prepend_scheme %q", scheme)
	}
	m.prepend = prependNever
	return m, nil
}

// parsePreTokenizer compiles the pre_tokenizer section into its steps, nested sequences flattened.
func parsePreTokenizer(data json.RawMessage) ([]preTokenizer, error) {
	return flatten(data, "pre_tokenizer", "pretokenizers", 0, new(growth), parsePreTokenizerStep)
}

func parsePreTokenizerStep(kind string, data json.RawMessage, g *growth) (preTokenizer, error) {
	var spec struct {
		Pattern          patternSpec `json:"pattern"`
		Behavior         *behavior   `json:"behavior"`
		Invert           bool        `json:"invert"`
		AddPrefixSpace   bool        `json:"add_prefix_space"`
		UseRegex         *bool       `json:"use_regex"`
		IndividualDigits bool        `json:"individual_digits"`
	}
	if kind == "Metaspace" {
		var spec metaspaceSpec
		if err := json.Unmarshal(data, &spec); err != nil {
			return nil, err
		}
		return spec.compile()
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, err
	}
	switch kind {
	case "ByteLevel":
		b := &byteLevel{addPrefixSpace: spec.AddPrefixSpace, rewrite: true}
		if spec.UseRegex == nil || *spec.UseRegex {
			b.scanner = scannerFor(patternGPT2)
		}
		return b, g.by(2)
	case "Split":
		if spec.Behavior == nil {
			return nil, fmt.Errorf("there is no behavior")
		}
		p, err := spec.Pattern.compile()
		if err != nil {
			return nil, err
		}
		return &splitter{pattern: p, behavior: *spec.Behavior, invert: spec.Invert}, nil
	case "Digits":
		s := &splitter{pattern: charPattern(isNumber), behavior: contiguous}
		if spec.IndividualDigits {
			s.behavior = isolated
		}
		return s, nil
	case "BertPreTokenizer":
		return bertWords{}, nil
	case "Whitespace":
		return &splitter{pattern: wordPattern{}, behavior: removed, invert: true}, nil
	case "WhitespaceSplit":
		return &splitter{pattern: charPattern(isSpace), behavior: removed}, nil
	case "Punctuation":
		s := &splitter{pattern: charPattern(isPunctuation)}
		if spec.Behavior != nil {
			s.behavior = *spec.Behavior
		}
		return s, nil
	}
	return nil, errUnsupported
}

// directScanner reports whether the steps amount to one scanner over raw bytes, so that no list of
// pieces is needed, and whether a space goes in front. This is every GPT-2, Llama 3 and Qwen
// tokenizer.
func directScanner(steps []preTokenizer) (sc *scanner, prefixSpace, ok bool) {
	if len(steps) == 0 {
		return nil, false, false
	}
	last, isByteLevel := steps[len(steps)-1].(*byteLevel)
	if !isByteLevel || last.rewrite {
		return nil, false, false
	}
	if len(steps) == 1 && last.scanner != nil {
		return last.scanner, last.addPrefixSpace, true
	}
	if len(steps) != 2 || last.scanner != nil || last.addPrefixSpace {
		return nil, false, false
	}
	s, isSplit := steps[0].(*splitter)
	if !isSplit {
		return nil, false, false
	}
	sc, isScanner := s.pattern.(*scanner)
	// The scanner matches every character: isolating its matches, and removing what it does not
	// match, give the same pieces.
	if isScanner && (s.behavior == isolated || s.behavior == removed && s.invert) {
		return sc, false, true
	}
	return nil, false, false
}
