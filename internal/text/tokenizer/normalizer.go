package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a part of the input before it is cut into pieces.
type normalizer func(string, *work) string

// parseNormalizer compiles the normalizer section into its steps, nested sequences flattened.
func parseNormalizer(data json.RawMessage) ([]normalizer, error) {
	return flatten(data, "normalizer", "normalizers", 0, new(growth), parseNormalizerStep)
}

func parseNormalizerStep(kind string, data json.RawMessage, g *growth) (normalizer, error) {
	var spec struct {
		StripLeft  bool        `json:"strip_left"`
		StripRight bool        `json:"strip_right"`
		Prepend    string      `json:"prepend"`
		Pattern    patternSpec `json:"pattern"`
		Content    string      `json:"content"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, err
	}
	switch kind {
	case "NFC":
		return canonical(norm.NFC, norm.NFD), nil
	case "NFD":
		return canonical(norm.NFD, norm.NFD), nil
	case "NFKC":
		return canonical(norm.NFKC, norm.NFKD), nil
	case "NFKD":
		return canonical(norm.NFKD, norm.NFKD), nil
	case "Lowercase":
		return eachChar(lowercase), nil
	case "StripAccents":
		return eachChar(stripAccents), nil
	case "ByteLevel":
		return eachChar(toByteAlphabet), g.by(2)
	case "Strip":
		return func(s string, _ *work) string {
			if spec.StripLeft {
				s = strings.TrimLeftFunc(s, isSpace)
			}
			if spec.StripRight {
				s = strings.TrimRightFunc(s, isSpace)
			}
			return s
		}, nil
	case "Prepend":
		return func(s string, _ *work) string {
			if s == "" {
				return s
			}
			return spec.Prepend + s
		}, g.by(len(spec.Prepend) + 1)
	case "BertNormalizer":
		var spec bertNormalizer
		if err := json.Unmarshal(data, &spec); err != nil {
			return nil, err
		}
		return spec.compile(), nil
	case "Precompiled":
		var spec struct {
			Charsmap []byte `json:"precompiled_charsmap"`
		}
		if err := json.Unmarshal(data, &spec); err != nil {
			return nil, err
		}
		m, err := parseCharsmap(spec.Charsmap)
		if err != nil {
			return nil, err
		}
		return m.byGraphemes, g.by(maxRule)
	case "Replace":
		p, err := spec.Pattern.compile()
		if err != nil {
			return nil, err
		}
		return replacer(p, spec.Content), g.by(growthOf(p, spec.Content))
	}
	return nil, errUnsupported
}

// growthOf is what a replacer makes of a text's length at most.
func growthOf(p pattern, content string) int {
	if literal, ok := p.(literalPattern); ok {
		return (len(content) + len(literal) - 1) / len(literal)
	}
	return len(content) + 1 // it may match between two characters
}

// replacer puts content in the place of every match; content is taken literally.
func replacer(p pattern, content string) normalizer {
	if literal, ok := p.(literalPattern); ok {
		return func(s string, w *work) string { return replaceAll(s, string(literal), content, w) }
	}
	return func(s string, w *work) string {
		var b strings.Builder
		for _, sp := range p.find(s, nil, w) {
			if sp.match {
				b.WriteString(content)
			} else {
				b.WriteString(s[sp.start:sp.end])
			}
		}
		return b.String()
	}
}

// eachChar is the normalizer that rewrites each character by itself.
func eachChar(f func(string) string) normalizer {
	return func(s string, w *work) string { return inParts(s, w, anywhere, f) }
}

// lower16 are the upper-case letters of Unicode 16 beyond package unicode (Unicode 15.0), with the
// distance to their lower case, from UnicodeData.txt.
var lower16 = []struct {
	lo, hi rune
	delta  rune
}{
	{0x1c89, 0x1c89, 1}, {0xa7cb, 0xa7cb, 0x264 - 0xa7cb}, {0xa7cc, 0xa7cc, 1}, {0xa7da, 0xa7da, 1},
	{0xa7dc, 0xa7dc, 0x19b - 0xa7dc}, {0x10d50, 0x10d65, 0x20},
}

// lowercase lowers every character by itself, as Rust's char::to_lowercase does: no final sigma,
// and U+0130 becomes two characters.
func lowercase(s string) string {
	if !strings.ContainsRune(s, 'İ') {
		return strings.Map(lowerRune, s)
	}
	parts := strings.Split(s, "İ")
	for i, part := range parts {
		parts[i] = strings.Map(lowerRune, part)
	}
	return strings.Join(parts, "i\u0307")
}

func lowerRune(r rune) rune {
	if l := unicode.ToLower(r); l != r || r < lower16[0].lo {
		return l
	}
	for _, rg := range lower16 {
		if r >= rg.lo && r <= rg.hi {
			return r + rg.delta
		}
	}
	return r
}

// stripAccents drops the combining marks of Unicode 9 (see after9).
func stripAccents(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x300 && unicode.IsMark(r) && !unicode.Is(after9, r) {
			return -1
		}
		return r
	}, s)
}

// after9 are the characters assigned between Unicode 9.0 and 17.0 that are marks or have a
// decomposition. Hugging Face normalizes with the tables of Unicode 9.0 (crate
// unicode-normalization-alignments 0.1.12), which leave all of them alone, and so must we.
// The ranges were computed from Python's unicodedata 9.0.0 and ICU's 17.0.
var after9 = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x7fd, 0x7fd, 1}, {0x897, 0x89f, 1}, {0x8ca, 0x8d3, 1}, {0x9fe, 0x9fe, 1},
		{0xafa, 0xaff, 1},
		{0xb55, 0xb55, 1}, {0xc04, 0xc04, 1}, {0xc3c, 0xc3c, 1}, {0xcf3, 0xcf3, 1},
		{0xd00, 0xd00, 1},
		{0xd3b, 0xd3c, 1}, {0xd81, 0xd81, 1}, {0xeba, 0xeba, 1}, {0xece, 0xece, 1},
		{0x1715, 0x1715, 1},
		{0x180f, 0x180f, 1}, {0x1abf, 0x1add, 1}, {0x1ae0, 0x1aeb, 1}, {0x1cf7, 0x1cf7, 1},
		{0x1df6, 0x1dfa, 1}, {0x32ff, 0x32ff, 1}, {0xa7f1, 0xa7f4, 1}, {0xa82c, 0xa82c, 1},
		{0xa8ff, 0xa8ff, 1}, {0xab69, 0xab69, 1},
	},
	R32: []unicode.Range32{
		{0x105c9, 0x105c9, 1}, {0x105e4, 0x105e4, 1}, {0x10781, 0x10785, 1}, {0x10787, 0x107b0, 1},
		{0x107b2, 0x107ba, 1}, {0x10d24, 0x10d27, 1}, {0x10d69, 0x10d6d, 1}, {0x10eab, 0x10eac, 1},
		{0x10efa, 0x10eff, 1}, {0x10f46, 0x10f50, 1}, {0x10f82, 0x10f85, 1}, {0x11070, 0x11070, 1},
		{0x11073, 0x11074, 1}, {0x110c2, 0x110c2, 1}, {0x11145, 0x11146, 1}, {0x111ce, 0x111cf, 1},
		{0x11241, 0x11241, 1}, {0x1133b, 0x1133b, 1}, {0x11383, 0x11383, 1}, {0x11385, 0x11385, 1},
		{0x1138e, 0x1138e, 1}, {0x11391, 0x11391, 1}, {0x113b8, 0x113c0, 1}, {0x113c2, 0x113c2, 1},
		{0x113c5, 0x113c5, 1}, {0x113c7, 0x113ca, 1}, {0x113cc, 0x113d0, 1}, {0x113d2, 0x113d2, 1},
		{0x113e1, 0x113e2, 1}, {0x1145e, 0x1145e, 1}, {0x1182c, 0x1183a, 1}, {0x11930, 0x11935, 1},
		{0x11937, 0x11938, 1}, {0x1193b, 0x1193e, 1}, {0x11940, 0x11940, 1}, {0x11942, 0x11943, 1},
		{0x119d1, 0x119d7, 1}, {0x119da, 0x119e0, 1}, {0x119e4, 0x119e4, 1}, {0x11a01, 0x11a0a, 1},
		{0x11a33, 0x11a39, 1}, {0x11a3b, 0x11a3e, 1}, {0x11a47, 0x11a47, 1}, {0x11a51, 0x11a5b, 1},
		{0x11a8a, 0x11a99, 1}, {0x11b60, 0x11b67, 1}, {0x11d31, 0x11d36, 1}, {0x11d3a, 0x11d3a, 1},
		{0x11d3c, 0x11d3d, 1}, {0x11d3f, 0x11d45, 1}, {0x11d47, 0x11d47, 1}, {0x11d8a, 0x11d8e, 1},
		{0x11d90, 0x11d91, 1}, {0x11d93, 0x11d97, 1}, {0x11ef3, 0x11ef6, 1}, {0x11f00, 0x11f01, 1},
		{0x11f03, 0x11f03, 1}, {0x11f34, 0x11f3a, 1}, {0x11f3e, 0x11f42, 1}, {0x11f5a, 0x11f5a, 1},
		{0x13440, 0x13440, 1}, {0x13447, 0x13455, 1}, {0x1611e, 0x1612f, 1}, {0x16d68, 0x16d6a, 1},
		{0x16f4f, 0x16f4f, 1}, {0x16f7f, 0x16f87, 1}, {0x16fe4, 0x16fe4, 1}, {0x16ff0, 0x16ff1, 1},
		{0x1ccd6, 0x1ccf9, 1}, {0x1cf00, 0x1cf2d, 1}, {0x1cf30, 0x1cf46, 1}, {0x1e030, 0x1e06d, 1},
		{0x1e08f, 0x1e08f, 1}, {0x1e130, 0x1e136, 1}, {0x1e2ae, 0x1e2ae, 1}, {0x1e2ec, 0x1e2ef, 1},
		{0x1e4ec, 0x1e4ef, 1}, {0x1e5ee, 0x1e5ef, 1}, {0x1e6e3, 0x1e6e3, 1}, {0x1e6e6, 0x1e6e6, 1},
		{0x1e6ee, 0x1e6ef, 1}, {0x1e6f5, 0x1e6f5, 1}, {0x1f16c, 0x1f16c, 1}, {0x1fbf0, 0x1fbf9, 1},
	},
}

// canonical returns the normalizer for one of the four Unicode forms; decompose is the form that
// only decomposes, in the same (canonical or compatibility) sense.
func canonical(form, decompose norm.Form) normalizer {
	return func(s string, w *work) string {
		if isASCII(s) {
			return s
		}
		// No character changes what is before one that begins a segment, nor that one itself.
		boundary := func(s string, end int) int {
			for end < len(s) && !form.PropertiesString(s[end:]).BoundaryBefore() {
				_, n := utf8.DecodeRuneInString(s[end:])
				if end += n; w.done(n) {
					break
				}
			}
			return end
		}
		return inParts(s, w, boundary, func(s string) string {
			return normalizeText(s, form, decompose, w)
		})
	}
}

func normalizeText(s string, form, decompose norm.Form, w *work) string {
	if form.IsNormalString(s) {
		return s
	}
	// Characters that Unicode 9 did not know are starters that neither change nor combine, so the
	// text between them normalizes by itself.
	var b strings.Builder
	start := 0
	for i, r := range s {
		if r >= 0x7fd && unicode.Is(after9, r) {
			b.WriteString(normalizeKnown(s[start:i], form, decompose, w))
			b.WriteRune(r)
			start = i + len(string(r))
		}
	}
	if start == 0 {
		return normalizeKnown(s, form, decompose, w)
	}
	b.WriteString(normalizeKnown(s[start:], form, decompose, w))
	return b.String()
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// maxNonStarters is the number of combining characters after which package norm inserts U+034F to
// make its output stream-safe (UAX #15-D4). Hugging Face inserts nothing, so text with long runs
// goes another way.
const maxNonStarters = 30

func normalizeKnown(s string, form, decompose norm.Form, w *work) string {
	if !hasLongRun(s, decompose) {
		return form.String(s)
	}
	return normalizeLong(s, form, decompose, w)
}

// hasLongRun reports whether decomposing s may yield more than maxNonStarters combining characters
// in a row. One character decomposes into at most a few of them, hence the margin.
func hasLongRun(s string, decompose norm.Form) bool {
	run := 0
	for i, r := range s {
		if r < 0x300 {
			run = 0
			continue
		}
		p := decompose.PropertiesString(s[i:])
		switch {
		case p.CCC() != 0:
			run++
		case p.TrailCCC() != 0:
			run = 4
		default:
			run = 0
		}
		if run*4 > maxNonStarters {
			return true
		}
	}
	return false
}

// normalizeLong normalizes by the definition (UAX #15, section 1.3: decompose, order canonically,
// compose), without a bound on the run of combining characters.
func normalizeLong(s string, form, decompose norm.Form, w *work) string {
	var chars []char
	for _, r := range s {
		if w.done(8) { // slower than most
			return ""
		}
		for _, d := range decompose.String(string(r)) {
			chars = append(chars, char{d, decompose.PropertiesString(string(d)).CCC()})
		}
	}
	for start := 0; start < len(chars); {
		end := start + 1
		for end < len(chars) && chars[end].ccc != 0 {
			end++
		}
		from := start
		if chars[start].ccc == 0 {
			from++
		}
		orderByClass(chars[from:end])
		start = end
	}
	composes := form == norm.NFC || form == norm.NFKC
	var out []rune
	// where the starter is in out, and the class of what was written last
	starter, last := -1, uint8(0)
	for _, c := range chars {
		if w.done(8) {
			return ""
		}
		if composes && starter >= 0 && (len(out) == starter+1 || last != 0 && last < c.ccc) {
			if r, ok := composePair(out[starter], c.r); ok {
				out[starter] = r
				continue
			}
		}
		out = append(out, c.r)
		last = c.ccc
		if c.ccc == 0 {
			starter = len(out) - 1
		}
	}
	return string(out)
}

// char is a character with its combining class.
type char struct {
	r   rune
	ccc uint8
}

// orderByClass sorts a run of characters by their class and keeps the order within one. It takes
// linear time: a text may be one run.
func orderByClass(run []char) {
	if slices.IsSortedFunc(run, func(a, b char) int { return int(a.ccc) - int(b.ccc) }) {
		return
	}
	var at [257]int
	for _, c := range run {
		at[int(c.ccc)+1]++
	}
	for i := range 256 {
		at[i+1] += at[i]
	}
	for _, c := range slices.Clone(run) {
		run[at[c.ccc]] = c
		at[c.ccc]++
	}
}

// composePair returns the primary composite of two characters, if they have one.
func composePair(a, b rune) (rune, bool) {
	pair := string([]rune{a, b})
	composed := norm.NFC.String(pair)
	if composed == pair {
		return 0, false
	}
	runes := []rune(composed)
	return runes[0], len(runes) == 1
}

func normalize(steps []normalizer, s string, w *work) string {
	for _, step := range steps {
		s = step(s, w)
	}
	return s
}
