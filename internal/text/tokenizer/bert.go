package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// bertNormalizer is BertNormalizer of tokenizer.json, with its defaults.
type bertNormalizer struct {
	CleanText    *bool `json:"clean_text"`
	Chinese      *bool `json:"handle_chinese_chars"`
	StripAccents *bool `json:"strip_accents"` // as Lowercase when it is missing
	Lowercase    *bool `json:"lowercase"`
}

func isTrue(b *bool) bool { return b == nil || *b }

// compile returns the steps: what is not text goes and white space becomes spaces; ideographs get
// spaces around them; accents go; letters become small.
func (b bertNormalizer) compile() normalizer {
	var steps []normalizer
	if isTrue(b.CleanText) {
		steps = append(steps, eachChar(cleanText))
	}
	if isTrue(b.Chinese) {
		steps = append(steps, eachChar(spaceIdeographs))
	}
	if b.StripAccents != nil && *b.StripAccents || b.StripAccents == nil && isTrue(b.Lowercase) {
		steps = append(steps, canonical(norm.NFD, norm.NFD), eachChar(stripNonspacing))
	}
	if isTrue(b.Lowercase) {
		steps = append(steps, eachChar(lowercase))
	}
	return func(s string, w *work) string { return normalize(steps, s, w) }
}

// notOther8 are control and format characters that Hugging Face (crate unicode_categories, Unicode
// 8.0) does not count as such. Found by comparing all characters.
var notOther8 = &unicode.RangeTable{
	R16: []unicode.Range16{{0x890, 0x891, 1}, {0x8e2, 0x8e2, 1}},
	R32: []unicode.Range32{{0x110cd, 0x110cd, 1}, {0x13430, 0x1343f, 1}},
}

func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r == unicode.ReplacementChar:
			return -1
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co) && !unicode.Is(notOther8, r):
			return -1
		case isSpace(r):
			return ' '
		}
		return r
	}, s)
}

// ideographs are those that BERT knows; the gap before U+2B920 is Hugging Face's.
var ideographs = &unicode.RangeTable{
	R16: []unicode.Range16{{0x3400, 0x4dbf, 1}, {0x4e00, 0x9fff, 1}, {0xf900, 0xfaff, 1}},
	R32: []unicode.Range32{{0x20000, 0x2a6df, 1}, {0x2a700, 0x2b73f, 1}, {0x2b740, 0x2b81f, 1},
		{0x2b920, 0x2ceaf, 1}, {0x2f800, 0x2fa1f, 1}},
}

func spaceIdeographs(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		if r >= 0x3400 && unicode.Is(ideographs, r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func stripNonspacing(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x300 && unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, s)
}

// cleanup is what the WordPiece decoder does to each token unless its cleanup is false: the spaces
// that BERT's words put around punctuation go.
var cleanup = func() func(string) string {
	pairs := [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"},
		{" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"},
		{" 're", "'re"}}
	return func(token string) string {
		for _, p := range pairs {
			token = strings.ReplaceAll(token, p[0], p[1])
		}
		return token
	}
}()

// wordPieceStep is the WordPiece decoder: words are joined by spaces, and what goes on a word loses
// its prefix.
type wordPieceStep struct {
	Prefix  string `json:"prefix"`
	Cleanup *bool  `json:"cleanup"`
}

// apply rewrites a token. first says that no token is before it.
func (w *wordPieceStep) apply(token string, first bool) string {
	if !first {
		if rest, ok := strings.CutPrefix(token, w.Prefix); ok {
			token = rest
		} else {
			token = " " + token
		}
	}
	if isTrue(w.Cleanup) {
		token = cleanup(token)
	}
	return token
}

// wordPieceStage takes whole tokens.
type wordPieceStage struct {
	step  *wordPieceStep
	later bool // the first token is over
	next  stage
}

func (p *wordPieceStage) push(s string, last bool) {
	p.next.push(p.step.apply(s, !p.later), last)
	p.later = true
}

func (p *wordPieceStage) flush() { p.next.flush() }

func (p *wordPieceStage) passes(s string, last bool) bool { return false }

func (p *wordPieceStage) clone(buffer *textBuffer) stage {
	return &wordPieceStage{step: p.step, later: p.later, next: p.next.clone(buffer)}
}
