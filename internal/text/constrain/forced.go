package constrain

import (
	"bytes"
	"math/bits"
)

// mostSpellings is of how many tokens it is looked whether they begin one text.
const mostSpellings = 64

// Forced goes on for as long as all tokens that may come next begin the longest of them, by that
// one, and appends those tokens to dst, n at most. A model may spell the same in another way, or
// take a shorter token after which there is a choice again: it is a guess, and mostly right. It
// ends where the answer may, and when it has taken so many operations. mask, of Words words, is
// scratch.
func (m *Matcher) Forced(dst []int32, n int, mask []uint32, operations int) []int32 {
	for range n {
		accepting, enough := m.Try(mask, operations)
		if operations -= m.Taken(); accepting || !enough {
			break
		}
		token := m.c.vocab.one(mask)
		if token < 0 || !m.TryAccept(token, operations) {
			break
		}
		operations -= m.Taken()
		dst = append(dst, token)
	}
	return dst
}

// one is the longest of the tokens in a mask that all begin one text, -1 where they do not, or are
// too many.
func (v *Vocabulary) one(mask []uint32) int32 {
	longest, n := int32(-1), 0
	for i, w := range mask {
		if n += bits.OnesCount32(w); n > mostSpellings {
			return -1
		}
		for ; w != 0; w &= w - 1 {
			token := int32(32*i + bits.TrailingZeros32(w))
			if longest < 0 || len(v.bytes(token)) > len(v.bytes(longest)) {
				longest = token
			}
		}
	}
	if n < 2 {
		return longest
	}
	text := v.bytes(longest)
	for i, w := range mask {
		for ; w != 0; w &= w - 1 {
			b := v.bytes(int32(32*i + bits.TrailingZeros32(w)))
			if len(b) == 0 || !bytes.HasPrefix(text, b) {
				return -1
			}
		}
	}
	return longest
}

// bytes are those of a token, none for one that is special.
func (v *Vocabulary) bytes(token int32) []byte {
	if int(token) < len(v.tokens) {
		return v.tokens[token]
	}
	return nil
}
