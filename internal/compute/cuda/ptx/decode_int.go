package ptx

import "math/bits"

// typed is the opcode with what its result depends on: min.s, mul.hi.u, add.
func (d *decoder) typed(t typ) string {
	switch op := d.st.opcode; op {
	case "min", "max", "shr":
		return op + "." + string(t.class)
	case "mul":
		if d.st.has("hi") {
			return "mul.hi." + string(t.class)
		}
		return "mul." + d.st.hasAny("lo", "wide")
	default:
		return op
	}
}

// intArith decodes integer instructions of two operands and the same type throughout.
func (d *decoder) intArith(t typ) {
	if !d.arity(3, 3) {
		return
	}
	if d.st.has("cc") || d.st.opcode == "addc" || d.st.opcode == "subc" {
		d.carry(t)
		return
	}
	name := d.typed(t)
	switch {
	case t.pack == 2:
		d.packedInt(t)
	case d.st.has("sat") || d.st.has("relu"):
		d.saturatingAdd(t)
	case name == "mul.wide":
		d.mulWide(t)
	case t.bits == 32 && d.ops.ints[name] != nil:
		d.op(apply2(d.ops.ints[name]), d.dst(d.st.args[0], t), d.src(d.st.args[1], t),
			d.src(d.st.args[2], t))
	case t.bits == 64 && d.ops.longs[name] != nil:
		d.op(apply2(d.ops.longs[name]), d.dst(d.st.args[0], t), d.src(d.st.args[1], t),
			d.src(d.st.args[2], t))
	default:
		f := intFunction(name, t)
		if f == nil {
			d.failf("unknown instruction")
			return
		}
		d.perLane(t, t, f)
	}
}

// extended is an integer of a type in 64 bits.
func (t typ) extended(v uint64) uint64 {
	shift := 64 - t.bits
	if t.signed() {
		return uint64(int64(v<<shift) >> shift)
	}
	return v << shift >> shift
}

// truncated is an integer cut to the bits of a type.
func (t typ) truncated(v uint64) uint64 { return v << (64 - t.bits) >> (64 - t.bits) }

// intFunction is an integer instruction on values of any width, nil if there is none.
func intFunction(name string, t typ) func(a, b, c uint64) uint64 {
	var f func(a, b uint64) uint64
	switch name {
	case "add":
		f = func(a, b uint64) uint64 { return a + b }
	case "sub":
		f = func(a, b uint64) uint64 { return a - b }
	case "mul.lo":
		f = func(a, b uint64) uint64 { return a * b }
	case "and":
		f = func(a, b uint64) uint64 { return a & b }
	case "or":
		f = func(a, b uint64) uint64 { return a | b }
	case "xor":
		f = func(a, b uint64) uint64 { return a ^ b }
	case "min.s":
		f = func(a, b uint64) uint64 { return uint64(min(int64(a), int64(b))) }
	case "max.s":
		f = func(a, b uint64) uint64 { return uint64(max(int64(a), int64(b))) }
	case "min.u":
		f = func(a, b uint64) uint64 { return min(a, b) }
	case "max.u":
		f = func(a, b uint64) uint64 { return max(a, b) }
	case "mul.hi.s", "mul.hi.u":
		f = func(a, b uint64) uint64 { return mulHigh(a, b, t) }
	}
	if f == nil {
		return nil
	}
	return func(a, b, _ uint64) uint64 { return t.truncated(f(t.extended(a), t.extended(b))) }
}

// mulHigh is the upper half of a product.
func mulHigh(a, b uint64, t typ) uint64 {
	if t.bits < 64 {
		return uint64(int64(a*b) >> t.bits)
	}
	hi, _ := bits.Mul64(a, b)
	if t.signed() {
		hi -= uint64(int64(a)>>63)&b + uint64(int64(b)>>63)&a
	}
	return hi
}

// packedInt decodes instructions of u16x2 and s16x2.
func (d *decoder) packedInt(t typ) {
	half := typ{t.class, 16, 1}
	f := intFunction(d.typed(half), half)
	if f == nil || d.st.has("relu") {
		d.failf("unknown instruction")
		return
	}
	d.perLane(t, t, func(a, b, _ uint64) uint64 {
		return f(a&0xffff, b&0xffff, 0) | f(a>>16, b>>16, 0)<<16
	})
}

// saturatingAdd decodes add.sat.s32 and sub.sat.s32.
func (d *decoder) saturatingAdd(t typ) {
	if t.class != 's' || t.bits != 32 || d.st.has("relu") ||
		d.st.opcode != "add" && d.st.opcode != "sub" {
		d.failf("unknown instruction")
		return
	}
	minus := d.st.opcode == "sub"
	d.perLane(t, t, func(a, b, _ uint64) uint64 {
		x, y := int64(int32(a)), int64(int32(b))
		if minus {
			y = -y
		}
		return uint64(uint32(max(-1<<31, min(1<<31-1, x+y))))
	})
}

// double is the type of twice the width.
func (t typ) double() typ { return typ{t.class, t.bits * 2, 1} }

func (d *decoder) mulWide(t typ) {
	a, b := d.src(d.st.args[1], t), d.src(d.st.args[2], t)
	if t.bits == 32 {
		f := mulWide[uint32, uint64]
		if t.signed() {
			f = mulWide[int32, int64]
		}
		d.op(apply2(f), d.dst(d.st.args[0], t.double()), a, b)
		return
	}
	d.op(perLane(operands{}, func(a, b, _ uint64) uint64 { return t.extended(a) * t.extended(b) }),
		d.dst(d.st.args[0], t.double()), a, b)
}

