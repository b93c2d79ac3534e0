package vec

import "math"

// Steps of vector kernels: the rest of a row is for portable code.
const (
	largestStep = 8
	roundStep   = 32
)

// whole is how many of n numbers are whole steps of a vector kernel, 0 where there is none.
func (o *Ops) whole(n, step int) int {
	if !o.simd {
		return 0
	}
	return n &^ (step - 1)
}

// Largest is the bits of the largest magnitude of x, 0 for none: above those of infinity they are
// of a NaN.
func (o *Ops) Largest(x []float32) uint32 {
	n := o.whole(len(x), largestStep)
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
	n := o.whole(len(x), roundStep)
	if n > 0 {
		int8AVX2(dst[:n], x[:n], scale)
	}
	int8Portable(dst[n:], x[n:], scale)
}

// RoundE4M3 makes dst the numbers of 4 bits of exponent and 3 of mantissa (compute.CodeE4M3)
// nearest to x divided by a scale, the even one of two, from -448 to 448; a scale of 0 makes them
// 0. No x may be NaN.
func (o *Ops) RoundE4M3(dst []byte, x []float32, scale float32) {
	dst = dst[:len(x)]
	if scale == 0 {
		clear(dst)
		return
	}
	n := o.whole(len(x), roundStep)
	if n > 0 {
		e4m3AVX2(dst[:n], x[:n], scale)
	}
	e4m3Portable(dst[n:], x[n:], scale)
}

// RoundInt4 makes dst 8 and the integers nearest to x multiplied by a factor, the even one of two,
// at most 15. No product may be below -8.5, or 2^22 or more.
func (o *Ops) RoundInt4(dst []byte, x []float32, factor float32) {
	dst = dst[:len(x)]
	n := o.whole(len(x), roundStep)
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

// Of numbers of 4 bits of exponent and 3 of mantissa: the least that is normal and the greatest, as
// float32, and what the exponents differ by, in codes. The last bits of a sum with 2^14 are the
// nearest multiple of 2^-9, which the denormal ones are.
const (
	leastE4M3    = 0x3c800000
	biasE4M3     = 120 << 3
	mostE4M3     = 0x43e00000
	denormal     = 0x1p14
	denormalBits = 0x46800000
)

func e4m3Portable(dst []byte, x []float32, scale float32) {
	for i, v := range x {
		v = float32(v / scale)
		sign := math.Float32bits(v) & (1 << 31)
		size := min(math.Float32bits(v)&^(1<<31), mostE4M3)
		code := (size+(1<<19-1)+size>>20&1)>>20 - biasE4M3
		if size < leastE4M3 {
			code = math.Float32bits(math.Float32frombits(size)+denormal) - denormalBits
		}
		dst[i] = byte(code | sign>>24)
	}
}

func int4Portable(dst []byte, x []float32, factor float32) {
	for i, v := range x {
		q := int32(math.Float32bits(float32(v*factor)+nearest)) - (nearestBits - 8)
		dst[i] = byte(min(15, q))
	}
}
