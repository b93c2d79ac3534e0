package ptx

import "math/bits"

// The functions here are instructions on all 32 lanes; in a warp that runs only some of them, the
// others' results are dropped (see apply.go).

func add32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func sub32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] - b[i]
	}
}

func mul32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] * b[i]
	}
}

func and32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] & b[i]
	}
}

func or32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] | b[i]
	}
}

func xor32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
}

func shl32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] << b[i]
	}
}

func shrU32(d, a, b *lanes32) {
	for i := range d {
		d[i] = a[i] >> b[i]
	}
}

func shrS32(d, a, b *lanes32) {
	for i := range d {
		d[i] = uint32(int32(a[i]) >> b[i])
	}
}

func minU32(d, a, b *lanes32) {
	for i := range d {
		d[i] = min(a[i], b[i])
	}
}

func maxU32(d, a, b *lanes32) {
	for i := range d {
		d[i] = max(a[i], b[i])
	}
}

func minS32(d, a, b *lanes32) {
	for i := range d {
		d[i] = uint32(min(int32(a[i]), int32(b[i])))
	}
}

func maxS32(d, a, b *lanes32) {
	for i := range d {
		d[i] = uint32(max(int32(a[i]), int32(b[i])))
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

// madLo32 is mad.lo: shifts by 32 and more give 0 in PTX as they do in Go.
func madLo32(d, a, b, c *lanes32) {
	for i := range d {
		d[i] = a[i]*b[i] + c[i]
	}
}

func mov32(d, a *lanes32) { *d = *a }

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

func add64(d, a, b *lanes64) {
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func sub64(d, a, b *lanes64) {
	for i := range d {
		d[i] = a[i] - b[i]
	}
}

func mul64(d, a, b *lanes64) {
	for i := range d {
		d[i] = a[i] * b[i]
	}
}

func and64(d, a, b *lanes64) {
	for i := range d {
		d[i] = a[i] & b[i]
	}
}

func or64(d, a, b *lanes64) {
	for i := range d {
		d[i] = a[i] | b[i]
	}
}

func xor64(d, a, b *lanes64) {
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
}

func minU64(d, a, b *lanes64) {
	for i := range d {
		d[i] = min(a[i], b[i])
	}
}

func maxU64(d, a, b *lanes64) {
	for i := range d {
		d[i] = max(a[i], b[i])
	}
}

func minS64(d, a, b *lanes64) {
	for i := range d {
		d[i] = uint64(min(int64(a[i]), int64(b[i])))
	}
}

func maxS64(d, a, b *lanes64) {
	for i := range d {
		d[i] = uint64(max(int64(a[i]), int64(b[i])))
	}
}

func madLo64(d, a, b, c *lanes64) {
	for i := range d {
		d[i] = a[i]*b[i] + c[i]
	}
}

func mov64(d, a *lanes64) { *d = *a }

func shl64(d, a *lanes64, b *lanes32) {
	for i := range d {
		d[i] = a[i] << b[i]
	}
}

func shrU64(d, a *lanes64, b *lanes32) {
	for i := range d {
		d[i] = a[i] >> b[i]
	}
}

func shrS64(d, a *lanes64, b *lanes32) {
	for i := range d {
		d[i] = uint64(int64(a[i]) >> b[i])
	}
}

func mulWideU32(d *lanes64, a, b *lanes32) {
	for i := range d {
		d[i] = uint64(a[i]) * uint64(b[i])
	}
}

func mulWideS32(d *lanes64, a, b *lanes32) {
	for i := range d {
		d[i] = uint64(int64(int32(a[i])) * int64(int32(b[i])))
	}
}

func madWideU32(d *lanes64, a, b *lanes32, c *lanes64) {
	for i := range d {
		d[i] = uint64(a[i])*uint64(b[i]) + c[i]
	}
}

func madWideS32(d *lanes64, a, b *lanes32, c *lanes64) {
	for i := range d {
		d[i] = uint64(int64(int32(a[i]))*int64(int32(b[i]))) + c[i]
	}
}

func extendS32(d *lanes64, a *lanes32) {
	for i := range d {
		d[i] = uint64(int64(int32(a[i])))
	}
}

func extendU32(d *lanes64, a *lanes32) {
	for i := range d {
		d[i] = uint64(a[i])
	}
}

func truncate64(d *lanes32, a *lanes64) {
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
