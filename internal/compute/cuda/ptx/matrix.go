package ptx

import "unsafe"

// matrixOp is a decoded ldmatrix or stmatrix of 8 x 8 elements of 16 bits.
type matrixOp struct {
	count     int
	trans     bool
	wide      bank
	space     space
	kind      accessKind
	rows      uint32 // lanes whose addresses count
	fragments func(op *matrixOp, w *warp, in *inst, base unsafe.Pointer)
}

// matrixMove decodes ldmatrix and stmatrix (PTX ISA 9.7.14.5).
func (d *decoder) matrixMove() {
	st := d.st
	load := st.opcode == "ldmatrix"
	counts := map[string]int{"x1": 1, "x2": 2, "x4": 4}
	n := counts[st.hasAny("x1", "x2", "x4")]
	if !d.arity(2, 2) || n == 0 || !st.has("m8n8") || !st.has("b16") || !st.has("aligned") {
		d.failf("unknown shape")
		return
	}
	op := &matrixOp{count: n, trans: st.has("trans"), space: d.space(),
		rows: uint32(uint64(1)<<(8*n) - 1), kind: writes | collective, fragments: storeFragments}
	regs, address := st.args[1], st.args[0]
	if load {
		regs, address = address, regs
		op.kind, op.fragments = reads|collective, loadFragments
	}
	in := inst{d: none, b: none, c: none, ext: &extra{slot: d.slotFor()}}
	for _, o := range d.elements(regs) {
		if load {
			in.ext.dsts = append(in.ext.dsts, d.dst(o, u32Type))
		} else {
			in.ext.dsts = append(in.ext.dsts, d.src(o, u32Type))
		}
	}
	if len(in.ext.dsts) != n {
		d.failf("%d registers for %d matrices", len(in.ext.dsts), n)
	}
	in.a, op.wide, in.imm = d.memoryAddress(address, op.space)
	in.exec = op.exec
	d.emit(in)
}

func (op *matrixOp) exec(w *warp, in *inst, mask uint32) {
	if _, ok := w.join(byWhole, mask, mask); !ok {
		return
	}
	w.addresses(op.wide, in.a, in.imm)
	kind := op.kind
	s := w.segment(op.space, in.ext.slot, 16, op.rows, kind)
	if s.space != sharedSpace || s.group != op.rows {
		w.fail(mask, "rows of a matrix that are not in shared memory")
	}
	w.count(&s, 16, kind)
	if w.cta.check != nil {
		w.check(&s, 16, kind)
	}
	op.fragments(op, w, in, s.base)
}

// loadFragments loads matrix m from the rows of lanes 8m to 8m+7: lane l has elements 2(l%4) and
// the next of row l/4, or of column l/4 with .trans.
func loadFragments(op *matrixOp, w *warp, in *inst, base unsafe.Pointer) {
	for m, r := range in.ext.dsts {
		d, rows := &w.r32[r], w.ea[m*8:m*8+8]
		if !op.trans {
			for i := range d {
				d[i] = *(*uint32)(unsafe.Add(base, rows[i>>2]+uint64(i&3)*4))
			}
			continue
		}
		for i := range d {
			k := i & 3 * 2
			lo := *(*uint16)(unsafe.Add(base, rows[k]+uint64(i>>2)*2))
			hi := *(*uint16)(unsafe.Add(base, rows[k+1]+uint64(i>>2)*2))
			d[i] = uint32(lo) | uint32(hi)<<16
		}
	}
}

func storeFragments(op *matrixOp, w *warp, in *inst, base unsafe.Pointer) {
	for m, r := range in.ext.dsts {
		v, rows := &w.r32[r], w.ea[m*8:m*8+8]
		for i := range v {
			if !op.trans {
				*(*uint32)(unsafe.Add(base, rows[i>>2]+uint64(i&3)*4)) = v[i]
				continue
			}
			k := i & 3 * 2
			*(*uint16)(unsafe.Add(base, rows[k]+uint64(i>>2)*2)) = uint16(v[i])
			*(*uint16)(unsafe.Add(base, rows[k+1]+uint64(i>>2)*2)) = uint16(v[i] >> 16)
		}
	}
}
