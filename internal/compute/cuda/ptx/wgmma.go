package ptx

import (
	"math"
	"slices"
	"unsafe"
)

// groupWarps is how many warps make a warp group.
const groupWarps = 4

// wgmmaOp is a decoded wgmma.mma_async of m64nNk (PTX ISA 9.7.15.5).
type wgmmaOp struct {
	n, k           int
	in             typ // of A and B
	shared         bool
	negA, negB     bool
	transA, transB bool
	flip           uint32 // of the predicate that adds the accumulator
	halves         bool
}

// tile is an accumulator of products that have been issued: its registers are NaNs until all have
// been waited for.
type tile struct {
	dsts     []int32
	values   []lanes32
	products []product
}

// product is one wgmma on its way. Its operands in shared memory are read when it is waited for.
type product struct {
	op           *wgmmaOp
	a            [4]lanes32
	descA, descB uint64
	adds         bool
	group        uint32
	line         int
}

// groupMma are the products of a warp.
type groupMma struct {
	tiles     []tile
	committed uint32
	fenced    bool // a wgmma.fence is after the program's last use of accumulators
}

// warpGroup decodes wgmma.*.
func (d *decoder) warpGroup() {
	if len(d.st.mods) == 0 {
		d.failf("unknown instruction")
		return
	}
	switch d.st.mods[0] {
	case "fence":
		d.op(func(w *warp, _ *inst, mask uint32) {
			w.join(byWhole, mask, mask)
			w.wgmma.fenced = true
		}, none)
	case "commit_group":
		d.op(func(w *warp, _ *inst, mask uint32) {
			w.join(byWhole, mask, mask)
			w.wgmma.committed++
		}, none)
	case "wait_group":
		if !d.arity(1, 1) || d.st.args[0].kind != numberOperand {
			d.failf("a number is wanted")
			return
		}
		d.emit(inst{exec: execGroupWait, d: none, a: none, b: none, c: none,
			imm: d.st.args[0].bits})
	case "mma_async":
		d.groupMultiply()
	default:
		d.failf("unknown instruction")
	}
}

// groupMultiply decodes wgmma.mma_async with accumulators of f32 or f16.
func (d *decoder) groupMultiply() {
	op := &wgmmaOp{}
	ts := d.st.types()
	shape := op.shape(d.st.mods)
	args := d.st.args
	if len(ts) != 3 || !shape || ts[1] != ts[2] || len(args) < 5 || d.st.has("sp") ||
		ts[0] != types["f32"] && ts[0] != types["f16"] {
		d.failf("unknown shape or types")
		return
	}
	op.in, op.halves = ts[1], ts[0].bits == 16
	if op.in.bits*op.k != 256 || op.in.integer() {
		d.failf("unknown types")
		return
	}
	op.shared = args[1].kind != vectorOperand
	in := inst{exec: op.exec, d: none, a: none, b: none, c: none, ext: &extra{}}
	count := op.n / 2
	if op.halves {
		count = op.n / 4
	}
	in.ext.dsts = d.registers(args[0], count, d.dst)
	for _, r := range in.ext.dsts {
		d.use(r)
	}
	if op.shared {
		in.a = d.src(args[1], u64Type)
	} else {
		in.ext.srcs = d.registers(args[1], 4, d.src)
	}
	in.b = d.src(args[2], u64Type)
	in.c, op.flip = d.predicate(args[3])
	d.groupImmediates(op, args[4:])
	d.emit(in)
}

func (op *wgmmaOp) shape(mods []string) bool {
	for _, m := range mods {
		if len(m) < 6 || m[:4] != "m64n" {
			continue
		}
		var k int
		n, rest := leadingNumber(m[4:])
		if len(rest) < 2 || rest[0] != 'k' {
			return false
		}
		k, rest = leadingNumber(rest[1:])
		op.n, op.k = n, k
		return rest == "" && n >= 8 && n <= 256 && n%8 == 0
	}
	return false
}

func leadingNumber(s string) (n int, rest string) {
	for len(s) > 0 && s[0] >= '0' && s[0] <= '9' && n < 1<<16 {
		n = n*10 + int(s[0]-'0')
		s = s[1:]
	}
	return n, s
}

