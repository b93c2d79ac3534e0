package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Type is the type of a tensor's elements, which come in blocks.
type Type uint32

// The types that are known: those of numbers, and those of blocks of quantised ones
// (ggml-common.h).
const (
	F32   Type = 0
	F16   Type = 1
	Q4_0  Type = 2
	Q4_1  Type = 3
	Q5_0  Type = 6
	Q5_1  Type = 7
	Q8_0  Type = 8
	Q2K   Type = 10
	Q3K   Type = 11
	Q4K   Type = 12
	Q5K   Type = 13
	Q6K   Type = 14
	IQ4NL Type = 20
	IQ4XS Type = 23
	BF16  Type = 30
	MXFP4 Type = 39
	types Type = 40
)

// Sizes of blocks, in elements and bytes.
const (
	super    = 256 // elements of a block of the K types
	little   = 32  // of a block of the others
	halfOf   = little / 2
	groupsOf = super / little
	narrow   = 16 // elements that share a scale in Q2_K, Q3_K and Q6_K
	narrows  = super / narrow
	quarter  = super / 4
	eighth   = super / 8
	scales   = 12 // bytes of the scales of Q3_K to Q5_K
)

// layout is how a type's elements are stored.
type layout struct {
	name string
	// block is how many elements a block has, bytes how many bytes.
	block, bytes int
	// group is how many elements share a scale; 0 is a type of plain numbers.
	group int
	// code, values and offset are those of compute.Codes.
	code   compute.CodeType
	values [16]float32
	offset bool
	// floats are the bytes of a block at which its numbers of 16 bits begin. exponent says that its
	// first byte is the exponent of a power of two, 255 being NaN.
	floats   []int
	exponent bool
	// unpack makes the codes, scales and offsets of a block.
	unpack func(block, code []byte, scale, offset []float32)
}

// Values that codes of 4 bits stand for: consecutive ones, those of IQ4_NL and IQ4_XS
// (kvalues_iq4nl), and e2m1.
var (
	fromZero  = [16]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	fromMinus = [16]float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	nonLinear = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
		113}
	e2m1 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}
)

var layouts = [types]layout{
	F32:  {name: "F32", block: 1, bytes: 4},
	F16:  {name: "F16", block: 1, bytes: 2},
	BF16: {name: "BF16", block: 1, bytes: 2},
	Q4_0: {name: "Q4_0", block: little, bytes: 18, group: little, values: fromMinus,
		floats: []int{0}, unpack: func(b, code []byte, scale, _ []float32) {
			scale[0] = float(b)
			nibbles(code, b[2:18])
		}},
	Q4_1: {name: "Q4_1", block: little, bytes: 20, group: little, values: fromZero, offset: true,
		floats: []int{0, 2}, unpack: func(b, code []byte, scale, offset []float32) {
			scale[0], offset[0] = float(b), float(b[2:])
			nibbles(code, b[4:20])
		}},
	Q5_0: {name: "Q5_0", block: little, bytes: 22, group: little, code: compute.Code8,
		floats: []int{0}, unpack: func(b, code []byte, scale, _ []float32) {
			scale[0] = float(b)
			fifths(code, b[6:22], b[2:], 16)
		}},
	Q5_1: {name: "Q5_1", block: little, bytes: 24, group: little, code: compute.Code8, offset: true,
		floats: []int{0, 2}, unpack: func(b, code []byte, scale, offset []float32) {
			scale[0], offset[0] = float(b), float(b[2:])
			fifths(code, b[8:24], b[4:], 0)
		}},
	Q8_0: {name: "Q8_0", block: little, bytes: 34, group: little, code: compute.Code8,
		floats: []int{0}, unpack: func(b, code []byte, scale, _ []float32) {
			scale[0] = float(b)
			copy(code, b[2:34])
		}},
	Q2K: {name: "Q2_K", block: super, bytes: 84, group: narrow, values: fromZero, offset: true,
		floats: []int{80, 82}, unpack: unpackQ2K},
	Q3K: {name: "Q3_K", block: super, bytes: 110, group: narrow, values: fromMinus,
		floats: []int{108}, unpack: unpackQ3K},
	Q4K: {name: "Q4_K", block: super, bytes: 144, group: little, values: fromZero, offset: true,
		floats: []int{0, 2}, unpack: unpackQ4K},
	Q5K: {name: "Q5_K", block: super, bytes: 176, group: little, code: compute.Code8, offset: true,
		floats: []int{0, 2}, unpack: unpackQ5K},
	Q6K: {name: "Q6_K", block: super, bytes: 210, group: narrow, code: compute.Code8,
		floats: []int{208}, unpack: unpackQ6K},
	IQ4NL: {name: "IQ4_NL", block: little, bytes: 18, group: little, values: nonLinear,
		floats: []int{0}, unpack: func(b, code []byte, scale, _ []float32) {
			scale[0] = float(b)
			nibbles(code, b[2:18])
		}},
	IQ4XS: {name: "IQ4_XS", block: super, bytes: 136, group: little, values: nonLinear,
		floats: []int{0}, unpack: unpackIQ4XS},
	MXFP4: {name: "MXFP4", block: little, bytes: 17, group: little, values: e2m1,
		exponent: true, unpack: func(b, code []byte, scale, _ []float32) {
			scale[0] = float32(math.Ldexp(1, int(b[0])-127))
			nibbles(code, b[1:17])
		}},
}

