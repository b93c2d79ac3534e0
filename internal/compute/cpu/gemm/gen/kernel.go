package main

import (
	"bytes"
	"fmt"
)

// writer writes one kernel. Register use:
//
//	DI, R10       panels 0 and 3 of the weights; R9 bytes from a panel to the next
//	SI, R11–R13   rows 0, 3, 6 and 9 of x; R8 bytes from a row to the next
//	CX            pairs left
//	DX, R9        row of c, and bytes to the next (at both ends of the kernel)
//	AX, BX, R15   what is fetched, beside panels 0 and 3, and bytes from a pair to the next; of
//	              blocks, DX and R12
//	first vector registers: the sums, by row, then panel, then half
//	last vector register: mask for the odd element of a bf16 pair, where one is free for it
type writer struct {
	*bytes.Buffer
	t *target
	shape
	sums int // registers that hold sums
	free int // first register that is free in the loop
	mask int // register of the mask, or -1
	// what offsets from the pointers to weights and to x begin with, and lines end with: in a macro
	// its parameters, and what joins its lines
	offW, offX, join string
	ahead            [2]string // registers of what is fetched, beside panels 0 and 3
	at               int       // pairs from the pointers to the one that is multiplied
}

func newWriter(b *bytes.Buffer, t *target, s shape) *writer {
	w := &writer{Buffer: b, t: t, shape: s, sums: 2 * s.rows * s.panels, mask: -1,
		ahead: [2]string{"AX", "BX"}}
	if t.kind == "block" {
		w.ahead = [2]string{"DX", "R12"}
	}
	w.free = w.sums
	if t.kind == "bf16" && (w.held() && w.free+s.rows+1 < t.regs || !w.held()) {
		w.mask = t.regs - 1
	}
	return w
}

// held reports the order of the loop. With few rows their elements are held in registers and the
// weights pass by; with more, the two vectors of weights of a panel are held and the rows pass by.
func (w *writer) held() bool {
	if w.t.regs == 16 {
		return w.rows <= 3
	}
	return w.rows <= 2
}

func (w *writer) op(format string, args ...any) {
	fmt.Fprintf(w, "\t"+format+w.join+"\n", args...)
}

// v names a vector register.
func (w *writer) v(i int) string {
	if i >= w.t.regs {
		panic(fmt.Sprintf("%s %dx%d: register %d", w.t.name(), w.rows, w.panels, i))
	}
	if w.t.vector == 64 {
		return fmt.Sprintf("Z%d", i)
	}
	return fmt.Sprintf("Y%d", i)
}

// sum is the register of a row's sums of vector j, counted over the panels.
func (w *writer) sum(row, j int) string { return w.v((row*w.panels*2 + j)) }

// weights is the address of vector j of one of the two steps of K.
func (w *writer) weights(j, step int) string {
	offset := 0
	switch w.t.kind {
	case "bf16", "block", "dot": // both steps in each vector
		offset = j % 2 * w.t.vector
	case "f16":
		offset = step*w.t.nr()*2 + j%2*w.t.vector/2
	case "f32":
		offset = step*w.t.nr()*4 + j%2*w.t.vector
	}
	offset += w.at * w.pairBytes()
	return fmt.Sprintf("%s%d%s", w.offW, offset,
		[4]string{"(DI)", "(DI)(R9*1)", "(DI)(R9*2)", "(R10)"}[j/2])
}

// x is the address of a row's element.
func (w *writer) x(row, step int) string {
	base := [4]string{"SI", "R11", "R12", "R13"}[row/3]
	return fmt.Sprintf("%s%d(%s)%s", w.offX, 8*w.at+4*step, base,
		[3]string{"", "(R8*1)", "(R8*2)"}[row%3])
}

