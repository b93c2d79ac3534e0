package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// The classes that the published pre-tokenizer patterns tell apart: \p{L}, \p{N}, \s and the rest.
const (
	classOther uint8 = iota
	classLetter
	classNumber
	classSpace
)

// letters16 and numbers16 are the letters and numbers of Unicode 16 that Go's tables (Unicode 15.0)
// lack. Hugging Face splits with Oniguruma 6.9.10, whose properties are Unicode 16; the ranges are
// the difference between CR_L and CR_N in its src/unicode_property_data.c and package unicode.
var letters16 = &unicode.RangeTable{
	R16: []unicode.Range16{{0x1c89, 0x1c8a, 1}, {0xa7cb, 0xa7cd, 1}, {0xa7da, 0xa7dc, 1}},
	R32: []unicode.Range32{
		{0x105c0, 0x105f3, 1}, {0x10d4a, 0x10d65, 1}, {0x10d6f, 0x10d85, 1}, {0x10ec2, 0x10ec4, 1},
		{0x11380, 0x11389, 1}, {0x1138b, 0x1138b, 1}, {0x1138e, 0x1138e, 1}, {0x11390, 0x113b5, 1},
		{0x113b7, 0x113b7, 1}, {0x113d1, 0x113d1, 1}, {0x113d3, 0x113d3, 1}, {0x11bc0, 0x11be0, 1},
		{0x13460, 0x143fa, 1}, {0x16100, 0x1611d, 1}, {0x16d40, 0x16d6c, 1}, {0x18cff, 0x18cff, 1},
		{0x1e5d0, 0x1e5ed, 1}, {0x1e5f0, 0x1e5f0, 1}, {0x2ebf0, 0x2ee5d, 1},
	},
}

var numbers16 = &unicode.RangeTable{
	R32: []unicode.Range32{
		{0x10d40, 0x10d49, 1}, {0x116d0, 0x116e3, 1}, {0x11bf0, 0x11bf9, 1}, {0x16130, 0x16139, 1},
		{0x16d70, 0x16d79, 1}, {0x1ccf0, 0x1ccf9, 1}, {0x1e5f1, 0x1e5fa, 1},
	},
}

// isNumber is \p{N} of Unicode 16.
func isNumber(r rune) bool {
	return unicode.IsNumber(r) || r > unicode.MaxLatin1 && unicode.Is(numbers16, r)
}

func classOf(r rune) uint8 {
	switch {
	case unicode.IsLetter(r) || unicode.Is(letters16, r):
		return classLetter
	case isNumber(r):
		return classNumber
	case unicode.IsSpace(r):
		return classSpace
	}
	return classOther
}

// classTable holds the classes of the Basic Multilingual Plane: one load instead of a binary
// search.
type classTable [1 << 16]uint8

// planeClasses fills the table from the range tables on first use (a fraction of a millisecond).
var planeClasses = sync.OnceValue(func() *classTable {
	t := new(classTable)
	for _, set := range []struct {
		class  uint8
		tables []*unicode.RangeTable
	}{
		{classSpace, []*unicode.RangeTable{unicode.White_Space}},
		{classNumber, []*unicode.RangeTable{unicode.N, numbers16}},
		{classLetter, []*unicode.RangeTable{unicode.L, letters16}},
	} {
		for _, table := range set.tables {
			for _, rg := range table.R16 {
				for r := uint32(rg.Lo); r <= uint32(rg.Hi); r += uint32(rg.Stride) {
					t[r] = set.class
				}
			}
		}
	}
	return t
})

// at returns the class and the length in bytes of the character at s[i].
func (t *classTable) at(s string, i int) (class uint8, size int) {
	c := s[i]
	if c < utf8.RuneSelf {
		return t[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r < 1<<16 {
		return t[r], n
	}
	return classOf(r), n
}

// isWordChar is \w of Rust's regex crate (UTS #18 annex C): alphabetic, mark, decimal number,
// connector punctuation or join control. The Whitespace pre-tokenizer and single-word added tokens
// use it.
func isWordChar(r rune) bool {
	if r < utf8.RuneSelf {
		return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	return unicode.IsLetter(r) || unicode.Is(letters16, r) ||
		unicode.In(r, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic,
			unicode.Join_Control)
}

// punctuation8 are the differences of package unicode's punctuation from that of Unicode 8.0, by
// which Hugging Face goes (crate unicode_categories): characters that came later, and two that were
// punctuation then. Found by comparing all characters.
var punctuation8 = struct{ later, former *unicode.RangeTable }{
	later: &unicode.RangeTable{
		R16: []unicode.Range16{
			{0x61d, 0x61d, 1}, {0x9fd, 0x9fd, 1}, {0xa76, 0xa76, 1}, {0xc77, 0xc77, 1},
			{0xc84, 0xc84, 1}, {0x1b7d, 0x1b7e, 1}, {0x2e43, 0x2e4f, 1}, {0x2e52, 0x2e5d, 1},
		},
		R32: []unicode.Range32{
			{0x10ead, 0x10ead, 1}, {0x10f55, 0x10f59, 1}, {0x10f86, 0x10f89, 1},
			{0x1144b, 0x1144f, 1}, {0x1145a, 0x1145b, 1}, {0x1145d, 0x1145d, 1},
			{0x11660, 0x1166c, 1}, {0x116b9, 0x116b9, 1}, {0x1183b, 0x1183b, 1},
			{0x11944, 0x11946, 1}, {0x119e2, 0x119e2, 1}, {0x11a3f, 0x11a46, 1},
			{0x11a9a, 0x11a9c, 1}, {0x11a9e, 0x11aa2, 1}, {0x11b00, 0x11b09, 1},
			{0x11c41, 0x11c45, 1}, {0x11c70, 0x11c71, 1}, {0x11ef7, 0x11ef8, 1},
			{0x11f43, 0x11f4f, 1}, {0x11fff, 0x11fff, 1}, {0x12ff1, 0x12ff2, 1},
			{0x16e97, 0x16e9a, 1}, {0x16fe2, 0x16fe2, 1}, {0x1e95e, 0x1e95f, 1},
		},
	},
	former: &unicode.RangeTable{
		R16: []unicode.Range16{{0x166d, 0x166d, 1}},
		R32: []unicode.Range32{{0x111c9, 0x111c9, 1}},
	},
}

// isPunctuation is the character test of the Punctuation and Bert pre-tokenizers.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7f && !isWordChar(r) || r == '_'
	}
	return unicode.IsPunct(r) && !unicode.Is(punctuation8.later, r) ||
		unicode.Is(punctuation8.former, r)
}
