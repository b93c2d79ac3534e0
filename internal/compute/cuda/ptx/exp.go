package ptx

import "math"

// powers has 2 to the power of i/32.
var powers = func() (t [32]float64) {
	for i := range t {
		t[i] = math.Exp2(float64(i) / 32)
	}
	return t
}()

// exp2 is 2 to the power of a float32, with an error below 1e-14: rounded to float32 it is the
// correctly rounded result but for about one in ten million operands.
func exp2(x float64) float64 {
	if !(x > -1000 && x < 1000) {
		return math.Exp2(x)
	}
	const ln2 = math.Ln2
	n := math.Floor(x*32 + 0.5)
	r := (x - n/32) * ln2
	k := int(n)
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24+r*(1.0/120)))))
	return math.Float64frombits(uint64(1023+k>>5)<<52) * powers[k&31] * p
}

// exp2Flushed is ex2.approx.ftz.
func exp2Flushed(d, a *lanes32) {
	for i, v := range a {
		x := math.Float32frombits(flush(v))
		d[i] = flush(math.Float32bits(float32(exp2(float64(x)))))
	}
}
