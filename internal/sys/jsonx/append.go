package jsonx

import "unicode/utf8"

const hexDigits = "0123456789abcdef"

// plain marks the bytes that stand for themselves in a JSON string.
var plain = func() (t [utf8.RuneSelf]bool) {
	for b := range t {
		t[b] = b >= 0x20 && b != '"' && b != '\\'
	}
	return t
}()

// AppendString appends s as a JSON string, byte for byte as encoding/json does with
// SetEscapeHTML(false): invalid UTF-8 becomes U+FFFD, and the line separators U+2028 and U+2029 are
// escaped.
func AppendString[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if plain[c] {
				i++
				continue
			}
			b = append(b, s[from:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\b':
				b = append(b, '\\', 'b')
			case '\f':
				b = append(b, '\\', 'f')
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, s[from:i]...)
			b = append(b, `\ufffd`...)
			from = i + size
		case r == '\u2028' || r == '\u2029':
			b = append(b, s[from:i]...)
			b = append(b, `\u202`...)
			b = append(b, hexDigits[r&15])
			from = i + size
		}
		i += size
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
