package ptx

import (
	"fmt"
	"math"
)

// bank is a kind of register: those of up to 32 bits, those of 64, and predicates, which are a mask
// of lanes.
type bank uint8

const (
	bank32 bank = iota
	bank64
	bankPred
	banks
)

// A virtual register is its bank in the upper bits and its number; none is an unused operand.
const (
	bankShift = 28
	regMask   = 1<<bankShift - 1
	none      = int32(-1)
)

func bankOf(r int32) bank { return bank(r >> bankShift) }

// inst is a decoded instruction. All registers that exec uses stand in d to c, guard and ext, since
// they are renumbered after decoding.
type inst struct {
	exec       func(w *warp, in *inst, mask uint32)
	d, a, b, c int32
	guard      int32 // none: unconditional
	negated    bool  // @!guard
	imm        uint64
	ext        *extra
}

// extra is what few instructions have.
type extra struct {
	dsts, srcs []int32
	targets    []int32
	slot       int
}

// note is what is known of an instruction while a kernel is decoded.
type note struct {
	st         *statement
	uses, defs []int32
	// fix is a branch whose target is still a statement.
	fix *fixup
	// ends says that the instruction after it is not reached from it.
	ends bool
}

type fixup struct {
	frame *frame
	to    []int
}

// frame is one use of a function's body: the kernel itself, or a device function where it is
// called.
type frame struct {
	fn    *function
	start []int // of each statement, the index of its first instruction
	outer *frame
}

// decoder makes a Kernel of a function.
type decoder struct {
	mod    *Module
	ops    *laneOps
	kernel *Kernel
	frame  *frame
	code   []inst
	notes  []note
	st     *statement
	cur    note
	err    error
	count  [banks]int32
	consts map[constant]int32
	named  map[string]int32 // special registers
	sinks  [banks]int32
	shared map[*variable]uint64
	local  uint64
	walked int // functions that layout has looked at
}

// decode decodes the kernel's body, which has been read.
func (k *Kernel) decode() error {
	m, f := k.mod, k.fn
	d := &decoder{mod: m, ops: m.ops, kernel: k, consts: map[constant]int32{},
		named: map[string]int32{}, sinks: [banks]int32{none, none, none},
		shared: map[*variable]uint64{}}
	if err := d.layout(f); err != nil {
		return err
	}
	if err := d.function(f); err != nil {
		return err
	}
	d.st = &statement{opcode: "exit", line: f.line, text: "the kernel's end"}
	d.cur.ends = true
	d.emit(inst{exec: execExit})
	return d.finish()
}

// function decodes a body. Device functions are decoded where they are called: no stack is needed,
// and instructions stay in the order in which warps run them.
func (d *decoder) function(f *function) error {
	d.frame = &frame{fn: f, outer: d.frame}
	for i := range f.body {
		d.frame.start = append(d.frame.start, len(d.code))
		if err := d.statement(&f.body[i]); err != nil {
			return err
		}
		if len(d.code) > 1<<20 {
			return fmt.Errorf("line %d: too many instructions", f.line)
		}
	}
	d.frame.start = append(d.frame.start, len(d.code))
	d.frame = d.frame.outer
	return nil
}

func (d *decoder) statement(st *statement) error {
	d.st, d.cur, d.err = st, note{}, nil
	d.instruction(st)
	if d.err != nil {
		return fmt.Errorf("line %d: %s: %w", st.line, st.name(), d.err)
	}
	return nil
}

