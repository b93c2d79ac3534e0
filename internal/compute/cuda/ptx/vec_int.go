package ptx

import (
	"math/bits"
	"unsafe"
)

// The functions here are instructions on all 32 lanes; in a warp that runs only some of them, the
// others' results are dropped (see apply.go). T is what the lanes of the registers are taken for.

// vector is the lanes of a register.
type vector interface{ lanes32 | lanes64 }

type integer interface {
	uint32 | int32 | uint64 | int64
}

type number interface{ integer | float32 }

// as is the lanes of a register as numbers of a type of their width.
func as[T number, V vector](v *V) *[lanes]T { return (*[lanes]T)(unsafe.Pointer(v)) }

func add[T number, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = x[i] + y[i]
	}
}

func sub[T number, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = x[i] - y[i]
	}
}

func mul[T number, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = x[i] * y[i]
	}
}

func and[T integer, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = x[i] & y[i]
	}
}

func or[T integer, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = x[i] | y[i]
	}
}

func xor[T integer, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = x[i] ^ y[i]
	}
}

// shl and shr give 0, or copies of the sign, from the width on, in PTX as in Go.
func shl[T integer, V vector](d, a *V, b *lanes32) {
	z, x := as[T](d), as[T](a)
	for i := range z {
		z[i] = x[i] << b[i]
	}
}

func shr[T integer, V vector](d, a *V, b *lanes32) {
	z, x := as[T](d), as[T](a)
	for i := range z {
		z[i] = x[i] >> b[i]
	}
}

func least[T integer, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = min(x[i], y[i])
	}
}

func most[T integer, V vector](d, a, b *V) {
	z, x, y := as[T](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = max(x[i], y[i])
	}
}

func mulHiU32(d, a, b *lanes32) {
	for i := range d {
		d[i] = uint32(uint64(a[i]) * uint64(b[i]) >> 32)
	}
}

func mulHiS32(d, a, b *lanes32) {
	for i := range d {
		d[i] = uint32(int64(int32(a[i])) * int64(int32(b[i])) >> 32)
	}
}

func madLo[T integer, V vector](d, a, b, c *V) {
	z, x, y, s := as[T](d), as[T](a), as[T](b), as[T](c)
	for i := range z {
		z[i] = x[i]*y[i] + s[i]
	}
}

func mov[V vector](d, a *V) { *d = *a }

func not32(d, a *lanes32) {
	for i := range d {
		d[i] = ^a[i]
	}
}

func neg32(d, a *lanes32) {
	for i := range d {
		d[i] = -a[i]
	}
}

func absS32(d, a *lanes32) {
	for i := range d {
		d[i] = uint32(max(int32(a[i]), -int32(a[i])))
	}
}

func popc32(d, a *lanes32) {
	for i := range d {
		d[i] = uint32(bits.OnesCount32(a[i]))
	}
}

func mulWide[T int32 | uint32, W int64 | uint64](d *lanes64, a, b *lanes32) {
	z, x, y := as[W](d), as[T](a), as[T](b)
	for i := range z {
		z[i] = W(x[i]) * W(y[i])
	}
}

func madWide[T int32 | uint32, W int64 | uint64](d *lanes64, a, b *lanes32, c *lanes64) {
	z, x, y, s := as[W](d), as[T](a), as[T](b), as[W](c)
	for i := range z {
		z[i] = W(x[i])*W(y[i]) + s[i]
	}
}

func wider[T int32 | uint32](d *lanes64, a *lanes32) {
	x := as[T](a)
	for i := range d {
		d[i] = uint64(x[i])
	}
}

func truncate(d *lanes32, a *lanes64) {
	for i := range d {
		d[i] = uint32(a[i])
	}
}

func addresses64(ea, a *lanes64, offset uint64) {
	for i, x := range a {
		ea[i] = x + offset
	}
}

func addresses32(ea *lanes64, a *lanes32, offset uint32) {
	for i, x := range a {
		ea[i] = uint64(x + offset)
	}
}

func offsets(ea *lanes64, base, last, low uint64) bool {
	var bad uint64
	for _, a := range ea {
		off := a - base
		bad |= off & low
		if off > last {
			bad = 1
		}
	}
	return bad == 0
}
