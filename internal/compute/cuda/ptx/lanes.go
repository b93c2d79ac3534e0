package ptx

import "math/bits"

// memberMask decodes the member mask of a .sync instruction: a register, or a number, which most
// are.
func (d *decoder) memberMask(in *inst, r *int32, o operand) {
	if o.kind == numberOperand {
		in.imm = uint64(uint32(o.bits))
		return
	}
	*r = d.src(o, u32Type)
}

// members is the member mask of a .sync instruction, the same in all lanes that are there; each
// must be a member itself (PTX ISA 9.7.9.6).
func (w *warp) members(in *inst, r int32, mask uint32) uint32 {
	all := uint32(in.imm)
	if r != none {
		all = w.uniform(r, mask, "member mask")
	}
	if mask&^all != 0 {
		w.fail(mask&^all, "a lane that is not in its member mask %#08x", all)
	}
	return all
}

// shuffleMode is how a lane's source is worked out.
type shuffleMode uint8

const (
	shuffleUp shuffleMode = iota
	shuffleDown
	shuffleXor
	shuffleIndex
)

// shuffle decodes shfl.sync.
func (d *decoder) shuffle() {
	a := d.st.args
	mode, ok := map[string]shuffleMode{"up": shuffleUp, "down": shuffleDown, "bfly": shuffleXor,
		"idx": shuffleIndex}[d.st.hasAny("up", "down", "bfly", "idx")]
	if !d.st.has("sync") || !ok || !d.arity(5, 5) {
		d.failf("unknown shfl")
		return
	}
	in := inst{d: d.dst(a[0], u32Type), a: d.src(a[1], u32Type), b: d.src(a[2], u32Type),
		c: d.src(a[3], u32Type), ext: &extra{srcs: []int32{none}}}
	d.memberMask(&in, &in.ext.srcs[0], a[4])
	if a[0].second != nil {
		in.ext.dsts = []int32{d.dst(*a[0].second, predType)}
	}
	var fixed *shuffleTable
	if a[2].kind == numberOperand && a[3].kind == numberOperand {
		fixed = newShuffleTable(mode, int(a[2].bits&31), int(a[3].bits))
	}
	in.exec = func(w *warp, in *inst, mask uint32) {
		mask, ok := w.join(bySync, mask, w.members(in, in.ext.srcs[0], mask))
		if !ok {
			return
		}
		if mask == allLanes && fixed != nil {
			fixed.apply(w, in)
			return
		}
		w.shuffle(mode, in, mask)
	}
	d.emit(in)
}

// shuffleTable has the sources of all lanes where they are known.
type shuffleTable struct {
	from   [lanes]uint8
	within uint32
}

func newShuffleTable(mode shuffleMode, b, c int) *shuffleTable {
	t := &shuffleTable{}
	for i := range lanes {
		j, ok := source(mode, i, b, c)
		if !ok {
			j = i
		} else {
			t.within |= 1 << i
		}
		t.from[i] = uint8(j)
	}
	return t
}

// apply moves the values of a whole warp.
func (t *shuffleTable) apply(w *warp, in *inst) {
	a := w.r32[in.a]
	d := &w.r32[in.d]
	for i := range d {
		d[i] = a[t.from[i]&(lanes-1)]
	}
	for _, p := range in.ext.dsts {
		w.pred[p] = t.within
	}
}

// shuffle is shfl.sync (PTX ISA 9.7.9.6) for lanes that are all there.
func (w *warp) shuffle(mode shuffleMode, in *inst, mask uint32) {
	a, b, c := &w.r32[in.a], &w.r32[in.b], &w.r32[in.c]
	within := uint32(0)
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		j, ok := source(mode, i, int(b[i]&31), int(c[i]))
		if !ok {
			j = i
		} else {
			within |= 1 << i
		}
		if mask>>j&1 == 0 {
			w.failLane(i, "shfl from lane %d, which does not take part", j)
		}
		w.tmp32[0][i] = a[j&(lanes-1)]
	}
	merge(&w.r32[in.d], &w.tmp32[0], mask)
	for _, p := range in.ext.dsts {
		w.pred[p] = w.pred[p]&^mask | within
	}
}

