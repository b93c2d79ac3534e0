package ptx

// comparison compares all lanes.
type comparison func(w *warp, in *inst) uint32

// Comparisons that are made of others: with the operands swapped, or of unsigned integers.
var (
	swapped = map[string]string{"gt": "lt", "ge": "le", "hi": "lt", "hs": "le", "gtu": "ltu",
		"geu": "leu"}
	renamed = map[string]string{"lo": "lt", "ls": "le"}
)

// comparison decodes the comparison of a statement and its two operands, nil if the ISA has none of
// its name.
func (d *decoder) comparison(t typ) (c comparison, x, y int32) {
	name, a, b := d.st.mods[0], d.st.args[1], d.st.args[2]
	if len(name) == 2 && (name[0] == 'h' || name == "lo" || name == "ls") && t.integer() {
		t.class = 'u'
	}
	if s, ok := renamed[name]; ok {
		name = s
	}
	x, y = d.src(a, t), d.src(b, t)
	if s, ok := swapped[name]; ok {
		name, x, y = s, y, x
	}
	return d.comparator(name, t), x, y
}

// comparator is a comparison of two registers of a type, nil if there is none of the name.
func (d *decoder) comparator(name string, t typ) comparison {
	switch {
	case t.class == 'f' && t.bits == 32:
		return compareLanes(d.ops.float(name))
	case t.float():
		return compareFloat(name, t, d.ops.float(name) != nil)
	case t.bits == 64:
		return compare64(name, t)
	}
	f := d.ops.unsigned[name]
	if t.signed() {
		f = d.ops.signed[name]
	}
	if t.bits == 32 {
		return compareLanes(f)
	}
	return compareSmall(f, t)
}

// compareLanes compares registers of 32 bits.
func compareLanes(f func(a, b *lanes32) uint32) comparison {
	if f == nil {
		return nil
	}
	return func(w *warp, in *inst) uint32 { return f(&w.r32[in.a], &w.r32[in.b]) }
}

func compare64(name string, t typ) comparison {
	f := map[string]func(a, b *lanes64) uint32{"eq": eq[uint64, lanes64],
		"ne": ne[uint64, lanes64], "lt": lt[uint64, lanes64], "le": le[uint64, lanes64]}
	if t.signed() {
		f["lt"], f["le"] = lt[int64, lanes64], le[int64, lanes64]
	}
	c := f[name]
	if c == nil {
		return nil
	}
	return func(w *warp, in *inst) uint32 { return c(&w.r64[in.a], &w.r64[in.b]) }
}

// compareSmall compares integers of 8 and 16 bits.
func compareSmall(f func(a, b *lanes32) uint32, t typ) comparison {
	if f == nil {
		return nil
	}
	return func(w *warp, in *inst) uint32 {
		for i := range lanes {
			w.tmp32[0][i] = uint32(t.extended(uint64(w.r32[in.a][i])))
			w.tmp32[1][i] = uint32(t.extended(uint64(w.r32[in.b][i])))
		}
		return f(&w.tmp32[0], &w.tmp32[1])
	}
}

// compareFloat compares halves, bfloats and doubles.
func compareFloat(name string, t typ, known bool) comparison {
	unordered := len(name) == 3 && name[2] == 'u'
	base := name
	if unordered {
		base = name[:2]
	}
	if !known {
		return nil
	}
	b := typeBank(t)
	return func(w *warp, in *inst) (r uint32) {
		for i := range lanes {
			x, y := t.toFloat(w.value(b, in.a, i)), t.toFloat(w.value(b, in.b, i))
			if compareValues(base, unordered, x, y) {
				r |= 1 << i
			}
		}
		return r
	}
}

func compareValues(name string, unordered bool, x, y float64) bool {
	if x != x || y != y {
		return unordered || name == "nan"
	}
	switch name {
	case "eq":
		return x == y
	case "ne":
		return x != y
	case "lt":
		return x < y
	case "le":
		return x <= y
	}
	return name == "num"
}

// setPredicate decodes setp.
func (d *decoder) setPredicate() {
	ts := d.st.types()
	if len(ts) != 1 || len(d.st.mods) < 2 || !d.arity(3, 4) {
		d.failf("a comparison and one type are wanted")
		return
	}
	t, a := ts[0], d.st.args
	combine := d.st.hasAny("and", "or", "xor")
	c, x, y := d.comparison(t)
	if c == nil || t.pack != 1 || (combine != "") != (len(a) == 4) {
		d.failf("unknown comparison")
		return
	}
	in := inst{d: d.dst(a[0], predType), a: x, b: y, c: none,
		ext: &extra{}}
	var flip uint32
	if combine != "" {
		in.c, flip = d.predicate(a[3])
	}
	if a[0].second != nil {
		in.ext.dsts = []int32{d.dst(*a[0].second, predType)}
	}
	ftz := d.st.has("ftz")
	if combine == "" && a[0].second == nil && !ftz {
		in.exec = func(w *warp, in *inst, mask uint32) {
			w.pred[in.d] = w.pred[in.d]&^mask | c(w, in)&mask
		}
		d.emit(in)
		return
	}
	in.exec = func(w *warp, in *inst, mask uint32) {
		r := c(w, in)
		if ftz {
			r = w.compareFlushed(c, in)
		}
		not := ^r
		if combine != "" {
			p := w.pred[in.c] ^ flip
			r, not = combined(combine, r, p), combined(combine, not, p)
		}
		w.pred[in.d] = w.pred[in.d]&^mask | r&mask
		for _, q := range in.ext.dsts {
			w.pred[q] = w.pred[q]&^mask | not&mask
		}
	}
	d.emit(in)
}

// compareFlushed compares f32 with subnormal numbers as zeros. Two registers are spare for that at
// the end of the bank.
func (w *warp) compareFlushed(c comparison, in *inst) uint32 {
	spare := int32(len(w.r32)) - 2
	for i := range lanes {
		w.r32[spare][i] = flush(w.r32[in.a][i])
		w.r32[spare+1][i] = flush(w.r32[in.b][i])
	}
	return c(w, &inst{a: spare, b: spare + 1})
}

func combined(op string, r, p uint32) uint32 {
	switch op {
	case "and":
		return r & p
	case "or":
		return r | p
	}
	return r ^ p
}

// set decodes set: all ones or 1.0 where the comparison holds, else zero.
func (d *decoder) set() {
	ts := d.st.types()
	if len(ts) != 2 || len(d.st.mods) < 3 || !d.arity(3, 3) {
		d.failf("a comparison of two operands is wanted")
		return
	}
	a, t := d.st.args, ts[1]
	c, x, y := d.comparison(t)
	if c == nil || t.pack != 1 || typeBank(ts[0]) != bank32 || ts[0].pack != 1 {
		d.failf("unknown comparison")
		return
	}
	yes := uint32(ts[0].truncated(^uint64(0)))
	if ts[0].float() {
		yes = ts[0].format().encode(1, nearest, false)
	}
	d.op(func(w *warp, in *inst, mask uint32) {
		r := c(w, in)
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			w.r32[in.d][i] = yes & -(r >> i & 1)
		}
	}, d.dst(a[0], ts[0]), x, y)
}
