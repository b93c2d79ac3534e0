package main

import (
	"bytes"
	"fmt"
	"strings"
)

// Kernels of quantised weights go over runs of columns that share a scale. They take a *codeCall,
// of which these are the offsets:
const (
	callW         = 0
	callWStride   = 8
	callScale     = 16
	callX         = 24
	callXStride   = 32
	callRuns      = 40
	callBlocks    = 48
	callC         = 56
	callCStride   = 64
	callSkip      = 72
	callScaleStep = 80
	callSums      = 88
	callSumStep   = 96
	callTable     = 104
	callOffset    = 112
	callFlags     = 120
	callSpans     = 128
	callParts     = 136
	callNext      = 144
	callList      = 152
	callPieceStep = 160
	callCApart    = 168
	callHead      = 176
	callFromX     = 232
	callFromSums  = 240
)

// codePart has these.
const (
	partRuns  = 0
	partThen  = 40
	partBytes = 48
)

// codeTarget is an instruction set together with a form of codes:
//
//	half   4 bits, which stand for numbers that bfloat16 has (AVX2)
//	full   4 bits, which stand for any float32
//	i8     two's complement bytes
//	e4m3   bytes of 4 bits of exponent and 3 of mantissa
//	float  float32: codes that have been unpacked
//	dots4  4 bits, of which the products with int8 are summed
//	table  4 bits that are looked up as bytes without a sign, likewise; with AVX2 32 at most
//	signed 4 bits that are looked up as two's complement bytes (AVX2)
//	dots8  two's complement bytes, likewise
//	super4 dots4, each span of which has scales and offsets of 8 bits
//	super6 6 bits, likewise: four below as dots4, two above
//	super8 dots8, likewise, which super6 is unpacked to for many rows (AVX-512)
type codeTarget struct {
	set    string
	form   string
	vector int
	regs   int
	rows   int
	shapes []shape
	unpack bool
}

func (t *codeTarget) name() string { return t.set + "_codes_" + t.form }

func (t *codeTarget) nr() int { return 2 * t.vector / 4 }

func (t *codeTarget) title() string { return strings.ToUpper(t.form[:1]) + t.form[1:] }

func (t *codeTarget) function(s shape) string {
	return fmt.Sprintf("%sCodes%s_%dx%d", t.set, t.title(), s.rows, s.panels)
}

