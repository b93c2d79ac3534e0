package gemm

import (
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
)

// RowForm is the narrowest form of rows of x of which products with the matrix have the same bits.
func (m *Matrix) RowForm() compute.RowForm {
	form := compute.FloatRow
	switch {
	case m.codes != nil:
		form = m.codes.rowForm(m.k)
	case m.rounded && m.kernels.halves:
		form = compute.BF16Row
	case m.rounded:
		form = compute.FlushedBF16Row
	}
	if !form.Sound(m.k) {
		return compute.FloatRow
	}
	return form
}

// rowForm is that of a row of so many columns, if its spans lie as those of a form do.
func (c *codes) rowForm(columns int) compute.RowForm {
	if !c.dots || c.columns != nil {
		return compute.FloatRow
	}
	form := compute.RowForm(8 * c.runs[0].blocks)
	at := 0
	for _, r := range c.runs {
		for range r.spans {
			if form.Span(columns-at) != 8*r.blocks {
				return compute.FloatRow
			}
			at += 8 * r.blocks
		}
	}
	return form
}

// Narrow makes dst, form.Words(len(x)) long, the row x in a form. vector says that there is AVX2.
func Narrow(dst, x []float32, form compute.RowForm, vector bool) {
	switch form {
	case compute.FloatRow:
		copy(dst, x)
		return
	case compute.BF16Row, compute.FlushedBF16Row:
		narrowHalves(dst, x, form, vector)
		return
	}
	for len(x) > 0 {
		n := form.Span(len(x))
		dst[0] = largestOf(x[:n])
		roundSpan(unsafe.Pointer(&dst[1]), unsafe.Pointer(&x[0]), n/8, vector)
		dst, x = dst[1+n/4:], x[n:]
	}
}

// largestOf is the largest magnitude of a span, which is a multiple of eight columns.
func largestOf(x []float32) float32 {
	var a, b, c, d uint32
	for ; len(x) >= 4; x = x[4:] {
		v := (*[4]uint32)(unsafe.Pointer(&x[0]))
		a, b = max(a, v[0]<<1), max(b, v[1]<<1)
		c, d = max(c, v[2]<<1), max(d, v[3]<<1)
	}
	return math.Float32frombits(max(a, b, c, d) >> 1)
}

func narrowHalves(dst, x []float32, form compute.RowForm, vector bool) {
	if form == compute.BF16Row && vector {
		halfRow(unsafe.Slice((*uint16)(unsafe.Pointer(&dst[0])), len(x)), x)
		return
	}
	var rounded [256]float32
	for len(x) > 0 {
		some := rounded[:min(len(x), len(rounded))]
		if vector {
			roundRow(some, x[:len(some)])
		} else {
			for i, v := range x[:len(some)] {
				if form == compute.FlushedBF16Row {
					v = amx.Flushed(v)
				}
				some[i] = BF16.round(v)
			}
		}
		for i := range len(some) / 2 {
			low, high := math.Float32bits(some[2*i]), math.Float32bits(some[2*i+1])
			dst[i] = math.Float32frombits(low>>16 | high)
		}
		dst, x = dst[len(some)/2:], x[len(some):]
	}
}

// Widen makes dst a row of which Narrow makes src, as does the product that the form is for.
func Widen(dst, src []float32, form compute.RowForm) {
	switch form {
	case compute.FloatRow:
		copy(dst, src)
		return
	case compute.BF16Row, compute.FlushedBF16Row:
		for i, v := range src[:len(dst)/2] {
			both := math.Float32bits(v)
			dst[2*i] = math.Float32frombits(both << 16)
			dst[2*i+1] = math.Float32frombits(both &^ 0xffff)
		}
		return
	}
	for len(dst) > 0 {
		n, most := form.Span(len(dst)), src[0]
		step := most / 127
		to := dst[:n]
		for i, c := range unsafe.Slice((*int8)(unsafe.Pointer(&src[1])), n) {
			v := float32(c) * step
			switch c {
			case 127: // what makes the same scale again
				v = most
			case -127:
				v = -most
			}
			to[i] = v
		}
		dst, src = dst[n:], src[1+n/4:]
	}
}
