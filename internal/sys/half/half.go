// Package half converts between float32 and the two 16-bit floating-point formats of model weights
// and of the KV cache: bfloat16, the upper half of a float32, and IEEE 754 binary16. Widening is
// exact; narrowing rounds to nearest, ties to even. The assembler kernels of internal/compute/cpu
// are tested against these functions: the bits are the same everywhere.
package half

import (
	"encoding/binary"
	"math"
)

// ToBF16 rounds f to bfloat16. Values beyond the greatest finite number become infinite. A NaN
// stays one: its sign and the upper bits of its payload are kept, and it is made quiet.
func ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// FromBF16 returns the value of the bfloat16 b.
func FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// ToF16 rounds f to binary16, as VCVTPS2PH does: overflow gives infinity, subnormal results are
// kept, and a NaN keeps its sign and the upper bits of its payload and is made quiet.
func ToF16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13&0x3ff)
	case u >= 0x477ff000: // 65520, half-way between the greatest finite number and 2¹⁶
		return sign | 0x7c00
	case u < 0x38800000: // below 2⁻¹⁴, the least normal number
		// Adding 1/2 gives the last place the weight 2⁻²⁴, which is that of the result, and rounds.
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	return sign | uint16((u-0x38000000+0xfff+u>>13&1)>>13)
}

// FromF16 returns the value of the binary16 number h. A signalling NaN becomes quiet, as by
// VCVTPH2PS.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0: // zero or subnormal: frac · 2⁻²⁴ is exact in float32
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(v))
	case exp < 0x1f:
		return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
	case frac != 0:
		return math.Float32frombits(sign | 0x7fc00000 | frac<<13)
	}
	return math.Float32frombits(sign | 0x7f800000)
}

// DecodeBF16 widens len(dst) bfloat16 numbers, little-endian as weights are stored.
func DecodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// DecodeF16 is DecodeBF16 for binary16 numbers.
func DecodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = FromF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// DecodeF32 reads len(dst) float32 numbers, stored as those of DecodeBF16.
func DecodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}
