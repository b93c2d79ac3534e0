package vec

import "math"

// Steps of vector kernels: the rest of a row is for portable code.
const (
	largestStep = 8
	roundStep   = 32
)

// Largest is the bits of the largest magnitude of x, 0 for none: above those of infinity they are
// of a NaN.
func (o *Ops) Largest(x []float32) uint32 {
	n := 0
	if o.simd {
		n = len(x) &^ (largestStep - 1)
	}
	var most uint32
	if n > 0 {
		most = largestAVX2(x[:n])
	}
	return max(most, largestPortable(x[n:]))
}

// RoundInt8 makes dst the integers nearest to x divided by a scale, the even one of two, from -127
// to 127; a scale of 0 makes them 0. No quotient may be 2^31 or more.
func (o *Ops) RoundInt8(dst []byte, x []float32, scale float32) {
	dst = dst[:len(x)]
	if scale == 0 {
		clear(dst)
		return
	}
	n := 0
	if o.simd {
		n = len(x) &^ (roundStep - 1)
	}
	if n > 0 {
		int8AVX2(dst[:n], x[:n], scale)
	}
	int8Portable(dst[n:], x[n:], scale)
}

// RoundInt4 makes dst 8 and the integers nearest to x multiplied by a factor, the even one of two,
// at most 15. No product may be below -8.5, or 2^22 or more.
func (o *Ops) RoundInt4(dst []byte, x []float32, factor float32) {
	dst = dst[:len(x)]
	n := 0
	if o.simd {
		n = len(x) &^ (roundStep - 1)
	}
	if n > 0 {
		int4AVX2(dst[:n], x[:n], factor)
	}
	int4Portable(dst[n:], x[n:], factor)
}

func largestPortable(x []float32) (most uint32) {
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	return most
}

// The last bits of a sum with 1.5·2²³ are the nearest integer.
const (
	nearest     = 0x1.8p23
	nearestBits = 0x4b400000
)

func int8Portable(dst []byte, x []float32, scale float32) {
	for i, v := range x {
		q := int32(math.Float32bits(float32(v/scale)+nearest)) - nearestBits
		dst[i] = byte(int8(min(max(q, -127), 127)))
	}
}

func int4Portable(dst []byte, x []float32, factor float32) {
	for i, v := range x {
		q := int32(math.Float32bits(float32(v*factor)+nearest)) - (nearestBits - 8)
		dst[i] = byte(min(15, q))
	}
}