// groupImmediates reads the signs of A and B, and which of them are transposed.
func (d *decoder) groupImmediates(op *wgmmaOp, args []operand) {
	var values []uint64
	for _, o := range args {
		if o.kind != numberOperand {
			d.failf("a number is wanted")
			return
		}
		values = append(values, o.bits)
	}
	want := 2
	if op.in.bits == 16 {
		want = 3
		if op.shared {
			want = 4
		}
	}
	if len(values) != want {
		d.failf("%d numbers, not %d", len(values), want)
		return
	}
	op.negA, op.negB = int64(values[0]) == -1, int64(values[1]) == -1
	if op.in.bits == 16 {
		op.transB = values[want-1] == 1
		op.transA = op.shared && values[2] == 1
	}
}

// exec issues a product: the accumulator is not the program's until it is waited for.
func (op *wgmmaOp) exec(w *warp, in *inst, mask uint32) {
	if _, ok := w.join(byWhole, mask, mask); !ok {
		return
	}
	w.cta.stats.Mma++
	adds := (w.pred[in.c] ^ op.flip) != 0
	p := product{op: op, adds: adds, group: w.wgmma.committed, line: w.kernel.lines[w.pc-1]}
	p.descB = w.r64[in.b][0]
	if op.shared {
		p.descA = w.r64[in.a][0]
	} else {
		for i, r := range in.ext.srcs {
			p.a[i] = w.r32[r]
		}
	}
	t := w.tileOf(in.ext.dsts)
	t.products = append(t.products, p)
}

// tileOf is the tile of an accumulator's registers, which become NaNs.
func (w *warp) tileOf(dsts []int32) *tile {
	for i := range w.wgmma.tiles {
		t := &w.wgmma.tiles[i]
		if slices.Equal(t.dsts, dsts) {
			return t
		}
		if slices.ContainsFunc(t.dsts, func(r int32) bool { return slices.Contains(dsts, r) }) {
			w.fail(allLanes, "an accumulator that shares registers with one under way")
		}
	}
	if !w.wgmma.fenced && w.cta.check != nil {
		w.fail(allLanes, "no wgmma.fence since the accumulator was last the program's")
	}
	t := tile{dsts: dsts, values: make([]lanes32, len(dsts))}
	for i, r := range dsts {
		t.values[i] = w.r32[r]
		for l := range lanes {
			w.r32[r][l] = math.MaxUint32
		}
	}
	w.wgmma.tiles = append(w.wgmma.tiles, t)
	return &w.wgmma.tiles[len(w.wgmma.tiles)-1]
}

// execGroupWait waits for all groups but the imm newest. The four warps of a warp group end their
// products together: a warp waits here for the other three. (The ISA does not say so; kernels that
// signal for their whole warp group after it rely on it.)
func execGroupWait(w *warp, in *inst, mask uint32) {
	if _, ok := w.join(byWhole, mask, mask); !ok {
		return
	}
	first := w.id &^ (groupWarps - 1)
	if first+groupWarps > len(w.cta.warps) {
		w.fail(mask, "a warp group of fewer than %d warps", groupWarps)
	}
	w.landProducts(in.imm)
	w.state = atGroup
	w.stop()
	group := w.cta.warps[first : first+groupWarps]
	for _, o := range group {
		if o.state != atGroup {
			return
		}
	}
	var together clock
	for _, o := range group {
		o.release(&together)
	}
	for _, o := range group {
		o.acquire(&together)
		o.state = running
	}
}

// landProducts works out what is due, in order of issue.
func (w *warp) landProducts(newest uint64) {
	rest := w.wgmma.tiles[:0]
	for _, t := range w.wgmma.tiles {
		n := 0
		for n < len(t.products) && uint64(t.products[n].group)+newest < uint64(w.wgmma.committed) {
			w.multiply(&t, &t.products[n])
			n++
		}
		if t.products = t.products[n:]; len(t.products) > 0 {
			rest = append(rest, t)
			continue
		}
		for i, r := range t.dsts {
			w.r32[r] = t.values[i]
		}
		w.wgmma.fenced = false
	}
	w.wgmma.tiles = rest
}

// multiply adds a product to a tile: this warp's 16 rows of the 64, eight columns at a time. The
// order of the sum is that of mma (see mmaOp.exec).
func (w *warp) multiply(t *tile, p *product) {
	op := p.op
	m := &w.mma
	if op.shared {
		op.loadRows(w, p)
	} else {
		rows := &mmaOp{k: op.k, pairs: 32 / op.in.bits, widenA: widener(op.in)}
		for r := range p.a {
			rows.gatherRow(m, r, &p.a[r])
		}
	}
	for j := range op.n / 8 {
		op.loadColumns(w, p, j)
		w.ops.multiply(m, op.k)
		op.add(m, t, p, j)
	}
}

