package main

import "encoding/binary"

// Between vector instructions stand those that count and move pointers. They are simulated, too, so
// that a loop goes round without a stop.

// Bits of the flags.
const (
	carry    = 1 << 0
	zero     = 1 << 6
	sign     = 1 << 7
	overflow = 1 << 11
)

// register is a general register by its number.
func (t *thread) register(n int) *uint64 {
	r := &t.regs
	return [16]*uint64{&r.Rax, &r.Rcx, &r.Rdx, &r.Rbx, &r.Rsp, &r.Rbp, &r.Rsi, &r.Rdi, &r.R8, &r.R9,
		&r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15}[n]
}

// scalar simulates an instruction on 64 bits, a branch or one that does nothing, and returns its
// length, 0 if it is none of these. A branch adds to the instruction pointer what it leaps.
func (t *thread) scalar(code []byte) int {
	if length := t.branch(code); length > 0 {
		return length
	}
	prefix := 0
	for code[prefix] == 0x66 {
		prefix++
	}
	rex := 0
	if code[prefix]&0xf0 == 0x40 {
		rex = int(code[prefix])
		prefix++
	}
	b, x, r := rex&1, rex>>1&1, rex>>2&1
	op, rest := int(code[prefix]), code[prefix+1:]
	prefix++
	if op == 0x90 && rex == 0 {
		return prefix
	}
	if op == 0x0f {
		op, rest = 0x0f00|int(rest[0]), rest[1:]
		prefix++
	}
	if op == 0x0f18 || op == 0x0f1f { // PREFETCH, NOP
		return prefix + t.modRM(rest, b, x, 1, prefix, 0, true).length
	}
	if rex&8 == 0 || prefix > 3 {
		return 0
	}
	behind := map[int]int{0x81: 4, 0x83: 1, 0xc1: 1, 0xc7: 4, 0x69: 4, 0x6b: 1}[op]
	o := t.modRM(rest, b, x, 1, prefix, behind, true)
	reg := t.register(int(rest[0]>>3&7) | r<<3)
	length := prefix + o.length + behind
	var at uint64
	if !o.memory {
		at = *t.register(o.reg | b<<3)
	} else if op != 0x8d && op != 0x89 && op != 0xc7 {
		at = t.p.word(o.at)
	}
	var value uint64 // the immediate one
	switch behind {
	case 1:
		value = uint64(int64(int8(rest[o.length])))
	case 4:
		value = uint64(int64(int32(binary.LittleEndian.Uint32(rest[o.length:]))))
	}
	put := func(v uint64) {
		if !o.memory {
			*t.register(o.reg | b<<3) = v
			return
		}
		var bytes [8]byte
		binary.LittleEndian.PutUint64(bytes[:], v)
		t.p.write(o.at, bytes[:])
	}
	extension := int(rest[0] >> 3 & 7)
	switch {
	case op == 0x8d: // LEA
		if !o.memory {
			return 0
		}
		*reg = o.at
	case op == 0x8b: // MOV
		*reg = at
	case op == 0x89:
		put(*reg)
	case op == 0xc7 && extension == 0:
		put(value)
	case op == 0x85: // TEST
		t.combine(4, at, *reg)
	case op == 0x0faf: // IMUL, whose flags no kernel reads
		*reg *= at
	case op == 0x69 || op == 0x6b:
		*reg = at * value
	case op == 0xff && extension < 2: // INC, DEC: the carry stays
		kept := t.regs.Eflags & carry
		v, _ := t.combine(5*extension, at, 1)
		put(v)
		t.regs.Eflags = t.regs.Eflags&^carry | kept
	case op == 0xf7 && extension == 3: // NEG
		v, _ := t.combine(5, 0, at)
		put(v)
	case op == 0xc1 && (extension == 4 || extension == 5): // SHL, SHR, whose carry no kernel reads
		v := at << (value & 63)
		if extension == 5 {
			v = at >> (value & 63)
		}
		t.combine(4, v, v)
		put(v)
	case op < 0x40 && op&7 == 3: // an operation, to a register
		v, known := t.combine(op>>3, *reg, at)
		if !known {
			return 0
		}
		if op>>3 != 7 {
			*reg = v
		}
	case op < 0x40 && op&7 == 1, op == 0x81 || op == 0x83: // or to what ModRM says
		n, by := op>>3, *reg
		if op >= 0x80 {
			n, by = extension, value
		}
		v, known := t.combine(n, at, by)
		if !known {
			return 0
		}
		if n != 7 {
			put(v)
		}
	default:
		return 0
	}
	return length
}

// combine is an operation by its number, which sets the flags; 7 compares.
func (t *thread) combine(op int, a, b uint64) (v uint64, known bool) {
	var flags uint64
	switch op {
	case 0:
		v = a + b
		if v < a {
			flags |= carry
		}
		if (a^v)&(b^v)>>63 != 0 {
			flags |= overflow
		}
	case 5, 7:
		v = a - b
		if a < b {
			flags |= carry
		}
		if (a^b)&(a^v)>>63 != 0 {
			flags |= overflow
		}
	case 1:
		v = a | b
	case 4:
		v = a & b
	case 6:
		v = a ^ b
	default:
		return 0, false
	}
	if v == 0 {
		flags |= zero
	}
	if v>>63 != 0 {
		flags |= sign
	}
	t.regs.Eflags = t.regs.Eflags&^(carry|overflow|zero|sign) | flags
	return v, true
}

// branch simulates a jump, if it is one.
func (t *thread) branch(code []byte) int {
	near := func(b []byte) uint64 { return uint64(int64(int32(binary.LittleEndian.Uint32(b)))) }
	short := func(b byte) uint64 { return uint64(int64(int8(b))) }
	length, leap, condition := 0, uint64(0), -1
	switch op := code[0]; {
	case op == 0xeb:
		length, leap = 2, short(code[1])
	case op == 0xe9:
		length, leap = 5, near(code[1:])
	case op&0xf0 == 0x70:
		length, leap, condition = 2, short(code[1]), int(op&15)
	case op == 0x0f && code[1]&0xf0 == 0x80:
		length, leap, condition = 6, near(code[2:]), int(code[1]&15)
	default:
		return 0
	}
	if condition >= 0 {
		is, known := t.holds(condition >> 1)
		if !known {
			return 0
		}
		if is == (condition&1 != 0) {
			return length
		}
	}
	t.regs.Rip += leap
	return length
}

// holds tells whether a condition holds, by its number without what negates it.
func (t *thread) holds(condition int) (is, known bool) {
	f := t.regs.Eflags
	less := (f&sign != 0) != (f&overflow != 0)
	switch condition {
	case 1:
		return f&carry != 0, true
	case 2:
		return f&zero != 0, true
	case 3:
		return f&(carry|zero) != 0, true
	case 4:
		return f&sign != 0, true
	case 6:
		return less, true
	case 7:
		return less || f&zero != 0, true
	}
	return false, false
}
