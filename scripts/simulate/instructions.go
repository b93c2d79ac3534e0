package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"

	"github.com/eagleray/eagleray/internal/sys/half"
)

// vector is a ZMM register.
type vector [16]uint32

// tile is a register of AMX, with its configuration.
type tile struct {
	rows, bytes int // of a row
	row         [16]vector
}

// thread is a thread of the program, with the registers that the CPU lacks.
type thread struct {
	p     *program
	tid   int
	regs  syscall.PtraceRegs
	flush bool // denormals are zero
	z     [32]vector
	k     [8]uint16 // masks
	tiles [8]tile
	set   bool       // tiles are configured
	code  [16]byte   // of an instruction
	saved [4096]byte // by XSAVE
	area  syscall.Iovec
}

// operand is a decoded ModRM byte with what follows.
type operand struct {
	memory bool
	reg    int    // of rm, without its high bits
	at     uint64 // address, if memory
	stride uint64 // register of the index, times its scale
	length int    // bytes from ModRM on
}

// modRM decodes the operand at code[0]: b and x are the high bits of the prefix, unit is what an
// offset of 8 bits is multiplied by. Before it are start bytes of the instruction, and behind bytes
// follow, of an immediate. An index is part of the address, or else the stride of a tile.
func (t *thread) modRM(code []byte, b, x, unit, start, behind int, indexed bool) operand {
	mod, rm := int(code[0]>>6), int(code[0]&7)
	if mod == 3 {
		return operand{reg: rm, length: 1}
	}
	o := operand{memory: true, length: 1}
	switch {
	case rm == 4:
		sib := code[1]
		o.length++
		if index := int(sib>>3&7) | x<<3; index != 4 {
			o.stride = *t.register(index) << (sib >> 6)
			if indexed {
				o.at = o.stride
			}
		}
		if sib&7 == 5 && mod == 0 { // an offset in place of a base
			mod = 2
		} else {
			o.at += *t.register(int(sib&7) | b<<3)
		}
	case rm == 5 && mod == 0: // relative to the next instruction
		o.length += 4
		o.at = t.regs.Rip + uint64(start+o.length+behind) +
			uint64(int64(int32(binary.LittleEndian.Uint32(code[1:]))))
		return o
	default:
		o.at = *t.register(rm | b<<3)
	}
	switch mod {
	case 1:
		o.at += uint64(int64(int8(code[o.length])) * int64(unit))
		o.length++
	case 2:
		o.at += uint64(int64(int32(binary.LittleEndian.Uint32(code[o.length:]))))
		o.length += 4
	}
	return o
}

