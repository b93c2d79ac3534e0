package vec

// Relu replaces negative elements of x by zero. NaN stays NaN.
func (o *Ops) Relu(x []float32) {
	if o.simd {
		reluAVX2(x)
		return
	}
	reluPortable(x)
}

// SiluMul computes dst = silu(gate)·up, the gated unit of Llama's feed-forward block: silu(x) is
// x·σ(x), σ being the logistic function, and NaN at -Inf, as PyTorch's. dst may be gate or up.
func (o *Ops) SiluMul(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	if o.simd {
		n := o.wider(len(dst))
		siluMul512(dst[:n], gate, up)
		siluMulAVX2(dst[n:], gate[n:], up[n:])
		return
	}
	siluMulPortable(dst, gate, up)
}

// SiluMulBlocks is SiluMul of as many leading elements as it returns, a multiple of 64, rounded to
// bfloat16: each 32 lie 32·32 of dst behind those before (see amx.Round). The machine has AVX-512.
func (o *Ops) SiluMulBlocks(dst []uint16, gate, up []float32) int {
	n := o.wider(len(gate))
	if n > 0 {
		const block = 32
		_ = dst[(n/block-1)*block*block+block-1]
		siluMulBlocks512(&dst[0], gate[:n], up[:n])
	}
	return n
}

// GeluErf replaces each element of x by x·Φ(x), Φ being the normal distribution function: the exact
// Gaussian error linear unit.
func (o *Ops) GeluErf(x []float32) {
	if o.simd {
		n := o.wider(len(x))
		geluErf512(x[:n])
		geluErfAVX2(x[n:])
		return
	}
	geluErfPortable(x)
}

// GeluErfMul computes dst = gelu(gate)·up with the exact unit. dst may be gate.
func (o *Ops) GeluErfMul(dst, gate, up []float32) {
	copy(dst, gate[:len(dst)])
	o.GeluErf(dst)
	for i, x := range up[:len(dst)] {
		dst[i] *= x
	}
}
