package ptx

import "math/bits"

var (
	u32Type  = types["u32"]
	u64Type  = types["u64"]
	predType = types["pred"]
)

// shift decodes shl and shr: the number of bits is 32 wide whatever is shifted, and one beyond the
// width leaves zeros, or copies of the sign.
func (d *decoder) shift(t typ) {
	if !d.arity(3, 3) {
		return
	}
	dst, a := d.dst(d.st.args[0], t), d.src(d.st.args[1], t)
	n := d.src(d.st.args[2], u32Type)
	left := d.st.opcode == "shl"
	switch {
	case t.bits == 32:
		d.op(apply2(d.ops.ints[d.typed(t)]), dst, a, n)
	case t.bits == 64 && left:
		d.op(apply2(shl[uint64, lanes64]), dst, a, n)
	case t.bits == 64 && t.signed():
		d.op(apply2(shr[int64, lanes64]), dst, a, n)
	case t.bits == 64:
		d.op(apply2(shr[uint64, lanes64]), dst, a, n)
	default:
		d.op(perLane(operands{}, func(a, n, _ uint64) uint64 {
			switch {
			case left:
				return t.truncated(a << n)
			case t.signed():
				return t.truncated(uint64(int64(t.extended(a)) >> n))
			}
			return a >> n
		}), dst, a, n)
	}
}

// unaryInt decodes instructions of one integer.
func (d *decoder) unaryInt(t typ) {
	if !d.arity(2, 2) {
		return
	}
	fast := map[string]func(d, a *lanes32){"not": not32, "neg": neg32, "abs": absS32,
		"popc": popc32}[d.st.opcode]
	if fast != nil && t.bits == 32 && t.pack == 1 {
		d.op(apply1(fast), d.dst(d.st.args[0], t), d.src(d.st.args[1], t))
		return
	}
	var f func(a uint64) uint64
	result := t
	switch d.st.opcode {
	case "not":
		f = func(a uint64) uint64 { return ^a }
	case "cnot":
		f = func(a uint64) uint64 {
			if a == 0 {
				return 1
			}
			return 0
		}
	case "neg":
		f = func(a uint64) uint64 { return -a }
	case "abs":
		f = func(a uint64) uint64 {
			v := int64(t.extended(a))
			return uint64(max(v, -v))
		}
	case "popc":
		f, result = func(a uint64) uint64 { return uint64(bits.OnesCount64(a)) }, u32Type
	case "clz":
		f = func(a uint64) uint64 { return uint64(bits.LeadingZeros64(a) - 64 + t.bits) }
		result = u32Type
	case "brev":
		f = func(a uint64) uint64 { return bits.Reverse64(a) >> (64 - t.bits) }
	case "bfind":
		amount := d.st.has("shiftamt")
		f, result = func(a uint64) uint64 { return findBit(t, a, amount) }, u32Type
	}
	if f == nil || t.pack != 1 {
		d.failf("unknown instruction")
		return
	}
	d.perLane(result, t, func(a, _, _ uint64) uint64 { return result.truncated(f(a)) })
}

// findBit is bfind: the place of the highest bit that is not a sign, all ones if there is none.
func findBit(t typ, a uint64, amount bool) uint64 {
	v := t.extended(a)
	if t.signed() && int64(v) < 0 {
		v = ^v
	}
	if v == 0 {
		return 0xffffffff
	}
	at := 63 - bits.LeadingZeros64(v)
	if amount {
		return uint64(t.bits - 1 - at)
	}
	return uint64(at)
}

// logic decodes and, or, xor and not, of predicates too.
func (d *decoder) logic(t typ) {
	if t.class != 'p' {
		if d.st.opcode == "not" {
			d.unaryInt(t)
			return
		}
		d.intArith(t)
		return
	}
	if !d.arity(2, 3) {
		return
	}
	d.predicateLogic()
}

func (d *decoder) predicateLogic() {
	op := d.st.opcode
	srcs := make([]int32, len(d.st.args)-1)
	var flip [2]uint32
	for i := range srcs {
		srcs[i], flip[i] = d.predicate(d.st.args[i+1])
	}
	d.op(func(w *warp, in *inst, mask uint32) {
		r := w.pred[in.a] ^ flip[0]
		b := uint32(0)
		if in.b >= 0 {
			b = w.pred[in.b] ^ flip[1]
		}
		switch op {
		case "and":
			r &= b
		case "or":
			r |= b
		case "xor":
			r ^= b
		case "not":
			r = ^r
		}
		w.pred[in.d] = w.pred[in.d]&^mask | r&mask
	}, d.dst(d.st.args[0], predType), srcs...)
}

// predicate is a predicate's register, and ones if it is negated.
func (d *decoder) predicate(o operand) (r int32, flip uint32) {
	if o.negated {
		flip = allLanes
	}
	return d.src(o, predType), flip
}

// fields decodes bfe, bfi, lop3, prmt and shf.
func (d *decoder) fields(t typ) {
	switch d.st.opcode {
	case "bfe":
		if d.arity(4, 4) {
			d.bfe(t)
		}
	case "bfi":
		if d.arity(5, 5) {
			d.bfi(t)
		}
	case "lop3":
		if d.arity(5, 5) {
			d.lop3()
		}
	case "prmt":
		if d.arity(4, 4) {
			d.prmt()
		}
	case "shf":
		if d.arity(4, 4) {
			d.funnel()
		}
	}
}