// word reads 64 bits.
func (p *program) word(at uint64) uint64 {
	var b [8]byte
	p.readInto(at, b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// load reads a vector, or its first n bytes.
func (t *thread) load(at uint64, n int) (v vector) {
	var b [64]byte
	t.p.readInto(at, b[:n])
	for i := range v {
		v[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return v
}

// store writes the first n bytes of a vector.
func (t *thread) store(at uint64, v *vector, n int) {
	var b [64]byte
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], x)
	}
	t.p.write(at, b[:n])
}

// step simulates an instruction and returns its length, 0 if it is no known one.
func (t *thread) step(code []byte) int {
	switch code[0] {
	case 0x62:
		return t.evex(code)
	case 0xc4:
		return t.amx(code)
	}
	return t.scalar(code)
}

// known tells whether bytes may be an instruction of these: prefix and opcode are.
func known(code []byte) bool {
	p0, p1 := int(code[1]), int(code[2])
	switch code[0] {
	case 0x62:
		key := [3]int{p0 & 7, p1 & 3, int(code[4])}
		_, narrow := instructions[key]
		_, wide := wides[key]
		return p0&8 == 0 && p1&4 != 0 && (narrow || wide)
	case 0xc4:
		op := code[3]
		return p0&31 == 2 && p1>>7 == 0 && p1&4 == 0 &&
			(op == 0x49 || op == 0x4b || op == 0x5c || op == 0x5e)
	}
	return false
}

// evex simulates an instruction of AVX-512 on whole registers or their lower halves.
func (t *thread) evex(code []byte) int {
	p0, p1, p2, op := int(code[1]), int(code[2]), int(code[3]), code[4]
	bit := func(p, n int) int { return 1 - p>>n&1 } // most are stored inverted
	lanes := [...]int{0, 8, 16, 0}[p2>>5&3]
	mask, zero := p2&7, p2>>7 == 1
	if lanes == 0 || p2&0x10 != 0 || zero && mask == 0 {
		return 0 // 128 bits, or a broadcast operand
	}
	reg := int(code[5]>>3&7) | bit(p0, 7)<<3 | bit(p0, 4)<<4
	second := ^p1>>3&15 | bit(p2, 3)<<4
	key := [3]int{p0 & 7, p1 & 3, int(op)}
	known, ok := instructions[key]
	if wide, is := wides[key]; is && p1>>7 == 1 {
		known, ok = wide, true
	}
	if !ok || mask != 0 && known.run == nil {
		return 0
	}
	size := known.bytes
	if size > 4 {
		size = size * lanes / 16
	}
	behind := 0
	if known.immediate {
		behind = 1
	}
	o := t.modRM(code[5:], bit(p0, 5), bit(p0, 6), size, 5, behind, true)
	var a vector
	if o.memory && !known.store {
		a = t.load(o.at, size)
	} else if known.general {
		a[0] = uint32(*t.register(o.reg | bit(p0, 5)<<3))
	} else if !o.memory {
		a = t.z[o.reg|bit(p0, 5)<<3|bit(p0, 6)<<4]
	}
	length := 5 + o.length + behind
	if known.aligned && o.memory && o.at%uint64(size) != 0 {
		panic(fault{fmt.Errorf("%s at %#x", known.name, o.at)})
	}
	t.p.counts[known.name]++
	switch {
	case known.compare != nil:
		t.k[reg&7] = 0
		for i := range lanes {
			if known.compare(t.z[second][i], a[i], code[length-1], t.flush) {
				t.k[reg&7] |= 1 << i
			}
		}
		return length
	case known.store && o.memory && known.narrow:
		var bytes vector
		for i, v := range t.z[reg] {
			bytes[i/4] |= v & 255 << (i % 4 * 8)
		}
		t.store(o.at, &bytes, size)
		return length
	case known.store && o.memory:
		t.store(o.at, &t.z[reg], size)
		return length
	case known.store:
		reg, a = o.reg|bit(p0, 5)<<3|bit(p0, 6)<<4, t.z[reg]
		if known.upper {
			copy(a[:8], a[8:])
			lanes = 8
		}
		t.z[reg] = a
	case known.immediate:
		reg = known.shift(t, reg, second, a, code[length-1])
	default:
		old := t.z[reg]
		known.run(t, &t.z[reg], t.z[second], a)
		if zero {
			old = vector{}
		}
		for i := range old {
			if mask != 0 && t.k[mask]>>i&1 == 0 {
				t.z[reg][i] = old[i]
			}
		}
	}
	clear(t.z[reg][lanes:])
	return length
}

// instruction is one of AVX-512: of its operand in memory it reads some bytes, of 512 bits, or it
// has a general register, or stores the lowest byte of each element. shift returns its destination.
type instruction struct {
	name             string
	bytes            int
	store, immediate bool
	general, narrow  bool
	upper            bool // the upper half, whatever the immediate byte says
	aligned          bool
	run              func(t *thread, to *vector, b, a vector)
	shift            func(t *thread, reg, second int, a vector, imm byte) int
	compare          func(b, a uint32, imm byte, flush bool) bool // to a mask
}

func each(f func(b, a uint32) uint32) func(*thread, *vector, vector, vector) {
	return func(_ *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = f(b[i], a[i])
		}
	}
}

// byte is the i-th byte of a vector.
func (v *vector) byte(i byte) byte { return byte(v[i/4] >> (i % 4 * 8)) }

// eachByte is each of bytes, with what the destination had.
func eachByte(f func(to, b, a byte) byte) func(*thread, *vector, vector, vector) {
	return func(_ *thread, to *vector, b, a vector) {
		old := *to
		*to = vector{}
		for i := range byte(64) {
			to[i/4] |= uint32(f(old.byte(i), b.byte(i), a.byte(i))) << (i % 4 * 8)
		}
	}
}

