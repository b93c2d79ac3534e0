package regex

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// normal sorts ranges and joins those that touch.
func normal(ranges []rune) []rune {
	pairs := make([][2]rune, 0, len(ranges)/2)
	for i := 0; i+1 < len(ranges); i += 2 {
		pairs = append(pairs, [2]rune{ranges[i], ranges[i+1]})
	}
	slices.SortFunc(pairs, func(a, b [2]rune) int { return int(a[0] - b[0]) })
	var out []rune
	for _, p := range pairs {
		if n := len(out); n > 0 && p[0] <= out[n-1]+1 {
			out[n-1] = max(out[n-1], p[1])
			continue
		}
		out = append(out, p[0], p[1])
	}
	return out
}

// Negate is the ranges of all characters but those of ranges, for Runes.
func Negate(ranges []rune) []rune {
	var out []rune
	next := rune(0)
	for r := normal(ranges); len(r) > 0; r = r[2:] {
		if r[0] > next {
			out = append(out, next, r[0]-1)
		}
		next = r[1] + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, next, utf8.MaxRune)
	}
	return out
}

// folded adds the other cases of every character, where case is ignored.
func (p *parser) folded(ranges []rune) []rune {
	if !p.IgnoreCase {
		return ranges
	}
	const lastCased = 0x1E943
	out := ranges
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := ranges[i]; r <= min(ranges[i+1], lastCased); r++ {
			if r&63 == 0 && !p.b.spend() {
				p.err = ErrFuel
				return ranges
			}
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				out = append(out, f, f)
			}
		}
	}
	return normal(out)
}

var (
	digits = []rune{'0', '9'}
	word   = []rune{'0', '9', 'A', 'Z', '_', '_', 'a', 'z'}
	space  = []rune{'\t', '\r', ' ', ' ', 0xA0, 0xA0, 0x1680, 0x1680, 0x2000, 0x200A, 0x2028,
		0x2029, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF}
)

// escape reads a backslash outside of brackets.
func (p *parser) escape() (t *term, fixed bool) {
	if p.at+1 >= len(p.src) {
		p.fail("a backslash at the end")
		return nil, true
	}
	switch c := p.src[p.at+1]; {
	case c == 'b' || c == 'B':
		p.at += 2
		return &term{kind: tWord, negated: c == 'B', ranges: p.folded(word), holds: 1 << tWord},
			true
	case c == 'k' || c >= '1' && c <= '9':
		p.refuse("a back reference")
		return nil, true
	case p.Python && c == 'A':
		p.at += 2
		return &term{kind: tBegin, holds: 1 << tBegin}, true
	case p.Python && (c == 'Z' || c == 'z'):
		p.at += 2
		return &term{kind: tEnd, holds: 1 << tEnd}, true
	}
	set, _ := p.escaped()
	return p.class(p.folded(set)), false
}