func (w *writer) kernel() {
	if w.t.kind == "block" {
		w.macros()
	}
	fmt.Fprintf(w, "\n// func %s(w unsafe.Pointer, wStride uintptr, x unsafe.Pointer, xStride "+
		"uintptr, pairs, flags int, c unsafe.Pointer, cStride uintptr, soon unsafe.Pointer, "+
		"soonStep uintptr)\n", w.t.function(w.shape))
	if w.t.kind == "block" {
		w.blocks()
		return
	}
	fmt.Fprintf(w, "TEXT ·%s(SB), NOSPLIT, $0-80\n", w.t.function(w.shape))
	w.begin()
	w.op("MOVQ pairs+32(FP), CX")
	w.op("TESTQ CX, CX")
	w.op("JZ rest")
	w.soon()
	if w.again {
		w.fours()
	}
	w.op("PCALIGN $32")
	fmt.Fprintln(w, "loop:")
	const flags = "flags+40(FP)"
	switch {
	case w.again:
	case w.streams():
		choose(w.Buffer, "", flags, flagFollows, w.first, nil)
	case w.shares():
		choose(w.Buffer, "", flags, flagSecond, w.first, w.second)
	default:
		w.first()
	}
	w.pair()
	w.advance(1)
	w.op("DECQ CX")
	w.op("JNZ loop")
	fmt.Fprintln(w, "rest:")
	if w.t.kind != "dot" { // the bf16 dot product gets padded rows
		w.op("TESTQ $2, flags+40(FP)")
		w.op("JZ done")
		w.step(0)
		fmt.Fprintln(w, "done:")
	}
	w.end()
}

// fours computes four pairs at a time and leaves fewer. It fetches a line for each four, no more:
// what counts are the instructions, of which a core takes half as many while another thread of it
// is busy.
func (w *writer) fours() {
	w.op("SUBQ $4, CX")
	w.op("JLT few")
	w.op("PCALIGN $32")
	fmt.Fprintln(w, "fours:")
	w.op("PREFETCHT1 0(%s)", w.ahead[0])
	w.op("ADDQ R15, %s", w.ahead[0])
	for w.at = range 4 {
		w.pair()
	}
	w.at = 0
	w.advance(4)
	w.op("SUBQ $4, CX")
	w.op("JGE fours")
	fmt.Fprintln(w, "few:")
	w.op("ADDQ $4, CX")
	w.op("JZ rest")
}

// widen writes what makes pairs of steps of a packed panel those of a panel of float32.
func (w *writer) widen() {
	fmt.Fprintf(w, "\n// func %[1]s(dst, src unsafe.Pointer, pairs int)\n"+
		"TEXT ·%[1]s(SB), NOSPLIT, $0-24\n", w.t.widening())
	w.op("MOVQ dst+0(FP), DX")
	w.op("MOVQ src+8(FP), DI")
	w.op("MOVQ pairs+16(FP), CX")
	if w.mask >= 0 {
		w.fillMask()
	}
	fmt.Fprintln(w, "loop:")
	for line := 0; line < w.pairBytes(); line += 64 {
		w.op("PREFETCHT0 %d(DI)", 4096+line)
	}
	for i := range 4 {
		w.load(i%2, i/2, w.v(i))
		w.op("VMOVUPS %s, %d(DX)", w.v(i), i*w.t.vector)
	}
	w.op("ADDQ $%d, DI", w.pairBytes())
	w.op("ADDQ $%d, DX", 2*w.pairBytes())
	w.op("DECQ CX")
	w.op("JNZ loop")
	w.op("VZEROUPPER")
	w.op("RET")
}

// begin loads the arguments and sets the sums to zero or to c.
func (w *writer) begin() {
	w.op("MOVQ c+48(FP), DX")
	w.op("MOVQ cStride+56(FP), R9")
	w.op("TESTQ $1, flags+40(FP)")
	w.op("JZ zero")
	w.c(func(at, reg string) { w.op("VMOVUPS %s, %s", at, reg) })
	w.op("JMP begin")
	fmt.Fprintln(w, "zero:")
	for i := range w.sums {
		w.zero(i)
	}
	fmt.Fprintln(w, "begin:")
	w.op("MOVQ w+0(FP), DI")
	w.op("MOVQ wStride+8(FP), R9")
	w.op("MOVQ x+16(FP), SI")
	w.op("MOVQ xStride+24(FP), R8")
	w.pointers()
	if w.mask >= 0 {
		w.fillMask()
	}
}

