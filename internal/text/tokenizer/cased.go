package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// The patterns that cut a word where capitals follow small letters, in the exact text that
// published files use: o200k of OpenAI, tekken of Mistral, and Kimi's, which cuts out runs of Han
// first.
const (
	patternO200K  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternKimi   = `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// casedRule is how those patterns differ.
type casedRule struct {
	han          bool // runs of Han are pieces of their own
	contractions bool // 's and the like belong to the word before
	slashes      bool // go with the line breaks after punctuation
}

// The cases of a character: capital is in [\p{Lu}\p{Lt}], small in \p{Ll}, both is in the two sets
// of the patterns alike.
const (
	caseNone uint8 = iota
	caseCapital
	caseSmall
	caseBoth
	caseHan
)

// The letters and marks of Unicode 16 that package unicode (15.0) lacks, by their case, and the
// ideographs among them. Found by comparing all characters with tiktoken.
var (
	capital16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1c89, 0x1c89, 1}, {0xa7cb, 0xa7cc, 1}, {0xa7da, 0xa7dc, 2}},
		R32: []unicode.Range32{{0x10d50, 0x10d65, 1}},
	}
	small16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1c8a, 0x1c8a, 1}, {0xa7cd, 0xa7cd, 1}, {0xa7db, 0xa7db, 1}},
		R32: []unicode.Range32{{0x10d70, 0x10d85, 1}},
	}
	both16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x897, 0x897, 1}},
		R32: []unicode.Range32{
			{0x105c0, 0x105f3, 1}, {0x10d4a, 0x10d4f, 1}, {0x10d69, 0x10d6d, 1},
			{0x10d6f, 0x10d6f, 1}, {0x10ec2, 0x10ec4, 1}, {0x10efc, 0x10efc, 1},
			{0x11380, 0x11389, 1}, {0x1138b, 0x1138b, 1}, {0x1138e, 0x1138e, 1},
			{0x11390, 0x113b5, 1}, {0x113b7, 0x113c0, 1}, {0x113c2, 0x113c2, 1},
			{0x113c5, 0x113c5, 1}, {0x113c7, 0x113ca, 1}, {0x113cc, 0x113d3, 1},
			{0x113e1, 0x113e2, 1}, {0x11bc0, 0x11be0, 1}, {0x11f5a, 0x11f5a, 1},
			{0x13460, 0x143fa, 1}, {0x16100, 0x1612f, 1}, {0x16d40, 0x16d6c, 1},
			{0x18cff, 0x18cff, 1}, {0x1e5d0, 0x1e5f0, 1}, {0x2ebf0, 0x2ee5d, 1},
		},
	}
	han16 = &unicode.RangeTable{R32: []unicode.Range32{{0x2ebf0, 0x2ee5d, 1}}}
)

func isHan(r rune) bool { return unicode.Is(unicode.Han, r) || unicode.Is(han16, r) }

func caseOf(r rune) uint8 {
	switch {
	case unicode.In(r, unicode.Lu, unicode.Lt, capital16):
		return caseCapital
	case unicode.In(r, unicode.Ll, small16):
		return caseSmall
	case unicode.In(r, unicode.Lm, unicode.Lo, unicode.M, both16):
		return caseBoth
	}
	return caseNone
}

// planeCases and planeCasesHan hold the cases of the Basic Multilingual Plane, the second one with
// caseHan. They are filled on first use, in some milliseconds.
var (
	planeCases    = sync.OnceValue(func() *classTable { return newCases(false) })
	planeCasesHan = sync.OnceValue(func() *classTable { return newCases(true) })
)

func newCases(han bool) *classTable {
	t := new(classTable)
	for r := range rune(len(t)) {
		if t[r] = caseOf(r); han && isHan(r) {
			t[r] = caseHan
		}
	}
	return t
}

// caseAt returns the case and the length in bytes of the character at s[i].
func (sc *scanner) caseAt(s string, i int) (kind uint8, size int) {
	if s[i] < utf8.RuneSelf {
		return sc.cases[s[i]], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case r < 1<<16:
		return sc.cases[r], n
	case sc.cased.han && isHan(r):
		return caseHan, n
	}
	return caseOf(r), n
}

func (sc *scanner) nextCased(s string, i int) int {
	kind, size := sc.caseAt(s, i)
	if kind == caseHan {
		for i < len(s) {
			k, n := sc.caseAt(s, i)
			if k != caseHan {
				break
			}
			i += n
		}
		return i
	}
	class, _ := sc.classes.at(s, i)
	// A word may begin with one character that is neither letter nor number nor line break; with
	// it the pattern is tried first.
	prefix := class != classLetter && class != classNumber && s[i] != '\r' && s[i] != '\n'
	if prefix && i+size < len(s) {
		if end := sc.smallEnd(s, i+size); end > 0 {
			return sc.wordEnd(s, end)
		}
	}
	if end := sc.smallEnd(s, i); end > 0 {
		return sc.wordEnd(s, end)
	}
	from := i
	if prefix {
		from += size
	}
	if end, _ := sc.capitalEnd(s, from); end > from {
		return sc.wordEnd(s, end)
	}
	if class == classNumber {
		return sc.digitsEnd(s, i+size)
	}
	at := i
	if s[i] == ' ' && i+1 < len(s) {
		at = i + 1
		class, size = sc.classes.at(s, at)
	}
	if class == classOther {
		end := sc.runEnd(s, at+size, classOther)
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' ||
			s[end] == '/' && sc.cased.slashes) {
			end++
		}
		return end
	}
	if end := sc.newlineEnd(s, i); end > i {
		return end
	}
	return sc.spaceEnd(s, i)
}

// capitalEnd returns the end of the run at i of characters that a word may begin with, and the end
// of the last one in it that may end a word too, 0 when there is none.
func (sc *scanner) capitalEnd(s string, i int) (end, both int) {
	for i < len(s) {
		kind, n := sc.caseAt(s, i)
		if kind != caseCapital && kind != caseBoth {
			break
		}
		if i += n; kind == caseBoth {
			both = i
		}
	}
	return i, both
}

// smallEnd matches capitals and then at least one small letter at i, where letters without case and
// marks count as either: the capitals go back as far as is needed. It returns 0 without a match.
func (sc *scanner) smallEnd(s string, i int) int {
	end, both := sc.capitalEnd(s, i)
	start := end
	for end < len(s) {
		kind, n := sc.caseAt(s, end)
		if kind != caseSmall && kind != caseBoth {
			break
		}
		end += n
	}
	if end > start {
		return end
	}
	return both
}

// wordEnd adds a contraction to the word that ends at i.
func (sc *scanner) wordEnd(s string, i int) int {
	if sc.cased.contractions && i < len(s) && s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	return i
}
