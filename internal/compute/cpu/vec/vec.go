// Package vec holds the float32 row operations of the CPU backend: norms, activations, rotary
// embedding, softmax and the conversions to and from 16-bit floats.
//
// Every result depends only on the operands of its own call, summed in a fixed order, and has the
// same bits on every instruction set: no kernel fuses a multiplication with an addition. Operands
// of one call must not overlap, unless they are the same slice. A slice whose capacity is below the
// length that the call asks makes it panic, as slicing would.
package vec

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// Ops is a choice of kernels. It has no state and may be used by many goroutines.
type Ops struct {
	simd bool
	wide bool // there is AVX-512
}

// New returns the operations for the instruction set i, or the portable ones if this machine cannot
// run it. Sets above AVX2 use the AVX2 kernels where they have none of their own.
func New(i isa.ISA) *Ops {
	return &Ops{simd: i >= isa.AVX2 && isa.Available(isa.AVX2),
		wide: i >= isa.AVX512 && isa.Available(isa.AVX512)}
}

const (
	// step512 is how many elements the kernels of AVX-512 take at a time that need exponentials.
	step512 = 64
	// rowStep512 is how many those of rows do, and ropeStep512 how many of half a head.
	rowStep512, ropeStep512 = 32, 16
)

// wider is how many leading elements of n the kernels of AVX-512 take.
func (o *Ops) wider(n int) int {
	if o.wide {
		return n &^ (step512 - 1)
	}
	return 0
}

// sumBlock is how many elements are summed in float32; blocks are joined in float64. It bounds both
// the rounding error of sums over a vocabulary and the time spent in one uninterruptible kernel.
const sumBlock = 8192

// Sum is the sum of x.
func (o *Ops) Sum(x []float32) float32 {
	var s float64
	for len(x) > 0 {
		b := x[:min(len(x), sumBlock)]
		if o.simd {
			s += float64(sumAVX2(b))
		} else {
			s += float64(sumPortable(b))
		}
		x = x[len(b):]
	}
	return float32(s)
}

// Dot is the scalar product of a and b[:len(a)].
func (o *Ops) Dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s float64
	for len(a) > 0 {
		n := min(len(a), sumBlock)
		if o.simd {
			s += float64(dotAVX2(a[:n], b[:n]))
		} else {
			s += float64(dotPortable(a[:n], b[:n]))
		}
		a, b = a[n:], b[n:]
	}
	return float32(s)
}

// RMSNorm computes dst = x/sqrt(mean(x²)+eps)·weight for one row of len(dst) elements (Zhang and
// Sennrich, 2019). dst may be x.
func (o *Ops) RMSNorm(dst, x, weight []float32, eps float32) {
	if len(dst) == 0 {
		return
	}
	x, weight = x[:len(dst)], weight[:len(dst)]
	mean := float64(o.Dot(x, x)) / float64(len(x))
	o.ScaleWeight(dst, x, weight, float32(1/math.Sqrt(mean+float64(eps))))
}

// ScaleWeight computes dst = (x·r)·weight, element by element. dst may be x.
func (o *Ops) ScaleWeight(dst, x, weight []float32, r float32) {
	x, weight = x[:len(dst)], weight[:len(dst)]
	if o.wide {
		n := len(dst) &^ (rowStep512 - 1)
		scaleWeight512(dst[:n], x, weight, r)
		dst, x, weight = dst[n:], x[n:], weight[n:]
	}
	if o.simd {
		scaleWeightAVX2(dst, x, weight, r)
		return
	}
	scaleWeightPortable(dst, x, weight, r)
}

// LayerNorm computes dst = (x-mean(x))/sqrt(var(x)+eps)·weight + bias for one row of len(dst)
// elements, with the biased variance (Ba et al., 2016). dst may be x.
func (o *Ops) LayerNorm(dst, x, weight, bias []float32, eps float32) {
	n := len(dst)
	if n == 0 {
		return
	}
	x, weight, bias = x[:n], weight[:n], bias[:n]
	mean := float32(float64(o.Sum(x)) / float64(n))
	var s float64
	for rest := x; len(rest) > 0; {
		b := rest[:min(len(rest), sumBlock)]
		if o.simd {
			s += float64(sumSqDiffAVX2(b, mean))
		} else {
			s += float64(sumSqDiffPortable(b, mean))
		}
		rest = rest[len(b):]
	}
	r := float32(1 / math.Sqrt(s/float64(n)+float64(eps)))
	if o.simd {
		affineAVX2(dst, x, weight, bias, mean, r)
		return
	}
	affinePortable(dst, x, weight, bias, mean, r)
}

// Add computes dst = a + b. dst may be either.
func (o *Ops) Add(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	if o.wide {
		n := len(dst) &^ (rowStep512 - 1)
		add512(dst[:n], a, b)
		dst, a, b = dst[n:], a[n:], b[n:]
	}
	if o.simd {
		addAVX2(dst, a, b)
		return
	}
	addPortable(dst, a, b)
}

// Mul computes x *= f, element by element.
func (o *Ops) Mul(x, f []float32) {
	f = f[:len(x)]
	if o.simd {
		mulAVX2(x, f)
		return
	}
	mulPortable(x, f)
}

// Axpy computes dst += a·x.
func (o *Ops) Axpy(dst []float32, a float32, x []float32) {
	x = x[:len(dst)]
	if o.simd {
		axpyAVX2(dst, a, x)
		return
	}
	axpyPortable(dst, a, x)
}

// Scale computes dst = x·a. dst may be x.
func (o *Ops) Scale(dst, x []float32, a float32) {
	x = x[:len(dst)]
	if o.simd {
		scaleAVX2(dst, x, a)
		return
	}
	scalePortable(dst, x, a)
}

// Div computes x /= a.
func (o *Ops) Div(x []float32, a float32) {
	if o.simd {
		divAVX2(x, a)
		return
	}
	divPortable(x, a)
}

// Rope applies the rotary position embedding (Su et al., 2021) in the half-split order of GPT-NeoX
// to the head vectors of headDim elements that x consists of: element i < rot/2 is paired with
// element i+rot/2 and turned by the angle whose cosine and sine are cos[i] and sin[i]. Elements
// from rot on stay.
func (o *Ops) Rope(x []float32, headDim, rot int, cos, sin []float32) {
	half := rot / 2
	cos, sin = cos[:half], sin[:half]
	if heads := len(x) / max(headDim, 1); o.wide && heads > 0 && half > 0 &&
		half%ropeStep512 == 0 {
		_ = x[(heads-1)*headDim+2*half-1]
		ropeHeads512(&x[0], heads, 4*headDim, half, &cos[0], &sin[0])
		return
	}
	for len(x) >= headDim && headDim > 0 {
		head := x[:headDim]
		if o.simd {
			ropeAVX2(head[:half], head[half:2*half], cos, sin)
		} else {
			ropePortable(head[:half], head[half:2*half], cos, sin)
		}
		x = x[headDim:]
	}
}