// mad decodes mad of integers.
func (d *decoder) mad(t typ) {
	if !d.arity(4, 4) {
		return
	}
	if d.st.has("cc") || d.st.opcode == "madc" {
		d.carry(t)
		return
	}
	if d.st.has("sat") {
		d.failf("unknown instruction")
		return
	}
	a := d.st.args
	wide := d.st.has("wide")
	result := t
	if wide {
		result = t.double()
	}
	dst, x, y, z := d.dst(a[0], result), d.src(a[1], t), d.src(a[2], t), d.src(a[3], result)
	switch {
	case wide && t.bits == 32 && t.signed():
		d.op(apply3(madWide[int32, int64]), dst, x, y, z)
	case wide && t.bits == 32:
		d.op(apply3(madWide[uint32, uint64]), dst, x, y, z)
	case d.st.has("lo") && t.bits == 32:
		d.op(apply3(madLo[uint32, lanes32]), dst, x, y, z)
	case d.st.has("lo") && t.bits == 64:
		d.op(apply3(madLo[uint64, lanes64]), dst, x, y, z)
	default:
		o := operands{typeBank(result), typeBank(t), typeBank(t), typeBank(result)}
		high := d.st.has("hi")
		d.op(perLane(o, func(a, b, c uint64) uint64 {
			a, b = t.extended(a), t.extended(b)
			if high {
				return result.truncated(mulHigh(a, b, t) + c)
			}
			return result.truncated(a*b + c)
		}), dst, x, y, z)
	}
}

// carry decodes the instructions that set or add the carry flag, which is a bit of each lane.
func (d *decoder) carry(t typ) {
	if t.bits != 32 && t.bits != 64 || !t.integer() {
		d.failf("unknown type")
		return
	}
	b := typeBank(t)
	op, high := d.st.opcode, d.st.has("hi")
	sets := d.st.has("cc")
	uses := op == "addc" || op == "subc" || op == "madc"
	srcs := make([]int32, len(d.st.args)-1)
	for i := range srcs {
		srcs[i] = d.src(d.st.args[i+1], t)
	}
	d.op(func(w *warp, in *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			x, y := w.value(b, in.a, i), w.value(b, in.b, i)
			if in.c >= 0 {
				x, y = productPart(t, x, y, high), w.value(b, in.c, i)
			}
			carry := uint64(0)
			if uses {
				carry = uint64(w.carry >> i & 1)
			}
			r, out := addCarry(t, x, y, carry, op == "sub" || op == "subc")
			w.setValue(b, in.d, i, r)
			if sets {
				w.carry = w.carry&^(1<<i) | uint32(out)<<i
			}
		}
	}, d.dst(d.st.args[0], t), srcs...)
}

func productPart(t typ, a, b uint64, high bool) uint64 {
	if high {
		return t.truncated(mulHigh(t.extended(a), t.extended(b), t))
	}
	return t.truncated(a * b)
}

// addCarry adds or subtracts with a carry or borrow, and returns the new one.
func addCarry(t typ, a, b, carry uint64, minus bool) (r, out uint64) {
	if t.bits == 64 {
		if minus {
			return bits.Sub64(a, b, carry)
		}
		return bits.Add64(a, b, carry)
	}
	if minus {
		r = a - b - carry
		return r & 0xffffffff, r >> 63
	}
	r = a + b + carry
	return r & 0xffffffff, r >> 32
}

// divide decodes div and rem of integers. Division by zero is undefined (PTX ISA 9.7.1.8).
func (d *decoder) divide(t typ) {
	if !d.arity(3, 3) {
		return
	}
	a := d.st.args
	b, remainder := typeBank(t), d.st.opcode == "rem"
	if t.bits == 32 {
		d.op(divide32(t.signed(), remainder), d.dst(a[0], t), d.src(a[1], t), d.src(a[2], t))
		return
	}
	d.op(func(w *warp, in *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			x, y := t.extended(w.value(b, in.a, i)), t.extended(w.value(b, in.b, i))
			if y == 0 {
				w.failLane(i, "integer division by zero")
			}
			w.setValue(b, in.d, i, t.truncated(quotient(x, y, t.signed(), remainder)))
		}
	}, d.dst(a[0], t), d.src(a[1], t), d.src(a[2], t))
}

// divide32 is div and rem of 32 bits.
func divide32(signed, remainder bool) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		d, a, b := &w.r32[in.d], &w.r32[in.a], &w.r32[in.b]
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m) & (lanes - 1)
			x, y := a[i], b[i]
			switch {
			case y == 0:
				w.failLane(i, "integer division by zero")
			case signed && remainder:
				d[i] = uint32(int32(x) % int32(y))
			case signed:
				d[i] = uint32(int32(x) / int32(y))
			case remainder:
				d[i] = x % y
			default:
				d[i] = x / y
			}
		}
	}
}

func quotient(x, y uint64, signed, remainder bool) uint64 {
	switch {
	case signed && remainder:
		return uint64(int64(x) % int64(y))
	case signed:
		return uint64(int64(x) / int64(y))
	case remainder:
		return x % y
	}
	return x / y
}
