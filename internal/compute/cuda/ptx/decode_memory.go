package ptx

// slotFor is an instruction's place in the cache of allocations.
func (d *decoder) slotFor() int {
	d.kernel.slots++
	return d.kernel.slots - 1
}

// memoryAddress is an address operand: its register, the register's bank, and what is added.
func (d *decoder) memoryAddress(o operand, s space) (r int32, b bank, offset uint64) {
	if o.kind != addressOperand {
		d.failf("an address in brackets is wanted")
		return none, bank64, 0
	}
	offset = uint64(o.offset)
	if o.name == "" {
		return d.zero(bank64), bank64, offset
	}
	if d.declared(o.name) {
		r = d.register(o.name)
		d.use(r)
		if bankOf(r) == bankPred {
			d.failf("a predicate as an address")
		}
		return r, bankOf(r), offset
	}
	v := d.st.scope.variable(o.name)
	if v == nil {
		d.failf("no register or variable %s", o.name)
		return none, bank64, 0
	}
	at, image := d.address(v)
	if s == genericSpace && v.space != globalSpace && v.space != constSpace {
		at += window(v.space)
	}
	return d.constant(constant{bank: bank64, value: at, image: image}), bank64, offset
}

// accessOf is what the modifiers of ld and st say.
func (d *decoder) accessOf(t typ, address operand) *access {
	a := &access{space: d.space(), size: t.size(), count: 1}
	if a.space == paramSpace && (!d.frame.fn.entry || d.inLocal(address)) {
		a.space = localSpace
	}
	if a.space == constSpace {
		a.space = globalSpace
	}
	if d.st.hasAny("volatile", "relaxed", "acquire", "release", "mmio") != "" {
		a.kind = strong
	}
	if d.st.has("nc") {
		a.kind |= constantly
	}
	a.acquire, a.release = d.st.has("acquire"), d.st.has("release")
	a.scopeCTA, a.scopeSys = d.st.has("cta"), d.st.has("sys")
	return a
}

// load decodes ld.
func (d *decoder) load() {
	ts := d.st.types()
	if len(ts) != 1 || !d.arity(2, 3) || ts[0].class == 'p' {
		d.failf("one type and two operands are wanted")
		return
	}
	t, args := ts[0], d.st.args
	a := d.accessOf(t, args[1])
	a.kind |= reads
	a.signed = t.signed()
	in := inst{d: none, b: none, c: none, ext: &extra{slot: d.slotFor()}}
	for i, o := range d.elements(args[0]) {
		r := d.anyDst(o, t)
		in.ext.dsts = append(in.ext.dsts, r)
		if a.dstBits = d.registerBits(o); i > 0 && r != none && bankOf(r) != a.dst {
			d.failf("registers of different sizes")
		}
		if r != none {
			a.dst = bankOf(r)
		}
	}
	a.count = len(in.ext.dsts)
	d.vectorSize(a)
	in.a, a.wide, in.imm = d.memoryAddress(args[1], a.space)
	in.exec = a.load
	d.emit(in)
}

// elements are the registers of a vector, or the one of an operand.
func (d *decoder) elements(o operand) []operand {
	if o.kind == vectorOperand {
		return o.elems
	}
	return []operand{o}
}

// vectorSize compares the number of registers with .v2, .v4 or .v8.
func (d *decoder) vectorSize(a *access) {
	want := map[string]int{"": 1, "v2": 2, "v4": 4, "v8": 8}[d.st.hasAny("v2", "v4", "v8")]
	if a.count != want || a.bytes() > 16 || a.size == 16 {
		d.failf("%d registers of %d bytes", a.count, a.size)
	}
}

// store decodes st.
func (d *decoder) store() {
	ts := d.st.types()
	if len(ts) != 1 || !d.arity(2, 3) || ts[0].class == 'p' {
		d.failf("one type and two operands are wanted")
		return
	}
	t, args := ts[0], d.st.args
	a := d.accessOf(t, args[0])
	a.kind |= writes
	in := inst{d: none, b: none, c: none, ext: &extra{slot: d.slotFor()}}
	for i, o := range d.elements(args[1]) {
		r := d.anySrc(o, t)
		in.ext.srcs = append(in.ext.srcs, r)
		if i > 0 && r != none && bankOf(r) != a.dst {
			d.failf("registers of different sizes")
		}
		if r != none {
			a.dst = bankOf(r)
		}
	}
	a.count = len(in.ext.srcs)
	d.vectorSize(a)
	in.a, a.wide, in.imm = d.memoryAddress(args[0], a.space)
	in.exec = a.store
	d.emit(in)
}

// nothing decodes instructions that only advise: they change nothing that a program can see.
func (d *decoder) nothing() {
	d.op(func(*warp, *inst, uint32) {}, none)
}