// pointers sets those of the rows and panels that are not within reach of the first.
func (w *writer) pointers() {
	if w.panels > 3 {
		w.op("LEAQ (R9)(R9*2), R10")
		w.op("ADDQ DI, R10")
	}
	if w.rows > 3 {
		w.op("LEAQ (R8)(R8*2), AX")
		for row := 3; row < w.rows; row += 3 {
			from := [...]string{"SI", "R11", "R12"}[row/3-1]
			w.op("LEAQ (%s)(AX*1), %s", from, [...]string{"R11", "R12", "R13"}[row/3-1])
		}
	}
}

// zero clears a vector register.
func (w *writer) zero(i int) {
	if w.t.vector == 64 {
		w.op("VPXORD %s, %s, %s", w.v(i), w.v(i), w.v(i))
		return
	}
	w.op("VXORPS %s, %s, %s", w.v(i), w.v(i), w.v(i))
}

// fillMask sets the mask of the upper halves of all lanes.
func (w *writer) fillMask() {
	m := w.v(w.mask)
	if w.t.vector == 64 {
		w.op("VPTERNLOGD $255, %s, %s, %s", m, m, m)
	} else {
		w.op("VPCMPEQD %s, %s, %s", m, m, m)
	}
	w.op("VPSLLD $16, %s, %s", m, m)
}

// c visits the tile in memory; it uses DX and R9.
func (w *writer) c(visit func(at, reg string)) {
	for row := range w.rows {
		for j := range 2 * w.panels {
			visit(fmt.Sprintf("%d(DX)", j*w.t.vector), w.sum(row, j))
		}
		if row+1 < w.rows {
			w.op("ADDQ R9, DX")
		}
	}
}

func (w *writer) end() {
	w.op("MOVQ c+48(FP), DX")
	w.op("MOVQ cStride+56(FP), R9")
	w.c(func(at, reg string) { w.op("VMOVUPS %s, %s", reg, at) })
	w.op("VZEROUPPER")
	w.op("RET")
}

// advance moves the pointers on by some pairs.
func (w *writer) advance(pairs int) {
	xBytes := 8 * pairs
	if w.t.kind == "dot" {
		xBytes /= 2
	}
	wBytes := w.pairBytes() * pairs
	w.op("ADDQ $%d, DI", wBytes)
	if w.panels > 3 {
		w.op("ADDQ $%d, R10", wBytes)
	}
	for row := 0; row < w.rows; row += 3 {
		w.op("ADDQ $%d, %s", xBytes, [...]string{"SI", "R11", "R12", "R13"}[row/3])
	}
}

// Bits of flags: see those of the same names in package gemm.
const (
	flagFollows = 4 // of calls, too
	flagSecond  = 8
)

// choose writes one way to fetch, and another one, less, for calls with a bit in flags; either may
// be nil, for nothing. Labels begin with name.
func choose(b *bytes.Buffer, name, flags string, bit int, all, less func()) {
	jump := func(op, to string) { fmt.Fprintf(b, "\t%s %s%s\n", op, name, to) }
	label := func(to string) { fmt.Fprintf(b, "%s%s:\n", name, to) }
	fmt.Fprintf(b, "\tTESTQ $%d, %s\n", bit, flags)
	switch {
	case less == nil:
		jump("JNZ", "told")
		all()
	case all == nil:
		jump("JZ", "told")
		less()
	default:
		jump("JNZ", "less")
		all()
		jump("JMP", "told")
		label("less")
		less()
	}
	label("told")
}