// source is the lane that a lane reads from, and whether it is in its segment.
func source(mode shuffleMode, lane, b, c int) (int, bool) {
	segment := c >> 8 & 31
	most := lane&segment | c&31&^segment
	switch mode {
	case shuffleUp:
		return lane - b, lane-b >= most
	case shuffleDown:
		return lane + b, lane+b <= most
	case shuffleXor:
		return lane ^ b, lane^b <= most
	}
	j := lane&segment | b&^segment
	return j, j <= most
}

// vote decodes vote.sync.
func (d *decoder) vote() {
	mode := d.st.hasAny("all", "any", "uni", "ballot")
	a := d.st.args
	if !d.st.has("sync") || mode == "" || !d.arity(3, 3) {
		d.failf("unknown vote")
		return
	}
	p, flip := d.predicate(a[1])
	result := predType
	if mode == "ballot" {
		result = u32Type
	}
	in := inst{d: d.dst(a[0], result), a: p, b: none, c: none}
	d.memberMask(&in, &in.b, a[2])
	in.exec = func(w *warp, in *inst, mask uint32) {
		mask, ok := w.join(bySync, mask, w.members(in, in.b, mask))
		if !ok {
			return
		}
		votes := (w.pred[in.a] ^ flip) & mask
		if mode == "ballot" {
			w.broadcast(in.d, votes, mask)
			return
		}
		yes := mode == "any" && votes != 0 || mode != "any" && votes == mask ||
			mode == "uni" && votes == 0
		w.pred[in.d] &^= mask
		if yes {
			w.pred[in.d] |= mask
		}
	}
	d.emit(in)
}

// broadcast writes a value in all lanes of the mask.
func (w *warp) broadcast(r int32, v, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		w.r32[r][firstLane(m)] = v
	}
}

// match decodes match.any and match.all.
func (d *decoder) match() {
	ts := d.st.types()
	a := d.st.args
	if len(ts) != 1 || !d.arity(3, 3) || d.st.hasAny("any", "all") == "" {
		d.failf("unknown match")
		return
	}
	b, all := typeBank(ts[0]), d.st.has("all")
	in := inst{d: d.dst(a[0], u32Type), a: d.src(a[1], ts[0]), b: none, c: none, ext: &extra{}}
	d.memberMask(&in, &in.b, a[2])
	if a[0].second != nil {
		in.ext.dsts = []int32{d.dst(*a[0].second, predType)}
	}
	in.exec = func(w *warp, in *inst, mask uint32) {
		mask, ok := w.join(bySync, mask, w.members(in, in.b, mask))
		if !ok {
			return
		}
		w.match(b, all, in, mask)
	}
	d.emit(in)
}

func (w *warp) match(b bank, all bool, in *inst, mask uint32) {
	var equal lanes32
	same := uint32(0)
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m)
		for n := mask; n != 0; n &= n - 1 {
			if j := firstLane(n); w.value(b, in.a, i) == w.value(b, in.a, j) {
				equal[i] |= 1 << j
			}
		}
		if equal[i] == mask {
			same |= 1 << i
		} else if all {
			equal[i] = 0
		}
	}
	merge(&w.r32[in.d], &equal, mask)
	for _, p := range in.ext.dsts {
		w.pred[p] = w.pred[p]&^mask | same
	}
}