// interleave takes bytes of two vectors by turns, those from one on of each 16.
func interleave(from byte) func(*thread, *vector, vector, vector) {
	return func(_ *thread, to *vector, b, a vector) {
		*to = vector{}
		for i := range byte(64) {
			v := &b
			if i%2 == 1 {
				v = &a
			}
			to[i/4] |= uint32(v.byte(i/16*16+from+i%16/2)) << (i % 4 * 8)
		}
	}
}

// spread copies the first element to all.
func spread(_ *thread, to *vector, _, a vector) {
	for i := range to {
		to[i] = a[0]
	}
}

func move(_ *thread, to *vector, _, a vector) { *to = a }

// instructions are by opcode map, mandatory prefix and opcode.
var instructions = map[[3]int]instruction{
	{1, 0, 0x10}: {name: "VMOVUPS", bytes: 64, run: move},
	{1, 0, 0x11}: {name: "VMOVUPS", bytes: 64, store: true},
	{1, 0, 0x28}: {name: "VMOVAPS", bytes: 64, aligned: true, run: move},
	{1, 0, 0x29}: {name: "VMOVAPS", bytes: 64, aligned: true, store: true},
	{1, 0, 0x58}: {name: "VADDPS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = add(b[i], a[i], t.flush)
		}
	}},
	{1, 0, 0x59}: {name: "VMULPS", bytes: 64, run: each(func(b, a uint32) uint32 {
		return math.Float32bits(math.Float32frombits(b) * math.Float32frombits(a))
	})},
	{1, 0, 0x5c}: {name: "VSUBPS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = bits(float(b[i], t.flush)-float(a[i], t.flush), t.flush)
		}
	}},
	{1, 0, 0x5f}: {name: "VMAXPS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			if to[i] = a[i]; float(b[i], t.flush) > float(a[i], t.flush) {
				to[i] = b[i]
			}
		}
	}},
	{1, 0, 0x5e}: {name: "VDIVPS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = bits(float(b[i], t.flush)/float(a[i], t.flush), t.flush)
		}
	}},
	{1, 0, 0xc2}: {name: "VCMPPS", bytes: 64, immediate: true,
		compare: func(b, a uint32, imm byte, flush bool) bool {
			x, y := float(b, flush), float(a, flush)
			switch imm {
			case 21: // not less, also NaN
				return !(x < y)
			case 22: // not less nor equal, also NaN
				return !(x <= y)
			}
			panic(fault{fmt.Errorf("VCMPPS $%d", imm)})
		}},
	{1, 1, 0xfe}: {name: "VPADDD", bytes: 64, run: each(func(b, a uint32) uint32 { return b + a })},
	{1, 0, 0x5b}: {name: "VCVTDQ2PS", bytes: 64, run: each(func(_, a uint32) uint32 {
		return math.Float32bits(float32(int32(a)))
	})},
	{1, 0, 0x5a}: {name: "VCVTPS2PD", bytes: 32, run: func(_ *thread, to *vector, _, a vector) {
		for i := range len(to) / 2 {
			to.setDouble(i, float64(math.Float32frombits(a[i])))
		}
	}},
	{1, 1, 0x5b}: {name: "VCVTPS2DQ", bytes: 64, run: each(func(_, a uint32) uint32 {
		return uint32(int32(math.RoundToEven(float64(math.Float32frombits(a)))))
	})},
	{2, 1, 0x3f}: {name: "VPMAXUD", bytes: 64, run: each(func(b, a uint32) uint32 {
		return max(b, a)
	})},
	{2, 2, 0x31}: {name: "VPMOVDB", bytes: 16, store: true, narrow: true},
	{1, 1, 0xdb}: {name: "VPANDD", bytes: 64, run: each(func(b, a uint32) uint32 { return b & a })},
	{1, 1, 0xef}: {name: "VPXORD", bytes: 64, run: each(func(b, a uint32) uint32 { return b ^ a })},
	{1, 1, 0x72}: {name: "VPSLLD", bytes: 64, immediate: true,
		shift: func(t *thread, reg, second int, a vector, imm byte) int {
			for i := range a {
				switch reg & 7 {
				case 2: // VPSRLD
					t.z[second][i] = a[i] >> imm
				case 6:
					t.z[second][i] = a[i] << imm
				default:
					panic(fault{fmt.Errorf("0x72 /%d", reg&7)})
				}
			}
			return second
		}},
	{1, 1, 0x71}: {name: "VPSLLW", bytes: 64, immediate: true,
		shift: func(t *thread, reg, second int, a vector, imm byte) int {
			for i, x := range a {
				switch reg & 7 {
				case 2: // VPSRLW
					t.z[second][i] = x>>16>>imm<<16 | x&0xffff>>imm
				case 6:
					t.z[second][i] = x<<imm&^0xffff&(^uint32(0)<<(16+imm)) | x<<imm&0xffff
				default:
					panic(fault{fmt.Errorf("0x71 /%d", reg&7)})
				}
			}
			return second
		}},
	{2, 1, 0x20}: {name: "VPMOVSXBW", bytes: 32, run: func(_ *thread, to *vector, _, a vector) {
		at := func(i int) uint32 { return uint32(uint16(int8(a[i/4] >> (i % 4 * 8)))) }
		for i := range to {
			to[i] = at(2*i) | at(2*i+1)<<16
		}
	}},
	{3, 1, 0x25}: {name: "VPTERNLOGD", bytes: 64, immediate: true,
		shift: func(t *thread, reg, second int, a vector, imm byte) int {
			for i, x := range t.z[reg] {
				t.z[reg][i] = 0
				for bit := range 32 {
					place := x>>bit&1<<2 | t.z[second][i]>>bit&1<<1 | a[i]>>bit&1
					t.z[reg][i] |= uint32(imm>>place&1) << bit
				}
			}
			return reg
		}},
	{3, 1, 0x56}: {name: "VREDUCEPS", bytes: 64, immediate: true,
		shift: func(t *thread, reg, _ int, a vector, imm byte) int {
			if imm&0xf7 != 1 {
				panic(fault{fmt.Errorf("VREDUCEPS $%#x", imm)})
			}
			for i := range a {
				t.z[reg][i] = reduce(a[i], t.flush)
			}
			return reg
		}},
	{2, 1, 0x2c}: {name: "VSCALEFPS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = scale(b[i], a[i], t.flush)
		}
	}},
	{2, 1, 0x18}: {name: "VBROADCASTSS", bytes: 4, run: spread},
	{2, 1, 0x58}: {name: "VPBROADCASTD", bytes: 4, run: spread},
	{2, 1, 0x7c}: {name: "VPBROADCASTD", bytes: 4, general: true, run: spread},
	{2, 1, 0x5a}: {name: "VBROADCASTI32X4", bytes: 16,
		run: func(_ *thread, to *vector, _, a vector) {
			for i := range to {
				to[i] = a[i%4]
			}
		}},
	{2, 1, 0x5b}: {name: "VBROADCASTI64X4", bytes: 32,
		run: func(_ *thread, to *vector, _, a vector) {
			for i := range to {
				to[i] = a[i%8]
			}
		}},
	{2, 1, 0x00}: {name: "VPSHUFB", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		for i, x := range a {
			to[i] = 0
			for k := 0; k < 32; k += 8 {
				if from := int(x >> k & 255); from < 128 {
					to[i] |= b[i/4*4+from%16/4] >> (from % 4 * 8) & 255 << k
				}
			}
		}
	}},
	{2, 1, 0x13}: {name: "VCVTPH2PS", bytes: 32, run: func(_ *thread, to *vector, _, a vector) {
		for i := range to {
			to[i] = math.Float32bits(half.FromF16(uint16(a[i/2] >> (i % 2 * 16))))
		}
	}},
	{2, 1, 0x21}: {name: "VPMOVSXBD", bytes: 16, run: func(_ *thread, to *vector, _, a vector) {
		for i := range to {
			to[i] = uint32(int32(int8(a[i/4] >> (i % 4 * 8))))
		}
	}},
	{2, 1, 0x16}: {name: "VPERMPS", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = a[b[i]&15]
		}
	}},
	{2, 1, 0x1c}: {name: "VPABSB", bytes: 64, run: eachByte(func(_, _, a byte) byte {
		return byte(max(int8(a), -int8(a)))
	})},
	{1, 1, 0xf8}: {name: "VPSUBB", bytes: 64, run: eachByte(func(_, b, a byte) byte {
		return b - a
	})},
	{1, 1, 0x60}: {name: "VPUNPCKLBW", bytes: 64, run: interleave(0)},
	{1, 1, 0x68}: {name: "VPUNPCKHBW", bytes: 64, run: interleave(8)},
	{1, 1, 0xeb}: {name: "VPORD", bytes: 64, run: each(func(b, a uint32) uint32 { return b | a })},
	{1, 1, 0x6f}: {name: "VMOVDQA64", bytes: 64, aligned: true, run: move},
	{3, 1, 0x3b}: {name: "VEXTRACTI64X4", bytes: 32, immediate: true, store: true,
		upper: true},
	{1, 1, 0x7f}: {name: "VMOVDQA64", bytes: 64, aligned: true, store: true},
	{1, 2, 0x6f}: {name: "VMOVDQU64", bytes: 64, run: move},
	{1, 2, 0x7f}: {name: "VMOVDQU64", bytes: 64, store: true},
	{2, 1, 0x8d}: {name: "VPERMB", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		from := a
		eachByte(func(_, b, _ byte) byte { return from.byte(b & 63) })(nil, to, b, a)
	}},
	{2, 1, 0x75}: {name: "VPERMI2B", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		tables := [2]vector{b, a}
		eachByte(func(place, _, _ byte) byte {
			return tables[place>>6&1].byte(place & 63)
		})(nil, to, b, a)
	}},
	{2, 3, 0x72}: {name: "VCVTNE2PS2BF16", bytes: 64, run: convert},
	{2, 1, 0xa8}: {name: "VFMADD213PS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = fma(b[i], to[i], a[i], t.flush)
		}
	}},
	{2, 1, 0xb8}: {name: "VFMADD231PS", bytes: 64, run: func(t *thread, to *vector, b, a vector) {
		for i := range to {
			to[i] = fma(b[i], a[i], to[i], t.flush)
		}
	}},
	{2, 1, 0x50}: {name: "VPDPBUSD", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		for i := range to {
			for k := 0; k < 32; k += 8 {
				to[i] += b[i] >> k & 255 * uint32(int32(int8(a[i]>>k)))
			}
		}
	}},
	{2, 2, 0x52}: {name: "VDPBF16PS", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		for i := range to {
			odd := fma(b[i]&^0xffff, a[i]&^0xffff, to[i], true)
			to[i] = fma(b[i]<<16, a[i]<<16, odd, true)
		}
	}},
}

