package vec

// Exp computes dst = e^x to within 2 units in the last place. Results below 2^-126 are flushed to zero, results
// above the greatest float32 are +Inf, and NaN stays NaN. dst may be x.
func (o *Ops) Exp(dst, x []float32) {
	x = x[:len(dst)]
	if o.simd {
		expAVX2(dst, x)
		return
	}
	expPortable(dst, x)
}

// Relu replaces negative elements of x by zero. NaN stays NaN.
func (o *Ops) Relu(x []float32) {
	if o.simd {
		reluAVX2(x)
		return
	}
	reluPortable(x)
}

// Silu replaces each element of x by x·σ(x), σ being the logistic function. Its value at -Inf is NaN, as PyTorch's.
func (o *Ops) Silu(x []float32) {
	if o.simd {
		siluAVX2(x)
		return
	}
	siluPortable(x)
}

// SiluMul computes dst = silu(gate)·up, the gated unit of Llama's feed-forward block. dst may be gate or up.
func (o *Ops) SiluMul(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	if o.simd {
		siluMulAVX2(dst, gate, up)
		return
	}
	siluMulPortable(dst, gate, up)
}

// GeluTanh replaces each element of x by the tanh approximation of the Gaussian error linear unit (Hendrycks and
// Gimpel, 2016), the one PyTorch calls approximate="tanh".
func (o *Ops) GeluTanh(x []float32) {
	if o.simd {
		geluTanhAVX2(x)
		return
	}
	geluTanhPortable(x)
}

// GeluErf replaces each element of x by x·Φ(x), Φ being the normal distribution function: the exact Gaussian error
// linear unit.
func (o *Ops) GeluErf(x []float32) {
	if o.simd {
		geluErfAVX2(x)
		return
	}
	geluErfPortable(x)
}