// codeTargets lists them. Tiles of codes are as high as the registers allow beside what unpacking
// takes; many rows are multiplied with float32, which one unpacking serves.
func codeTargets() []*codeTarget {
	avx2 := func(form string, widest ...int) *codeTarget {
		return &codeTarget{set: "avx2", form: form, vector: 32, regs: 16, rows: len(widest),
			shapes: shapes(widest), unpack: form != "float" && !dots[form]}
	}
	avx512 := func(form string, widest ...int) *codeTarget {
		return &codeTarget{set: "avx512", form: form, vector: 64, regs: 32, rows: len(widest),
			shapes: shapes(widest), unpack: form != "float" && !dots[form] || form == "super6"}
	}
	return []*codeTarget{
		avx2("half", 4, 2, 1, 1),
		avx2("full", 2, 1, 1),
		avx2("i8", 4, 2, 2, 1),
		avx2("e4m3", 4, 2, 1, 1),
		avx2("float", 1, 1, 1, 1, 1, 1),
		avx2("dots4", 4, 1, 1),
		avx2("table", 4, 1, 1),
		avx2("signed", 4, 1, 1),
		avx2("dots8", 4, 1, 1),
		avx2("super4", 2, 1, 1),
		avx2("super6", 2, 1),
		avx512("full", 4, 4, 2, 2, 2, 2),
		avx512("i8", 4, 4, 2, 2, 2, 2),
		avx512("e4m3", 4, 4, 2, 2, 2, 2),
		avx512("dots4", 4, 2, 1, 1, 1, 1),
		avx512("table", 4, 2, 1, 1, 1),
		avx512("dots8", 4, 2, 1, 1, 1, 1),
		avx512("super4", 2, 2, 1, 1, 1, 1),
		avx512("super6", 2, 1, 1, 1),
		avx512("super8", 0, 0, 0, 1, 1, 1), // tiles of eight rows or more
		avx512("float", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
	}
}

// codeWriter writes one kernel. Register use:
//
//	AX            the call
//	DI, R10       codes of panels 0 and 3; R9 bytes from a panel to the next
//	BX            scales of panel 0
//	SI, R11–R13   rows 0, 3, 6 and 9 of x; R8 bytes from a row to the next
//	DX, CX        runs and blocks left
//	R14           c, or what is unpacked to
//	R15           sums of x over the run
//	R12, R13      scales of panel 3, and the table, in tiles that are too low for rows 6 and 9
//	first vector registers: the sums of a run, by row, then panel, then half
//	last vector registers: tables and masks
//
// Products of integers are summed in registers behind those of the run's sums, span after span; R13
// is spans left, R12 their scales, then their offsets, and R11 the table of AVX2.
//
// One row of AVX2's is multiplied with all its pieces of K, and R8 is bytes from the sums of a
// panel to those of the next. Panels that take turns compute each run one after the other: R10 is
// how many are left, and R8 where the sums of one are.
type codeWriter struct {
	*bytes.Buffer
	t *codeTarget
	shape
	unpack bool
	turns  int // panels that take turns, each as the only one; 0 where they are side by side
	sums   int // registers that hold sums
	last   int // first register of tables and masks
}

func newCodeWriter(b *bytes.Buffer, t *codeTarget, s shape, unpack bool) *codeWriter {
	w := &codeWriter{Buffer: b, t: t, shape: s, unpack: unpack, last: t.regs}
	if t.takesTurns(s) {
		w.turns, w.panels = s.panels, 1
	}
	w.sums = 2 * w.rows * w.panels
	if unpack {
		w.sums = 0
	}
	switch {
	case t.form == "half":
		w.last -= 2
	case t.form == "full" && t.set == "avx2":
		w.last -= 4
	case t.form == "table" && (t.vector == 64 || w.mask() == "Y14"):
		w.last -= 2
	case w.six() && t.vector == 64:
		w.last -= 2 + toInt(unpack)
	case t.form == "full" || t.form == "e4m3" || w.dots():
		w.last--
	}
	return w
}

func (w *codeWriter) op(format string, args ...any) { fmt.Fprintf(w, "\t"+format+"\n", args...) }

func (w *codeWriter) label(name string) { fmt.Fprintf(w, "%s:\n", name) }

// v names a vector register.
func (w *codeWriter) v(i int) string {
	if i >= w.t.regs {
		panic(fmt.Sprintf("%s %dx%d: register %d", w.t.name(), w.rows, w.panels, i))
	}
	if w.t.vector == 64 {
		// What is free begins at Z16: its parts, too, are then encoded as AVX-512's.
		return fmt.Sprintf("Z%d", (i+48-w.sums)%32)
	}
	return fmt.Sprintf("Y%d", i)
}

// part names the register of half or a quarter of a vector.
func (w *codeWriter) part(v string, of int) string {
	return string("XYZ"[w.t.vector/16/of/2]) + v[1:]
}

// tmp is a register that is free in the loop.
func (w *codeWriter) tmp(i int) string {
	if w.sums+i >= w.last {
		panic(fmt.Sprintf("%s %dx%d: no register for %d", w.t.name(), w.rows, w.panels, i))
	}
	return w.v(w.sums + i)
}

// tmps is how many there are.
func (w *codeWriter) tmps() int { return w.last - w.sums }

// sum is the register of a row's sums of vector j, counted over the panels.
func (w *codeWriter) sum(row, j int) string { return w.v(row*w.panels*2 + j) }

// at is an address in the codes of the panel of vector j.
func (w *codeWriter) at(j, offset int) string {
	if j/2 == 3 {
		return fmt.Sprintf("%d(R10)", offset)
	}
	return beside("DI", j/2, offset)
}

// x is the address of a row's element.
func (w *codeWriter) x(row, k int) string {
	base := [4]string{"SI", "R11", "R12", "R13"}[row/3]
	return fmt.Sprintf("%d%s", 4*k, [3]string{"(" + base + ")", "(" + base + ")(R8*1)", "(" +
		base + ")(R8*2)"}[row%3])
}

// prefetch is how many bytes ahead the codes of one row are fetched, of up to four panels. Where
// there are more rows, there are fewer panels, and as many times the distance.
const prefetch = 1024

const callSignature = "(call *codeCall)"

// blockBytes are the bytes of codes of eight columns of a panel.
func (w *codeWriter) blockBytes() int {
	switch w.t.form {
	case "half", "full", "dots4", "super4", "table", "signed":
		return 4 * w.t.nr()
	case "super6":
		return 6 * w.t.nr()
	case "float":
		return 32 * w.t.nr()
	}
	return 8 * w.t.nr()
}

func (w *codeWriter) kernel() {
	name := w.t.function(shape{rows: w.rows, panels: max(w.panels, w.turns)})
	if w.unpack {
		name = w.t.set + "Unpack" + w.t.title()
	}
	fmt.Fprintf(w, "\n// func %s%s\n", name, callSignature)
	fmt.Fprintf(w, "TEXT ·%s(SB), NOSPLIT, $0-8\n", name)
	w.op("MOVQ call+0(FP), AX")
	w.constants()
	if !w.whole() {
		w.op("MOVQ %d(AX), DI", callW)
	}
	w.op("MOVQ %d(AX), R9", callWStride)
	w.op("MOVQ %d(AX), BX", callScale)
	if !w.whole() {
		w.op("MOVQ %d(AX), DX", callRuns)
		w.op("MOVQ %d(AX), R14", callC)
	}
	if w.panels > 3 {
		w.op("LEAQ (R9)(R9*2), R10")
		w.op("ADDQ DI, R10")
	}
	if w.unpacked() {
		w.op("MOVQ %d(AX), R10", callNext)
	}
	if !w.unpack {
		w.op("MOVQ %d(AX), SI", callX)
		switch {
		case !w.whole():
			w.op("MOVQ %d(AX), R8", callXStride)
		case w.turns == 0:
			w.op("MOVQ %d(AX), R8", callCApart)
		}
		w.op("MOVQ %d(AX), R15", callSums)
		if w.rows > 3 {
			w.op("LEAQ (R8)(R8*2), CX")
			for row := 3; row < w.rows; row += 3 {
				regs := [...]string{"SI", "R11", "R12", "R13"}
				w.op("LEAQ (%s)(CX*1), %s", regs[row/3-1], regs[row/3])
			}
		}
	}
	if w.whole() {
		w.beginPart()
	}
	w.label("run")
	if w.turns > 0 {
		w.beginTurns()
	}
	for i := range w.sums {
		w.zero(w.v(i))
	}
	if w.dots() {
		w.op("MOVQ %d(AX), R13", callSpans)
		if w.super() && !w.unpack {
			w.op("MOVQ BX, R12")
			w.op("ADDQ %d(AX), R12", callHead)
		}
		if w.ahead() {
			w.op("MOVQ %d(AX), R14", callScaleStep)
			w.op("CMPQ DX, $1")
			w.op("JNE fetch")
			w.op("MOVQ %d(AX), R14", callNext)
			w.label("fetch")
			if w.panels > 1 {
				w.op("LEAQ (R9)(R14*1), R10")
			}
			w.choose("head", func() { w.fetchHead(0) }, func() { w.fetchHead(1) })
		} else if w.follows() {
			w.choose("head", nil, w.touch)
		}
		if w.whole() { // what lies before the codes, too: processors follow lines without gaps
			for panel := range w.panels {
				for line := range 1 + 4*toInt(w.super()) {
					w.op("PREFETCHT0 %s", beside("BX", panel, w.distance()+64*line))
				}
			}
		}
		w.label("span")
		if !w.unpack {
			w.begin()
		}
	}
	w.op("MOVQ %d(AX), CX", callBlocks)
	w.op("PCALIGN $32")
	w.label("block")
	first, second := func() { w.fetch(0) }, func() { w.fetch(1) }
	switch {
	case !w.follows():
		first()
	case w.rows == 1:
		w.choose("codes", first, second)
	default:
		w.choose("codes", first, nil)
	}
	w.block()
	w.op("ADDQ $%d, DI", w.blockBytes())
	if w.panels > 3 {
		w.op("ADDQ $%d, R10", w.blockBytes())
	}
	switch {
	case w.unpack && w.six():
		w.op("ADDQ $%d, R14", 8*w.t.nr())
	case w.unpack:
		w.op("ADDQ $%d, R14", 8*4*w.t.nr())
	default:
		bytes := 32
		if w.dots() {
			bytes = 8
		}
		for row := 0; row < w.rows; row += 3 {
			w.op("ADDQ $%d, %s", bytes, [...]string{"SI", "R11", "R12", "R13"}[row/3])
		}
	}
	w.op("DECQ CX")
	w.op("JNZ block")
	if w.dots() {
		if !w.unpack {
			w.end()
		}
		w.op("DECQ R13")
		w.op("JNZ span")
	}
	if !w.unpack {
		w.scale()
	}
	if w.turns > 0 {
		w.endTurns()
	} else {
		w.op("ADDQ %d(AX), DI", callSkip)
	}
	if w.panels > 3 {
		w.op("ADDQ %d(AX), R10", callSkip)
	}
	w.op("DECQ DX")
	w.op("JNZ run")
	if w.whole() {
		w.endPart()
	}
	w.op("VZEROUPPER")
	w.op("RET")
}

// follows tells whether a processor that follows streams is told less, or in another way.
func (w *codeWriter) follows() bool {
	if w.t.vector == 32 || w.unpack || w.unpacked() || !w.dots() {
		return false
	}
	return w.rows == 1 || !w.super() && (w.rows == 2 || w.bytes())
}

// choose is choose by the flags of the call, for processors that follow streams or do not.
func (w *codeWriter) choose(name string, all, less func()) {
	choose(w.Buffer, name, fmt.Sprintf("%d(AX)", callFlags), flagFollows, all, less)
}

// fetch brings codes that are multiplied soon into the first cache or, at level 1, the second one.
func (w *codeWriter) fetch(level int) {
	if !w.dots() {
		return
	}
	if w.unpacked() { // elsewhere lies what is unpacked next
		for line := 0; line < w.blockBytes(); line += 64 {
			w.op("PREFETCHT1 %d(DI)(R10*1)", line)
		}
		return
	}
	for panel := range w.panels {
		for line := 0; line < w.blockBytes(); line += 64 {
			at := w.at(2*panel, w.distance()+line)
			if w.ahead() {
				at = fmt.Sprintf("%d(DI)%s", line, nextRun[panel])
			}
			w.op("PREFETCHT%d %s", level, at)
		}
	}
}

// fetchHead is fetch of the scales of the next run.
func (w *codeWriter) fetchHead(level int) {
	for panel := range w.panels {
		for line := range 10 {
			w.op("PREFETCHT%d %d(BX)%s", level, 64*line, nextRun[panel])
		}
	}
}

// touch has the scales of a run fetched, which lie before its codes.
func (w *codeWriter) touch() {
	if w.panels > 3 {
		w.op("LEAQ (R9)(R9*2), R14")
	}
	for panel := range w.panels {
		for line := range 2 {
			if panel == 3 {
				w.op("PREFETCHT0 %d(BX)(R14*1)", 64*line)
				continue
			}
			w.op("PREFETCHT0 %s", beside("BX", panel, 64*line))
		}
	}
	if w.panels > 3 {
		w.op("MOVQ %d(AX), R14", callC)
	}
}

// beginPart makes the call one of the runs of a part.
func (w *codeWriter) beginPart() {
	w.label("part")
	w.op("MOVQ %d(AX), CX", callList)
	w.op("MOVQ %d(CX), DX", partRuns)
	for i, field := range []int{callBlocks, callSpans, callSkip, callScaleStep} {
		w.op("MOVQ %d(CX), R14", partRuns+8*(i+1))
		w.op("MOVQ R14, %d(AX)", field)
	}
	if w.turns == 0 {
		w.first()
		w.op("MOVQ %d(AX), R14", callC)
	}
}

// first is at the codes of the run whose scales BX is at.
func (w *codeWriter) first() {
	w.op("MOVQ BX, DI")
	w.op("ADDQ %d(AX), DI", callSkip)
}

// endPart goes on with the next part, of the same piece or of the next one.
func (w *codeWriter) endPart() {
	w.op("MOVQ %d(AX), CX", callList)
	w.op("MOVQ %d(CX), DX", partThen)
	w.op("TESTQ DX, DX")
	w.op("JLT end")
	w.op("IMULQ %d(AX), DX", callPieceStep)
	w.op("ADDQ DX, %d(AX)", callC)
	w.op("ADDQ $%d, %d(AX)", partBytes, callList)
	w.op("JMP part")
	w.label("end")
}

// whole tells whether a call is of all pieces of K, and of panels that lie apart.
func (w *codeWriter) whole() bool { return w.t.wholes() && w.rows == 1 && !w.unpack }

// wholes tells whether calls of one row are so.
func (t *codeTarget) wholes() bool { return t.vector == 32 && dots[t.form] }

// distance is how many bytes before they are multiplied codes are fetched.
func (w *codeWriter) distance() int {
	if w.whole() || w.unpack {
		return prefetch * 4 / max(w.panels, w.turns)
	}
	return prefetch * w.rows
}

// beside is the address of what one of the first three panels has, at an offset from what a
// register is at in the first one.
func beside(base string, panel, offset int) string {
	return fmt.Sprintf("%d(%s)%s", offset, base, [...]string{"", "(R9*1)", "(R9*2)"}[panel])
}

// takesTurns tells whether the panels of a tile take turns: there are no registers for all their
// products, but each is one more stream of memory that processors follow.
func (t *codeTarget) takesTurns(s shape) bool { return t.wholes() && s.rows == 1 && s.panels > 2 }

// beginTurns begins a run, and each of the panels in it.
func (w *codeWriter) beginTurns() {
	w.op("MOVQ SI, %d(AX)", callFromX)
	w.op("MOVQ R15, %d(AX)", callFromSums)
	w.op("MOVQ %d(AX), R8", callC)
	w.op("MOVQ $%d, R10", w.turns)
	w.label("panel")
	w.first()
}

// endTurns has the next panel compute the run, or the first one the next run.
func (w *codeWriter) endTurns() {
	w.op("ADDQ R9, BX")
	w.op("ADDQ %d(AX), R8", callCApart)
	w.op("DECQ R10")
	w.op("JZ turned")
	w.op("MOVQ %d(AX), SI", callFromX)
	w.op("MOVQ %d(AX), R15", callFromSums)
	w.op("JMP panel")
	w.label("turned")
	w.op("IMUL3Q $%d, R9, R14", w.turns)
	w.op("SUBQ R14, BX")
	w.op("ADDQ %d(AX), BX", callScaleStep)
}

func (w *codeWriter) zero(v string) {
	if w.t.vector == 64 {
		w.op("VPXORD %s, %s, %s", v, v, v)
		return
	}
	w.op("VXORPS %s, %s, %s", v, v, v)
}

// constants loads tables and masks.
func (w *codeWriter) constants() {
	switch {
	case w.last == w.t.regs:
	case w.t.form == "table" && w.t.vector == 64:
		w.op("MOVQ %d(AX), BX", callTable)
		w.op("VPBROADCASTD (BX), %s", w.v(w.last))
		w.op("VBROADCASTI32X4 96(BX), %s", w.v(w.last+1))
	case w.t.form == "table" || w.t.form == "signed":
		w.op("MOVQ %d(AX), R11", callTable)
		w.op("VMOVUPS 96(R11), Y15")
		if w.mask() == "Y14" {
			w.op("VMOVUPS (R11), Y14")
		}
	case w.dots() && w.t.vector == 64:
		w.op("MOVQ %d(AX), BX", callTable)
		w.op("VPBROADCASTD %d(BX), %s", 64*toInt(w.bytes()), w.v(w.last))
		if w.six() { // the upper bits, and what bytes are less
			w.op("VPBROADCASTD 96(BX), %s", w.v(w.last+1))
		}
		if w.unpack {
			w.op("ADDQ %d(AX), BX", callNext)
			w.op("VPBROADCASTD (BX), %s", w.v(w.last+2))
		}
	case w.dots():
		w.op("MOVQ %d(AX), R11", callTable)
		w.op("VMOVUPS %d(R11), Y15", 32*toInt(w.bytes()))
	case w.t.form == "half":
		w.op("MOVQ %d(AX), R13", callTable)
		w.op("VBROADCASTI128 (R13), Y15")
		w.op("VBROADCASTI128 16(R13), Y14")
	case w.t.form == "full" && w.t.set == "avx2":
		w.op("MOVQ %d(AX), R13", callTable)
		for i := range 4 {
			w.op("VBROADCASTI128 %d(R13), Y%d", 16*i, 12+i)
		}
	case w.t.form == "full":
		w.op("MOVQ %d(AX), BX", callTable)
		w.op("VMOVUPS (BX), %s", w.v(w.last))
	case w.t.form == "e4m3": // all bits of each word but the second highest
		w.op("MOVQ %d(AX), BX", callTable)
		w.op("VPBROADCASTD (BX), %s", w.v(w.last))
	}
}

// block computes eight columns.
func (w *codeWriter) block() {
	switch {
	case w.six() && w.unpack:
		w.unpackSix()
	case w.dots() && w.t.vector == 64:
		w.blockVNNI()
	case w.t.form == "dots4" || w.t.form == "super4" || w.t.form == "table":
		w.blockDots4()
	case w.t.form == "signed":
		w.blockSigned()
	case w.six():
		w.blockSix()
	case w.bytes():
		w.blockDots8()
	case w.t.form == "half":
		w.blockHalf()
	case w.t.form == "full" && w.t.set == "avx2":
		w.blockFull()
	case w.t.form == "full":
		for j := range 2 * w.panels {
			codes, number, x := w.tmp(0), w.tmp(1), w.tmp(2)
			w.op("VMOVUPS %s, %s", w.at(j, j%2*64), codes)
			for k := range 8 {
				if k > 0 {
					w.op("VPSRLD $4, %s, %s", codes, codes)
				}
				w.op("VPERMPS %s, %s, %s", w.v(w.last), codes, number)
				w.use(j, k, number, x)
			}
		}
	default:
		for k := range 8 {
			w.column(k)
		}
	}
}

// column computes one column of codes that are bytes, or float32. The rows of x pass by the numbers
// of all vectors, where there are registers for those, else the numbers by the rows.
func (w *codeWriter) column(k int) {
	count := 2 * w.panels
	if w.unpack || count >= w.tmps() {
		for row := range w.rows * (1 - toInt(w.unpack)) {
			w.op("VBROADCASTSS %s, %s", w.x(row, k), w.tmp(row))
		}
		for j := range count {
			number := w.tmp(w.rows + j%(w.tmps()-w.rows))
			w.load(j, k, number)
			if w.unpack {
				w.use(j, k, number, "")
				continue
			}
			for row := range w.rows {
				w.op("VFMADD231PS %s, %s, %s", number, w.tmp(row), w.sum(row, j))
			}
		}
		return
	}
	for j := range count {
		w.load(j, k, w.tmp(j))
	}
	for row := range w.rows {
		x := w.tmp(count + row%(w.tmps()-count))
		w.op("VBROADCASTSS %s, %s", w.x(row, k), x)
		for j := range count {
			w.op("VFMADD231PS %s, %s, %s", w.tmp(j), x, w.sum(row, j))
		}
	}
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// load makes numbers of the codes of a column that are bytes.
func (w *codeWriter) load(j, k int, to string) {
	at := w.at(j, (2*k+j%2)*w.t.vector/4)
	switch w.t.form {
	case "i8":
		w.op("VPMOVSXBD %s, %s", at, to)
		w.op("VCVTDQ2PS %s, %s", to, to)
	case "e4m3": // a binary16 of which the exponent is lower by 8
		words := w.part(to, 2)
		w.op("VPMOVSXBW %s, %s", at, words)
		w.op("VPSLLW $7, %s, %s", words, words)
		w.op("%s %s, %s, %s", [...]string{"VPAND", "VPANDD"}[w.t.vector/64],
			w.part(w.v(w.last), 2), words, words)
		w.op("VCVTPH2PS %s, %s", words, to)
	default:
		w.op("VMOVUPS %s, %s", w.at(j, (2*k+j%2)*w.t.vector), to)
	}
}

// use multiplies the numbers of vector j, column k, with each row of x, or stores them.
func (w *codeWriter) use(j, k int, number, x string) {
	if w.unpack {
		w.op("VMOVUPS %s, %d(R14)", number, 4*w.t.nr()*k+j%2*w.t.vector)
		return
	}
	for row := range w.rows {
		w.op("VBROADCASTSS %s, %s", w.x(row, k), x)
		w.op("VFMADD231PS %s, %s, %s", number, x, w.sum(row, j))
	}
}

// blockHalf looks up the two bytes of 32 bfloat16 at a time, and interleaves them. The vectors of a
// panel go side by side: the chain of one of them waits for its sums.
func (w *codeWriter) blockHalf() {
	low, high := "Y15", "Y14"
	for panel := range w.panels {
		t, x := w.tmp(4), w.tmp(5)
		for half := range 2 {
			for v := range 2 {
				a, c := w.tmp(2*v), w.tmp(2*v+1)
				at := w.at(2*panel+v, v*32)
				if half == 0 {
					w.op("VMOVUPS %s, %s", at, a)
				} else {
					w.op("VMOVUPS %s, %s", at, a)
					w.op("VPSRLD $4, %s, %s", a, a)
				}
				w.op("VPAND 32(R13), %s, %s", a, a)
				w.op("VPSHUFB %s, %s, %s", a, high, t)
				w.op("VPSHUFB %s, %s, %s", a, low, a)
				w.op("VPUNPCKLBW %s, %s, %s", t, a, c)
				w.op("VPUNPCKHBW %s, %s, %s", t, a, a)
			}
			for i := range 2 {
				k := 4*half + 2*i
				for odd := range 2 {
					if !w.unpack && w.rows == 1 {
						w.op("VBROADCASTSS %s, %s", w.x(0, k+odd), x)
					}
					for v := range 2 {
						pair := w.tmp(2*v + 1 - i)
						number := t
						if odd == 0 {
							w.op("VPSLLD $16, %s, %s", pair, t)
						} else {
							w.op("VPAND 64(R13), %s, %s", pair, pair)
							number = pair
						}
						if !w.unpack && w.rows == 1 {
							w.op("VFMADD231PS %s, %s, %s", number, x, w.sum(0, 2*panel+v))
							continue
						}
						w.use(2*panel+v, k+odd, number, x)
					}
				}
			}
		}
	}
}

// blockFull looks up the four bytes of 32 float32 at a time, and interleaves them.
func (w *codeWriter) blockFull() {
	for j := range 2 * w.panels {
		a, b, c, d, e, x := w.tmp(0), w.tmp(1), w.tmp(2), w.tmp(3), w.tmp(4), w.tmp(5)
		for half := range 2 {
			w.op("VMOVUPS %s, %s", w.at(j, j%2*32), a)
			if half == 1 {
				w.op("VPSRLD $4, %s, %s", a, a)
			}
			w.op("VPAND 64(R13), %s, %s", a, a)
			w.op("VPSHUFB %s, Y12, %s", a, b)
			w.op("VPSHUFB %s, Y13, %s", a, c)
			w.op("VPUNPCKLBW %s, %s, %s", c, b, d)
			w.op("VPUNPCKHBW %s, %s, %s", c, b, b)
			w.op("VPSHUFB %s, Y14, %s", a, c)
			w.op("VPSHUFB %s, Y15, %s", a, a)
			w.op("VPUNPCKLBW %s, %s, %s", a, c, e)
			w.op("VPUNPCKHBW %s, %s, %s", a, c, c)
			for i, words := range [][2]string{{d, e}, {b, c}} {
				w.op("VPUNPCKLWD %s, %s, %s", words[1], words[0], a)
				w.use(j, 4*half+2*i, a, x)
				w.op("VPUNPCKHWD %s, %s, %s", words[1], words[0], a)
				w.use(j, 4*half+2*i+1, a, x)
			}
		}
	}
}

// dots are the forms whose products with int8 are summed.
var dots = map[string]bool{"dots4": true, "table": true, "signed": true, "dots8": true,
	"super4": true, "super6": true, "super8": true}

// dots tells whether x is int8.
func (w *codeWriter) dots() bool { return dots[w.t.form] }

// super tells whether each span has scales and offsets of 8 bits.
func (w *codeWriter) super() bool { return strings.HasPrefix(w.t.form, "super") }

// six tells whether codes are six bits.
func (w *codeWriter) six() bool { return w.t.form == "super6" }

// pairs tells whether products of pairs of codes of six bits are added by int16, and multiplied by
// the integers of their span as these are added.
func (w *codeWriter) pairs() bool { return w.six() && w.t.vector == 32 }

// bytes tells whether codes that are multiplied by int8 are bytes.
func (w *codeWriter) bytes() bool { return dots[w.t.form] && strings.HasSuffix(w.t.form, "8") }

// mask is where AVX2 has the mask of four bits: in a register, where one is left.
func (w *codeWriter) mask() string {
	switch {
	case w.t.form == "dots4" || w.t.form == "super4" || w.pairs():
		return "Y15"
	case w.t.form == "table" && w.rows < 3:
		return "Y14"
	}
	return "(R11)"
}

// dot is the register of a row's products with vector j.
func (w *codeWriter) dot(row, j int) string { return w.tmp(row*w.panels*2 + j) }

// free is a register that a block is free to use.
func (w *codeWriter) free(i int) string { return w.tmp(w.sums + i) }

// begin has each product start at what the row says.
func (w *codeWriter) begin() {
	if w.pairs() {
		for panel := range w.panels {
			w.words(panel)
		}
	}
	for row := range w.rows {
		for j := range 2 * w.panels {
			w.op("VPBROADCASTD %s, %s", w.x(row, 0), w.dot(row, j))
			if w.pairs() {
				w.op("VPMADDWD %s, %s, %s", w.word(j), w.dot(row, j), w.dot(row, j))
			}
		}
	}
}

// words makes vectors of the integers of a panel's span, twice each.
func (w *codeWriter) words(panel int) {
	low, high := w.word(2*panel), w.word(2*panel+1)
	w.op("VPMOVSXBW %s, %s", beside("R12", panel, 0), low)
	w.op("VPUNPCKHWD %s, %s, %s", low, low, high)
	w.op("VPUNPCKLWD %s, %s, %s", low, low, low)
}

// word is the register of those of a vector.
func (w *codeWriter) word(j int) string {
	if w.pairs() {
		return w.free(j)
	}
	return w.free(1 + j%2)
}

// end adds the products of a span, times the scale of the row's, to the sums of the run.
func (w *codeWriter) end() {
	if w.super() {
		w.endSuper()
		return
	}
	x := w.free(0)
	for row := range w.rows {
		w.op("VBROADCASTSS %s, %s", w.x(row, 1), x)
		for j := range 2 * w.panels {
			dot := w.dot(row, j)
			if w.t.vector == 32 && (w.t.form == "dots4" || w.t.form == "table") {
				w.op("VPMADDWD 32(R11), %s, %s", dot, dot)
			}
			w.op("VCVTDQ2PS %s, %s", dot, dot)
			w.op("VFMADD231PS %s, %s, %s", x, dot, w.sum(row, j))
		}
	}
	w.nextSpan()
}

// nextSpan leaves what a span of a row has beside its columns.
func (w *codeWriter) nextSpan() {
	for row := 0; row < w.rows; row += 3 {
		w.op("ADDQ $8, %s", [...]string{"SI", "R11"}[row/3])
	}
}

// endSuper is end where the products are first multiplied by the scales of the span: what is summed
// by int16 as it is summed up, and as float32 what is a number already, which is rounded alike.
func (w *codeWriter) endSuper() {
	x := w.free(0)
	for panel := range w.panels {
		words := w.t.form == "super4" && w.t.vector == 32
		switch {
		case words:
			w.words(panel)
		case !w.pairs():
			w.floats(panel)
		}
		for row := range w.rows {
			if panel == 0 || w.rows > 1 {
				w.op("VBROADCASTSS %s, %s", w.x(row, 1), x)
			}
			for j := 2 * panel; j < 2*panel+2; j++ {
				dot := w.dot(row, j)
				if words {
					w.op("VPMADDWD %s, %s, %s", w.word(j), dot, dot)
				}
				w.op("VCVTDQ2PS %s, %s", dot, dot)
				if !words && !w.pairs() {
					w.op("VMULPS %s, %s, %s", w.free(1+j%2), dot, dot)
				}
				w.op("VFMADD231PS %s, %s, %s", x, dot, w.sum(row, j))
			}
		}
	}
	w.op("ADDQ $%d, R12", w.t.nr())
	w.nextSpan()
}

// floats makes float32 of the integers of a panel's span, in the registers free behind the first.
func (w *codeWriter) floats(panel int) {
	for v := range 2 {
		to := w.free(1 + v)
		w.op("VPMOVSXBD %s, %s", beside("R12", panel, v*w.t.vector/4), to)
		w.op("VCVTDQ2PS %s, %s", to, to)
	}
}

// offsetSuper adds the sums of x over spans, times the offsets of these, times those of the run,
// which are at R14.
func (w *codeWriter) offsetSuper() {
	for row := range w.rows {
		for j := range 2 * w.panels {
			w.zero(w.dot(row, j))
		}
	}
	w.op("MOVQ %d(AX), R13", callSpans)
	w.label("sums")
	for panel := range w.panels {
		x := w.free(0)
		w.floats(panel)
		for row := range w.rows {
			if panel == 0 || w.rows > 1 {
				w.op("VBROADCASTSS %d(R15), %s", 4*row, x)
			}
			for v := range 2 {
				w.op("VFMADD231PS %s, %s, %s", w.free(1+v), x, w.dot(row, 2*panel+v))
			}
		}
	}
	w.op("ADDQ $%d, R12", w.t.nr())
	w.op("ADDQ %d(AX), R15", callSumStep)
	w.op("DECQ R13")
	w.op("JNZ sums")
	w.either("offset", 2, func(wide bool) {
		for j := range 2 * w.panels {
			w.factor("R14", j, wide, w.free(0))
			for row := range w.rows {
				w.op("VFMADD231PS %s, %s, %s", w.free(0), w.dot(row, j), w.sum(row, j))
			}
		}
	})
}

// blockDots4 adds pairs of products to lanes of 16 bits. Each row's columns are loaded once, where
// there are registers for all of them.
func (w *codeWriter) blockDots4() {
	held := w.tmps() > w.sums+2*w.rows+1+toInt(w.rows > 1)
	if held {
		for row := range w.rows {
			for half := range 2 {
				w.op("VPBROADCASTD %s, %s", w.x(row, 1+half), w.free(2*row+half))
			}
		}
	}
	first := 2 * w.rows * toInt(held)
	for j := range 2 * w.panels {
		for half := range 2 {
			// The codes of the upper columns are shifted before the lower ones are masked.
			codes, product := w.free(first+half), w.free(first+1+toInt(w.rows > 1))
			if half == 0 {
				upper := w.free(first + 1)
				w.op("VMOVDQU %s, %s", w.at(j, j%2*32), codes)
				w.op("VPSRLW $4, %s, %s", codes, upper)
				w.op("VPAND %s, %s, %s", w.mask(), codes, codes)
				w.op("VPAND %s, %s, %s", w.mask(), upper, upper)
				if w.t.form == "table" {
					w.op("VPSHUFB %s, Y15, %s", codes, codes)
					w.op("VPSHUFB %s, Y15, %s", upper, upper)
				}
			}
			for row := range w.rows {
				to := codes
				if row+1 < w.rows {
					to = product
				}
				x := product
				if held {
					x = w.free(2*row + half)
				} else {
					w.op("VPBROADCASTD %s, %s", w.x(row, 1+half), x)
				}
				w.op("VPMADDUBSW %s, %s, %s", x, codes, to)
				w.op("VPADDW %s, %s, %s", to, w.dot(row, j), w.dot(row, j))
			}
		}
	}
}

// blockDots8 adds products of bytes.
func (w *codeWriter) blockDots8() {
	w.signed("Y15", func(half, j int, codes string) {
		w.op("VMOVDQU %s, %s", w.at(j, (2*half+j%2)*32), codes)
	})
}

// blockSix puts the upper bits of each code beside its lower ones, and adds the products.
func (w *codeWriter) blockSix() {
	first := 2 * w.panels // behind the integers of the span
	upper, codes := w.free(first), [2]string{w.free(first + 1), w.free(first + 2)}
	for j := range 2 * w.panels {
		w.op("VMOVDQU %s, %s", w.at(j, j%2*32), codes[0])
		w.op("VPSRLW $4, %s, %s", codes[0], codes[1])
		for half, v := range codes {
			w.op("VPAND Y15, %s, %s", v, v)
			w.op("VMOVDQU %s, %s", w.at(j, 64), upper)
			switch shift := 4 - 2*(2*half+j%2); {
			case shift > 0:
				w.op("VPSLLW $%d, %s, %s", shift, upper, upper)
			case shift < 0:
				w.op("VPSRLW $%d, %s, %s", -shift, upper, upper)
			}
			w.op("VPAND 96(R11), %s, %s", upper, upper)
			w.op("VPOR %s, %s, %s", upper, v, v)
		}
		for row := range w.rows {
			products := codes // of the last row they take their place
			if row+1 < w.rows {
				products = [2]string{w.free(first + 3), w.free(first + 4)}
			}
			for half, v := range products {
				w.op("VPBROADCASTD %s, %s", w.x(row, 1+half), upper)
				w.op("VPMADDUBSW %s, %s, %s", upper, codes[half], v)
			}
			sum := products[0]
			w.op("VPADDW %s, %s, %s", products[1], sum, sum)
			w.op("VPMADDWD %s, %s, %s", w.word(j), sum, sum)
			w.op("VPADDD %s, %s, %s", sum, w.dot(row, j), w.dot(row, j))
		}
	}
}

// blockSigned adds products of bytes that codes of four bits are looked up as.
func (w *codeWriter) blockSigned() {
	w.signed("32(R11)", func(half, j int, codes string) {
		w.op("VMOVDQU %s, %s", w.at(j, j%2*32), codes)
		if half == 1 {
			w.op("VPSRLW $4, %s, %s", codes, codes)
		}
		w.op("VPAND (R11), %s, %s", codes, codes)
		w.op("VPSHUFB %s, Y15, %s", codes, codes)
	})
}

// signed multiplies magnitudes by numbers of x that have the signs of the codes: the sum of two
// products is 128·127·2 at most. Ones are where there are as many of 16 bits.
func (w *codeWriter) signed(ones string, load func(half, j int, codes string)) {
	for half := range 2 {
		held := w.tmps() > w.sums+w.rows+2
		if held {
			for row := range w.rows {
				w.op("VPBROADCASTD %s, %s", w.x(row, 1+half), w.free(row))
			}
		}
		first := w.rows * toInt(held)
		codes, magnitude, product := w.free(first), w.free(first+1), w.free(first+2)
		for j := range 2 * w.panels {
			load(half, j, codes)
			w.op("VPABSB %s, %s", codes, magnitude)
			for row := range w.rows {
				x := product
				if held {
					x = w.free(row)
				} else {
					w.op("VPBROADCASTD %s, %s", w.x(row, 1+half), x)
				}
				w.op("VPSIGNB %s, %s, %s", codes, x, product)
				w.op("VPMADDUBSW %s, %s, %s", product, magnitude, product)
				w.op("VPMADDWD %s, %s, %s", ones, product, product)
				w.op("VPADDD %s, %s, %s", product, w.dot(row, j), w.dot(row, j))
			}
		}
	}
}

// blockVNNI adds four products to each lane of 32 bits. Bytes, too, are made unsigned: they get 128
// more, of which begin knows.
func (w *codeWriter) blockVNNI() {
	temporaries := w.tmps() - w.sums - w.rows - toInt(w.six())
	for half := range 2 {
		for row := range w.rows {
			w.op("VPBROADCASTD %s, %s", w.x(row, 1+half), w.free(row))
		}
		for j := range 2 * w.panels {
			codes := w.free(w.rows + j%temporaries)
			switch {
			case w.six():
				w.sixBits(half, j, codes, w.free(w.rows+temporaries))
			case w.bytes():
				w.op("VPXORD %s, %s, %s", w.at(j, (2*half+j%2)*64), w.v(w.last), codes)
			case half == 0:
				w.op("VPANDD %s, %s, %s", w.at(j, j%2*64), w.v(w.last), codes)
			default:
				w.op("VMOVUPS %s, %s", w.at(j, j%2*64), codes)
				w.op("VPSRLW $4, %s, %s", codes, codes)
				w.op("VPANDD %s, %s, %s", w.v(w.last), codes, codes)
			}
			if w.t.form == "table" {
				w.op("VPSHUFB %s, %s, %s", codes, w.v(w.last+1), codes)
			}
			for row := range w.rows {
				w.op("VPDPBUSD %s, %s, %s", w.free(row), codes, w.dot(row, j))
			}
		}
	}
}

// sixBits makes bytes of codes of six bits: of the upper ones a vector has those of four.
func (w *codeWriter) sixBits(half, j int, codes, upper string) {
	w.op([...]string{"VMOVUPS %s, %s", "VPSRLW $4, %s, %s"}[half], w.at(j, j%2*64), codes)
	at, mask := w.at(j, 128), w.v(w.last+1)
	switch shift := 4 - 2*(2*half+j%2); {
	case shift > 0:
		w.op("VPSLLW $%d, %s, %s", shift, at, upper)
		w.op("VPANDD %s, %s, %s", mask, upper, upper)
	case shift < 0:
		w.op("VPSRLW $%d, %s, %s", -shift, at, upper)
		w.op("VPANDD %s, %s, %s", mask, upper, upper)
	default:
		w.op("VPANDD %s, %s, %s", at, mask, upper)
	}
	// The lower bits, of the mask, or the upper ones.
	w.op("VPTERNLOGD $0xea, %s, %s, %s", upper, w.v(w.last), codes)
}

// unpackSix writes what codes of six bits are, less a number, as the bytes of dots8.
func (w *codeWriter) unpackSix() {
	for half := range 2 {
		for j := range 2 {
			codes := w.tmp(2*half + j)
			w.sixBits(half, j, codes, w.tmp(4+2*half+j))
			w.op("VPSUBB %s, %s, %s", w.v(w.last+2), codes, codes)
			w.op("VMOVUPS %s, %d(R14)", codes, (2*half+j)*64)
		}
	}
}

// ahead tells whether what is at the same place of the next run, or of the first one of the next
// panels, is fetched: memory may not keep up with one row.
func (w *codeWriter) ahead() bool {
	return w.super() && w.rows == 1 && w.t.vector == 64 && !w.unpack && !w.unpacked()
}

// unpacked tells whether the codes are what those of another form were unpacked to.
func (w *codeWriter) unpacked() bool { return w.t.form == "super8" }

// nextRun is how far that is, for each panel.
var nextRun = [2]string{"(R14*1)", "(R10*1)"}

// scale makes the sums of the run, times its scales, part of c, and then the run's offsets times
// the sums of x.
func (w *codeWriter) scale() {
	w.op("MOVQ %d(AX), CX", callCStride)
	switch {
	case w.turns > 0:
		w.op("MOVQ R8, R14")
	case w.ahead():
		w.op("MOVQ %d(AX), R14", callC)
	}
	w.either("scale", 1, func(wide bool) {
		w.factors("BX", wide, func(row, j int, factor string) {
			w.op("VFMADD213PS %s, %s, %s", w.c(j), factor, w.sum(row, j))
		}, func(row int) {
			if row+1 < w.rows {
				w.op("ADDQ CX, R14")
			}
		})
	})
	w.op("MOVQ %d(AX), R14", callOffset)
	w.op("TESTQ R14, R14")
	w.op("JZ store")
	w.op("ADDQ BX, R14")
	if w.super() {
		w.offsetSuper()
	} else {
		w.either("offset", 2, func(wide bool) {
			x := w.tmp(w.tmps() - 1)
			w.factors("R14", wide, func(row, j int, factor string) {
				if j == 0 {
					w.op("VBROADCASTSS %d(R15), %s", 4*row, x)
				}
				w.op("VFMADD231PS %s, %s, %s", factor, x, w.sum(row, j))
			}, func(int) {})
		})
		w.op("ADDQ %d(AX), R15", callSumStep)
	}
	w.label("store")
	if w.turns > 0 {
		for j := range 2 {
			w.op("VMOVUPS %s, %d(R8)", w.sum(0, j), j*w.t.vector)
		}
		return
	}
	w.op("MOVQ %d(AX), R14", callC)
	for row := range w.rows {
		for j := range 2 * w.panels {
			w.op("VMOVUPS %s, %s", w.sum(row, j), w.c(j))
		}
		if row+1 < w.rows {
			w.op("ADDQ CX, R14")
		}
	}
	w.op("MOVQ %d(AX), R14", callC)
	w.op("ADDQ %d(AX), BX", callScaleStep)
}

// c is where the sums of vector j are in a row.
func (w *codeWriter) c(j int) string {
	if w.whole() && j > 1 {
		return fmt.Sprintf("%d(R14)(R8*1)", j%2*w.t.vector)
	}
	return fmt.Sprintf("%d(R14)", j*w.t.vector)
}

// either writes code for factors that are float32, if a flag of the call is set, and for float16.
func (w *codeWriter) either(name string, flag int, code func(wide bool)) {
	w.op("TESTQ $%d, %d(AX)", flag, callFlags)
	w.op("JNZ %swide", name)
	code(false)
	w.op("JMP %sdone", name)
	w.label(name + "wide")
	code(true)
	w.label(name + "done")
}

// factors visits all sums with the factors of their columns, which lie at base.
func (w *codeWriter) factors(base string, wide bool, visit func(row, j int, factor string),
	end func(row int)) {
	count := 2 * w.panels
	if w.panels > 3 {
		w.op("LEAQ (R9)(R9*2), R12")
		w.op("ADDQ %s, R12", base)
	}
	load := func(j int, to string) { w.factor(base, j, wide, to) }
	held := count < w.tmps()
	for j := range count * toInt(held) {
		load(j, w.tmp(j))
	}
	for row := range w.rows {
		for j := range count {
			factor := w.tmp(j % (w.tmps() - 1))
			if !held {
				load(j, factor)
			}
			visit(row, j, factor)
		}
		end(row)
	}
}

// factor loads the factors of vector j.
func (w *codeWriter) factor(base string, j int, wide bool, to string) {
	op, size := "VCVTPH2PS", w.t.vector/2
	if wide {
		op, size = "VMOVUPS", w.t.vector
	}
	at := fmt.Sprintf("%d(R12)", j%2*size)
	if j/2 < 3 {
		at = beside(base, j/2, j%2*size)
	}
	w.op("%s %s, %s", op, at, to)
}

// codeFiles are the kernels of quantised weights by the names of their files, and their table.
func codeFiles() map[string][]byte {
	files := map[string][]byte{}
	var table bytes.Buffer
	fmt.Fprintf(&table, "%spackage gemm\n", header)
	for _, t := range codeTargets() {
		var b bytes.Buffer
		fmt.Fprintf(&b, "%s#include \"textflag.h\"\n", header)
		fmt.Fprintf(&table, "\nvar %sCodes%s = codeKernels{rows: %d", t.set, t.title(), t.rows)
		if t.wholes() {
			fmt.Fprintf(&table, ", whole: true")
		}
		if t.unpack {
			fmt.Fprintf(&table, ", unpack: %sUnpack%s", t.set, t.title())
			newCodeWriter(&b, t, shape{rows: 1, panels: 1}, true).kernel()
		}
		fmt.Fprintf(&table, ", tiles: [maxRows + 1][maxWidth + 1]codeKernel{\n")
		for _, s := range t.shapes {
			newCodeWriter(&b, t, s, false).kernel()
			if s.panels == 1 {
				fmt.Fprintf(&table, "%d: {", s.rows)
			}
			fmt.Fprintf(&table, "%d: %s, ", s.panels, t.function(s))
			if s.panels*2 > t.widest(s.rows) {
				fmt.Fprintf(&table, "},\n")
			}
		}
		fmt.Fprintf(&table, "}}\n")
		files["kernels_"+t.name()+"_amd64.s"] = b.Bytes()
	}
	for _, t := range codeTargets() {
		if t.unpack {
			fmt.Fprintf(&table, "\n//go:noescape\nfunc %sUnpack%s%s\n", t.set, t.title(),
				callSignature)
		}
		for _, s := range t.shapes {
			fmt.Fprintf(&table, "\n//go:noescape\nfunc %s%s\n", t.function(s), callSignature)
		}
	}
	files["kernels_codes_amd64.go"] = table.Bytes()
	return files
}

// widest is the most panels of tiles of so many rows.
func (t *codeTarget) widest(rows int) (most int) {
	for _, s := range t.shapes {
		if s.rows == rows {
			most = max(most, s.panels)
		}
	}
	return most
}