// streams tells whether a processor that follows streams is left to fetch by itself. Few rows are
// multiplied faster than memory is read; with more it gains from being told.
func (w *writer) streams() bool {
	if w.t.set == "avx2" {
		return w.rows == 1 && w.panels == 4
	}
	return w.rows <= 2
}

// shares tells whether what is fetched may leave the first cache to weights that several tiles
// share. Kernels of floats gain nothing by it: they take longer than memory.
func (w *writer) shares() bool { return w.t.kind == "dot" && w.rows > 4 }

// soon loads what is fetched.
func (w *writer) soon() {
	w.op("MOVQ soon+64(FP), %s", w.ahead[0])
	w.op("MOVQ soonStep+72(FP), R15")
	if w.panels > 3 {
		w.op("LEAQ (R9)(R9*2), %s", w.ahead[1])
		w.op("ADDQ %s, %s", w.ahead[0], w.ahead[1])
	}
}

// first and second are fetch into the first cache, and into the second one.
func (w *writer) first()  { w.fetch(0) }
func (w *writer) second() { w.fetch(1) }

// fetch brings memory that is multiplied soon into the caches, or all but the first, as many lines
// for each pair as its weights are: the hardware's own prefetching ends with each page of memory.
func (w *writer) fetch(level int) {
	for panel := range w.panels {
		at := w.ahead[0] + [4]string{")", ")(R9*1)", ")(R9*2)"}[panel]
		if panel == 3 {
			at = w.ahead[1] + ")"
		}
		for line := 0; line < w.pairBytes(); line += 64 {
			w.op("PREFETCHT%d %d(%s", level, line, at)
		}
	}
	w.op("ADDQ R15, %s", w.ahead[0])
	if w.panels > 3 {
		w.op("ADDQ R15, %s", w.ahead[1])
	}
}

// pairBytes is the size of two steps of K of a panel.
func (w *writer) pairBytes() int {
	switch w.t.kind {
	case "f32":
		return 2 * w.t.nr() * 4
	case "i8":
		return 2 * w.t.nr()
	}
	return 2 * w.t.nr() * 2
}

// pair computes two steps of K.
func (w *writer) pair() {
	switch {
	case w.t.kind == "dot":
		w.step(0)
	case w.t.kind == "bf16" && w.held() && w.mask >= 0 && w.free+2*w.rows+3 <= w.mask:
		w.merged()
	default:
		w.step(0)
		w.step(1)
	}
}

// step computes one step of K (of the bf16 dot product: a pair).
func (w *writer) step(step int) {
	if w.held() {
		w.heldRows(step)
	} else {
		w.heldWeights(step)
	}
}

// merged computes both steps of K of bf16 weights with one load of each vector.
func (w *writer) merged() {
	x := func(row, step int) string { return w.v(w.free + 2*row + step) }
	for row := range w.rows {
		w.op("VBROADCASTSS %s, %s", w.x(row, 0), x(row, 0))
		w.op("VBROADCASTSS %s, %s", w.x(row, 1), x(row, 1))
	}
	first := w.free + 2*w.rows
	spare := w.mask - first
	next := 0
	tmp := func() string { next++; return w.v(first + (next-1)%spare) }
	for j := range 2 * w.panels {
		both, even := tmp(), tmp()
		w.op("VMOVUPS %s, %s", w.weights(j, 0), both)
		w.op("VPSLLD $16, %s, %s", both, even)
		w.and(w.v(w.mask), both, both)
		for row := range w.rows {
			w.multiplyAdd(even, x(row, 0), w.sum(row, j))
		}
		for row := range w.rows {
			w.multiplyAdd(both, x(row, 1), w.sum(row, j))
		}
	}
}

