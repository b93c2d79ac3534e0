package half

import (
	"encoding/binary"
	"math"
)

// A number is infinite or NaN when its exponent is all ones: only then does the sum of the exponent
// and its lowest bit reach the sign's place, of each number in a word by itself.

// FiniteBF16 says that none of little-endian bfloat16 numbers is infinite or NaN.
func FiniteBF16(b []byte) bool {
	return finite(b, 0x7f80_7f80_7f80_7f80, 0x0080_0080_0080_0080, 0x8000_8000_8000_8000)
}

// FiniteF16 says that none of little-endian binary16 numbers is infinite or NaN.
func FiniteF16(b []byte) bool {
	return finite(b, 0x7c00_7c00_7c00_7c00, 0x0400_0400_0400_0400, 0x8000_8000_8000_8000)
}

// FiniteF32 says that none of little-endian binary32 numbers is infinite or NaN.
func FiniteF32(b []byte) bool {
	return finite(b, 0x7f80_0000_7f80_0000, 0x0080_0000_0080_0000, 0x8000_0000_8000_0000)
}

// finite wants whole numbers: a last word is filled up with zeros.
func finite(b []byte, exponents, lowest, signs uint64) bool {
	var all uint64
	for ; len(b) >= 32; b = b[32:] {
		w := (*[32]byte)(b)
		all |= binary.LittleEndian.Uint64(w[:8])&exponents + lowest
		all |= binary.LittleEndian.Uint64(w[8:16])&exponents + lowest
		all |= binary.LittleEndian.Uint64(w[16:24])&exponents + lowest
		all |= binary.LittleEndian.Uint64(w[24:])&exponents + lowest
	}
	for len(b) > 0 {
		var w [8]byte
		b = b[copy(w[:], b):]
		all |= binary.LittleEndian.Uint64(w[:])&exponents + lowest
	}
	return all&signs == 0
}

// AllFinite says that none of the numbers is infinite or NaN.
func AllFinite(v []float32) bool {
	var all uint32
	for _, x := range v {
		all |= math.Float32bits(x)&0x7f80_0000 + 0x0080_0000
	}
	return all&0x8000_0000 == 0
}
