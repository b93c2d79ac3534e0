package main

import "fmt"

// pass is a part of a tile whose two chains of a block fit into the registers.
type pass struct {
	row, rows     int
	panel, panels int
	name          string // of the macro of a pair of steps
}

// passes cuts a tile of blocks (see package gemm, Numerics), in the order in which it is computed.
func (w *writer) passes() (all []pass) {
	p := pass{rows: w.rows, panels: w.panels}
	for 2*p.sums()+w.temporaries(p) > w.t.regs {
		p.panels /= 2
	}
	for ; p.panel < w.panels; p.panel += p.panels {
		p.name = fmt.Sprintf("%s_%d", w.t.function(w.shape), len(all))
		all = append(all, p)
	}
	return all
}

// sums is the number of vectors of a pass.
func (p pass) sums() int { return 2 * p.panels * p.rows }

// held reports that a pass holds the elements of x in registers while the weights pass by.
func (p pass) held() bool { return p.rows <= 2 }

// temporaries is the fewest registers that a pass needs beside its sums: the mask, and elements of
// x and a vector of weights twice, or the vectors of weights and an element of x.
func (w *writer) temporaries(p pass) int {
	if p.held() {
		return 1 + 2*p.rows + 2
	}
	return 1 + 2*p.panels + 1
}

// macros defines the pairs of steps of the passes, at offsets W and X from the pointers.
func (w *writer) macros() {
	w.mask = w.t.regs - 1
	for _, p := range w.passes() {
		fmt.Fprintf(w, "\n#define %s(W, X) \\\n", p.name)
		w.offW, w.offX, w.join = "W+", "X+", "; \\"
		if p.held() {
			w.heldPair(p)
		} else {
			for step := range 2 {
				w.passing(p, step, step*p.sums(), 2*p.sums())
			}
		}
		w.offW, w.offX, w.join = "", "", ""
	}
}

// blocks writes a kernel of two chains per block. The sums lie in the stack's frame, at a cache
// line: R14 there.
func (w *writer) blocks() {
	passes := w.passes()
	fmt.Fprintf(w, "TEXT ·%s(SB), 0, $%d-80\n", w.t.function(w.shape), w.sums*w.t.vector+64+8)
	w.op("NO_LOCAL_POINTERS")
	w.op("LEAQ 71(SP), R14")
	w.op("ANDQ $-64, R14")
	// AMX takes denormals as zero and gives none, so do these.
	w.op("STMXCSR 0(SP)")
	w.op("MOVL $0x9fc0, 4(SP)")
	w.op("LDMXCSR 4(SP)")
	w.op("MOVQ c+48(FP), DX")
	w.op("MOVQ cStride+56(FP), R9")
	w.op("TESTQ $1, flags+40(FP)")
	w.op("JZ zero")
	w.tile(func(at, sum string) {
		w.op("VMOVUPS %s, %s", at, w.v(0))
		w.op("VMOVAPS %s, %s", w.v(0), sum)
	})
	w.op("JMP begin")
	fmt.Fprintln(w, "zero:")
	w.zero(0)
	for i := range w.sums {
		w.op("VMOVAPS %s, %d(R14)", w.v(0), i*w.t.vector)
	}
	fmt.Fprintln(w, "begin:")
	w.op("MOVQ w+0(FP), DI")
	w.op("MOVQ wStride+8(FP), R9")
	w.op("MOVQ x+16(FP), SI")
	w.op("MOVQ xStride+24(FP), R8")
	w.pointers()
	w.soon()
	w.fillMask()
	w.op("MOVQ pairs+32(FP), BX")
	w.op("SUBQ $%d, BX", blockPairs)
	w.op("JLT rest")
	w.op("PCALIGN $32")
	fmt.Fprintln(w, "block:")
	for i, p := range passes {
		w.clear(p)
		for pair := range blockPairs {
			if i == 0 {
				w.first()
			}
			w.op("%s(%d, %d)", p.name, pair*w.pairBytes(), pair*8)
		}
		w.add(p)
	}
	w.advance(blockPairs)
	w.op("SUBQ $%d, BX", blockPairs)
	w.op("JGE block")
	fmt.Fprintln(w, "rest:")
	w.op("ADDQ $%d, BX", blockPairs)
	w.op("JZ done")
	for i, p := range passes {
		w.clear(p)
		w.op("MOVQ BX, CX")
		fmt.Fprintf(w, "rest%d:\n", i)
		if i == 0 {
			w.first()
		}
		w.op("%s(0, 0)", p.name)
		w.advance(1)
		w.op("DECQ CX")
		w.op("JNZ rest%d", i)
		w.add(p)
		if i < len(passes)-1 {
			w.rewind()
		}
	}
	fmt.Fprintln(w, "done:")
	w.op("MOVQ c+48(FP), DX")
	w.op("MOVQ cStride+56(FP), R9")
	w.tile(func(at, sum string) {
		w.op("VMOVAPS %s, %s", sum, w.v(0))
		w.op("VMOVUPS %s, %s", w.v(0), at)
	})
	w.op("LDMXCSR 0(SP)")
	w.op("VZEROUPPER")
	w.op("RET")
}