// others are the types of ggml.h that are only named.
var others = map[Type]string{9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
	19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
	29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0"}

func (t Type) known() bool { return t < types && layouts[t].block > 0 }

// String is the type's name as ggml has it.
func (t Type) String() string {
	switch {
	case t.known():
		return layouts[t].name
	case others[t] != "":
		return others[t]
	}
	return fmt.Sprintf("%d", uint32(t))
}

// Block is how many elements a block has, 1 of plain numbers; Bytes is its size.
func (t Type) Block() int { return layouts[t].block }

// Bytes is the size of a block.
func (t Type) Bytes() int { return layouts[t].bytes }

// Quantised tells blocks from plain numbers.
func (t Type) Quantised() bool { return layouts[t].group > 0 }

// float reads a number of 16 bits.
func float(b []byte) float32 { return half.FromF16(binary.LittleEndian.Uint16(b)) }

// nibbles unpacks the low halves of bytes, then the high ones.
func nibbles(code, packed []byte) {
	n := len(packed)
	for i, b := range packed {
		code[i], code[n+i] = b&15, b>>4
	}
}

// fifths unpacks 32 numbers of 5 bits, of which the high bits are in four bytes, and subtracts.
func fifths(code, low, high []byte, minus byte) {
	bits := binary.LittleEndian.Uint32(high)
	nibbles(code, low[:halfOf])
	for i := range code[:little] {
		code[i] = (code[i] | byte(bits>>i&1)<<4) - minus
	}
}

// scaleAndMin is one of the 8 pairs of 6 bits that Q4_K and Q5_K pack in 12 bytes
// (get_scale_min_k4 of ggml-quants.c).
func scaleAndMin(packed []byte, i int) (scale, least byte) {
	if i < 4 {
		return packed[i] & 63, packed[i+4] & 63
	}
	return packed[i+4]&15 | packed[i-4]>>6<<4, packed[i+4]>>4 | packed[i]>>6<<4
}

// unpackMins makes the scales and offsets of Q4_K and Q5_K.
func unpackMins(b []byte, scale, offset []float32) {
	d, least := float(b), float(b[2:])
	for i := range groupsOf {
		s, m := scaleAndMin(b[4:4+scales], i)
		scale[i], offset[i] = d*float32(s), -(least * float32(m))
	}
}

func unpackQ4K(b, code []byte, scale, offset []float32) {
	unpackMins(b, scale, offset)
	for i := range groupsOf / 2 {
		nibbles(code[2*little*i:], b[16+little*i:][:little])
	}
}

func unpackQ5K(b, code []byte, scale, offset []float32) {
	unpackMins(b, scale, offset)
	high, low := b[16:16+eighth], b[16+eighth:]
	for i := range groupsOf / 2 {
		nibbles(code[2*little*i:], low[little*i:][:little])
	}
	for i := range code[:super] {
		code[i] |= high[i%little] >> (i / little) & 1 << 4
	}
}

func unpackQ6K(b, code []byte, scale, _ []float32) {
	low, high, packed := b[:super/2], b[super/2:], b[super/2+quarter:]
	d := float(b[super/2+quarter+narrows:])
	for i := range narrows {
		scale[i] = d * float32(int8(packed[i]))
	}
	for part := range 2 { // halves, of four runs of 32
		for i, h := range high[part*little : (part+1)*little] {
			to := code[part*super/2+i:]
			first, second := low[part*quarter+i], low[part*quarter+little+i]
			to[0] = (first&15 | h&3<<4) - 32
			to[little] = (second&15 | h>>2&3<<4) - 32
			to[2*little] = (first>>4 | h>>4&3<<4) - 32
			to[3*little] = (second>>4 | h>>6<<4) - 32
		}
	}
}

func unpackQ2K(b, code []byte, scale, offset []float32) {
	d, least := float(b[narrows+quarter:]), float(b[narrows+quarter+2:])
	for i := range narrows {
		scale[i], offset[i] = d*float32(b[i]&15), -(least * float32(b[i]>>4))
	}
	for i := range code[:super] {
		code[i] = twoBits(b[narrows:], i)
	}
}

// twoBits is number i of 256 of two bits: halves of the block, each of four runs of 32.
func twoBits(packed []byte, i int) byte {
	part, at := i/(super/2), i%(super/2)
	return packed[part*little+at%little] >> (2 * (at / little)) & 3
}

func unpackQ3K(b, code []byte, scale, _ []float32) {
	mask, two, packed := b[:eighth], b[eighth:], b[eighth+quarter:]
	d := float(packed[scales:])
	for i := range narrows {
		s := packed[i%8]>>(i/8*4)&15 | packed[8+i%4]>>(i/4*2)&3<<4
		scale[i] = d * float32(int(s)-32)
	}
	for i := range code[:super] {
		// Codes stand for -8 to 7, the numbers for -4 to 3: a bit of the mask adds 4.
		bit := mask[i%little] >> (i / little) & 1
		code[i] = twoBits(two, i) + bit<<2 + 4
	}
}

func unpackIQ4XS(b, code []byte, scale, _ []float32) {
	d, high := float(b), binary.LittleEndian.Uint16(b[2:])
	for i := range groupsOf {
		s := b[4+i/2]>>(i%2*4)&15 | byte(high>>(2*i)&3)<<4
		scale[i] = d * float32(int(s)-32)
		nibbles(code[little*i:], b[8+halfOf*i:][:halfOf])
	}
}
