package vec

// Fixed-point sums: a number is rounded to a multiple of 2^-30 before it is added, in float64. Such
// sums are exact while they stay below 2^22, so that they do not depend on the order of addition,
// nor on who adds which part. To add them across ranks in float32 they are cut in two: a multiple
// of 2^-8 and what is left, at most 2^-9. Eight of each are added exactly as well, while the former
// stay below 2^16. What is larger is added as floats are, rounded.

const (
	// fixedRound and fixedCut, added and subtracted again, round to multiples of 2^-30 and of 2^-8:
	// so large a number has no smaller ones beside it.
	fixedRound = 1.5 * (1 << 22)
	fixedCut   = 1.5 * (1 << 44)
)

// FixedAxpy adds a·x[c][i], rounded to a multiple of 2^-30, to dst[i] for each i and each c below
// chunks: x[c+1] begins step elements behind x[c].
func (o *Ops) FixedAxpy(dst []float64, a float32, x []float32, chunks, step int) {
	if len(dst) == 0 || chunks == 0 {
		return
	}
	_ = x[(chunks-1)*step+len(dst)-1]
	n := 0
	if o.wide {
		n = len(dst) &^ 15
		fixedAxpy512(dst[:n], a, x, chunks, step)
	} else if o.simd {
		n = len(dst) &^ 7
		fixedAxpyAVX2(dst[:n], a, x, chunks, step)
	}
	for ; n < len(dst); n++ {
		for c := range chunks {
			// The product is exact, so that it does not matter whether the addition is fused.
			rounded := float64(float64(a)*float64(x[c*step+n]) + fixedRound)
			dst[n] += rounded - fixedRound
		}
	}
}

// FixedCut cuts the numbers of x in two: high+low.
func (o *Ops) FixedCut(high, low []float32, x []float64) {
	high, low = high[:len(x)], low[:len(x)]
	if o.simd {
		fixedCutAVX2(high, low, x)
		return
	}
	fixedCutPortable(high, low, x)
}

// FixedJoin computes high += low, rounded once.
func (o *Ops) FixedJoin(high, low []float32) {
	low = low[:len(high)]
	if o.simd {
		fixedJoinAVX2(high, low)
		return
	}
	fixedJoinPortable(high, low)
}

func fixedCutPortable(high, low []float32, x []float64) {
	for i, v := range x {
		h := float64(v+fixedCut) - fixedCut
		high[i], low[i] = float32(h), float32(v-h)
	}
}

func fixedJoinPortable(high, low []float32) {
	for i := range high {
		high[i] = float32(float64(high[i]) + float64(low[i]))
	}
}
