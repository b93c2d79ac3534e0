package vec

import "math"

// Constants of exp32: the reduction of Cody and Waite with ln 2 split so that n*ln2Hi is exact, and
// the minimax polynomial of expf in the Cephes library (S. Moshier). The AVX2 kernels hold the same
// bits.
const (
	expLog2e float32 = 1.44269504088896341
	expMagic float32 = 12582912 // 1.5 * 2^23: adding it rounds to an integer held in the low bits
	expLn2Hi float32 = 0.693359375
	expLn2Lo float32 = -2.12194440e-4
	expP5    float32 = 1.9875691500e-4
	expP4    float32 = 1.3981999507e-3
	expP3    float32 = 8.3334519073e-3
	expP2    float32 = 4.1665795894e-2
	expP1    float32 = 1.6666665459e-1
	expP0    float32 = 0.5
)

var (
	expMin = math.Float32frombits(0xc2aeac4f) // -87.33654, the least x with exp(x) >= 2^-126
	expMax = math.Float32frombits(0x42b17217) // 88.72283, the greatest x with exp(x) finite
	inf    = float32(math.Inf(1))
)

// exp32 is e to the power x. Results below the least normal number are flushed to zero. Every
// product is converted explicitly, which forbids the compiler to fuse it with the addition that
// follows.
func exp32(x float32) float32 {
	if x < expMin {
		return 0
	}
	if !(x <= expMax) {
		return x + inf
	}
	z := float32(x*expLog2e) + expMagic
	n := z - expMagic
	r := x - float32(n*expLn2Hi)
	r -= float32(n * expLn2Lo)
	p := float32(r*expP5) + expP4
	p = float32(p*r) + expP3
	p = float32(p*r) + expP2
	p = float32(p*r) + expP1
	p = float32(p*r) + expP0
	y := float32(p*float32(r*r)) + r
	y++
	return math.Float32frombits(math.Float32bits(y) + math.Float32bits(z)<<23)
}

// silu32 is x times the logistic function of x.
func silu32(x float32) float32 { return x / (1 + exp32(-x)) }

// erfcQ are the coefficients of Q in erfc(t) = exp(t*Q(t)) for t >= 0, fitted on [0, 6] for the
// least greatest error of erfc (1.3e-10). Beyond 6 the polynomial goes on falling, so erfc goes to
// zero.
var erfcQ = [10]float32{
	-1.1283792, -0.6366199, -0.1027703, 0.019112833, 0.0002649299,
	-0.0018154047, 0.0007532453, -0.00017311415, 2.2693252e-05, -1.323452e-06,
}

// sqrtHalf is 1/sqrt(2).
const sqrtHalf float32 = 0.7071067811865476

// geluErf32 is x times the normal distribution function at x, which is 0.5*erfc(-x/sqrt(2)).
func geluErf32(x float32) float32 {
	t := math.Float32frombits(math.Float32bits(x)&^(1<<31)) * sqrtHalf
	q := erfcQ[9]
	for i := 8; i >= 0; i-- {
		q = float32(q*t) + erfcQ[i]
	}
	h := 0.5 * exp32(float32(q*t))
	if math.Signbit(float64(x)) {
		return x * h
	}
	return x * (1 - h)
}
