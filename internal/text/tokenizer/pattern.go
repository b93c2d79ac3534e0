package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// regexTimeout bounds one search of a pattern that backtracks, so that a text made to exploit it
// costs a bounded time. What is left of the text then counts as unmatched.
const regexTimeout = 2 * time.Second

// span is a part of a text and whether the pattern matched it.
type span struct {
	start, end int
	match      bool
}

// pattern finds its matches in a text. It appends to spans a list that covers the whole text in
// order, matched and unmatched parts in turn, as Hugging Face's Pattern::find_matches does.
type pattern interface {
	find(text string, spans []span, w *work) []span
}

// charPattern matches single characters.
type charPattern func(rune) bool

func (p charPattern) find(text string, spans []span, w *work) []span {
	rest := 0
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if w.done(n) {
			break
		}
		if p(r) {
			if rest < i {
				spans = append(spans, span{rest, i, false})
			}
			spans = append(spans, span{i, i + n, true})
			rest = i + n
		}
		i += n
	}
	return appendRest(spans, rest, len(text))
}

func appendRest(spans []span, from, end int) []span {
	if from < end {
		spans = append(spans, span{from, end, false})
	}
	return spans
}

// wordPattern is \w+|[^\w\s]+, the pattern of the Whitespace pre-tokenizer.
type wordPattern struct{}

func (wordPattern) find(text string, spans []span, w *work) []span {
	kindOf := func(r rune) uint8 {
		switch {
		case isWordChar(r):
			return classLetter
		case classOf(r) == classSpace:
			return classSpace
		}
		return classOther
	}
	start, kind := 0, classOther
	for i, r := range text {
		if w.done(1) {
			break
		}
		k := kindOf(r)
		if i > start && k != kind {
			spans = append(spans, span{start, i, kind != classSpace})
			start = i
		}
		kind = k
	}
	if start < len(text) {
		spans = append(spans, span{start, len(text), kind != classSpace})
	}
	return spans
}

// literalPattern matches a fixed string that is not empty.
type literalPattern string

func (p literalPattern) find(text string, spans []span, w *work) []span {
	rest := 0
	for {
		i := strings.Index(text[rest:], string(p))
		if i < 0 || w.done(i+len(p)) {
			return appendRest(spans, rest, len(text))
		}
		spans = appendRest(spans, rest, rest+i)
		spans = append(spans, span{rest + i, rest + i + len(p), true})
		rest += i + len(p)
	}
}

// find makes a scanner a pattern; its matches cover the text.
func (sc *scanner) find(text string, spans []span, w *work) []span {
	for i := 0; i < len(text); {
		end := sc.next(text, i)
		if w.done(end - i) {
			break
		}
		spans = append(spans, span{i, end, true})
		i = end
	}
	return spans
}

// regexPattern runs any other regular expression on a backtracking engine.
type regexPattern struct {
	re *regexp2.Regexp
}

// newRegexPattern compiles expr. In Oniguruma's syntax, which Hugging Face's files are written for,
// ^ and $ match at every line.
func newRegexPattern(expr string) (*regexPattern, error) {
	re, err := regexp2.Compile(expr, regexp2.Multiline)
	if err != nil {
		return nil, fmt.Errorf("pattern %q is not supported: %w", expr, err)
	}
	re.MatchTimeout = regexTimeout
	return &regexPattern{re: re}, nil
}

func (p *regexPattern) find(text string, spans []span, w *work) []span {
	runes := []rune(text)
	at, offset := 0, 0 // the same place counted in characters and in bytes
	advance := func(to int) int {
		for ; at < to; at++ {
			offset += utf8.RuneLen(runes[at])
		}
		return offset
	}
	rest := 0
	lastEnd := -1
	// A search that fails (time or stack) leaves the remaining text unmatched.
	_ = p.re.FindRunesMatches(runes, 0, func(view regexp2.MatchView) bool {
		index, length, _ := view.GroupRange(0)
		if length == 0 && index == lastEnd {
			return true
		}
		lastEnd = index + length
		start := advance(index)
		end := advance(lastEnd)
		spans = appendRest(spans, rest, start)
		spans = append(spans, span{start, end, true})
		rest = end
		return !w.done(length)
	})
	return appendRest(spans, rest, len(text))
}

// patternSpec is the JSON form of a pattern: {"String": …} or {"Regex": …}.
type patternSpec struct {
	String *string
	Regex  *string
}

func (p patternSpec) compile() (pattern, error) {
	switch {
	case p.String != nil && *p.String != "":
		return literalPattern(*p.String), nil
	case p.Regex != nil && *p.Regex != "":
		if sc := scannerFor(*p.Regex); sc != nil {
			return sc, nil
		}
		return newRegexPattern(*p.Regex)
	}
	return nil, fmt.Errorf("pattern is empty or neither String nor Regex")
}

// behavior says what becomes of the matched parts when a text is split.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func (b *behavior) UnmarshalJSON(data []byte) error {
	var name string
	if err := json.Unmarshal(data, &name); err != nil {
		return err
	}
	switch name {
	case "Isolated":
		*b = isolated
	case "Removed":
		*b = removed
	case "MergedWithPrevious":
		*b = mergedWithPrevious
	case "MergedWithNext":
		*b = mergedWithNext
	case "Contiguous":
		*b = contiguous
	default:
		return fmt.Errorf("split behavior %q is not supported", name)
	}
	return nil
}

// apply turns the spans of a text into the spans to keep, in place. It follows
// NormalizedString::split of Hugging Face's tokenizers.
func (b behavior) apply(spans []span) []span {
	kept := spans[:0]
	previous := false
	switch b {
	case isolated:
		return spans
	case removed:
		for _, s := range spans {
			if !s.match {
				kept = append(kept, s)
			}
		}
		return kept
	case mergedWithNext:
		// The same fold as mergedWithPrevious, from the end: fill the slice from the back.
		at := len(spans)
		for i := len(spans) - 1; i >= 0; i-- {
			s := spans[i]
			if s.match && !previous && at < len(spans) {
				spans[at].start = s.start
			} else {
				at--
				spans[at] = s
			}
			previous = s.match
		}
		return spans[at:]
	}
	for _, s := range spans {
		joins := s.match && !previous
		if b == contiguous {
			joins = s.match == previous
		}
		if joins && len(kept) > 0 {
			kept[len(kept)-1].end = s.end
		} else {
			kept = append(kept, s)
		}
		previous = s.match
	}
	return kept
}