// redux decodes redux.sync of integers.
func (d *decoder) redux() {
	ts := d.st.types()
	name := d.st.hasAny("add", "min", "max", "and", "or", "xor")
	if len(ts) != 1 || ts[0].bits != 32 || !ts[0].integer() || name == "" || !d.arity(3, 3) {
		d.failf("unknown redux")
		return
	}
	a, t := d.st.args, ts[0]
	if name == "min" || name == "max" {
		name += "." + string(t.class)
	}
	f := intFunction(name, t)
	if f == nil {
		d.failf("unknown redux")
		return
	}
	in := inst{d: d.dst(a[0], t), a: d.src(a[1], t), b: none, c: none}
	d.memberMask(&in, &in.b, a[2])
	in.exec = func(w *warp, in *inst, mask uint32) {
		mask, ok := w.join(bySync, mask, w.members(in, in.b, mask))
		if !ok {
			return
		}
		first := firstLane(mask)
		r := uint64(w.r32[in.a][first])
		for m := mask & (mask - 1); m != 0; m &= m - 1 {
			r = f(r, uint64(w.r32[in.a][firstLane(m)]), 0)
		}
		w.broadcast(in.d, uint32(r), mask)
	}
	d.emit(in)
}

// activeMask decodes activemask: which lanes it has is up to the machine.
func (d *decoder) activeMask() {
	if d.arity(1, 1) {
		d.op(func(w *warp, in *inst, mask uint32) { w.broadcast(in.d, mask, mask) },
			d.dst(d.st.args[0], u32Type))
	}
}

// elect decodes elect.sync: the lane that is chosen is the lowest member.
func (d *decoder) elect() {
	a := d.st.args
	if !d.arity(2, 2) || a[0].second == nil {
		d.failf("a register and a predicate are wanted")
		return
	}
	in := inst{d: d.dst(a[0], u32Type), a: none, b: none, c: none,
		ext: &extra{dsts: []int32{d.dst(*a[0].second, predType)}}}
	d.memberMask(&in, &in.b, a[1])
	in.exec = func(w *warp, in *inst, mask uint32) {
		mask, ok := w.join(bySync, mask, w.members(in, in.b, mask))
		if !ok {
			return
		}
		first := bits.TrailingZeros32(mask)
		w.broadcast(in.d, uint32(first), mask)
		p := in.ext.dsts[0]
		w.pred[p] = w.pred[p]&^mask | 1<<first
	}
	d.emit(in)
}

// warpBarrier decodes bar.warp.sync.
func (d *decoder) warpBarrier() {
	if d.arity(1, 1) {
		in := inst{d: none, a: none, b: none, c: none}
		d.memberMask(&in, &in.a, d.st.args[0])
		in.exec = func(w *warp, in *inst, mask uint32) {
			w.join(bySync, mask, w.members(in, in.a, mask))
		}
		d.emit(in)
	}
}

// bar decodes bar and barrier of a block.
func (d *decoder) bar() {
	st := d.st
	if st.has("warp") {
		d.warpBarrier()
		return
	}
	if st.has("cluster") { // a block is a cluster of its own
		d.nothing()
		return
	}
	op := barrierOp{aligned: st.opcode == "bar" || st.has("aligned"), arrive: st.has("arrive")}
	args := st.args
	in := inst{exec: nil, d: none, a: none, b: none, c: none}
	if st.has("red") {
		args = d.barReduction(&op, &in)
	}
	if len(args) < 1 || len(args) > 2 || d.err != nil ||
		!op.arrive && op.red == 0 && !st.has("sync") || op.arrive && len(args) != 2 {
		d.failf("unknown bar")
		return
	}
	in.a = d.src(args[0], u32Type)
	if len(args) == 2 {
		in.b = d.src(args[1], u32Type)
	}
	in.exec = execBarrier(op)
	d.emit(in)
}

// barReduction decodes the result and the predicate of bar.red, and returns the other operands.
func (d *decoder) barReduction(op *barrierOp, in *inst) []operand {
	args := d.st.args
	name := d.st.hasAny("popc", "and", "or")
	if len(args) < 3 || name == "" {
		d.failf("unknown bar.red")
		return nil
	}
	op.red = name[0]
	result := u32Type
	if op.red != 'p' {
		result = predType
		in.imm |= predicateResult
	}
	in.d = d.dst(args[0], result)
	p, flip := d.predicate(args[len(args)-1])
	if in.c = p; flip != 0 {
		in.imm |= negatedSource
	}
	return args[1 : len(args)-1]
}
