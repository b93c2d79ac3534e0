package sample

import "math/bits"

// none are the logits of a word of tokens that are all forbidden.
var none = func() (w [32]float32) {
	for i := range w {
		w[i] = negInf
	}
	return w
}()

// Restrict masks the logits of tokens whose bit is not set: token i has bit i&31 of word i>>5, and
// one beyond the mask has none.
func Restrict(logits []float32, mask []uint32) {
	whole := min(len(logits)/32, len(mask))
	for i, w := range mask[:whole] {
		if w == ^uint32(0) {
			continue
		}
		part := logits[32*i : 32*i+32]
		if w == 0 {
			copy(part, none[:])
			continue
		}
		for z := ^w; z != 0; z &= z - 1 {
			part[bits.TrailingZeros32(z)] = negInf
		}
	}
	for i := 32 * whole; i < len(logits); i++ {
		if !Allows(mask, int32(i)) {
			logits[i] = negInf
		}
	}
}

// Allows says whether a token's bit is set in a mask.
func Allows(mask []uint32, token int32) bool {
	word := uint32(token) >> 5
	return word < uint32(len(mask)) && mask[word]>>(uint32(token)&31)&1 != 0
}