// wides are those of instructions whose elements are twice as wide, which have a bit of their own.
var wides = map[[3]int]instruction{
	{2, 1, 0x8d}: {name: "VPERMW", bytes: 64, run: func(_ *thread, to *vector, b, a vector) {
		for i := range to {
			word := func(place uint32) uint32 { return a[place/2&15] >> (place % 2 * 16) & 0xffff }
			to[i] = word(b[i]&31) | word(b[i]>>16&31)<<16
		}
	}},
	{1, 1, 0x10}: {name: "VMOVUPD", bytes: 64, run: move},
	{1, 1, 0x11}: {name: "VMOVUPD", bytes: 64, store: true},
	{1, 1, 0x58}: {name: "VADDPD", bytes: 64, run: eachDouble(func(_, b, a float64) float64 {
		return b + a
	})},
	{1, 1, 0x5c}: {name: "VSUBPD", bytes: 64, run: eachDouble(func(_, b, a float64) float64 {
		return b - a
	})},
	{2, 1, 0x19}: {name: "VBROADCASTSD", bytes: 8, run: func(_ *thread, to *vector, _, a vector) {
		for i := range to {
			to[i] = a[i%2]
		}
	}},
	{2, 1, 0xa8}: {name: "VFMADD213PD", bytes: 64, run: eachDouble(func(to, b, a float64) float64 {
		return math.FMA(b, to, a)
	})},
}

