package attention

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// The portable kernels walk the same tiles in the same order as the vector ones, but round each
// product before it is added, where those fuse the two.

// widen converts to float32 the 16 elements at the start of b.
func widen(k compute.DType, b []byte, dst *[tile]float32) {
	switch k {
	case compute.BFloat16:
		for i, x := range cast[uint16](b[:tile*2]) {
			dst[i>>1|i&1<<3] = half.FromBF16(x)
		}
	case compute.Float16:
		for i, x := range cast[uint16](b[:tile*2]) {
			dst[i] = half.FromF16(x)
		}
	case compute.Int8:
		for i, x := range b[:tile] {
			dst[i] = float32(int8(x))
		}
	case compute.E4M3:
		for i, x := range b[:tile] {
			dst[i] = half.FromF16(uint16(x&0x80)<<8 | uint16(x&0x7f)<<7)
		}
	default:
		copy(dst[:], cast[float32](b[:tile*4]))
	}
}

// scorePortable is scratch.score; the tiles lie at offs from base.
func scorePortable(c *Cache, base int, offs []int, q []float32, n, dim int,
	scale float32, out []float32, stride int) {
	var acc [maxQueries][tile]float32
	var row [tile]float32
	bytes := tile * c.cfg.DType.Size()
	for t, off := range offs {
		k := c.data[off+base:]
		clear(acc[:n])
		for d := range dim {
			widen(c.cfg.DType, k[d*bytes:], &row)
			for i := range n {
				x := q[i*dim+d]
				for l := range row {
					acc[i][l] += float32(x * row[l])
				}
			}
		}
		for i := range n {
			to := out[i*stride+t*tile : i*stride+(t+1)*tile]
			for l := range to {
				to[l] = acc[i][l] * scale
			}
		}
	}
}

// valuePortable adds count positions, from position first of the first tile on, to the rows of acc,
// of padded values and accStride apart; the tiles lie in data, at offs.
func valuePortable(kind compute.DType, data []byte, offs []int, first, count int,
	p []float32, stride int, acc []float32, accStride, padded int) {
	var row [tile]float32
	bytes := tile * kind.Size()
	for k := range count {
		t, pos := (first+k)/tile, (first+k)%tile
		v := data[offs[t]:]
		for d := 0; d < padded; d += tile {
			widen(kind, v[(d+pos)*bytes:], &row)
			for i := 0; i*accStride < len(acc); i++ {
				w := p[i*stride+k]
				a := acc[i*accStride+d : i*accStride+d+tile]
				for l := range a {
					a[l] += float32(w * row[l])
				}
			}
		}
	}
}
