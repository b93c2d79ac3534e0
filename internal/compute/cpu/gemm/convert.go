package gemm

import (
	"encoding/binary"
	"math"
)

// floatToBF16 rounds to nearest even. A NaN stays a NaN (quiet, sign and upper payload kept).
func floatToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// halfToFloat converts IEEE 754 binary16, exactly. A signalling NaN becomes quiet, as by VCVTPH2PS.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h >> 10 & 0x1f)
	frac := uint32(h & 0x3ff)
	switch exp {
	case 0: // zero or denormal: frac · 2⁻²⁴ is exact in fp32
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*(1.0/(1<<24))))
	case 0x1f:
		if frac != 0 {
			frac |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// floatToHalf rounds to nearest even; values too large become infinite.
func floatToHalf(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13&0x3ff)
	case u >= 0x47800000: // 65536 and above; 65520 … 65535 round up to it below
		return sign | 0x7c00
	case u < 0x38800000: // below 2⁻¹⁴: adding 1/2 puts the unit of a binary16 denormal at the last bit
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	return sign | uint16((u-0x38000000+0xfff+u>>13&1)>>13)
}

// decode converts len(dst) stored elements to fp32.
func decode(dst []float32, kind Kind, src []byte) {
	switch kind {
	case BF16:
		for i := range dst {
			dst[i] = bf16ToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	}
}

// load16 reads len(dst) stored elements as the given 16-bit kind, through tmp when they are stored
// as another kind.
func load16(dst []uint16, kind, stored Kind, src []byte, tmp []float32) {
	if kind == stored {
		for i := range dst {
			dst[i] = binary.LittleEndian.Uint16(src[2*i:])
		}
		return
	}
	tmp = tmp[:len(dst)]
	decode(tmp, stored, src)
	if kind == BF16 {
		for i, v := range tmp {
			dst[i] = floatToBF16(v)
		}
		return
	}
	for i, v := range tmp {
		dst[i] = floatToHalf(v)
	}
}
