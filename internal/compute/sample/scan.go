package sample

import (
	"math"
	"unsafe"
)

var negInf = float32(math.Inf(-1))

// nextAbove returns the first index >= from whose value is greater than low, or -1. NaN is never
// greater.
//
// It is the one loop over a block that selecting the top k and collecting candidates share: hits are
// rare in both, so eight comparisons that all fail are the common case. While low is not negative the values are compared as integers (the bits of IEEE
// 754 numbers with a clear sign order as they do, and those with a set sign are negative integers),
// which takes half the time.
func nextAbove(x []float32, from int, low float32) int {
	if from < 0 || from >= len(x) {
		return -1
	}
	if low >= 0 {
		return nextAboveBits(x, from, low+0) // -0+0 is +0, whose bits are those of zero
	}
	i, rest := from, x[from:]
	for len(rest) >= 8 {
		a := (*[8]float32)(rest)
		if a[0] > low || a[1] > low || a[2] > low || a[3] > low ||
			a[4] > low || a[5] > low || a[6] > low || a[7] > low {
			break
		}
		rest = rest[8:]
		i += 8
	}
	for j, v := range rest {
		if v > low {
			return i + j
		}
	}
	return -1
}

func nextAboveBits(x []float32, from int, low float32) int {
	const inf = 0x7f800000
	all := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
	m := int32(math.Float32bits(low))
	i, rest := from, all[from:]
	for {
		for len(rest) >= 8 {
			a := (*[8]int32)(rest)
			if a[0] > m || a[1] > m || a[2] > m || a[3] > m ||
				a[4] > m || a[5] > m || a[6] > m || a[7] > m {
				break
			}
			rest = rest[8:]
			i += 8
		}
		n := min(len(rest), 8)
		for j, v := range rest[:n] {
			if v > m && v <= inf { // above inf are NaNs
				return i + j
			}
		}
		rest = rest[n:]
		i += n
		if len(rest) == 0 {
			return -1
		}
	}
}

// below returns the greatest float32 less than t, so that v >= t means v > below(t).
func below(t float64) float32 {
	f := float32(t)
	if float64(f) >= t {
		return math.Nextafter32(f, negInf)
	}
	return f
}

// heapK is the largest k for which kth keeps a heap; beyond, sifting costs more than counting
// digits.
const heapK = 128

// kth returns the k-th greatest value (1 <= k <= len(x)) of a row that was surveyed, NaN counting as
// minus infinity.
func (s *Sampler) kth(x []float32, k int) float32 {
	if k > heapK {
		return s.kthRadix(x, k)
	}
	h := s.heap[:k]
	for i := range h {
		h[i] = negInf
	}
	// The k-th greatest value is at least that of the blocks' greatest.
	low := negInf
	if k <= len(s.maxes) {
		for _, v := range s.maxes {
			if v > h[0] {
				siftDown(h, v)
			}
		}
		low = below(float64(h[0]))
		for i := range h {
			h[i] = negInf
		}
	}
	for i := s.above(x, 0, low); i >= 0; i = s.above(x, i+1, max(low, h[0])) {
		siftDown(h, x[i])
	}
	return h[0]
}

// siftDown replaces the least element of the min-heap h by v.
func siftDown(h []float32, v float32) {
	i := 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[c] >= v {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = v
}

// kthRadix finds the k-th greatest value by counting the digits of the order-preserving integer
// image of the values, most significant first; only the values that share the digit go on. It takes
// at most three passes, whatever the values.
func (s *Sampler) kthRadix(x []float32, k int) float32 {
	if cap(s.keys) < len(x) {
		s.keys = make([]uint32, len(x))
	}
	keys := s.keys[:len(x)]
	for i, v := range x {
		keys[i] = orderKey(v)
	}
	for _, d := range [3]struct{ shift, bits uint32 }{{21, 11}, {10, 11}, {0, 10}} {
		mask := uint32(1)<<d.bits - 1
		count := s.count[:mask+1]
		clear(count)
		for _, key := range keys {
			count[key>>d.shift&mask]++
		}
		digit := mask
		for uint32(k) > count[digit] {
			k -= int(count[digit])
			digit--
		}
		n := 0
		for _, key := range keys {
			if key>>d.shift&mask == digit {
				keys[n] = key
				n++
			}
		}
		keys = keys[:n]
	}
	return fromOrderKey(keys[0])
}

// orderKey maps values to integers of the same order. NaN maps to the key of minus infinity.
func orderKey(v float32) uint32 {
	if v != v {
		v = negInf
	}
	b := math.Float32bits(v)
	return b ^ (uint32(int32(b)>>31) | 1<<31)
}

func fromOrderKey(k uint32) float32 {
	if k>>31 == 1 {
		return math.Float32frombits(k ^ 1<<31)
	}
	return math.Float32frombits(^k)
}