// escaped reads an escape for one character or a set of them, and says whether it is one.
func (p *parser) escaped() (set []rune, single bool) {
	p.at++
	if p.at >= len(p.src) {
		p.fail("a backslash at the end")
		return nil, false
	}
	c := p.rune()
	one := func(r rune) ([]rune, bool) { return []rune{r, r}, true }
	switch c {
	case 'd':
		return digits, false
	case 'D':
		return Negate(digits), false
	case 'w':
		return word, false
	case 'W':
		return Negate(word), false
	case 's':
		return space, false
	case 'S':
		return Negate(space), false
	case 'p', 'P':
		set := p.property()
		if c == 'P' {
			set = Negate(set)
		}
		return set, false
	case 't':
		return one('\t')
	case 'n':
		return one('\n')
	case 'r':
		return one('\r')
	case 'v':
		return one('\v')
	case 'f':
		return one('\f')
	case 'a':
		if p.Python {
			return one('\a')
		}
	case '0':
		return one(0)
	case 'c':
		if p.at < len(p.src) && unicode.IsLetter(rune(p.src[p.at])) && p.src[p.at] < 0x80 {
			p.at++
			return one(rune(p.src[p.at-1]) & 31)
		}
	case 'x':
		if r := p.hex(2); r >= 0 {
			return one(r)
		}
	case 'u':
		if r := p.unicode(); r >= 0 {
			return one(r)
		}
	default:
		if c >= 0x80 || !isWord(byte(c)) || c == '_' {
			return one(c) // itself
		}
	}
	if p.err == nil {
		p.at--
		p.fail(`unknown escape \%c`, c)
	}
	return nil, false
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func (p *parser) hex(n int) rune {
	if p.at+n > len(p.src) {
		return -1
	}
	v, err := strconv.ParseUint(p.src[p.at:p.at+n], 16, 32)
	if err != nil {
		return -1
	}
	p.at += n
	return rune(v)
}

// unicode reads what follows \u: four digits, two surrogates, or a number in braces.
func (p *parser) unicode() rune {
	if p.peek("{") {
		end := strings.IndexByte(p.src[p.at:], '}')
		if end < 2 || end > 9 {
			return -1
		}
		v, err := strconv.ParseUint(p.src[p.at+1:p.at+end], 16, 32)
		if err != nil || v > utf8.MaxRune {
			return -1
		}
		p.at += end + 1
		return rune(v)
	}
	r := p.hex(4)
	if r >= 0xD800 && r < 0xDC00 && p.peek(`\u`) {
		back := p.at
		p.at += 2
		if low := p.hex(4); low >= 0xDC00 && low < 0xE000 {
			return 0x10000 + (r-0xD800)<<10 + (low - 0xDC00)
		}
		p.at = back
	}
	return r
}

// brackets reads a class after its opening bracket.
func (p *parser) brackets() []rune {
	negated := p.take("^")
	var set []rune
	for first := true; ; first = false {
		if p.at >= len(p.src) {
			p.fail("missing ]")
			return nil
		}
		if p.peek("]") && !(first && p.Python) {
			p.at++
			break
		}
		lo, single := p.member()
		set = append(set, lo...)
		if !single || !p.peek("-") || p.at+1 >= len(p.src) || p.src[p.at+1] == ']' {
			continue
		}
		p.at++
		hi, single := p.member()
		if !single { // [a-\d]: the three of them, as without the flag u
			set = append(append(set, '-', '-'), hi...)
			continue
		}
		if hi[0] < lo[0] {
			p.fail("a range from %q to %q", lo[0], hi[0])
			return nil
		}
		set = append(set, lo[0], hi[0])
	}
	set = p.folded(set)
	if negated {
		return Negate(set)
	}
	return normal(set)
}

func (p *parser) member() (set []rune, single bool) {
	if p.err != nil || p.at >= len(p.src) {
		p.fail("missing ]")
		return []rune{0, 0}, true
	}
	if p.src[p.at] != '\\' {
		r := p.rune()
		return []rune{r, r}, true
	}
	if p.take(`\b`) {
		return []rune{'\b', '\b'}, true
	}
	set, single = p.escaped()
	if p.err != nil {
		return []rune{0, 0}, true
	}
	return set, single
}

// longCategory has the long names of general categories.
var longCategory = map[string]string{
	"Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
	"Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
	"Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
	"Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl",
	"Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
	"Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
	"Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
	"Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
	"Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
	"Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf",
	"Private_Use": "Co", "Surrogate": "Cs",
}

// property reads what follows \p.
func (p *parser) property() []rune {
	end := -1
	if p.peek("{") {
		end = strings.IndexByte(p.src[p.at:], '}')
	}
	if end < 0 {
		p.fail(`\p without a name in braces`)
		return nil
	}
	whole := p.src[p.at+1 : p.at+end]
	key, name, named := strings.Cut(whole, "=")
	if !named {
		key, name = "", whole
	}
	var tables []*unicode.RangeTable
	if short := longCategory[name]; short != "" {
		name = short
	}
	switch key {
	case "Script", "sc", "Script_Extensions", "scx":
		tables = append(tables, unicode.Scripts[name])
	case "General_Category", "gc", "":
		if name == "LC" {
			tables = append(tables, unicode.Lu, unicode.Ll, unicode.Lt)
			break
		}
		tables = append(tables, unicode.Categories[name])
		if key != "" || tables[0] != nil {
			break
		}
		switch name {
		case "Any":
			p.at += end + 1
			return []rune{0, utf8.MaxRune}
		case "ASCII":
			p.at += end + 1
			return []rune{0, 0x7F}
		case "Alphabetic", "Alpha":
			tables = []*unicode.RangeTable{unicode.L, unicode.Nl, unicode.Other_Alphabetic}
		case "Uppercase", "Upper":
			tables = []*unicode.RangeTable{unicode.Lu, unicode.Other_Uppercase}
		case "Lowercase", "Lower":
			tables = []*unicode.RangeTable{unicode.Ll, unicode.Other_Lowercase}
		default:
			tables[0] = unicode.Properties[name]
		}
	default:
		tables = append(tables, nil)
	}
	var set []rune
	for _, t := range tables {
		if t == nil {
			p.fail("unknown property %q", whole)
			return nil
		}
		for _, r := range t.R16 {
			set = stride(set, rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range t.R32 {
			set = stride(set, rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	p.at += end + 1
	return normal(set)
}

func stride(set []rune, lo, hi, step rune) []rune {
	if step == 1 {
		return append(set, lo, hi)
	}
	for r := lo; r <= hi; r += step {
		set = append(set, r, r)
	}
	return set
}