func eachDouble(f func(to, b, a float64) float64) func(*thread, *vector, vector, vector) {
	return func(_ *thread, to *vector, b, a vector) {
		for i := range len(to) / 2 {
			to.setDouble(i, f(to.double(i), b.double(i), a.double(i)))
		}
	}
}

func (v *vector) double(i int) float64 {
	return math.Float64frombits(uint64(v[2*i]) | uint64(v[2*i+1])<<32)
}

func (v *vector) setDouble(i int, f float64) {
	u := math.Float64bits(f)
	v[2*i], v[2*i+1] = uint32(u), uint32(u>>32)
}

// convert rounds a, then b, to bfloat16.
func convert(_ *thread, to *vector, b, a vector) {
	for i := range to {
		from, at := &a, i*2
		if at >= len(a) {
			from, at = &b, at-len(a)
		}
		to[i] = uint32(half.ToBF16(float(from[at], true))) |
			uint32(half.ToBF16(float(from[at+1], true)))<<16
	}
}

// amx simulates an instruction of AMX.
func (t *thread) amx(code []byte) int {
	p1, p2, op := int(code[1]), int(code[2]), code[3]
	if p1&31 != 2 || p2>>7 != 0 || p2&4 != 0 {
		return 0
	}
	reg := int(code[4] >> 3 & 7)
	o := t.modRM(code[4:], 1-p1>>5&1, 1-p1>>6&1, 1, 4, 0, false)
	length := 4 + o.length
	name := ""
	switch prefix := p2 & 3; {
	case op == 0x49 && prefix == 0 && o.memory:
		name = "LDTILECFG"
		t.configure(t.p.read(o.at, 64))
	case op == 0x49 && prefix == 0 && code[4] == 0xc0:
		name = "TILERELEASE"
		t.tiles, t.set = [8]tile{}, false
	case op == 0x49 && prefix == 3 && !o.memory:
		name = "TILEZERO"
		t.tile(reg).row = [16]vector{}
	case op == 0x4b && prefix == 3 && o.memory:
		name = "TILELOADD"
		x := t.tile(reg)
		x.row = [16]vector{}
		for i := range x.rows {
			x.row[i] = t.load(o.at+uint64(i)*o.stride, x.bytes)
		}
	case op == 0x4b && prefix == 2 && o.memory:
		name = "TILESTORED"
		x := t.tile(reg)
		for i := range x.rows {
			t.store(o.at+uint64(i)*o.stride, &x.row[i], x.bytes)
		}
	case op == 0x5c && prefix == 2 && !o.memory:
		name = "TDPBF16PS"
		dot(name, t.tile(reg), t.tile(o.reg), t.tile(^p2>>3&15), pairs)
	case op == 0x5e && prefix == 3 && !o.memory:
		name = "TDPBSSD"
		dot(name, t.tile(reg), t.tile(o.reg), t.tile(^p2>>3&15), quads)
	default:
		return 0
	}
	t.p.counts[name]++
	return length
}

