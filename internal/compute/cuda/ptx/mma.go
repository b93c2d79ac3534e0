package ptx

import "math"

// mmaScratch has the operands of one matrix product, row-major: a is 16 x k, b is k x 8, the
// result d is 16 x 8.
type mmaScratch struct {
	a    [16 * 32]float32
	b    [32 * 8]float32
	d    [16 * 8]float32
	ints mmaInts
}

type mmaInts struct {
	a [16 * 32]int32
	b [32 * 8]int32
}

// mmaOp is a decoded mma.sync of shape m16n8k.
type mmaOp struct {
	k      int
	a, b   typ
	half   bool // the accumulators are f16
	sat    bool
	pairs  int // elements in a register
	widenA func(uint32, int) float32
	widenB func(uint32, int) float32
	// multiply is the product of m.a and m.b in m.d.
	multiply func(m *mmaScratch, k int)
}

// matrixMultiply decodes mma.sync (PTX ISA 9.7.14.5): shapes m16n8k4 to m16n8k32.
func (d *decoder) matrixMultiply() {
	st := d.st
	op := &mmaOp{k: map[string]int{"m16n8k4": 4, "m16n8k8": 8, "m16n8k16": 16,
		"m16n8k32": 32}[st.hasAny("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32")]}
	ts := st.types()
	if !d.arity(4, 4) || len(ts) != 4 || op.k == 0 || !st.has("row") || !st.has("col") ||
		!st.has("aligned") || ts[0] != ts[3] || ts[1].bits != ts[2].bits ||
		st.hasPrefix("kind") || st.hasPrefix("sp") {
		d.failf("unknown shape or types")
		return
	}
	op.a, op.b, op.half, op.sat = ts[1], ts[2], ts[0].bits == 16, st.has("satfinite")
	op.pairs = 32 / op.a.bits
	if !op.known(ts[0]) {
		d.failf("unknown shape or types")
		return
	}
	op.multiply = d.ops.multiply
	op.widenA, op.widenB = widener(op.a), widener(op.b)
	in := inst{d: none, a: none, b: none, c: none, ext: &extra{}}
	accumulators := 4
	if op.half {
		accumulators = 2
	}
	in.ext.srcs = d.registers(st.args[1], op.k*16/op.pairs/lanes, d.src)
	in.ext.srcs = append(in.ext.srcs, d.registers(st.args[2], op.k*8/op.pairs/lanes, d.src)...)
	in.ext.srcs = append(in.ext.srcs, d.registers(st.args[3], accumulators, d.src)...)
	in.ext.dsts = d.registers(st.args[0], accumulators, d.dst)
	in.exec = op.exec
	if op.a.integer() {
		in.exec = op.execInts
	}
	d.emit(in)
}

// registers are those of a fragment.
func (d *decoder) registers(o operand, n int, f func(operand, typ) int32) []int32 {
	var all []int32
	elems := d.elements(o)
	if len(elems) != n || n == 0 {
		d.failf("a fragment of %d registers, not %d", len(elems), n)
	}
	for _, e := range elems {
		all = append(all, f(e, u32Type))
	}
	return all
}

// known says whether the ISA has the shape for the types.
func (op *mmaOp) known(acc typ) bool {
	bits := op.a.bits
	switch {
	case op.a.integer():
		return bits == 8 && acc == types["s32"] && (op.k == 16 || op.k == 32) && op.b.integer()
	case op.a.class == 'q':
		return acc == types["f32"] && (op.k == 4 || op.k == 8)
	case bits == 8:
		return op.k == 32 && acc.class == 'f' && (op.b.class == 'e' || op.b.class == 'v')
	}
	return bits == 16 && op.a == op.b && (op.k == 8 || op.k == 16) &&
		(acc == types["f32"] || acc == types["f16"] && op.a.class == 'f')
}

// widener makes a float32 of element i of a register.
func widener(t typ) func(uint32, int) float32 {
	switch {
	case t.class == 't':
		return func(v uint32, i int) float32 { return math.Float32frombits(v >> (16 * i) << 16) }
	case t.class == 'q':
		// Only the upper 19 bits of a tf32 count.
		return func(v uint32, _ int) float32 { return math.Float32frombits(v &^ (1<<13 - 1)) }
	case t.class == 'f':
		return func(v uint32, i int) float32 { return halfToFloat(uint16(v >> (16 * i))) }
	}
	f := t.format()
	var table [256]float32
	for i := range table {
		table[i] = float32(f.decode(uint32(i)))
	}
	return func(v uint32, i int) float32 { return table[v>>(8*i)&255] }
}

// exec multiplies: the products are exact in float32, their sum begins with 0 and adds those of
// k = 0, 1, ... in order, rounding to float32 each time, and is added to the accumulator last.
// Silicon adds products in groups with fewer roundings, so that its last bits differ.
func (op *mmaOp) exec(w *warp, in *inst, mask uint32) {
	if _, ok := w.join(byWhole, mask, mask); !ok {
		return
	}
	w.cta.stats.Mma++
	srcs := in.ext.srcs
	nA, nB := op.k*16/op.pairs/lanes, op.k*8/op.pairs/lanes
	m := &w.mma
	switch {
	case op.a.class == 't' && op.k == 16:
		m.gatherBfloats(w, srcs)
	default:
		op.gather(w, srcs[:nA], srcs[nA:nA+nB])
	}
	op.multiply(m, op.k)
	if op.half {
		m.addHalves(w, in.ext.dsts, srcs[nA+nB:])
		return
	}
	m.addFloats(w, in.ext.dsts, srcs[nA+nB:])
}

