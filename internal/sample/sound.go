package sample

import "math"

// Unsound stands in the place of a token whose logits are no numbers: the request cannot go on.
const Unsound = -1

// soundStride is the distance of the logits that Sound looks at.
const soundStride = 16

// Sound says whether logits, as the model gave them, are numbers. A value of the hidden state that
// is none reaches every logit of its row, so only some are looked at: a look at all of a large
// vocabulary takes as long as choosing from it.
func Sound(logits []float32) bool {
	for i := 0; i < len(logits); i += soundStride {
		if !Finite(logits[i]) {
			return false
		}
	}
	return true
}

// Finite says whether x is neither infinite nor NaN.
func Finite(x float32) bool {
	const exponent = 0x7f800000
	return math.Float32bits(x)&exponent != exponent
}
