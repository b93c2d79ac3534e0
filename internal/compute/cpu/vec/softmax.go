package vec

import "math"

// Max is the greatest element of x. NaN elements are passed over; without any other element it is -Inf.
func (o *Ops) Max(x []float32) float32 {
	if o.simd {
		return maxAVX2(x)
	}
	return maxPortable(x)
}

// MaxIndex is the lowest index of the greatest element of x. NaN elements are passed over; without any other element
// it is -1.
func (o *Ops) MaxIndex(x []float32) int {
	m := o.Max(x)
	if o.simd {
		return indexAVX2(x, m)
	}
	return indexPortable(x, m)
}

// SumExp is the sum of e^(x-max).
func (o *Ops) SumExp(x []float32, max float32) float32 {
	return float32(o.sumExp(x, max))
}

func (o *Ops) sumExp(x []float32, max float32) float64 {
	var s float64
	for len(x) > 0 {
		b := x[:min(len(x), sumBlock)]
		if o.simd {
			s += float64(sumExpAVX2(b, max))
		} else {
			s += float64(sumExpPortable(b, max))
		}
		x = x[len(b):]
	}
	return s
}

// ExpSum replaces each element of x by e^(x-max) and returns their sum: a softmax whose division is left to the
// caller.
func (o *Ops) ExpSum(x []float32, max float32) float32 {
	var s float64
	for len(x) > 0 {
		b := x[:min(len(x), sumBlock)]
		if o.simd {
			s += float64(expSumAVX2(b, max))
		} else {
			s += float64(expSumPortable(b, max))
		}
		x = x[len(b):]
	}
	return float32(s)
}

// LogSumExp is log(sum(e^x)): NaN if an element is NaN, else +Inf if one is, and -Inf for an empty x or one of -Inf only.
func (o *Ops) LogSumExp(x []float32) float32 {
	m := o.Max(x)
	if !math.IsInf(float64(m), 0) {
		return float32(float64(m) + math.Log(o.sumExp(x, m)))
	}
	// Subtracting an infinite maximum would make NaN of it.
	for _, v := range x {
		if v != v {
			return v
		}
	}
	return m
}

// Softmax replaces x by e^x/sum(e^x). If x is empty nothing happens; if its greatest element is infinite, or an
// element is NaN, every element becomes NaN.
func (o *Ops) Softmax(x []float32) {
	o.Div(x, o.ExpSum(x, o.Max(x)))
}