// failf notes the first thing that is wrong with the statement; decoding goes on to its end.
func (d *decoder) failf(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// emit adds an instruction under the statement's guard.
func (d *decoder) emit(in inst) {
	in.guard = none
	if d.st.guard != "" {
		in.guard = d.register(d.st.guard)
		in.negated = d.st.negated
		if in.guard != none && bankOf(in.guard) != bankPred {
			d.failf("the guard %s is no predicate", d.st.guard)
		}
		d.use(in.guard)
	}
	d.cur.st = d.st
	d.code = append(d.code, in)
	d.notes = append(d.notes, d.cur)
	d.cur = note{}
}

func (d *decoder) use(r int32) {
	if r != none {
		d.cur.uses = append(d.cur.uses, r)
	}
}

// def notes that the instruction writes a register.
func (d *decoder) def(r int32) {
	if r != none {
		d.cur.defs = append(d.cur.defs, r)
	}
}

// fresh is a new register of a bank.
func (d *decoder) fresh(b bank) int32 {
	d.count[b]++
	return int32(b)<<bankShift | (d.count[b] - 1)
}

func typeBank(t typ) bank {
	switch {
	case t.class == 'p':
		return bankPred
	case t.width() == 64:
		return bank64
	}
	return bank32
}

// register finds a declared register by its name.
func (d *decoder) register(name string) int32 {
	for s := d.st.scope; s != nil; s = s.parent {
		if r, ok := s.resolved[name]; ok {
			return r
		}
		if t, ok := s.reg(name); ok {
			r := d.fresh(typeBank(t))
			s.resolved[name] = r
			return r
		}
	}
	d.failf("no register %s", name)
	return none
}

// declared says whether a name is a declared register.
func (d *decoder) declared(name string) bool {
	for s := d.st.scope; s != nil; s = s.parent {
		if _, ok := s.resolved[name]; ok {
			return true
		}
		if _, ok := s.reg(name); ok {
			return true
		}
	}
	return false
}

// dst is the register that an operand names, to be written in the type's bank.
func (d *decoder) dst(o operand, t typ) int32 {
	r := d.anyDst(o, t)
	if r != none && bankOf(r) != typeBank(t) {
		d.failf("%s has another size than the instruction", o.name)
	}
	return r
}

// anyDst is as dst, but the register may be of another bank: ld and cvt allow wider ones (PTX ISA
// 9.4.1).
func (d *decoder) anyDst(o operand, t typ) int32 {
	if o.kind != nameOperand {
		d.failf("a register is wanted to write to")
		return none
	}
	if o.name == "_" {
		b := typeBank(t)
		if d.sinks[b] == none {
			d.sinks[b] = d.fresh(b)
		}
		d.def(d.sinks[b])
		return d.sinks[b]
	}
	r := d.register(o.name)
	d.def(r)
	return r
}

// src is the register that has an operand's value, read in the type's bank.
func (d *decoder) src(o operand, t typ) int32 {
	r := d.anySrc(o, t)
	if r != none && bankOf(r) != typeBank(t) {
		d.failf("%s has another size than the instruction", o.name)
	}
	return r
}

// anySrc is as src, but the register may be of another bank.
func (d *decoder) anySrc(o operand, t typ) int32 {
	switch {
	case o.kind == numberOperand:
		return d.number(o, t)
	case o.kind != nameOperand:
		d.failf("a register or a number is wanted")
		return none
	case o.minus || o.negated && t.class != 'p':
		d.failf("a sign before %s is not known", o.name)
		return none
	case d.declared(o.name):
		r := d.register(o.name)
		d.use(r)
		return r
	case o.name[0] == '%':
		return d.special(o.name)
	}
	return d.symbol(o, t)
}

// number is a register with a constant in all lanes.
func (d *decoder) number(o operand, t typ) int32 {
	bits := o.bits
	switch {
	case t.class == 'p':
		if bits != 0 {
			bits = math.MaxUint32
		}
	case o.floatBits == 64 && t.width() == 32:
		bits = uint64(math.Float32bits(float32(math.Float64frombits(bits))))
	case o.floatBits == 32 && t.width() == 64:
		bits = math.Float64bits(float64(math.Float32frombits(uint32(bits))))
	case t.width() < 64:
		bits &= 1<<t.width() - 1
	}
	return d.constant(constant{bank: typeBank(t), value: bits})
}

func (d *decoder) constant(c constant) int32 {
	if r, ok := d.consts[c]; ok {
		return r
	}
	r := d.fresh(c.bank)
	d.consts[c] = r
	c.reg = r
	d.kernel.constants = append(d.kernel.constants, c)
	return r
}

// zero is a register of zeros.
func (d *decoder) zero(b bank) int32 { return d.constant(constant{bank: b}) }

// special is a register with a special register's value.
func (d *decoder) special(name string) int32 {
	if r, ok := d.named[name]; ok {
		return r
	}
	if !knownSpecial(name) {
		d.failf("no register %s", name)
		return none
	}
	r := d.fresh(bank32)
	d.named[name] = r
	d.kernel.specials = append(d.kernel.specials, special{r, name})
	return r
}

// symbol is a register with a variable's address in its own state space.
func (d *decoder) symbol(o operand, t typ) int32 {
	if o.name == "WARP_SZ" {
		return d.constant(constant{bank: typeBank(t), value: lanes})
	}
	v := d.st.scope.variable(o.name)
	if v == nil {
		d.failf("no register or variable %s", o.name)
		return none
	}
	at, image := d.address(v)
	return d.constant(constant{bank: typeBank(t), value: at + uint64(o.offset), image: image})
}

// address is a variable's address in its state space; image says that the place of the module's
// variables is to be added.
func (d *decoder) address(v *variable) (at uint64, image bool) {
	switch v.space {
	case sharedSpace:
		if v.external {
			return uint64(d.kernel.dynamicAt), false
		}
		return d.shared[v], false
	case globalSpace, constSpace:
		return v.at, true
	}
	return v.at, false
}

// arity checks the number of operands.
func (d *decoder) arity(least, most int) bool {
	if n := len(d.st.args); n < least || n > most {
		d.failf("%d operands are too few or too many", n)
		return false
	}
	return true
}
