package sample

import "math"

// A row is read in blocks of this many logits: what is known of a block saves a look at its logits.
const block = 512

func blocksOf(n int) int { return (n + block - 1) / block }

// survey finds the greatest value of each block of a row, minus infinity where there is none. NaN
// is never the greatest.
func (s *Sampler) survey(x []float32) {
	n := blocksOf(len(x))
	if cap(s.maxes) < n {
		s.maxes = make([]float32, n)
	}
	s.maxes = s.maxes[:n]
	whole := 0
	if vector && len(x) >= block {
		whole = len(x) / block
		maxesAVX2(&s.maxes[0], &x[0], whole)
	}
	for b := whole; b < n; b++ {
		top := negInf
		for _, v := range x[b*block : min((b+1)*block, len(x))] {
			if v > top {
				top = v
			}
		}
		s.maxes[b] = top
	}
}

// best returns the index of the greatest value of a row that was surveyed, the lowest of equal
// ones, or -1 when no value is greater than minus infinity.
func (s *Sampler) best(x []float32) int {
	hit, top := -1, negInf
	for b, v := range s.maxes {
		if v > top {
			hit, top = b*block, v
		}
	}
	if hit < 0 {
		return -1
	}
	for x[hit] != top {
		hit++
	}
	return hit
}

// above is nextAbove of a row that was surveyed.
func (s *Sampler) above(x []float32, from int, low float32) int {
	for b := from / block; b < len(s.maxes); b++ {
		if s.maxes[b] > low {
			if i := nextAbove(x[:min((b+1)*block, len(x))], max(from, b*block), low); i >= 0 {
				return i
			}
		}
	}
	return -1
}

// sums returns the weights of x by block, and all of them, for values up to base. They are good to
// about 3e-7: enough for the share of a block and for the total, while weightOf tells tokens apart.
func (s *Sampler) sums(x []float32, base float32, c scale) (sums []float32, total float64) {
	n := blocksOf(len(x))
	if cap(s.block) < n {
		s.block = make([]float32, n)
	}
	sums = s.block[:n]
	k := float32(c.k / 64)
	whole := len(x) / block
	switch {
	case whole == 0:
	case vector:
		sumsAVX2(&sums[0], &x[0], whole, base, k)
	default:
		sumsPortable(sums[:whole], x, base, k)
	}
	if whole < n {
		end := s.end[copy(s.end[:], x[whole*block:]):]
		for i := range end {
			end[i] = negInf
		}
		if vector {
			sumsAVX2(&sums[whole], &s.end[0], 1, base, k)
		} else {
			sumsPortable(sums[whole:], s.end[:], base, k)
		}
	}
	for i, w := range sums {
		if w < 0x1p-66 { // none of its weights counts
			sums[i] = 0
		}
		total += float64(sums[i])
	}
	return sums, total
}

// The minimax polynomial of 2^x on [-1/2, 1/2] whose first coefficient is 1: relative error 9.2e-8.
const (
	pow1 float32 = 0.69314700
	pow2 float32 = 0.24022242
	pow3 float32 = 0.055507336
	pow4 float32 = 0.009671513
	pow5 float32 = 0.0013264724
)

// sumsPortable adds up 2^((x-base)·k) in each block: in 16 lanes, element i in lane i mod 16, joined
// by a fixed tree. Powers below -100, NaN and minus infinity are 2^-100. Every product is converted
// explicitly, so that no compiler fuses it with the addition that follows.
func sumsPortable(sums, x []float32, base, k float32) {
	for b := range sums {
		var lanes [16]float32
		for i, v := range x[b*block : (b+1)*block] {
			y := float32((v - base) * k)
			if !(y > -100) {
				y = -100
			}
			z := y + 12582912 // 1.5 * 2^23: adding it rounds to an integer held in the low bits
			r := y - (z - 12582912)
			r2 := float32(r * r)
			p := float32(r*pow5) + pow4
			p = float32(p*r2) + (float32(r*pow3) + pow2)
			p = float32(p*r2) + (float32(r*pow1) + 1)
			lanes[i&15] += math.Float32frombits(math.Float32bits(p) + math.Float32bits(z)<<23)
		}
		var v [8]float32
		for i := range v {
			v[i] = lanes[i] + lanes[i+8]
		}
		sums[b] = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
	}
}

// count is how many values are at least value, which is no NaN.
func count(x []float32, value float32) int32 {
	n := 0
	if vector && len(x) >= block {
		n = countAVX2(&x[0], len(x)/block, value)
		x = x[len(x)/block*block:]
	}
	for _, v := range x {
		if v >= value {
			n++
		}
	}
	return int32(n)
}
