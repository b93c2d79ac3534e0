package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// sentenceNormalizer is SentencePiece's own (Normalizer::Normalize in normalizer.cc), but for the
// space in front, which dummyPrefix adds.
type sentenceNormalizer struct {
	rules *charsmap
	// whole are user-defined pieces, which no rule touches; nil for none.
	whole *addedMatcher
	trim  bool
}

func (n *sentenceNormalizer) normalize(s string, w *work) string {
	if len(n.rules.units) == 0 && n.whole == nil && !n.trim && utf8.ValidString(s) {
		return replaceAll(s, " ", wordMark, w)
	}
	var b strings.Builder
	b.Grow(len(s) + len(s)/4)
	afterSpace := n.trim // as if a space were in front
	for s != "" {
		text, size := n.next(s)
		if s = s[size:]; w.done(size) {
			break
		}
		if afterSpace {
			text = strings.TrimLeft(text, " ")
		}
		for text != "" {
			word, _, space := strings.Cut(text, " ")
			b.WriteString(word)
			if text = text[len(word):]; space {
				b.WriteString(wordMark)
				text = text[1:]
			}
			afterSpace = space && text == "" && n.trim
		}
	}
	if !n.trim {
		return b.String()
	}
	out := b.String()
	for strings.HasSuffix(out, wordMark) {
		out = out[:len(out)-len(wordMark)]
	}
	return out
}

// next returns what stands for the beginning of a text, and how much of it that is: a user-defined
// piece, the longest rule, or one character.
func (n *sentenceNormalizer) next(s string) (text string, size int) {
	if n.whole != nil {
		if index, end := n.whole.longest(s, 0); index >= 0 {
			return s[:end], end
		}
	}
	if _, rule := n.rules.find(s); rule.size > 0 {
		return rule.text, rule.size
	}
	r, size := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && size == 1 {
		return string(utf8.RuneError), size // which no rule changes any more
	}
	return s[:size], size
}

// dummyPrefix puts a word mark in front of a text; always, in front of what follows an added token
// too.
type dummyPrefix struct{ always bool }

func (d dummyPrefix) split(p piece, dst []piece, sc *scratch) []piece {
	if d.always || p.atStart {
		p.text = wordMark + p.text
	}
	return append(dst, p)
}

// wholePieces cuts out user-defined pieces.
type wholePieces struct{ matcher *addedMatcher }

func (h wholePieces) split(p piece, dst []piece, sc *scratch) []piece {
	for done := 0; done < len(p.text); {
		match, ok := h.matcher.find(p.text, done, done)
		if !ok || sc.done(match.end-done) {
			return append(dst, piece{p.text[done:], p.atStart && done == 0})
		}
		if done < match.start {
			dst = append(dst, piece{p.text[done:match.start], p.atStart && done == 0})
		}
		dst = append(dst, piece{p.text[match.start:match.end], p.atStart && match.start == 0})
		done = match.end
	}
	return dst
}
