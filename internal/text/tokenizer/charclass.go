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

// isPunctuation is the character test of the Punctuation pre-tokenizer.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7f && !isWordChar(r) || r == '_'
	}
	return unicode.IsPunct(r)
}
