package regex

import (
	"fmt"
	"unicode/utf8"
)

// Runes matches one character, in UTF-8, of the ranges lo, hi, lo, hi … (both included).
// Surrogates are left out: they are no characters.
func (b *Builder) Runes(ranges ...rune) Ex {
	var alts []Ex
	for i := 0; i+1 < len(ranges); i += 2 {
		alts = b.runeRange(alts, ranges[i], ranges[i+1])
	}
	return b.mark(b.Or(alts...), inText)
}

// AnyRune matches one character.
func (b *Builder) AnyRune() Ex {
	if b.rune == 0 {
		b.rune = b.Runes(0, utf8.MaxRune)
	}
	return b.rune
}

// AnyText matches every text of whole characters, the empty one too.
func (b *Builder) AnyText() Ex { return b.Star(b.AnyRune()) }

func (b *Builder) runeRange(alts []Ex, lo, hi rune) []Ex {
	for _, last := range []rune{0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, utf8.MaxRune} {
		if lo > hi {
			break
		}
		if lo > last {
			continue
		}
		if last != 0xDFFF { // else: surrogates
			var l, h [4]byte
			n := utf8.EncodeRune(l[:], lo)
			utf8.EncodeRune(h[:], min(hi, last))
			alts = append(alts, b.byteSeq(l[:n], h[:n]))
		}
		lo = last + 1
	}
	return alts
}

// byteSeq matches the UTF-8 of the characters from lo to hi, which are equally long.
func (b *Builder) byteSeq(lo, hi []byte) Ex {
	if len(lo) == 1 {
		return b.Bytes(lo[0], hi[0])
	}
	if lo[0] == hi[0] {
		return b.cat(b.Bytes(lo[0], lo[0]), b.byteSeq(lo[1:], hi[1:]))
	}
	first, last := [3]byte{0x80, 0x80, 0x80}, [3]byte{0xBF, 0xBF, 0xBF}
	lowest, highest := first[:len(lo)-1], last[:len(lo)-1]
	var alts []Ex
	from, to := lo[0], hi[0]
	if string(lo[1:]) != string(lowest) {
		alts = append(alts, b.cat(b.Bytes(from, from), b.byteSeq(lo[1:], highest)))
		from++
	}
	if string(hi[1:]) != string(highest) {
		alts = append(alts, b.cat(b.Bytes(to, to), b.byteSeq(lowest, hi[1:])))
		to--
	}
	if from <= to {
		alts = append(alts, b.cat(b.Bytes(from, to), b.byteSeq(lowest, highest)))
	}
	return b.Or(alts...)
}

// jsonEscape is how a character below 0x80 stands between the quotes of a JSON string.
func jsonEscape(r rune) string {
	switch r {
	case '"', '\\':
		return `\` + string(r)
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if r < 0x20 {
		return fmt.Sprintf(`\u%04x`, r)
	}
	return string(r)
}

// JSONRunes matches one character of the ranges as it stands in a JSON string, in its one plain
// spelling: raw where JSON allows that, else the short escape, else \u00xx with small digits.
func (b *Builder) JSONRunes(ranges ...rune) Ex {
	var alts []Ex
	for i := 0; i+1 < len(ranges); i += 2 {
		lo, hi := ranges[i], ranges[i+1]
		for lo <= min(hi, 0x7F) {
			if raw := rawRun(lo, min(hi, 0x7F)); raw >= lo {
				alts = append(alts, b.Bytes(byte(lo), byte(raw)))
				lo = raw + 1
				continue
			}
			alts = append(alts, b.Lit(jsonEscape(lo)))
			lo++
		}
		if lo <= hi {
			alts = b.runeRange(alts, lo, hi)
		}
	}
	return b.mark(b.Or(alts...), inJSON|inText)
}

// rawRun is the last character from lo to hi up to which all stand for themselves in JSON; lo-1 if
// lo does not.
func rawRun(lo, hi rune) rune {
	r := lo
	for r <= hi && r >= 0x20 && r != '"' && r != '\\' {
		r++
	}
	return r - 1
}

// JSONRune matches any one character of a JSON string in its plain spelling.
func (b *Builder) JSONRune() Ex {
	if b.json == 0 {
		b.json = b.JSONRunes(0, utf8.MaxRune)
	}
	return b.json
}

// JSONText matches what may stand between the quotes of a JSON string, every character in its plain
// spelling: one text for one value, so that Minus and And on it are about values.
func (b *Builder) JSONText() Ex { return b.Star(b.JSONRune()) }

// JSONFreeRune matches any one character of a JSON string in every spelling that JSON has: raw, the
// short escapes with \/, and \uXXXX with digits of either case; characters above U+FFFF also as a
// pair of surrogates; no lone surrogate. Several texts have one value: use it where nothing but
// the length is asked of the value.
func (b *Builder) JSONFreeRune() Ex {
	hex := func(r string) Ex { // ranges of hexadecimal digits, small letters
		var s ByteSet
		for i := 0; i+1 < len(r); i += 2 {
			s.Add(r[i], r[i+1])
			if r[i] >= 'a' {
				s.Add(r[i]-32, r[i+1]-32)
			}
		}
		return b.Set(s)
	}
	any1 := hex("09af")
	any2 := b.Cat(any1, any1)
	var short ByteSet
	for _, c := range []byte(`"\/bfnrt`) {
		short.Add(c, c)
	}
	u := b.Lit("u")
	unit := b.Or(
		b.Cat(u, hex("09acef"), any1, any2),
		b.Cat(u, hex("dd"), hex("07"), any2),
		b.Cat(u, hex("dd"), hex("89ab"), any2, b.Lit(`\u`), hex("dd"), hex("cf"), any2))
	return b.Or(b.Runes(0x20, '!', '#', '[', ']', utf8.MaxRune),
		b.Cat(b.Lit(`\`), b.Or(b.Set(short), unit)))
}

// JSONLit matches s as it stands between the quotes of a JSON string, in the plain spelling.
func (b *Builder) JSONLit(s string) Ex { return b.mark(b.Lit(JSONSpell(s)), inJSON|inText) }

// JSONSpell is s as it stands between the quotes of a JSON string, in the plain spelling of
// JSONRunes.
func JSONSpell(s string) string {
	out := make([]byte, 0, len(s)+8)
	for _, r := range s {
		if r < 0x80 {
			out = append(out, jsonEscape(r)...)
			continue
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}