// tile is a tile that is configured.
func (t *thread) tile(n int) *tile {
	if !t.set || t.tiles[n].rows == 0 {
		panic(fault{fmt.Errorf("tile %d is not configured", n)})
	}
	return &t.tiles[n]
}

// configure is LDTILECFG, with the checks for which it faults.
func (t *thread) configure(c []byte) {
	bad := c[0] != 1 || c[1] != 0
	for i, b := range c {
		bad = bad || b != 0 && (i >= 2 && i < 16 || i >= 32 && i < 48 || i >= 56)
	}
	t.tiles, t.set = [8]tile{}, true
	for i := range t.tiles {
		x := &t.tiles[i]
		x.rows, x.bytes = int(c[48+i]), int(binary.LittleEndian.Uint16(c[16+2*i:]))
		bad = bad || x.rows > 16 || x.bytes > 64 || x.bytes%4 != 0 ||
			(x.rows == 0) != (x.bytes == 0)
	}
	if bad {
		panic(fault{fmt.Errorf("LDTILECFG of % x", c)})
	}
}

// dot adds products of a, rows by words of 32 bits, and b, such words by columns: add does of an
// element, given what a has in row m.
func dot(name string, sums, a, b *tile, add func(sum uint32, a *vector, b *tile, n int) uint32) {
	if sums.rows != a.rows || sums.bytes != b.bytes || a.bytes != 4*b.rows ||
		sums == a || sums == b || a == b {
		panic(fault{fmt.Errorf("%s of %dx%d, %dx%d, %dx%d", name, sums.rows, sums.bytes, a.rows,
			a.bytes, b.rows, b.bytes)})
	}
	for m := range sums.rows {
		for n := range sums.bytes / 4 {
			sums.row[m][n] = add(sums.row[m][n], &a.row[m], b, n)
		}
	}
}

