package gemm

import (
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// codeCall is a product of a tile: some rows of x with some panels of codes over some runs. Rows
// and panels are fixed per kernel. gen/codes.go knows where the fields lie.
type codeCall struct {
	w         unsafe.Pointer // codes of the first panel's first run
	wStride   uintptr        // bytes from a panel to the next
	scale     unsafe.Pointer // scales of the first panel's first run
	x         unsafe.Pointer
	xStride   uintptr // bytes from a row to the next
	runs      int
	blocks    int            // blocks of eight columns in each span of a run
	c         unsafe.Pointer // first row of the tile, which the sums are added to
	cStride   uintptr        // bytes from a row to the next
	skip      uintptr        // bytes from the end of a run's codes to the codes of the next
	scaleStep uintptr        // bytes from the scales of a run to those of the next
	sums      unsafe.Pointer // of x over the first run, row by row
	sumStep   uintptr        // bytes to those of the next run
	table     unsafe.Pointer // what the codes stand for
	offset    uintptr        // bytes from the scales of a run to its offsets; 0 if it has none
	flags     int
	spans     int     // of each run: columns of x with a scale, one where x is not rounded
	parts     uintptr // bytes before the codes that scales and offsets by span take; 0 if none do
	next      uintptr // see nextRun and unpackBytes
	// Kernels of whole rows multiply these parts, up to the last; the sums of a piece of K and the
	// next are pieceStep bytes apart, those of a panel and the next cApart.
	list              *codePart
	pieceStep, cApart uintptr
	head              uintptr           // bytes from the scales of a run to what its spans have
	one               codePart          // where list is of one
	_                 [2]unsafe.Pointer // where the columns of a run begin, and their sums
	_                 [128]byte         // keeps the threads' calls apart
}

const (
	flagWideScale  = amx.CodeWideScale  // scales are float32, not float16
	flagWideOffset = amx.CodeWideOffset // offsets are
	// flagFollows is one of them, too
)

// codeKernel multiplies, or writes the numbers that codes stand for to c, [columns][nr] of float32.
// It is one uninterruptible call.
type codeKernel func(call *codeCall)

// codeKernels are those of an instruction set for one form of codes.
type codeKernels struct {
	rows   int  // of the highest tile
	whole  bool // of one row, all of K at once
	unpack codeKernel
	tiles  [maxRows + 1][maxWidth + 1]codeKernel
}

// form is how codes lie in a block of eight columns of a panel.
type form uint8

const (
	// formPairs is [row/4][columns 0-1, 2-3][row%4][column] nibbles, and those of columns 4 to 7 in
	// the upper halves of the bytes, for each eight rows: bytes that are looked up are interleaved
	// to bfloat16.
	formPairs form = iota
	// formQuads is [row/4][columns 0 to 3][row%4] likewise: bytes are interleaved to float32.
	formQuads
	// formNibbles is 32 bits for each row, the first column in the lowest.
	formNibbles
	// formBytes is [column][row] of bytes.
	formBytes
	// formFloats is [column][row] of float32: codes that have been unpacked.
	formFloats
	// formDots4 is [row][columns 0 to 3] of nibbles, and those of columns 4 to 7 in the upper
	// halves of the bytes: a lane of 32 bits is multiplied by four columns of x that are int8.
	formDots4
	// formTable is formDots4 of codes that are looked up.
	formTable
	// formDots8 is [columns 0-3, 4-7][row][column] of bytes.
	formDots8
	// formDots6 is formDots4 of the lower four bits of codes of six, and behind it, for each row of
	// a half and [column%4], the upper two of [column/4][half], the first in the lowest.
	formDots6
)

// dots tells whether x is int8.
func (f form) dots() bool { return f >= formDots4 }

// blockBytes are those of eight columns of a panel.
func (f form) blockBytes(nr int) uintptr {
	return uintptr(nr) * [...]uintptr{formPairs: 4, formQuads: 4, formNibbles: 4, formBytes: 8,
		formFloats: 32, formDots4: 4, formTable: 4, formDots8: 8,
		formDots6: 6}[f]
}

// codes is what a matrix of quantised weights is made of beside its bytes.
//
// Packed form: panels of nr rows of W. Within a panel run follows run; a run is the scales of its
// rows, their offsets, if the matrix has some, and blocks of eight columns.
type codes struct {
	kind   compute.CodeType
	form   form
	tiles  *codeKernels // of codes
	wide   *codeKernels // if not nil, of bytes that codes of six bits are unpacked to
	floats *codeKernels // of the numbers that they stand for
	table  []uint32
	values [16]float32 // that codes of compute.Code4 stand for
	flags  int
	// dots says that x is rounded to int8 (see dots.go), and zero which unsigned number stands for
	// 0. split has products start in two lanes of int16.
	dots, split bool
	zero        int32
	// least is what codes of six bits stand for below zero, at most.
	least int32
	// step is a power of two of which the numbers of compute.Code4 are multiples, where x is
	// rounded, and small says that none is of more than 16 of them.
	step  float32
	small bool
	// numbers are what tiles take for those of compute.Code4.
	numbers [16]int8
	// offset is where the offsets of a run begin, 0 if there are none; head is where they end.
	offset, head uintptr
	// These are as compute.Codes has them. If super is not 0, a run is as many whole groups as
	// share factors. They are its scales and offsets, and each of its spans, which are those
	// groups, has integers of 8 bits of its own.
	group, lead, super, superLead int

	runs     []run
	pieces   [maxPieces + 1]int // the first run of each piece
	parts    []part
	list     []codePart         // of kernels of whole rows
	first    int                // the piece of its first part
	starts   [maxPieces + 1]int // the first part of each piece
	width    int                // columns of all runs with those that fill up blocks
	sums     int                // of a row of x that offsets are multiplied by
	rowBytes uintptr            // of a row of x that has been rounded
	tileSize uintptr            // of amx.CodeRows rows of it, as tiles take them
	// columns is which column of x each of those is, or -1; nil if they are those of x.
	columns []int32
}

// run is columns that share a scale: those of a group within a piece of K, or less.
type run struct {
	from, length, group int
	packed              int     // its first column in the packed form
	spans               int     // columns of x with a scale: one, but where x is rounded
	blocks              int     // of eight columns, in each span
	sum                 int     // the first of its sums of x
	parts               uintptr // bytes that scales and offsets by span take
	at                  uintptr // bytes from the beginning of the panel
	x                   uintptr // bytes from the beginning of a row of x
	tile                uintptr // and from that of amx.CodeRows of them, as tiles take them
}

// part is runs of as many spans and blocks each, one after the other.
type part struct{ first, runs int }

// codePart is what kernels of whole rows have of a part: see codeCall. Then they go so many pieces
// on, or not at all, which lastPart says.
type codePart struct {
	runs, blocks, spans int
	skip, scaleStep     uintptr
	then                int
}

const lastPart = -1

// listParts makes the list of parts for kernels of whole rows.
func (c *codes) listParts(nr int) {
	c.list = make([]codePart, len(c.parts))
	piece := 0
	for i, p := range c.parts {
		from := piece
		for c.starts[piece+1] <= i { // which has no columns, or no more parts
			piece++
		}
		if i == 0 {
			c.first = piece
		} else {
			c.list[i-1].then = piece - from
		}
		r := &c.runs[p.first]
		c.list[i] = codePart{p.runs, r.blocks, r.spans, c.head + r.parts, c.runBytes(r, nr),
			lastPart}
	}
}

// runBytes are those of a run in a panel.
func (c *codes) runBytes(r *run, nr int) uintptr {
	return c.head + r.parts + uintptr(r.spans*r.blocks)*c.form.blockBytes(nr)
}

// maxRun is how many columns a run has at most. It is part of what the bits of a product depend on.
const maxRun = 1024

// cutRuns makes the runs of a matrix whose pieces begin at start, of groups of so many columns, of
// the first of which lead lie elsewhere.
func (c *codes) cutRuns(start []int) {
	group, lead := c.group, c.lead
	for i := range len(start) - 1 {
		c.pieces[i], c.starts[i] = len(c.runs), len(c.parts)
		for at := start[i]; at < start[i+1]; {
			end, g := start[i+1], 0
			if group > 0 {
				g = (lead + at) / group
				end = min(end, (g+1)*group-lead)
			}
			end = min(end, at+maxRun)
			spans := 1
			if c.super > 0 && end-at == group {
				spans = min(c.super-(c.superLead+g)%c.super, (start[i+1]-at)/group)
				end = at + spans*group
			} else if span := c.spanColumns(end - at); c.dots && end-at > span {
				spans = (end - at) / span
				end = at + spans*span
			}
			blocks := ceilDiv(end-at, 8*spans)
			x := uintptr(4 * c.width)
			if c.dots {
				x = c.rowBytes
				c.rowBytes += uintptr(spans * (dotHead + 8*blocks))
			}
			c.runs = append(c.runs, run{from: at, length: end - at, group: g, packed: c.width,
				spans: spans, blocks: blocks, x: x, tile: c.tileSize, sum: c.sums})
			c.tileSize += uintptr(spans * amx.CodeRows * (4 + 8*blocks))
			c.sums++
			if c.super > 0 {
				c.sums += spans - 1
			}
			c.width += 8 * blocks * spans
			if n := len(c.parts); n > c.starts[i] &&
				c.runs[c.parts[n-1].first].spans == spans &&
				c.runs[c.parts[n-1].first].blocks == blocks {
				c.parts[n-1].runs++
			} else {
				c.parts = append(c.parts, part{len(c.runs) - 1, 1})
			}
			at = end
		}
		c.pieces[i+1], c.starts[i+1] = len(c.runs), len(c.parts)
	}
}

// place makes addresses, and returns the bytes of a panel.
func (c *codes) place(nr int, offsets bool) uintptr {
	size := func(flag int) uintptr {
		if c.flags&flag != 0 {
			return uintptr(nr) * 4
		}
		return uintptr(nr) * 2
	}
	c.head = size(flagWideScale)
	if offsets {
		c.offset = c.head
		c.head += size(flagWideOffset)
	}
	var at uintptr
	for i := range c.runs {
		r := &c.runs[i]
		r.at = at
		if c.super > 0 {
			r.parts = uintptr(r.spans * nr)
			if offsets {
				r.parts *= 2
			}
			r.parts = (r.parts + uintptr(2*nr-1)) &^ uintptr(2*nr-1)
		}
		at += c.runBytes(r, nr)
	}
	if c.tiles.whole {
		c.listParts(nr)
	}
	return at
}

// order makes columns, where they are not those of x.
func (c *codes) order(k int, order []int32) {
	if c.width == k && order == nil {
		return
	}
	c.columns = make([]int32, c.width)
	for i := range c.columns {
		c.columns[i] = -1
	}
	for _, r := range c.runs {
		for j := range r.length {
			v := int32(r.from + j)
			if order != nil {
				v = order[v]
			}
			c.columns[r.packed+j] = v
		}
	}
}

// fold is the power of two by which scales are multiplied because the kernels' numbers are not.
func (c *codes) fold() float32 {
	switch {
	case c.kind == compute.CodeE4M3:
		return 256 // binary16 has exponents that are lower by 8
	case c.form == formTable:
		return c.step
	}
	return 1
}

// choose picks kernels and makes their table; rounded allows those that round x to int8.
func (c *codes) choose(set isa.ISA, like *compute.Codes, rounded bool) *kernelSet {
	c.kind, c.values, c.group, c.lead = like.Type, like.Values, like.Group, like.Lead
	if rounded && c.chooseDots(like) {
		return c.dotKernels(set)
	}
	c.form = formBytes
	exact := true
	if c.kind == compute.Code4 {
		c.form = formNibbles
		for _, v := range like.Values {
			exact = exact && half.FromBF16(half.ToBF16(v)) == v
		}
	}
	kernels := c.vectorCodes(set, exact)
	if kernels == nil {
		kernels = c.portableCodes()
	}
	bits := func(i int) uint32 { return math.Float32bits(like.Values[i]) }
	switch {
	case c.form == formPairs:
		c.table = byteTable(bits, 16, 24)
		c.table = append(c.table, repeat(0x0f0f0f0f)...)
		c.table = append(c.table, repeat(0xffff0000)...)
	case c.form == formQuads:
		c.table = byteTable(bits, 0, 8, 16, 24)
		c.table = append(c.table, repeat(0x0f0f0f0f)...)
	case c.form == formNibbles:
		for i := range like.Values {
			c.table = append(c.table, bits(i))
		}
	case kernels.vector:
		c.table = []uint32{0xbfffbfff}
	default:
		for i := range 256 {
			c.table = append(c.table, math.Float32bits(like.Number(byte(i))/c.fold()))
		}
	}
	return kernels
}

// repeat is a vector of AVX2 of the same 32 bits.
func repeat(v uint32) []uint32 { return []uint32{v, v, v, v, v, v, v, v} }

// byteTable is the bytes of sixteen numbers from the given bits on, sixteen bytes for each shift.
func byteTable(bits func(int) uint32, shifts ...int) []uint32 {
	var table []uint32
	for _, shift := range shifts {
		for i := 0; i < 16; i += 4 {
			var word uint32
			for j := range 4 {
				word |= bits(i+j) >> shift & 255 << (8 * j)
			}
			table = append(table, word)
		}
	}
	return table
}

// portableCodes returns kernels in plain Go.
func (c *codes) portableCodes() *kernelSet {
	form := c.form
	c.tiles = &codeKernels{rows: 4, unpack: func(call *codeCall) { portableUnpack(call, form) }}
	c.floats = &codeKernels{rows: 4}
	for rows := 1; rows <= 4; rows++ {
		c.tiles.tiles[rows][1] = func(call *codeCall) { portableRuns(call, rows, form) }
		c.floats.tiles[rows][1] = func(call *codeCall) { portableRuns(call, rows, formFloats) }
	}
	return &kernelSet{nr: portableNR, rows: 4, codes: c.tiles}
}

// lookUp is the numbers of column k of a block.
func (f form) lookUp(v *[portableNR]float32, table, block unsafe.Pointer, k int) {
	numbers := (*[256]float32)(table)
	switch f {
	case formNibbles:
		for i, word := range (*[portableNR]uint32)(block) {
			v[i] = numbers[word>>(4*k)&15]
		}
	case formBytes:
		for i, b := range (*[8][portableNR]byte)(block)[k] {
			v[i] = numbers[b]
		}
	default:
		*v = (*[8][portableNR]float32)(block)[k]
	}
}

// portableUnpack is a kernel in plain Go.
func portableUnpack(call *codeCall, form form) {
	w, to := call.w, call.c
	for range call.runs {
		for range call.blocks {
			for k := range 8 {
				form.lookUp((*[portableNR]float32)(to), call.table, w, k)
				to = unsafe.Add(to, 4*portableNR)
			}
			w = unsafe.Add(w, form.blockBytes(portableNR))
		}
		w = unsafe.Add(w, call.skip)
	}
}

// portableRuns is a kernel in plain Go. It rounds each product.
func portableRuns(call *codeCall, rows int, form form) {
	w, scale, sums, x := call.w, call.scale, call.sums, call.x
	var v [portableNR]float32
	for range call.runs {
		var part [portableRows][portableNR]float32
		for range call.blocks {
			for k := range 8 {
				form.lookUp(&v, call.table, w, k)
				for r := range rows {
					multiplyAdd(&part[r], &v, *(*float32)(unsafe.Add(x,
						uintptr(r)*call.xStride+uintptr(k)*4)))
				}
			}
			w, x = unsafe.Add(w, form.blockBytes(portableNR)), unsafe.Add(x, 32)
		}
		s := factors(scale, call.flags&flagWideScale != 0)
		var o [portableNR]float32
		if call.offset > 0 {
			o = factors(unsafe.Add(scale, call.offset), call.flags&flagWideOffset != 0)
		}
		for r := range rows {
			c := (*[portableNR]float32)(unsafe.Add(call.c, uintptr(r)*call.cStride))
			for i := range c {
				c[i] += float32(s[i] * part[r][i])
			}
			if call.offset > 0 {
				multiplyAdd(c, &o, *(*float32)(unsafe.Add(sums, 4*r)))
			}
		}
		w, scale = unsafe.Add(w, call.skip), unsafe.Add(scale, call.scaleStep)
		if call.offset > 0 {
			sums = unsafe.Add(sums, call.sumStep)
		}
	}
}

// factors are the scales or offsets of a panel's rows.
func factors(at unsafe.Pointer, wide bool) (v [portableNR]float32) {
	if wide {
		return *(*[portableNR]float32)(at)
	}
	for i, h := range (*[portableNR]uint16)(at) {
		v[i] = half.FromF16(h)
	}
	return v
}
