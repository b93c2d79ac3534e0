package ptx

import "unsafe"

// The functions here compare all 32 lanes; bit i of the result is that of lane i.

func eq32(a, b *lanes32) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] == b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ne32(a, b *lanes32) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] != b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ltU32(a, b *lanes32) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] < b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ltS32(a, b *lanes32) (m uint32) {
	for i := range a {
		var bit uint32
		if int32(a[i]) < int32(b[i]) {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ltU64(a, b *lanes64) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] < b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ltS64(a, b *lanes64) (m uint32) {
	for i := range a {
		var bit uint32
		if int64(a[i]) < int64(b[i]) {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func leU32(a, b *lanes32) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] <= b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func leS32(a, b *lanes32) (m uint32) {
	for i := range a {
		var bit uint32
		if int32(a[i]) <= int32(b[i]) {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func leU64(a, b *lanes64) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] <= b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func leS64(a, b *lanes64) (m uint32) {
	for i := range a {
		var bit uint32
		if int64(a[i]) <= int64(b[i]) {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func eq64(a, b *lanes64) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] == b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ne64(a, b *lanes64) (m uint32) {
	for i := range a {
		var bit uint32
		if a[i] != b[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

type floats [lanes]float32

func (l *lanes32) floats() *floats { return (*floats)(unsafe.Pointer(l)) }

func eqF32(a, b *lanes32) (m uint32) {
	x, y := a.floats(), b.floats()
	for i := range x {
		var bit uint32
		if x[i] == y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func ltF32(a, b *lanes32) (m uint32) {
	x, y := a.floats(), b.floats()
	for i := range x {
		var bit uint32
		if x[i] < y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

func leF32(a, b *lanes32) (m uint32) {
	x, y := a.floats(), b.floats()
	for i := range x {
		var bit uint32
		if x[i] <= y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}

// nanF32 is where a or b is not a number.
func nanF32(a, b *lanes32) (m uint32) {
	x, y := a.floats(), b.floats()
	for i := range x {
		var bit uint32
		if x[i] != x[i] || y[i] != y[i] {
			bit = 1
		}
		m |= bit << i
	}
	return m
}
