package vec

// The vector kernels convert multiples of eight elements; the scalar ones finish the row with the
// same rounding.

// ToBF16 rounds x to bfloat16 as BF16 does.
func (o *Ops) ToBF16(dst []uint16, x []float32) {
	x = x[:len(dst)]
	if o.simd {
		toBF16AVX2(dst, x)
		n := len(dst) &^ 7
		dst, x = dst[n:], x[n:]
	}
	toBF16Portable(dst, x)
}

// FromBF16 widens bfloat16 numbers, exactly.
func (o *Ops) FromBF16(dst []float32, x []uint16) {
	x = x[:len(dst)]
	if o.simd {
		fromBF16AVX2(dst, x)
		n := len(dst) &^ 7
		dst, x = dst[n:], x[n:]
	}
	fromBF16Portable(dst, x)
}

// ToF16 rounds x to IEEE 754 binary16 as F16 does.
func (o *Ops) ToF16(dst []uint16, x []float32) {
	x = x[:len(dst)]
	if o.simd {
		toF16AVX2(dst, x)
		n := len(dst) &^ 7
		dst, x = dst[n:], x[n:]
	}
	toF16Portable(dst, x)
}

// FromF16 widens IEEE 754 binary16 numbers, exactly.
func (o *Ops) FromF16(dst []float32, x []uint16) {
	x = x[:len(dst)]
	if o.simd {
		fromF16AVX2(dst, x)
		n := len(dst) &^ 7
		dst, x = dst[n:], x[n:]
	}
	fromF16Portable(dst, x)
}
