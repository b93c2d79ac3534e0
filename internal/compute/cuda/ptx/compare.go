package ptx

// The functions here compare all 32 lanes; bit i of the result is that of lane i.

func eq[T number, V vector](a, b *V) (m uint32) {
	x, y := as[T](a), as[T](b)
	for i := range x {
		var bit uint32
		if x[i] == y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ne[T integer, V vector](a, b *V) uint32 { return ^eq[T](a, b) }

func lt[T number, V vector](a, b *V) (m uint32) {
	x, y := as[T](a), as[T](b)
	for i := range x {
		var bit uint32
		if x[i] < y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func le[T number, V vector](a, b *V) (m uint32) {
	x, y := as[T](a), as[T](b)
	for i := range x {
		var bit uint32
		if x[i] <= y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func (l *lanes32) floats() *[lanes]float32 { return as[float32](l) }

// nanF32 is where a or b is not a number.
func nanF32(a, b *lanes32) uint32 { return ^eq[float32](a, a) | ^eq[float32](b, b) }
