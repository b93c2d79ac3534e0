package ptx

import (
	"math"
	"sync/atomic"
	"unsafe"
)

// atomicOp is a decoded atom or red: f makes the new value of the old one and of two operands.
type atomicOp struct {
	access
	f func(old, b, c uint64) uint64
}

// atomicFunctions are those of integers; t is the operands' type.
func atomicFunction(name string, t typ) func(old, b, c uint64) uint64 {
	switch name {
	case "add":
		return func(old, b, _ uint64) uint64 { return t.truncated(old + b) }
	case "and":
		return func(old, b, _ uint64) uint64 { return old & b }
	case "or":
		return func(old, b, _ uint64) uint64 { return old | b }
	case "xor":
		return func(old, b, _ uint64) uint64 { return old ^ b }
	case "exch":
		return func(_, b, _ uint64) uint64 { return b }
	case "cas":
		return func(old, b, c uint64) uint64 {
			if old == t.truncated(b) {
				return t.truncated(c)
			}
			return old
		}
	case "min", "max":
		f := intFunction(name+"."+string(t.class), t)
		if f == nil {
			return nil
		}
		return f
	case "inc":
		return func(old, b, _ uint64) uint64 {
			if old >= b {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, b, _ uint64) uint64 {
			if old == 0 || old > b {
				return b
			}
			return old - 1
		}
	}
	return nil
}

// floatAtomic is atom.add, min and max of floats.
func floatAtomic(name string, t typ) func(old, b, c uint64) uint64 {
	one := typ{t.class, t.bits, 1}
	var f func(x, y float64) float64
	switch name {
	case "add":
		f = addOdd
		if t.bits == 64 {
			f = func(x, y float64) float64 { return x + y }
		}
	case "min":
		f = func(x, y float64) float64 { return minMax64(x, y, math.Min) }
	case "max":
		f = func(x, y float64) float64 { return minMax64(x, y, math.Max) }
	default:
		return nil
	}
	return func(old, b, _ uint64) uint64 {
		var r uint64
		for k := range t.pack {
			shift := k * t.bits
			x, y := one.toFloat(one.truncated(old>>shift)), one.toFloat(one.truncated(b>>shift))
			r |= one.fromFloat(f(x, y), nearest, false) << shift
		}
		return r
	}
}

// atomicOf decodes atom and red.
func (d *decoder) atomic() {
	ts := d.st.types()
	returns := d.st.opcode == "atom"
	args := d.st.args
	name := d.st.hasAny("add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec")
	values := 1
	if name == "cas" {
		values = 2
	}
	if returns {
		args = args[min(1, len(args)):]
	}
	if len(ts) != 1 || len(args) != 1+values {
		d.failf("unknown operands")
		return
	}
	t := ts[0]
	op := &atomicOp{access: *d.accessOf(t, args[0])}
	op.kind = reads | writes | strong
	if op.f = atomicFunction(name, t); t.float() {
		op.f = floatAtomic(name, t)
	}
	if op.f == nil {
		d.failf("unknown operation")
		return
	}
	if d.st.has("acq_rel") {
		op.acquire, op.release = true, true
	}
	in := inst{d: none, b: d.src(args[1], t), c: none, ext: &extra{slot: d.slotFor()}}
	if values == 2 {
		in.c = d.src(args[2], t)
	}
	if returns {
		in.d = d.dst(d.st.args[0], t)
	}
	op.dst = typeBank(t)
	in.a, op.wide, in.imm = d.memoryAddress(args[0], op.space)
	in.exec = op.exec
	d.emit(in)
}

// exec runs the lanes one after the other.
func (op *atomicOp) exec(w *warp, in *inst, mask uint32) {
	w.addresses(op.wide, in.a, in.imm)
	n := uint64(op.size)
	for left := mask; left != 0; {
		s := w.segment(op.space, in.ext.slot, n, left, op.kind)
		w.count(&s, n, op.kind)
		if w.cta.check != nil {
			w.check(&s, n, op.kind)
			w.announce(&s, &op.access, false)
		}
		for m := s.group; m != 0; m &= m - 1 {
			i := firstLane(m)
			b, c := w.value(op.dst, in.b, i), uint64(0)
			if in.c >= 0 {
				c = w.value(op.dst, in.c, i)
			}
			old := update(unsafe.Add(s.base, w.ea[i]), op.size, func(old uint64) uint64 {
				return op.f(old, b, c)
			})
			if in.d >= 0 {
				w.setValue(op.dst, in.d, i, old)
			}
		}
		// Whatever another block did to the value before was announced before.
		if w.cta.check != nil {
			w.observe(&s, &op.access)
		}
		left &^= s.group
	}
}

// update replaces a value in memory that other goroutines may change too, and returns the old one.
func update(p unsafe.Pointer, size int, f func(uint64) uint64) uint64 {
	switch size {
	case 8:
		for q := (*uint64)(p); ; {
			old := atomic.LoadUint64(q)
			if atomic.CompareAndSwapUint64(q, old, f(old)) {
				return old
			}
		}
	case 4:
		for q := (*uint32)(p); ; {
			old := atomic.LoadUint32(q)
			if atomic.CompareAndSwapUint32(q, old, uint32(f(uint64(old)))) {
				return uint64(old)
			}
		}
	}
	shift := uint(uintptr(p)&2) * 8
	for q := (*uint32)(unsafe.Add(p, -int(uintptr(p)&2))); ; {
		word := atomic.LoadUint32(q)
		old := uint64(word >> shift & 0xffff)
		if atomic.CompareAndSwapUint32(q, word, word&^(0xffff<<shift)|uint32(f(old))<<shift) {
			return old
		}
	}
}
