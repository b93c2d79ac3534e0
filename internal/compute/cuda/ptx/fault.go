package ptx

import (
	"fmt"
	"math/bits"
)

// Fault is what a kernel did that a GPU would punish, or leave undefined.
type Fault struct {
	// Kernel is its name, Line the line of the PTX text, Text the instruction as it stands there.
	Kernel string
	Line   int
	Text   string
	// CTA is the index of the block in the grid, Warp that of the warp in the block, Lane that of a
	// lane in the warp; Warp and Lane are -1 where there is none.
	CTA        [3]uint32
	Warp, Lane int
	// What is what happened.
	What string
}

// Error says all of it in one line.
func (f *Fault) Error() string {
	where := fmt.Sprintf("CTA %d,%d,%d", f.CTA[0], f.CTA[1], f.CTA[2])
	if f.Warp >= 0 {
		where += fmt.Sprintf(" warp %d", f.Warp)
	}
	if f.Lane >= 0 {
		where += fmt.Sprintf(" lane %d", f.Lane)
	}
	return fmt.Sprintf("ptx: %s: %s: %s (line %d: %s)", f.Kernel, where, f.What, f.Line, f.Text)
}

// failLane ends the launch with a fault of one lane of the group that runs.
func (w *warp) failLane(lane int, format string, args ...any) {
	panic(w.fault(int(w.pc)-1, lane, fmt.Sprintf(format, args...)))
}

// fail ends the launch with a fault of the first lane of a mask.
func (w *warp) fail(mask uint32, format string, args ...any) {
	lane := -1
	if mask != 0 {
		lane = bits.TrailingZeros32(mask)
	}
	panic(w.fault(int(w.pc)-1, lane, fmt.Sprintf(format, args...)))
}

// fault describes what happened at an instruction.
func (w *warp) fault(pc, lane int, what string) *Fault {
	f := &Fault{Kernel: w.kernel.Name, CTA: w.cta.id, Warp: w.id, Lane: lane, What: what}
	f.Line, f.Text = w.kernel.source(pc)
	return f
}

// source is where an instruction came from.
func (k *Kernel) source(pc int) (line int, text string) {
	if pc < 0 || pc >= len(k.lines) {
		return k.Line, k.Name
	}
	return k.lines[pc], k.texts[pc]
}