func (d *decoder) bfe(t typ) {
	a := d.st.args
	if t.bits == 32 && a[2].kind == numberOperand && a[3].kind == numberOperand {
		d.bfeFixed(t, a[2].bits&255, a[3].bits&255)
		return
	}
	o := operands{typeBank(t), typeBank(t), bank32, bank32}
	d.op(perLane(o, func(a, pos, n uint64) uint64 { return extract(t, a, pos&255, n&255) }),
		d.dst(a[0], t), d.src(a[1], t), d.src(a[2], u32Type), d.src(a[3], u32Type))
}

// bfeFixed decodes a bfe of 32 bits whose field is known: two shifts, where it lies within.
func (d *decoder) bfeFixed(t typ, pos, n uint64) {
	f := func(d, a *lanes32) {
		for i := range d {
			d[i] = uint32(extract(t, uint64(a[i]), pos, n))
		}
	}
	if n > 0 && pos+n <= 32 {
		left, right := 32-pos-n, 32-n
		f = func(d, a *lanes32) {
			for i := range d {
				d[i] = a[i] << left >> right
			}
		}
		if t.signed() {
			f = func(d, a *lanes32) {
				for i := range d {
					d[i] = uint32(int32(a[i]<<left) >> right)
				}
			}
		}
	}
	d.op(apply1(f), d.dst(d.st.args[0], t), d.src(d.st.args[1], t))
}

// extract is bfe (PTX ISA 9.7.1.18): bits beyond the width are copies of the sign.
func extract(t typ, a, pos, n uint64) uint64 {
	if n == 0 {
		return 0
	}
	v := t.extended(a)
	sign := uint64(0)
	if t.signed() {
		sign = v >> min(pos+n-1, uint64(t.bits)-1) & 1
	}
	v >>= pos // of a signed value, zeros come from above 64 bits only
	if pos >= 64 {
		v = 0
	}
	if pos+n > uint64(t.bits) {
		n = uint64(t.bits) - min(pos, uint64(t.bits))
	}
	v &= 1<<n - 1
	if sign != 0 {
		v |= ^uint64(0) << n
	}
	return t.truncated(v)
}

func (d *decoder) bfi(t typ) {
	a := d.st.args
	b := typeBank(t)
	in := inst{d: d.dst(a[0], t), a: d.src(a[1], t), b: d.src(a[2], t), c: d.src(a[3], u32Type),
		ext: &extra{srcs: []int32{d.src(a[4], u32Type)}}}
	in.exec = func(w *warp, in *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			pos, n := w.r32[in.c][i]&255, w.r32[in.ext.srcs[0]][i]&255
			field := (uint64(1)<<n - 1) << pos
			x, y := w.value(b, in.a, i), w.value(b, in.b, i)
			w.setValue(b, in.d, i, t.truncated(y&^field|x<<pos&field))
		}
	}
	d.emit(in)
}

func (d *decoder) lop3() {
	a := d.st.args
	if a[4].kind != numberOperand || d.st.hasAny("and", "or") != "" {
		d.failf("the table is no number, or the result a predicate")
		return
	}
	table := uint32(a[4].bits)
	d.op(apply3(func(d, a, b, c *lanes32) {
		for i := range d {
			d[i] = lop3(a[i], b[i], c[i], table)
		}
	}), d.dst(a[0], u32Type), d.src(a[1], u32Type), d.src(a[2], u32Type), d.src(a[3], u32Type))
}

// lop3 looks each bit up in a table (PTX ISA 9.7.8.6).
func lop3(a, b, c, table uint32) uint32 {
	var r uint32
	for k := range uint32(8) {
		x, y, z := a, b, c
		if k&4 == 0 {
			x = ^x
		}
		if k&2 == 0 {
			y = ^y
		}
		if k&1 == 0 {
			z = ^z
		}
		r |= x & y & z & -(table >> k & 1)
	}
	return r
}

func (d *decoder) prmt() {
	mode := d.st.hasAny("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
	d.perLane(u32Type, u32Type, func(a, b, c uint64) uint64 {
		return uint64(permute(uint32(a), uint32(b), selector(mode, uint32(c))))
	})
}

// selector is the general selection that a mode of prmt means (PTX ISA 9.7.9.7).
func selector(mode string, c uint32) uint32 {
	i := c & 3
	switch mode {
	case "f4e":
		return 0x3210 + 0x1111*i
	case "b4e":
		return [4]uint32{0x5670, 0x6701, 0x7012, 0x0123}[i]
	case "rc8":
		return 0x1111 * i
	case "ecl":
		return [4]uint32{0x3210, 0x3211, 0x3222, 0x3333}[i]
	case "ecr":
		return [4]uint32{0x0000, 0x1110, 0x2210, 0x3210}[i]
	case "rc16":
		return [2]uint32{0x1010, 0x3232}[i&1]
	}
	return c
}

// permute picks four of eight bytes; bit 3 of a selection copies the byte's sign.
func permute(a, b, c uint32) uint32 {
	v := uint64(b)<<32 | uint64(a)
	var r uint32
	for i := range 4 {
		s := c >> (4 * i) & 15
		x := uint32(v>>(8*(s&7))) & 255
		if s&8 != 0 {
			x = uint32(int32(int8(x))>>7) & 255
		}
		r |= x << (8 * i)
	}
	return r
}

// funnel decodes shf: the upper or lower word of two that are shifted together.
func (d *decoder) funnel() {
	left, wrap := d.st.has("l"), d.st.has("wrap")
	d.perLane(u32Type, u32Type, func(a, b, c uint64) uint64 {
		n := c & 0xffffffff
		if wrap {
			n &= 31
		} else {
			n = min(n, 32)
		}
		v := b<<32 | a
		if left {
			return v << n >> 32
		}
		return v >> n & 0xffffffff
	})
}
