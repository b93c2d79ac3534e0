package gguf

import "github.com/eagleray/eagleray/internal/compute"

// Form is what so many rows of blocks are as codes, of columns lo to hi-1: without the codes, which
// Unpack makes.
func (t Type) Form(rows, lo, hi int) compute.Codes {
	y := &layouts[t]
	c := compute.Codes{Type: y.code, Values: y.values, Rows: rows, Cols: hi - lo, Group: y.group,
		Lead: lo % y.group}
	if y.block > y.group {
		c.Super = y.block / y.group
		c.SuperLead = lo / y.group % c.Super
	}
	if y.offset {
		c.Offset = []float32{}
	}
	return c
}

// Unpack makes one of the rows of c of a whole row of a tensor, which has the form's columns from
// lo on.
func (t Type) Unpack(c *compute.Codes, row int, data []byte, lo int) {
	y := &layouts[t]
	groups := c.Groups()
	code := c.Code[row*c.Cols : (row+1)*c.Cols]
	scale := c.Scale[row*groups : (row+1)*groups]
	var offset []float32
	if c.Offset != nil {
		offset = c.Offset[row*groups : (row+1)*groups]
	}
	perBlock, hi := y.block/y.group, lo+c.Cols
	var part [super]byte
	var partScale, partOffset [narrows]float32
	for b := lo / y.block; b*y.block < hi; b++ {
		begin, end := b*y.block, (b+1)*y.block
		block := data[b*y.bytes : (b+1)*y.bytes]
		if c.Super > 0 {
			at := row*c.Supers() + b - lo/y.block
			c.Factor[at] = float(block[y.floats[0]:])
			if offset != nil {
				c.OffsetFactor[at] = -float(block[y.floats[1]:])
			}
		}
		group := begin/y.group - lo/y.group // of the form
		if begin >= lo && end <= hi {
			var to []float32
			if offset != nil {
				to = offset[group : group+perBlock]
			}
			y.unpack(block, code[begin-lo:end-lo], scale[group:group+perBlock], to)
			continue
		}
		y.unpack(block, part[:y.block], partScale[:perBlock], partOffset[:perBlock])
		from, to := max(begin, lo), min(end, hi)
		copy(code[from-lo:to-lo], part[from-begin:to-begin])
		for g := (from - begin) / y.group; g*y.group < to-begin; g++ {
			scale[group+g] = partScale[g]
			if offset != nil {
				offset[group+g] = partOffset[g]
			}
		}
	}
}

// Decode makes dst the numbers that whole blocks stand for: code times scale, plus offset. The
// product of a code and a scale is exact in float32.
func (t Type) Decode(dst []float32, data []byte) {
	y := &layouts[t]
	var code [super]byte
	var scale, offset [narrows]float32
	for len(dst) > 0 {
		y.unpack(data[:y.bytes], code[:y.block], scale[:], offset[:])
		for g := range y.block / y.group {
			group, v := code[g*y.group:(g+1)*y.group], dst[g*y.group:(g+1)*y.group]
			factor, more := scale[g], offset[g]
			if y.code == compute.Code4 {
				for i, c := range group {
					v[i] = y.values[c&15]*factor + more
				}
				continue
			}
			for i, c := range group {
				v[i] = float32(int8(c))*factor + more
			}
		}
		dst, data = dst[y.block:], data[y.bytes:]
	}
}

// Finite tells whether all scales and offsets of whole blocks are.
func (t Type) Finite(data []byte) bool {
	const exponent = 0x7c // of the high byte of a number of 16 bits
	y := &layouts[t]
	for _, at := range y.floats {
		for i := at + 1; i < len(data); i += y.bytes {
			if data[i]&exponent == exponent {
				return false
			}
		}
	}
	for i := 0; y.exponent && i < len(data); i += y.bytes {
		if data[i] == 0xff {
			return false
		}
	}
	return true
}
