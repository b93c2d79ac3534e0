package vec

import "github.com/eagleray/eagleray/internal/sys/half"

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

// ToBF16Pairs rounds x to bfloat16 as BF16 does, 16 elements to every step ones of dst: elements j
// and j+8 of them lie side by side. Of the last ones there may be fewer; the others' places keep
// what they have.
func (o *Ops) ToBF16Pairs(dst []uint16, step int, x []float32) {
	if len(x) > 0 {
		_ = dst[(len(x)-1)/16*step+15]
	}
	done := 0
	if o.simd && len(x) >= 16 {
		done = len(x) &^ 15
		toBF16PairsAVX2(&dst[0], 2*step, x[:done])
	}
	for i := done; i < len(x); i++ {
		dst[i/16*step+i&7<<1+i>>3&1] = half.ToBF16(x[i])
	}
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