// gather widens the fragments of A and B. Lane l is in row l/4 of its part of A and column l/4 of
// B; register r of A is 8 rows further down for odd r, and half of k further right for r of 2 and
// more.
func (op *mmaOp) gather(w *warp, a, b []int32) {
	m := &w.mma
	for r, reg := range a {
		op.gatherRow(m, r, &w.r32[reg])
	}
	for r, reg := range b {
		for l, v := range &w.r32[reg] {
			k := r*4*op.pairs + l&3*op.pairs
			for e := range op.pairs {
				m.b[(k+e)*8+l>>2] = op.widenB(v, e)
			}
		}
	}
}

// gatherRow widens register r of A.
func (op *mmaOp) gatherRow(m *mmaScratch, r int, v *lanes32) {
	row, col := r&1*8, r>>1*4*op.pairs
	for l, x := range v {
		at := (row+l>>2)*op.k + col + l&3*op.pairs
		for e := range op.pairs {
			m.a[at+e] = op.widenA(x, e)
		}
	}
}

// gatherBfloats is gather for bf16 and k = 16.
func (m *mmaScratch) gatherBfloats(w *warp, srcs []int32) {
	for r, reg := range srcs[:4] {
		first := r&1*128 + r>>1*8
		for l, v := range &w.r32[reg] {
			at := first + l>>2*16 + l&3*2
			m.a[at&511] = math.Float32frombits(v << 16)
			m.a[(at+1)&511] = math.Float32frombits(v &^ 0xffff)
		}
	}
	for r, reg := range srcs[4:6] {
		for l, v := range &w.r32[reg] {
			at := r*64 + l&3*16 + l>>2
			m.b[at&255] = math.Float32frombits(v << 16)
			m.b[(at+8)&255] = math.Float32frombits(v &^ 0xffff)
		}
	}
}

// multiplyRows is the product of a and b in d, one row after the other.
func (m *mmaScratch) multiplyRows(k int) {
	for r := range 16 {
		a := m.a[r*k : r*k+k]
		var s0, s1, s2, s3, s4, s5, s6, s7 float32
		for i, x := range a {
			b := m.b[i*8 : i*8+8 : i*8+8]
			s0 += float32(x * b[0])
			s1 += float32(x * b[1])
			s2 += float32(x * b[2])
			s3 += float32(x * b[3])
			s4 += float32(x * b[4])
			s5 += float32(x * b[5])
			s6 += float32(x * b[6])
			s7 += float32(x * b[7])
		}
		*(*[8]float32)(m.d[r*8:]) = [8]float32{s0, s1, s2, s3, s4, s5, s6, s7}
	}
}

func (m *mmaScratch) addFloats(w *warp, dsts, acc []int32) {
	for e := range 4 {
		d, c := w.tmp32[e].floats(), w.r32[acc[e]].floats()
		part := (*[64]float32)(m.d[e>>1*64:])
		for l := range d {
			d[l] = c[l] + part[(l>>2*8+l&3*2+e&1)&63]
		}
	}
	for e, r := range dsts {
		w.r32[r] = w.tmp32[e]
	}
}

func (m *mmaScratch) addHalves(w *warp, dsts, acc []int32) {
	for e := range 2 {
		d, c := &w.tmp32[e], &w.r32[acc[e]]
		for l := range d {
			at := e*64 + l>>2*8 + l&3*2
			lo := halfToFloat(uint16(c[l])) + m.d[at]
			hi := halfToFloat(uint16(c[l]>>16)) + m.d[at+1]
			d[l] = uint32(floatToHalf(lo)) | uint32(floatToHalf(hi))<<16
		}
	}
	for e, r := range dsts {
		w.r32[r] = w.tmp32[e]
	}
}

// execInts multiplies integers of 8 bits exactly; without .satfinite sums wrap.
func (op *mmaOp) execInts(w *warp, in *inst, mask uint32) {
	if _, ok := w.join(byWhole, mask, mask); !ok {
		return
	}
	w.cta.stats.Mma++
	m := &w.mma.ints
	nA, nB := op.k*16/op.pairs/lanes, op.k*8/op.pairs/lanes
	srcs := in.ext.srcs
	for r, reg := range srcs[:nA] {
		for l, v := range &w.r32[reg] {
			at := (r&1*8+l>>2)*op.k + r>>1*16 + l&3*4
			for e := range 4 {
				m.a[at+e] = int32(op.a.extended(uint64(v >> (8 * e))))
			}
		}
	}
	for r, reg := range srcs[nA : nA+nB] {
		for l, v := range &w.r32[reg] {
			for e := range 4 {
				m.b[(r*16+l&3*4+e)*8+l>>2] = int32(op.b.extended(uint64(v >> (8 * e))))
			}
		}
	}
	for e, reg := range srcs[nA+nB:] {
		for l, c := range &w.r32[reg] {
			row, col := e>>1*8+l>>2, l&3*2+e&1
			sum := int64(int32(c))
			for i := range op.k {
				sum += int64(m.a[row*op.k+i] * m.b[i*8+col])
			}
			if op.sat {
				sum = max(math.MinInt32, min(math.MaxInt32, sum))
			}
			w.tmp32[e][l] = uint32(sum)
		}
	}
	for e, reg := range in.ext.dsts {
		w.r32[reg] = w.tmp32[e]
	}
}
