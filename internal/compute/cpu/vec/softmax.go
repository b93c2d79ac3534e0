package vec

// Max is the greatest element of x. NaN elements are passed over; without any other element it is
// -Inf.
func (o *Ops) Max(x []float32) float32 {
	if o.simd {
		return maxAVX2(x)
	}
	return maxPortable(x)
}

// ExpSum replaces each element of x by e^(x-max) and returns their sum: a softmax whose division is
// left to the caller. Powers are within 2 units in the last place of e^(x-max); those below 2^-126
// are flushed to zero, those above the greatest float32 are +Inf, and NaN stays NaN.
func (o *Ops) ExpSum(x []float32, max float32) float32 {
	var s float64
	for len(x) > 0 {
		b := x[:min(len(x), sumBlock)]
		if o.simd {
			n := o.wider(len(b))
			exp512(b[:n], max)
			expAVX2(b[n:], max)
			s += float64(sumAVX2(b))
		} else {
			s += float64(expSumPortable(b, max))
		}
		x = x[len(b):]
	}
	return float32(s)
}

// Softmax replaces x by e^x/sum(e^x). If x is empty nothing happens; if its greatest element is
// infinite, or an element is NaN, every element becomes NaN.
func (o *Ops) Softmax(x []float32) {
	o.Div(x, o.ExpSum(x, o.Max(x)))
}