// pairs is an element of TDPBF16PS.
func pairs(sum uint32, a *vector, b *tile, n int) uint32 {
	var even, odd uint32
	for k := range b.rows {
		x, w := a[k], b.row[k][n]
		even = fma(x<<16, w<<16, even, true)
		odd = fma(x&^0xffff, w&^0xffff, odd, true)
	}
	return add(sum, add(even, odd, true), true)
}

// quads is one of TDPBSSD.
func quads(sum uint32, a *vector, b *tile, n int) uint32 {
	for k := range b.rows {
		for bit := 0; bit < 32; bit += 8 {
			sum += uint32(int32(int8(a[k]>>bit)) * int32(int8(b.row[k][n]>>bit)))
		}
	}
	return sum
}

// reduce is x less the greatest whole number that is not above it, rounded down; 0 of an infinity.
func reduce(x uint32, flush bool) uint32 {
	v := float64(float(x, flush))
	if math.IsInf(v, 0) {
		return 0
	}
	f := v - math.Floor(v)
	r := float32(f)
	if float64(r) > f {
		r = math.Nextafter32(r, -1)
	}
	if f == 0 {
		r = float32(math.Copysign(0, -1))
	}
	return bits(r, flush)
}

// scale is x times 2 to the power of the greatest whole number that is not above y.
func scale(x, y uint32, flush bool) uint32 {
	v, n := float64(float(x, flush)), math.Floor(float64(float(y, flush)))
	switch {
	case math.IsInf(n, 1) && v == 0, math.IsInf(n, -1) && math.IsInf(v, 0):
		return math.Float32bits(float32(math.NaN()))
	case math.IsInf(n, -1):
		return bits(float32(math.Copysign(0, v)), flush)
	}
	// Of float64, a power of two: what it has of float32 is rounded once.
	return bits(float32(v*math.Exp2(max(-600, min(n, 600)))), flush)
}

func add(x, y uint32, flush bool) uint32 {
	a, b := float(x, flush), float(y, flush)
	return bits(a+b, flush)
}

// fma is x·y+z rounded once, to nearest even. The product is exact in float64; the sum is rounded
// to odd there, so that rounding again to float32 cannot go wrong (Boldo and Melquiond, 2008).
func fma(x, y, z uint32, flush bool) uint32 {
	p, a := float64(float(x, flush))*float64(float(y, flush)), float64(float(z, flush))
	s := p + a
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return bits(float32(s), flush)
	}
	b := s - p
	if e := (p - (s - b)) + (a - b); e != 0 && math.Float64bits(s)&1 == 0 {
		if (e > 0) == (s > 0) {
			s = math.Float64frombits(math.Float64bits(s) + 1)
		} else {
			s = math.Float64frombits(math.Float64bits(s) - 1)
		}
	}
	if limit := 0x1p-126; flush && math.Abs(s) < limit && math.Abs(s) >= limit-0x1p-151 {
		s = math.Copysign(limit, s) // it would round to a normal number were exponents unbounded
	}
	if flush && math.Abs(s) < 0x1p-126 {
		return math.Float32bits(float32(math.Copysign(0, s)))
	}
	return math.Float32bits(float32(s))
}

// float is the number of the bits; with flush a denormal is zero.
func float(b uint32, flush bool) float32 {
	if flush && b&0x7f800000 == 0 {
		b &= 1 << 31
	}
	return math.Float32frombits(b)
}

// bits are those of a number; with flush a denormal becomes zero.
func bits(f float32, flush bool) uint32 {
	return math.Float32bits(float(math.Float32bits(f), flush))
}
