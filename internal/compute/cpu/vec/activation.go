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
