// Package pytext has what Python's str knows about characters: classes, cases, lines and words.
package pytext

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// IsSpace is Python's str.isspace for one character.
func IsSpace(r rune) bool {
	switch {
	case r <= ' ':
		return r == ' ' || r >= '\t' && r <= '\r' || r >= 0x1c && r <= 0x1f
	case r < 0x1680:
		return r == 0x85 || r == 0xa0
	default:
		return r == 0x1680 || r >= 0x2000 && r <= 0x200a || r == 0x2028 || r == 0x2029 ||
			r == 0x202f || r == 0x205f || r == 0x3000
	}
}

// IsLineEnd tells whether str.splitlines ends a line at r.
func IsLineEnd(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 ||
		r == 0x2029
}

func IsASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func Lower(s string) string {
	if IsASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func Upper(s string) string {
	if IsASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func Fold(s string) string { return cases.Fold().String(s) }

// titleRune maps the first letter of a word: to title case, which for some letters is not upper
// case.
func titleRune(r rune) string {
	if r < utf8.RuneSelf {
		return string(unicode.ToUpper(r))
	}
	if t := unicode.ToTitle(r); t != r {
		return string(t)
	}
	return cases.Title(language.Und).String(string(r))
}

// Capitalize is str.capitalize.
func Capitalize(s string) string {
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	return titleRune(r) + lowerAfter(s, n)
}

// lowerAfter lowers s[n:], n being at most one character, which counts as the letter before: a
// final sigma depends on it.
func lowerAfter(s string, n int) string { return Lower(s)[len(Lower(s[:n])):] }

func isCased(r rune) bool { return unicode.IsLower(r) || unicode.IsUpper(r) || unicode.IsTitle(r) }

// TitleWords is str.title: every run of cased letters gets a capital.
func TitleWords(s string) string {
	var out strings.Builder
	// start is where the current stretch begins: the capital of a word, or the text before the
	// first.
	start, capital, inWord := 0, 0, false
	flush := func(end int) {
		if capital > 0 {
			r, _ := utf8.DecodeRuneInString(s[start:])
			out.WriteString(titleRune(r))
		}
		out.WriteString(lowerAfter(s[start:end], capital))
	}
	for i, r := range s {
		cased := isCased(r)
		if cased && !inWord {
			flush(i)
			start, capital = i, utf8.RuneLen(r)
		}
		inWord = cased
	}
	flush(len(s))
	return out.String()
}

// SplitLines is str.splitlines.
func SplitLines(s string, keepEnds bool) []string {
	var lines []string
	start := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !IsLineEnd(r) {
			i += n
			continue
		}
		end := i
		i += n
		if r == '\r' && i < len(s) && s[i] == '\n' {
			i++
		}
		if keepEnds {
			end = i
		}
		lines = append(lines, s[start:end])
		start = i
	}
	if start < len(s) {
		lines = append(lines, s[start:])
	}
	return lines
}

// SplitSpace is str.split without a separator, at most max splits if max is not negative.
func SplitSpace(s string, max int) []string {
	var parts []string
	s = strings.TrimLeftFunc(s, IsSpace)
	for s != "" {
		if max >= 0 && len(parts) == max {
			return append(parts, s)
		}
		i := strings.IndexFunc(s, IsSpace)
		if i < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = strings.TrimLeftFunc(s[i:], IsSpace)
	}
	return parts
}

// RsplitSpace is str.rsplit without a separator.
func RsplitSpace(s string, max int) []string {
	var parts []string
	s = strings.TrimRightFunc(s, IsSpace)
	for s != "" {
		if max >= 0 && len(parts) == max {
			parts = append(parts, s)
			break
		}
		i := strings.LastIndexFunc(s, IsSpace)
		if i < 0 {
			parts = append(parts, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		parts = append(parts, s[i+n:])
		s = strings.TrimRightFunc(s[:i], IsSpace)
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return parts
}

// Rsplit is str.rsplit with a separator.
func Rsplit(s, sep string, max int) []string {
	var parts []string
	for max < 0 || len(parts) < max {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return parts
}

// IsDigit is str.isdigit for one character: the decimal digits of all scripts, and the digits that
// stand for themselves only, such as superscripts.
func IsDigit(r rune) bool { return unicode.IsDigit(r) || unicode.Is(otherDigits, r) }

// otherDigits are the characters of Unicode's Numeric_Type=Digit.
var otherDigits = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xb2, 0xb3, 1},
		{0xb9, 0xb9, 1},
		{0x1369, 0x1371, 1},
		{0x19da, 0x19da, 1},
		{0x2070, 0x2070, 1},
		{0x2074, 0x2079, 1},
		{0x2080, 0x2089, 1},
		{0x2460, 0x2468, 1},
		{0x2474, 0x247c, 1},
		{0x2488, 0x2490, 1},
		{0x24ea, 0x24ea, 1},
		{0x24f5, 0x24fd, 1},
		{0x24ff, 0x24ff, 1},
		{0x2776, 0x277e, 1},
		{0x2780, 0x2788, 1},
		{0x278a, 0x2792, 1},
	},
	R32: []unicode.Range32{
		{0x10a40, 0x10a43, 1},
		{0x10e60, 0x10e68, 1},
		{0x11052, 0x1105a, 1},
		{0x1f100, 0x1f10a, 1},
	},
	LatinOffset: 2,
}

// ByteOffset returns the byte position of character n, or len(s) if there are fewer.
func ByteOffset(s string, n int) int {
	if n <= 0 {
		return 0
	}
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// AllRunes is the shape of Python's str.is… predicates: not empty, and every character passes.
func AllRunes(s string, pass func(rune) bool) bool {
	for _, r := range s {
		if !pass(r) {
			return false
		}
	}
	return s != ""
}

// AllCased is the shape of str.islower and str.isupper: at least one cased character, and all of
// the kind.
func AllCased(s string, want func(rune) bool) bool {
	seen := false
	for _, r := range s {
		if !isCased(r) {
			continue
		}
		if !want(r) {
			return false
		}
		seen = true
	}
	return seen
}

func IsDecimal(c byte) bool { return c >= '0' && c <= '9' }
