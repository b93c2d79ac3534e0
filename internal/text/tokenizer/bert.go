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

// marks8 are the differences of package unicode's nonspacing marks from those that Hugging Face
// strips of BERT's texts (crate unicode_categories, Unicode 8.0): marks that came later, and one
// that was nonspacing then. Found by comparing all characters.
var marks8 = struct{ later, former *unicode.RangeTable }{
	later: &unicode.RangeTable{
		R16: []unicode.Range16{
			{0x7fd, 0x7fd, 1}, {0x898, 0x89f, 1}, {0x8ca, 0x8e1, 1}, {0x9fe, 0x9fe, 1},
			{0xafa, 0xaff, 1}, {0xb55, 0xb55, 1}, {0xc04, 0xc04, 1}, {0xc3c, 0xc3c, 1},
			{0xd00, 0xd00, 1}, {0xd3b, 0xd3c, 1}, {0xd81, 0xd81, 1}, {0xeba, 0xeba, 1},
			{0xece, 0xece, 1}, {0x180f, 0x180f, 1}, {0x1885, 0x1886, 1}, {0x1abf, 0x1ace, 1},
			{0x1df6, 0x1dfb, 1}, {0xa82c, 0xa82c, 1}, {0xa8c5, 0xa8c5, 1}, {0xa8ff, 0xa8ff, 1},
			{0xa9bd, 0xa9bd, 1},
		},
		R32: []unicode.Range32{
			{0x10d24, 0x10d27, 1}, {0x10eab, 0x10eac, 1}, {0x10efd, 0x10eff, 1},
			{0x10f46, 0x10f50, 1}, {0x10f82, 0x10f85, 1}, {0x11070, 0x11070, 1},
			{0x11073, 0x11074, 1}, {0x110c2, 0x110c2, 1}, {0x111c9, 0x111c9, 1},
			{0x111cf, 0x111cf, 1}, {0x1123e, 0x1123e, 1}, {0x11241, 0x11241, 1},
			{0x1133b, 0x1133b, 1}, {0x11438, 0x1143f, 1}, {0x11442, 0x11444, 1},
			{0x11446, 0x11446, 1}, {0x1145e, 0x1145e, 1}, {0x1182f, 0x11837, 1},
			{0x11839, 0x1183a, 1}, {0x1193b, 0x1193c, 1}, {0x1193e, 0x1193e, 1},
			{0x11943, 0x11943, 1}, {0x119d4, 0x119d7, 1}, {0x119da, 0x119db, 1},
			{0x119e0, 0x119e0, 1}, {0x11a01, 0x11a0a, 1}, {0x11a33, 0x11a38, 1},
			{0x11a3b, 0x11a3e, 1}, {0x11a47, 0x11a47, 1}, {0x11a51, 0x11a56, 1},
			{0x11a59, 0x11a5b, 1}, {0x11a8a, 0x11a96, 1}, {0x11a98, 0x11a99, 1},
			{0x11c30, 0x11c36, 1}, {0x11c38, 0x11c3d, 1}, {0x11c3f, 0x11c3f, 1},
			{0x11c92, 0x11ca7, 1}, {0x11caa, 0x11cb0, 1}, {0x11cb2, 0x11cb3, 1},
			{0x11cb5, 0x11cb6, 1}, {0x11d31, 0x11d36, 1}, {0x11d3a, 0x11d3a, 1},
			{0x11d3c, 0x11d3d, 1}, {0x11d3f, 0x11d45, 1}, {0x11d47, 0x11d47, 1},
			{0x11d90, 0x11d91, 1}, {0x11d95, 0x11d95, 1}, {0x11d97, 0x11d97, 1},
			{0x11ef3, 0x11ef4, 1}, {0x11f00, 0x11f01, 1}, {0x11f36, 0x11f3a, 1},
			{0x11f40, 0x11f40, 1}, {0x11f42, 0x11f42, 1}, {0x13440, 0x13440, 1},
			{0x13447, 0x13455, 1}, {0x16f4f, 0x16f4f, 1}, {0x16fe4, 0x16fe4, 1},
			{0x1cf00, 0x1cf2d, 1}, {0x1cf30, 0x1cf46, 1}, {0x1e000, 0x1e006, 1},
			{0x1e008, 0x1e018, 1}, {0x1e01b, 0x1e021, 1}, {0x1e023, 0x1e024, 1},
			{0x1e026, 0x1e02a, 1}, {0x1e08f, 0x1e08f, 1}, {0x1e130, 0x1e136, 1},
			{0x1e2ae, 0x1e2ae, 1}, {0x1e2ec, 0x1e2ef, 1}, {0x1e4ec, 0x1e4ef, 1},
			{0x1e944, 0x1e94a, 1},
		},
	},
	former: &unicode.RangeTable{R16: []unicode.Range16{{0x1734, 0x1734, 1}}},
}

func stripNonspacing(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x300 && (unicode.Is(unicode.Mn, r) && !unicode.Is(marks8.later, r) ||
			unicode.Is(marks8.former, r)) {
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
