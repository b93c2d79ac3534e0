package attention

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
)

// A vector of a cache of codes is number(code)·scale. Kernels sum over numbers; a key's scale
// multiplies its score, a value's its weight. So what a row reads of a position follows from that
// position's vector alone, whenever it is read.
//
// The numbers of E4M3 are 2^-8 times as large here, as binary16 has the bits of their codes, and
// their scales 2^8 times.

// rounding is how a vector becomes codes: what it is divided by, and the scale that is stored.
type rounding struct{ divisor, stored float32 }

// rounding is that of a vector by a scale, 0 for its own. A vector with a number that is not finite
// becomes NaN.
func (c *Cache) rounding(x []float32, scale float32) (r rounding) {
	most, up := float32(127), float32(1)
	switch c.cfg.DType {
	case compute.E4M3:
		most, up = 448, 256
	case compute.Int8:
		scale = 0
	default:
		return r
	}
	largest := math.Float32frombits(c.ops.Largest(x))
	if !(largest <= math.MaxFloat32) {
		return rounding{stored: float32(math.NaN())}
	}
	if scale == 0 {
		scale = largest / most
	}
	return rounding{divisor: scale, stored: scale * up}
}

// encode rounds numbers to codes.
func (c *Cache) encode(dst []byte, x []float32, r rounding) {
	if c.cfg.DType == compute.E4M3 {
		c.ops.RoundE4M3(dst, x, r.divisor)
		return
	}
	c.ops.RoundInt8(dst, x, r.divisor)
}

// putScale stores the scale of a position in its tile.
func (p *place) putScale(t []byte, pos int, r rounding) {
	if s := cast[float32](t[p.scales:]); len(s) > 0 {
		s[pos] = r.stored
	}
}

// scaling is the scales of positions of a stretch, from one on.
type scaling struct{ keys, values [stretch]float32 }

// mapScales looks up the scales of a head, one of job.heads, in tiles from one to before another,
// counted from the first-th of the stretch that is mapped: that one's scales come first.
func (s *scratch) mapScales(j *job, head, first, from, to int) {
	values := j.p.values
	if j.p.Kind == compute.Latent {
		values = 0
	}
	for t := from; t < to; t++ {
		at := s.tiles.at[first+t] + j.keys(head) + j.p.scales
		*(*[tile]float32)(s.scaling.keys[t*tile:]) = j.c.scalesAt(at)
		*(*[tile]float32)(s.scaling.values[t*tile:]) = j.c.scalesAt(at + values)
	}
}

// scalesAt are the scales of a tile.
func (c *Cache) scalesAt(at int) [tile]float32 {
	return [tile]float32(cast[float32](c.data[at:][:4*tile]))
}
