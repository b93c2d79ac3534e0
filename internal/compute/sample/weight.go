package sample

import "math"

// A token's weight is exp((logit - greatest logit) / temperature), computed in float64 from the
// exponent in steps of 1/64 octave: y = 64·log2(e)·(logit - greatest)/temperature, weight =
// 2^(y/64), by a table of 2^(i/64) and a cubic for the rest (Tang's method; relative error below
// 4e-11). The products are rounded explicitly so that no compiler fuses them: the bits are the same
// on every instruction set.
const (
	// StepsPerLogit is how many of these steps a logit is at temperature 1.
	StepsPerLogit = 64 * math.Log2E
	// negligible is where weights end: what is 2^65 times less likely than the most likely token
	// has weight zero. The 53 bits of the generator could not tell it from zero either.
	negligible = -65 * 64
	magic      = 0x1.8p52
	exp1       = math.Ln2 / 64
	exp2       = exp1 * exp1 / 2
	exp3       = exp1 * exp1 * exp1 / 6
)

// powers holds the bits of 2^(i/64), rounded.
var powers = func() (t [64]uint64) {
	for i := range t {
		t[i] = math.Float64bits(math.Exp2(float64(i) / 64))
	}
	return t
}()

// Powers are the bits of 2^(i/64), for a device that makes weights of them as this package does.
func Powers() [64]uint64 { return powers }

// scale turns logits into exponents: y = logit*k - off.
type scale struct{ k, off float64 }

func newScale(greatest float32, temperature float64) scale {
	k := StepsPerLogit / temperature
	return scale{k: k, off: float64(greatest) * k}
}

func (c scale) exponent(v float32) float64 { return float64(float64(v)*c.k) - c.off }

// weightOf returns 2^(y/64) for y <= 0, zero for negligible and NaN. It is small enough to be
// inlined.
func weightOf(y float64) float64 {
	if !(y > negligible) {
		return 0
	}
	z := y + magic
	i := math.Float64bits(z)
	y -= z - magic
	return math.Float64frombits(powers[i&63]+i>>6<<52) * (1 +
		float64(y*(exp1+float64(y*(exp2+float64(y*exp3))))))
}
