package vec

// AddProducts computes dst += a·b, element by element.
func (o *Ops) AddProducts(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	if o.simd {
		addProductsAVX2(dst, a, b)
		return
	}
	addProductsPortable(dst, a, b)
}

// Recur is a step of a linear recurrence whose state is a matrix of len(k) rows of len(out): row j
// becomes decay·row + k[j]·u, and then out += q[j]·row, from the first row to the last.
func (o *Ops) Recur(state, out, k, q, u []float32, decay float32) {
	q, u = q[:len(k)], u[:len(out)]
	state = state[:len(k)*len(out)]
	if len(state) == 0 {
		return
	}
	switch n := len(out); {
	case o.wide && n%step512 == 0:
		recur512(state, out, k, q, u, decay)
	case o.simd:
		recurAVX2(state, out, k, q, u, decay)
	default:
		recurPortable(state, out, k, q, u, decay)
	}
}