// blockPairs is the pairs of steps of a block.
const blockPairs = 16

// clear sets a pass's sums to zero.
func (w *writer) clear(p pass) {
	for i := range 2 * p.sums() {
		w.zero(i)
	}
}

// add adds the sums of a block's two chains to the tile's.
func (w *writer) add(p pass) {
	for j := range p.sums() {
		sum, at := w.v(j), w.parked(p, j)
		w.op("VADDPS %s, %s, %s", w.v(j+p.sums()), sum, sum)
		w.op("VADDPS %s, %s, %s", at, sum, sum)
		w.op("VMOVAPS %s, %s", sum, at)
	}
}

// rewind moves the pointers back by the pairs in BX.
func (w *writer) rewind() {
	w.op("MOVQ BX, AX")
	w.op("SHLQ $3, AX")
	for row := 0; row < w.rows; row += 3 {
		w.op("SUBQ AX, %s", [...]string{"SI", "R11", "R12", "R13"}[row/3])
	}
	w.op("IMULQ $%d, AX", w.pairBytes()/8)
	w.op("SUBQ AX, DI")
	if w.panels > 3 {
		w.op("SUBQ AX, R10")
	}
}

// tile visits the tile in memory, and where its sums lie; it uses DX and R9.
func (w *writer) tile(visit func(at, sum string)) {
	for row := range w.rows {
		for j := range 2 * w.panels {
			visit(fmt.Sprintf("%d(DX)", j*w.t.vector),
				fmt.Sprintf("%d(R14)", (row*2*w.panels+j)*w.t.vector))
		}
		if row+1 < w.rows {
			w.op("ADDQ R9, DX")
		}
	}
}

// parked is where vector j of a pass lies among the sums.
func (w *writer) parked(p pass, j int) string {
	row, column := j/(2*p.panels), j%(2*p.panels)
	return fmt.Sprintf("%d(R14)", ((p.row+row)*2*w.panels+2*p.panel+column)*w.t.vector)
}

// heldPair computes a pair of steps: weights are loaded once.
func (w *writer) heldPair(p pass) {
	first := 2 * p.sums()
	x := func(row, step int) string { return w.v(first + 2*row + step) }
	for row := range p.rows {
		w.op("VBROADCASTSS %s, %s", w.x(p.row+row, 0), x(row, 0))
		w.op("VBROADCASTSS %s, %s", w.x(p.row+row, 1), x(row, 1))
	}
	free := first + 2*p.rows
	spare := w.mask - free
	next := 0
	tmp := func() string { next++; return w.v(free + (next-1)%spare) }
	for j := range 2 * p.panels {
		both, even := tmp(), tmp()
		w.op("VMOVUPS %s, %s", w.weights(2*p.panel+j, 0), both)
		w.op("VPSLLD $16, %s, %s", both, even)
		w.and(w.v(w.mask), both, both)
		for row := range p.rows {
			sum := row*2*p.panels + j
			w.op("VFMADD231PS %s, %s, %s", even, x(row, 0), w.v(sum))
			w.op("VFMADD231PS %s, %s, %s", both, x(row, 1), w.v(sum+p.sums()))
		}
	}
}

// passing computes a step: the rows pass by its vectors of weights. sum is the first register of
// its chain's sums, free the first that is free.
func (w *writer) passing(p pass, step, sum, free int) {
	count := 2 * p.panels
	for j := range count {
		reg, at := w.v(free+j), w.weights(2*p.panel+j, step)
		if step == 0 {
			w.op("VMOVUPS %s, %s", at, reg)
			w.op("VPSLLD $16, %s, %s", reg, reg)
		} else {
			w.and(at, w.v(w.mask), reg)
		}
	}
	free += count
	for row := range p.rows {
		x := w.v(free + row%(w.mask-free))
		w.op("VBROADCASTSS %s, %s", w.x(p.row+row, step), x)
		for j := range count {
			w.op("VFMADD231PS %s, %s, %s", w.v(free-count+j), x, w.v(sum+row*count+j))
		}
	}
}
