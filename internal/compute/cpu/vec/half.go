package vec

import "math"

// BF16 rounds x to the nearest bfloat16, ties to even. A NaN stays one, made quiet.
func BF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32FromBF16 is the value of the bfloat16 b, which float32 holds exactly.
func Float32FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F16 rounds x to the nearest IEEE 754 binary16 number, ties to even, as VCVTPS2PH does: overflow gives infinity,
// subnormal results are kept, a NaN keeps the upper bits of its payload and becomes quiet.
func F16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // 65520, half-way between the greatest number and 2^16
		return sign | 0x7c00
	case b >= 0x38800000: // 2^-14, the least normal number
		b += 0xfff + b>>13&1
		return sign | uint16((b-0x38000000)>>13)
	}
	// Subnormal: adding 0.5 makes the unit in the last place 2^-24, that of the result, and rounds ties to even.
	m := math.Float32bits(math.Float32frombits(b) + 0.5)
	return sign | uint16(m-0x3f000000)
}

// Float32FromF16 is the value of the binary16 number h, which float32 holds exactly. A NaN becomes quiet.
func Float32FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0x1f && frac != 0:
		return math.Float32frombits(sign | 0x7fc00000 | frac<<13)
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000)
	case exp != 0:
		return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
	}
	v := float32(frac) * (1.0 / (1 << 24))
	return math.Float32frombits(sign | math.Float32bits(v))
}
