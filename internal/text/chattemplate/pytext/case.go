package pytext

import (
	"strings"
	"sync"
	"unicode"
)

// Cases are those of Unicode's SpecialCasing.txt without a language. Package x/text/cases, which
// has them too, would be 230 kB of the program.

// capitals makes the letters that are several in upper case these.
var capitals = sync.OnceValue(func() *strings.Replacer {
	pairs := []string{
		"ß", "SS", "ŉ", "ʼN", "ǰ", "J̌", "ΐ", "Ϊ́", "ΰ", "Ϋ́", "և", "ԵՒ", "ẖ", "H̱", "ẗ", "T̈",
		"ẘ", "W̊", "ẙ", "Y̊", "ẚ", "Aʾ", "ὐ", "Υ̓", "ὒ", "Υ̓̀", "ὔ", "Υ̓́", "ὖ", "Υ̓͂", "ᾲ", "ᾺΙ",
		"ᾳ", "ΑΙ", "ᾴ", "ΆΙ", "ᾶ", "Α͂", "ᾷ", "Α͂Ι", "ᾼ", "ΑΙ", "ῂ", "ῊΙ", "ῃ", "ΗΙ", "ῄ", "ΉΙ",
		"ῆ", "Η͂", "ῇ", "Η͂Ι", "ῌ", "ΗΙ", "ῒ", "Ϊ̀", "ΐ", "Ϊ́", "ῖ", "Ι͂", "ῗ", "Ϊ͂",
		"ῢ", "Ϋ̀", "ΰ", "Ϋ́", "ῤ", "Ρ̓", "ῦ", "Υ͂", "ῧ", "Ϋ͂", "ῲ", "ῺΙ", "ῳ", "ΩΙ", "ῴ", "ΏΙ",
		"ῶ", "Ω͂", "ῷ", "Ω͂Ι", "ῼ", "ΩΙ", "ﬀ", "FF", "ﬁ", "FI", "ﬂ", "FL", "ﬃ", "FFI", "ﬄ", "FFL",
		"ﬅ", "ST", "ﬆ", "ST", "ﬓ", "ՄՆ", "ﬔ", "ՄԵ", "ﬕ", "ՄԻ", "ﬖ", "ՎՆ", "ﬗ", "ՄԽ",
	}
	for i, r := range []rune{0x1f08, 0x1f28, 0x1f68} { // with iota subscript
		for k := range rune(16) {
			pairs = append(pairs, string(0x1f80+rune(i)<<4+k), string([]rune{r + k&7, 'Ι'}))
		}
	}
	return strings.NewReplacer(pairs...)
})

func Upper(s string) string {
	if IsASCII(s) {
		return strings.ToUpper(s)
	}
	return strings.ToUpper(capitals().Replace(s))
}

// dottedLower is the one letter that is two in lower case, İ.
const dottedLower = "i\u0307"

func Lower(s string) string {
	if IsASCII(s) {
		return strings.ToLower(s)
	}
	var b strings.Builder
	inWord := false
	for i, r := range s {
		switch {
		case r == 'İ':
			b.WriteString(dottedLower)
		case r == 'Σ' && inWord && !goesOn(s[i+len("Σ"):]):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(r))
		}
		inWord = hasCase(r) || inWord && goesWith(r)
	}
	return b.String()
}

// goesOn tells whether a text begins within a word.
func goesOn(s string) bool {
	for _, r := range s {
		if !goesWith(r) {
			return hasCase(r)
		}
	}
	return false
}

// hasCase tells whether r has a case: Unicode's Cased.
func hasCase(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Lowercase,
		unicode.Other_Uppercase)
}

// goesWith tells whether r is no end of a word where cases count: Unicode's Case_Ignorable.
func goesWith(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) ||
		strings.ContainsRune("'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027"+
			"\ufe13\ufe52\ufe55\uff07\uff0e\uff1a", r)
}

func Fold(s string) string {
	s = strings.NewReplacer("ẞ", "ss", "İ", dottedLower).Replace(s)
	return strings.Map(func(r rune) rune {
		switch {
		case r == 'ı':
			return r
		case unicode.Is(unicode.Cherokee, r):
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(unicode.ToUpper(r))
	}, capitals().Replace(s))
}

// titleRune maps the first letter of a word: to title case, which for some letters is not upper
// case.
func titleRune(r rune) string {
	t := unicode.ToTitle(r)
	several := []rune(capitals().Replace(string(t)))
	if len(several) == 1 || unicode.IsTitle(t) {
		return string(t)
	}
	rest := string(several[1:])
	if unicode.IsUpper(several[0]) {
		rest = strings.ReplaceAll(strings.ToLower(rest), "ι", "\u0345")
	}
	return string(several[0]) + rest
}