func (w *writer) heldRows(step int) {
	for row := range w.rows {
		w.broadcast(row, step, w.v(w.free+row))
	}
	first := w.free + w.rows
	spare := w.t.regs - first
	if w.mask >= 0 {
		spare--
	}
	for j := range 2 * w.panels {
		tmp := w.v(first + j%spare)
		if w.t.kind == "f32" && w.rows == 1 {
			tmp = w.weights(j, step) // operand in memory
		} else {
			w.load(j, step, tmp)
		}
		for row := range w.rows {
			w.multiplyAdd(tmp, w.v(w.free+row), w.sum(row, j))
		}
	}
}

func (w *writer) heldWeights(step int) {
	count := 2 * w.panels
	for j := range count {
		w.load(j, step, w.v(w.free+j))
	}
	first := w.free + count
	spare := w.t.regs - first
	if w.mask >= 0 {
		spare--
	}
	for row := range w.rows {
		x := w.v(first + row%spare)
		w.broadcast(row, step, x)
		for j := range count {
			w.multiplyAdd(w.v(w.free+j), x, w.sum(row, j))
		}
	}
}

// broadcast copies a row's element (of the bf16 dot product: pair) to all lanes.
func (w *writer) broadcast(row, step int, reg string) {
	if w.t.kind == "dot" {
		w.op("VPBROADCASTD %s, %s", w.x(row, 0), reg)
		return
	}
	w.op("VBROADCASTSS %s, %s", w.x(row, step), reg)
}

// load brings vector j of a step of K into a register, as fp32 (of the bf16 dot product: as it is).
func (w *writer) load(j, step int, reg string) {
	at := w.weights(j, step)
	switch {
	case w.t.kind == "f16":
		w.op("VCVTPH2PS %s, %s", at, reg)
	case w.t.kind == "f32" || w.t.kind == "dot":
		w.op("VMOVUPS %s, %s", at, reg)
	case step == 0:
		w.op("VMOVUPS %s, %s", at, reg)
		w.op("VPSLLD $16, %s, %s", reg, reg)
	case w.mask >= 0:
		w.and(at, w.v(w.mask), reg)
	default:
		w.op("VMOVUPS %s, %s", at, reg)
		w.and("upper<>(SB)", reg, reg)
	}
}

func (w *writer) and(a, b, to string) {
	if w.t.vector == 64 {
		w.op("VPANDD %s, %s, %s", a, b, to)
		return
	}
	w.op("VPAND %s, %s, %s", a, b, to)
}

// multiplyAdd adds weights·x to a sum.
func (w *writer) multiplyAdd(weights, x, sum string) {
	if w.t.kind == "dot" {
		w.dot(weights, x, sum)
		return
	}
	w.op("VFMADD231PS %s, %s, %s", weights, x, sum)
}

// dot writes VDPBF16PS, which Go's assembler does not know: EVEX.512.F3.0F38.W0 52 /r with the sum
// in ModRM.reg, x in vvvv and the weights in ModRM.rm (Intel SDM vol. 2, section 2.7.1 for the
// prefix; R, X, B, R', vvvv and V' are stored inverted).
func (w *writer) dot(weights, x, sum string) {
	a, b, c := number(weights), number(x), number(sum)
	inverted := func(v, bit int) int { return 1 - v>>bit&1 }
	p1 := inverted(c, 3)<<7 | inverted(a, 4)<<6 | inverted(a, 3)<<5 | inverted(c, 4)<<4 | 0b010
	p2 := (^b&0xf)<<3 | 0b110
	p3 := 0b10<<5 | inverted(b, 4)<<3
	modRM := 0b11<<6 | c&7<<3 | a&7
	w.op("BYTE $0x62; BYTE $%#02x; BYTE $%#02x; BYTE $%#02x; BYTE $0x52; BYTE $%#02x // "+
		"VDPBF16PS %s, %s, %s", p1, p2, p3, modRM, weights, x, sum)
}

func number(reg string) int {
	n := 0
	if _, err := fmt.Sscanf(reg, "Z%d", &n); err != nil {
		panic(err)
	}
	return n
}
