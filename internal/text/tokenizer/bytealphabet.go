package tokenizer

import "unicode/utf8"

// Byte-level models spell each byte as one printable character: the printable ones of Latin-1 stand
// for themselves, the other 68 bytes for U+0100 and up in order (bytes_to_unicode in GPT-2's
// encoder.py).

// byteChars maps a byte to its character.
var byteChars = func() (chars [256]rune) {
	next := rune(256)
	for b := range chars {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			chars[b] = rune(b)
			continue
		}
		chars[b] = next
		next++
	}
	return chars
}()

// charBytes is the inverse of byteChars: the byte of a character, or -1.
var charBytes = func() (bytes [256 + 68]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	for b, c := range byteChars {
		bytes[c] = int16(b)
	}
	return bytes
}()

func appendByteAlphabet(dst []byte, s string) []byte {
	for i := range len(s) {
		dst = utf8.AppendRune(dst, byteChars[s[i]])
	}
	return dst
}

func toByteAlphabet(s string) string {
	return string(appendByteAlphabet(make([]byte, 0, 2*len(s)), s))
}

// appendFromByteAlphabet appends the bytes that s spells, or s itself when it holds a character
// outside the alphabet (an added token with a space in it, say). That is what the ByteLevel decoder
// does.
func appendFromByteAlphabet(dst []byte, s string) []byte {
	start := len(dst)
	for i := 0; i < len(s); i++ {
		r := rune(s[i])
		if r >= utf8.RuneSelf {
			// All of the alphabet have two bytes.
			if i++; r < 0xc2 || r > 0xdf || i == len(s) || s[i]&0xc0 != 0x80 {
				return append(dst[:start], s...)
			}
			r = r&0x1f<<6 | rune(s[i]&0x3f)
		}
		if int(r) >= len(charBytes) || charBytes[r] < 0 {
			return append(dst[:start], s...)
		}
		dst = append(dst, byte(charBytes[r]))
	}
	return dst
}