// add adds eight columns of a product to the accumulator.
func (op *wgmmaOp) add(m *mmaScratch, t *tile, p *product, j int) {
	sign := float32(1)
	if op.negA != op.negB {
		sign = -1
	}
	for e := range 4 {
		for l := range lanes {
			x := sign * m.d[e>>1*64+l>>2*8+l&3*2+e&1]
			if op.halves {
				r := &t.values[j*2+e>>1][l]
				c := float32(0)
				if p.adds {
					c = halfToFloat(uint16(*r >> (e & 1 * 16)))
				}
				*r = *r&^(0xffff<<(e&1*16)) | uint32(floatToHalf(c+x))<<(e&1*16)
				continue
			}
			r := &t.values[j*4+e].floats()[l]
			if p.adds {
				x += *r
			}
			*r = x
		}
	}
}

// loadRows fills the scratch's A with the warp's rows from shared memory.
func (op *wgmmaOp) loadRows(w *warp, p *product) {
	op.load(w, p, p.descA, w.id&3*16, 16, op.transA, func(row, k int, v float32) {
		w.mma.a[row*op.k+k] = v
	})
}

func (op *wgmmaOp) loadColumns(w *warp, p *product, j int) {
	op.load(w, p, p.descB, j*8, 8, op.transB, func(col, k int, v float32) {
		w.mma.b[k*8+col] = v
	})
}

// load reads n rows of A or columns of B, the first of them at a place, 16 bytes at a time.
func (op *wgmmaOp) load(w *warp, p *product, desc uint64, first, n int, transposed bool,
	put func(i, k int, v float32)) {
	widen, size := widener(op.in), op.in.bits/8
	each := 16 / size
	if transposed {
		for k := range op.k {
			for i := 0; i < n; i += each {
				b := op.piece(w, p, desc, first+i, k, true)
				for e := range each {
					put(i+e, k, widen(uint32(peek(unsafe.Pointer(&b[e*size]), size)), 0))
				}
			}
		}
		return
	}
	for i := range n {
		for k := 0; k < op.k; k += each {
			b := op.piece(w, p, desc, first+i, k, false)
			for e := range each {
				put(i, k+e, widen(uint32(peek(unsafe.Pointer(&b[e*size]), size)), 0))
			}
		}
	}
}

// piece is 16 bytes of a matrix in shared memory: i counts rows of A or columns of B. The
// descriptor's fields are described in PTX ISA 9.7.15.5.1: where the matrix begins, the strides
// between its cores of 8 rows of 16 bytes, and the swizzle; with k the inner dimension, or i where
// the matrix is transposed.
func (op *wgmmaOp) piece(w *warp, p *product, desc uint64, i, k int, transposed bool) *[16]byte {
	size := uint64(op.in.bits / 8)
	start, leading, stride := desc&0x3fff<<4, desc>>16&0x3fff<<4, desc>>32&0x3fff<<4
	s := [4]swizzle{noSwizzle, swizzle128, swizzle64, swizzle32}[desc>>62]
	row := uint64(16) << s // bytes of a row of the pattern
	outer, inner := uint64(i), uint64(k)*size
	if transposed {
		outer, inner = uint64(k), uint64(i)*size
	}
	at := start + outer&7*row
	switch {
	case s == noSwizzle && !transposed:
		at += outer>>3*stride + inner>>4*leading
	case s == noSwizzle:
		at += outer>>3*leading + inner>>4*stride
	case transposed:
		at += outer>>3*stride + inner/row*leading + inner%row
	default:
		at += outer>>3*stride + inner
	}
	at = s.place(at)
	if at < sharedBase || at+16 > uint64(len(w.cta.shared)) {
		w.fail(allLanes, "shared access out of range: the matrix of the wgmma of line %d at %#x",
			p.line, at)
	}
	if w.cta.check != nil {
		w.ea[0] = at
		s := segment{space: sharedSpace, group: 1, base: w.cta.start}
		w.check(&s, 16, reads)
		w.checkProxy(0, at, 16)
	}
	return (*[16]byte)(unsafe.Add(w.cta.start, at))
}
