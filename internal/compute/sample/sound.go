package sample

import "math"

// What stands in the place of a token where none was chosen.
const (
	// Unsound says that the logits are no numbers: the request cannot go on.
	Unsound = -1
	// Stuck says that the request's constraint leaves no token to choose: the request cannot go on.
	Stuck = -2
	// Pending says that the request's constraint is still being compiled: the position is to be
	// computed again.
	Pending = -3
	// Spent says that to find a token that the request's constraint allows takes more work or
	// memory than an answer may: the request cannot go on.
	Spent = -4
)

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
