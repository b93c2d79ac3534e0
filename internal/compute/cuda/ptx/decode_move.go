package ptx

import "strings"

// move decodes mov, with packing and unpacking of vectors.
func (d *decoder) move() {
	ts := d.st.types()
	if len(ts) != 1 || !d.arity(2, 2) {
		d.failf("one type is wanted")
		return
	}
	t, a := ts[0], d.st.args
	switch {
	case t.class == 'p':
		d.predicateLogic()
	case a[0].kind == vectorOperand && a[1].kind == vectorOperand:
		d.failf("a vector to a vector is not known")
	case a[0].kind == vectorOperand:
		d.unpack(t)
	case a[1].kind == vectorOperand:
		d.pack(t)
	case strings.HasPrefix(a[1].name, "%clock") || strings.HasPrefix(a[1].name, "%globaltimer"):
		d.op(execClock(t.bits == 64), d.dst(a[0], t))
	case t.bits == 64:
		d.op(apply1(mov[lanes64]), d.dst(a[0], t), d.src(a[1], t))
	case t.bits == 128:
		d.failf("unknown type")
	default:
		d.op(apply1(mov[lanes32]), d.dst(a[0], t), d.src(a[1], t))
	}
}

func (d *decoder) unpack(t typ) {
	elems := d.st.args[0].elems
	n := len(elems)
	if n != 2 && n != 4 || t.bits/n < 8 {
		d.failf("%d registers of %d bits", n, t.bits)
		return
	}
	part := typ{'b', t.bits / n, 1}
	in := inst{d: none, a: d.src(d.st.args[1], t), b: none, c: none, ext: &extra{}}
	for _, e := range elems {
		in.ext.dsts = append(in.ext.dsts, d.dst(e, part))
	}
	from, to := typeBank(t), typeBank(part)
	in.exec = func(w *warp, in *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			v := w.value(from, in.a, i)
			for k, r := range in.ext.dsts {
				w.setValue(to, r, i, part.truncated(v>>(k*part.bits)))
			}
		}
	}
	d.emit(in)
}

func (d *decoder) pack(t typ) {
	elems := d.st.args[1].elems
	n := len(elems)
	if n != 2 && n != 4 || t.bits/n < 8 {
		d.failf("%d registers of %d bits", n, t.bits)
		return
	}
	part := typ{'b', t.bits / n, 1}
	in := inst{d: d.dst(d.st.args[0], t), a: none, b: none, c: none, ext: &extra{}}
	for _, e := range elems {
		in.ext.srcs = append(in.ext.srcs, d.src(e, part))
	}
	from, to := typeBank(part), typeBank(t)
	in.exec = func(w *warp, in *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			var v uint64
			for k, r := range in.ext.srcs {
				v |= part.truncated(w.value(from, r, i)) << (k * part.bits)
			}
			w.setValue(to, in.d, i, v)
		}
	}
	d.emit(in)
}

// The windows of the generic address space (PTX ISA 5.1.5, cvta): shared, local and parameter
// memory begin there, everything above is global.
const (
	sharedWindow = 0x7e00_0000_0000
	localWindow  = 0x7e10_0000_0000
	paramWindow  = 0x7e20_0000_0000
	windowSize   = 0x10_0000_0000
)

func window(s space) uint64 {
	switch s {
	case sharedSpace:
		return sharedWindow
	case localSpace:
		return localWindow
	case paramSpace:
		return paramWindow
	}
	return 0
}

// convertAddress decodes cvta.
func (d *decoder) convertAddress() {
	ts := d.st.types()
	if len(ts) != 1 || ts[0].bits != 64 || !d.arity(2, 2) {
		d.failf("one type of 64 bits is wanted")
		return
	}
	base := window(d.space())
	if d.space() == paramSpace && d.inLocal(d.st.args[1]) {
		base = localWindow
	}
	if d.st.has("to") {
		base = -base
	}
	t := ts[0]
	d.op(perLane(operands{d: bank64, a: bank64}, func(a, _, _ uint64) uint64 { return a + base }),
		d.dst(d.st.args[0], t), d.src(d.st.args[1], t))
	if base == 0 {
		d.code[len(d.code)-1].exec = apply1(mov[lanes64])
	}
}

// inLocal says that an operand is a parameter that lies in local memory.
func (d *decoder) inLocal(o operand) bool {
	v := d.st.scope.variable(o.name)
	return v != nil && v.inLocal
}

// space is the state space among the modifiers, generic for none.
func (d *decoder) space() space {
	for _, m := range d.st.mods {
		base, sub, _ := strings.Cut(m, "::")
		if base == "shared" && sub == "cluster" || sub == "" || sub == "cta" || base == "param" {
			if s, ok := spaces["."+base]; ok {
				return s
			}
		}
	}
	return genericSpace
}

// selectOp decodes selp and slct.
func (d *decoder) selectOp() {
	ts := d.st.types()
	if !d.arity(4, 4) || len(ts) == 0 {
		return
	}
	a, t := d.st.args, ts[0]
	b := typeBank(t)
	dst, x, y := d.dst(a[0], t), d.src(a[1], t), d.src(a[2], t)
	if d.st.opcode == "slct" {
		d.slct(b, dst, x, y, ts)
		return
	}
	p, flip := d.predicate(a[3])
	if b == bank32 {
		d.op(func(w *warp, in *inst, mask uint32) {
			select32(&w.r32[in.d], &w.r32[in.a], &w.r32[in.b], w.pred[in.c]^flip, mask)
		}, dst, x, y, p)
		return
	}
	d.op(func(w *warp, in *inst, mask uint32) {
		p := w.pred[in.c] ^ flip
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			from := in.b
			if p>>i&1 != 0 {
				from = in.a
			}
			w.setValue(b, in.d, i, w.value(b, from, i))
		}
	}, dst, x, y, p)
}

func select32(d, a, b *lanes32, p, mask uint32) {
	if mask == allLanes {
		for i := range d {
			v := b[i]
			if p>>i&1 != 0 {
				v = a[i]
			}
			d[i] = v
		}
		return
	}
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		if p>>i&1 != 0 {
			d[i] = a[i]
		} else {
			d[i] = b[i]
		}
	}
}

// slct selects by the sign of c.
func (d *decoder) slct(b bank, dst, x, y int32, ts []typ) {
	if len(ts) != 2 || ts[1].bits != 32 {
		d.failf("unknown types")
		return
	}
	float := ts[1].class == 'f'
	o := operands{b, b, b, bank32}
	d.op(perLane(o, func(a, b, c uint64) uint64 {
		switch {
		case float && isNaN32(uint32(c)):
			return b
		case float && uint32(c) == 1<<31: // -0 is not below 0
			return a
		case int32(c) >= 0:
			return a
		}
		return b
	}), dst, x, y, d.src(d.st.args[3], ts[1]))
}
