package tokenizer

import "unicode/utf8"

// appendLossy appends s with U+FFFD for what is not UTF-8: one for each maximal subpart, as the
// Unicode Standard (section 3.9) recommends and Rust's from_utf8_lossy does. Unless last is set, a
// character that is cut off at the end is not written; the result says where it begins.
func appendLossy(dst []byte, s string, last bool) (out []byte, rest int) {
	i := 0
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, s[i:i+n]...)
			i += n
			continue
		}
		if !last && !utf8.FullRuneInString(s[i:]) {
			break
		}
		dst = append(dst, "\uFFFD"...)
		i += subpart(s[i:])
	}
	return dst, i
}

// subpart returns the length of the ill-formed sequence at the start of s: the longest prefix that
// could have begun a character, or one byte.
func subpart(s string) int {
	for n := min(len(s), utf8.UTFMax-1); n > 1; n-- {
		if !utf8.FullRuneInString(s[:n]) {
			return n
		}
	}
	return 1
}

// validText returns s, or its lossy reading when it is not UTF-8.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	out, _ := appendLossy(make([]byte, 0, len(s)+8), s, true)
	return string(out)
}
