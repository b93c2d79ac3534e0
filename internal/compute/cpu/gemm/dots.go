package gemm

import (
	"math"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Codes that stand for integers are multiplied by rows of x that are rounded to int8. A run is cut
// into spans of 32 columns, of bytes into spans of 128 as long as it has so many; what is left of
// it, fewer, is a run of its own. A span of a row has the
// scale s = a/127, a being the largest magnitude in it, and its elements are round(x·(127/a)), to
// nearest even, each of these operations in float32. Below 2⁻¹¹⁹, where 127/a may not be a number
// any more, a is taken as zero. If a is no number, or infinite, s is NaN.
//
// The products of a span are summed as integers, which is exact. Σ of a run begins at zero and
// takes span after span, Σ = s·(that sum) + Σ, and X = s·(the sum of the rounded x) + X. Then
// acc = scale·Σ + acc and, if there are offsets, acc = offset·X + acc. All these steps are fused
// multiply-adds, of portable kernels, too: every instruction set gives the same bits.
//
// Where groups of 32 columns or less (16 of bytes without offsets) share factors
// (compute.Codes.Super) a run is those of them that lie in the piece as a whole, and each is a
// span; what else lies there of a group is a run of its own. Then Σ = s·(the integer of the group's
// scale times that sum, rounded) + Σ, and X = (the integer of its offset)·(s times the sum of the
// rounded x, rounded) + X; scale and offset are the factors.
const (
	// sixBits is how many codes there are of those of 8 bits that have integers by span: products
	// of four of them are added by int16, and those of half of them with half of 16 columns.
	sixBits = 64
	// dotColumns are those of a span, and byteColumns those of one of many bytes: of a larger one
	// tiles' sums leave them less often, but the scales of x are larger, too.
	dotColumns, byteColumns = 32, 128
	// dotHead is what a span of a row has beside the columns: before them what the sums begin at,
	// so that code 0 stands for 0, behind them the scale.
	dotHead = 8
	// wideNR is the rows of panels of AVX-512, which rounds wideSpan columns at a time.
	wideNR, wideSpan = 32, 16
	// byteZero is the unsigned number that stands for 0 where bytes are multiplied by VPDPBUSD.
	byteZero = 128
	// dotLeast is 2⁻¹¹⁹.
	dotLeast = 8 << 23
	// tileHead is what a span of rows has before the columns where tiles take it: their scales.
	tileHead = 4 * amx.CodeRows
	// tableNumbers is where a table of kernels has what codes are looked up as, tableZeros where it
	// has byteZero and tableLeast where it has what codes of six bits stand for below zero.
	tableNumbers, tableZeros, tableLeast = 96, 64, 128
)

// chooseDots tells whether the codes stand for integers, or for these times a power of two, and
// prepares for them if so. Products of four bits are summed in two halves by int16, to 16·127·16
// each, where the numbers are small enough.
func (c *codes) chooseDots(like *compute.Codes) bool {
	switch c.kind {
	case compute.Code8:
		c.form = formDots8
	case compute.Code4:
		if c.step = stepOf(&like.Values); c.step == 0 {
			return false
		}
		for i, v := range like.Values {
			c.numbers[i] = int8(v / c.step)
		}
		least, most := slices.Min(like.Values[:])/c.step, slices.Max(like.Values[:])/c.step
		c.zero, c.small = int32(max(-least, 0)), least >= -16 && most <= 16
		c.form = formDots4
		for i, v := range like.Values {
			if v != float32(int32(i)-c.zero) {
				c.form = formTable
			}
		}
	default:
		return false
	}
	c.dots = true
	if like.Super > 0 && like.Group > 0 && like.Group%8 == 0 && like.Group <= dotColumns &&
		c.form != formTable && (c.kind == compute.Code4 || like.Group <= 16 || like.Offset != nil) {
		c.super, c.superLead = like.Super, like.SuperLead
		if like.Offset == nil {
			c.least = sixBits / 2
		}
	}
	return true
}

// spanColumns are those of spans of a run of so many columns.
func (c *codes) spanColumns(columns int) int {
	if c.form == formDots8 && columns >= byteColumns {
		return byteColumns
	}
	return dotColumns
}

// stepOf is the largest power of two, 1 at most, of which all numbers are multiples by what int8
// has, or 0.
func stepOf(values *[16]float32) float32 {
	for step := float32(1); step >= 1./256; step /= 2 {
		whole := true
		for _, v := range values {
			v /= step
			whole = whole && v >= -128 && v <= 127 && v == float32(int8(v))
		}
		if whole {
			return step
		}
	}
	return 0
}

// dotKernels picks kernels, and makes their table: a mask of four bits, ones of 16 bits, 128s, and
// the bytes that codes are looked up as, where they are, of which zero stands for 0, or the mask of
// the upper bits of six.
func (c *codes) dotKernels(set isa.ISA) *kernelSet {
	kernels := c.vectorDots(set)
	c.table = slices.Concat(repeat(0x0f0f0f0f), repeat(0x00010001), repeat(0x80808080))
	if c.form == formTable {
		c.table = append(c.table, byteTable(func(i int) uint32 {
			return uint32(int32(c.values[i]/c.step) + c.zero)
		}, 0, 0)...)
	}
	if c.form == formDots6 {
		c.table = slices.Concat(c.table, repeat(0x30303030), repeat(uint32(c.least)*0x01010101))
	}
	if kernels != nil {
		return kernels
	}
	form := c.form
	c.tiles = &codeKernels{rows: portableRows}
	for rows := 1; rows <= portableRows; rows++ {
		c.tiles.tiles[rows][1] = func(call *codeCall) { portableDots(call, rows, form) }
	}
	return &kernelSet{nr: portableNR, rows: portableRows, codes: c.tiles}
}

// begin is what the sum of products with a span begins at, of which even is the sum of the columns
// k with k%4 < 2, odd that of the others: a number, or two of int16 of which the first is lower.
func (c *codes) begin(even, odd int32) uint32 {
	even, odd = -c.zero*even, -c.zero*odd
	if !c.split {
		return uint32(even + odd)
	}
	return uint32(uint16(even)) | uint32(odd)<<16
}

// roundTask rounds rows of x to int8.
type roundTask struct {
	t        *mulTask
	x        []float32
	ldx      int
	perChunk int
}

// Do rounds some rows.
func (s *roundTask) Do(chunk, _ int) {
	t := s.t
	q := t.m.codes
	for row := chunk * s.perChunk; row < min((chunk+1)*s.perChunk, t.rows); row++ {
		src := s.x[row*s.ldx:][:t.m.k]
		for i := range q.runs {
			s.run(src, row, &q.runs[i])
		}
	}
}

// run rounds the columns of a run of a row.
func (s *roundTask) run(src []float32, row int, r *run) {
	t := s.t
	q := t.m.codes
	var sums [mostSpans]spanSums
	var sum float32
	codes, scale, step := t.spansOf(row, r)
	for first := 0; first < r.spans; first += mostSpans {
		of := sums[:min(r.spans-first, mostSpans)]
		s.round(codes, scale, step, src, r, first, of)
		for i, v := range of {
			if !t.kernels.blocks {
				*(*uint32)(unsafe.Add(codes, -4)) = q.begin(v.even, v.odd)
			}
			if q.offset > 0 && q.super > 0 {
				*t.sumOf(r.sum+first+i, row) = float32(v.even+v.odd) * *(*float32)(scale)
			} else if q.offset > 0 {
				sum = fusedMultiplyAdd(float32(v.even+v.odd), *(*float32)(scale), sum)
			}
			codes, scale = unsafe.Add(codes, step), unsafe.Add(scale, step)
		}
	}
	if q.offset > 0 && q.super == 0 {
		*t.sumOf(r.sum, row) = sum
	}
}

// spanSums are the sums of the columns k of a span with k%4 < 2, and of the others.
type spanSums struct{ even, odd int32 }

// mostSpans are those that a kernel rounds at a time, at most.
const mostSpans = 32

// round rounds some spans of a run of src, from one on, whose columns and scales lie step bytes
// apart.
func (s *roundTask) round(codes, scale unsafe.Pointer, step int, src []float32, r *run, first int,
	of []spanSums) {
	q, size := s.t.m.codes, 8*r.blocks
	at := r.packed + first*size
	if q.columns == nil && s.t.m.kernels.nr == wideNR && size%wideSpan == 0 {
		roundSpans(codes, scale, step, src[at:at+size*len(of)], size, of)
		return
	}
	var gathered [byteColumns]float32
	for i := range of {
		v := unsafe.Pointer(&gathered)
		if q.columns == nil {
			v = unsafe.Pointer(&src[at : at+size][0])
		} else {
			for j, col := range q.columns[at : at+size] {
				gathered[j] = 0
				if col >= 0 {
					gathered[j] = src[col]
				}
			}
		}
		*(*float32)(scale), of[i].even, of[i].odd = roundSpan(codes, v, r.blocks,
			s.t.m.kernels.vector)
		at, codes, scale = at+size, unsafe.Add(codes, step), unsafe.Add(scale, step)
	}
}

// spansOf is where the first span of a row of x has its columns, and its scale, and how many bytes
// behind them the next one has its own.
func (t *mulTask) spansOf(row int, r *run) (codes, scale unsafe.Pointer, step int) {
	codes, at := t.spanOf(row, r, 0)
	step = dotHead + 8*r.blocks
	if t.kernels.blocks {
		step = amx.CodeRows * (4 + 8*r.blocks)
	}
	return codes, unsafe.Pointer(at), step
}

// spanOf is where a span of a row of x has its columns, and its scale.
func (t *mulTask) spanOf(row int, r *run, span int) (codes unsafe.Pointer, scale *float32) {
	size := 8 * r.blocks
	if !t.kernels.blocks {
		at := uintptr(row)*t.xStride + r.x + uintptr(span*(dotHead+size)+4)
		return unsafe.Add(t.x, at), (*float32)(unsafe.Add(t.x, at+uintptr(size)))
	}
	lane := row % amx.CodeRows
	at := uintptr(row/amx.CodeRows)*t.xStride + r.tile + uintptr(span*amx.CodeRows*(4+size))
	return unsafe.Add(t.x, at+uintptr(tileHead+lane*size)),
		(*float32)(unsafe.Add(t.x, at+uintptr(4*lane)))
}

// portableRound rounds blocks of eight columns, and returns their scale and the sums of the columns
// k with k%4 < 2 and of the others.
func portableRound(to, x unsafe.Pointer, blocks int) (scale float32, even, odd int32) {
	v := unsafe.Slice((*[4]float32)(x), 2*blocks)
	dst := unsafe.Slice((*[4]int8)(to), 2*blocks)
	a := largestOf(unsafe.Slice((*float32)(x), 8*blocks))
	most := math.Float32bits(a)
	if most < dotLeast || most >= 0xff<<23 {
		clear(dst)
		if most >= 0xff<<23 {
			scale = float32(math.NaN())
		}
		return scale, 0, 0
	}
	factor := 127 / a
	for i := range v {
		for k, f := range v[i] {
			dst[i][k] = int8(math.RoundToEven(float64(f * factor)))
		}
		even += int32(dst[i][0]) + int32(dst[i][1])
		odd += int32(dst[i][2]) + int32(dst[i][3])
	}
	return a / 127, even, odd
}

// prepareDots sets the task's rows of x, rounded, and their sums over runs.
func (s *Scratch) prepareDots(p *pool.Pool, t *mulTask, x []float32, ldx int) {
	q := t.m.codes
	t.sumRows = t.rows
	// An odd number of lines apart, no two rows of a tile meet in the same sets of the L1 cache.
	stride, count := (ceilDiv(int(q.rowBytes), cacheLine)|1)*cacheLine, t.rows
	if t.kernels.blocks {
		count = ceilDiv(t.rows, amx.CodeRows)
		t.sumRows, stride = count*amx.CodeRows, int(q.tileSize)
	}
	t.x, t.xStride, t.xSize = unsafe.Pointer(&alignedSlice(&s.bytes, count*stride)[0]),
		uintptr(stride), 1
	if q.offset > 0 {
		t.sums = unsafe.Pointer(&alignedSlice(&s.sums, q.sums*t.sumRows)[0])
	}
	if t.sumRows > t.rows {
		t.fillUp()
	}
	s.round = roundTask{t: t, x: x, ldx: ldx, perChunk: max(1, prepareAtLeast/t.m.k)}
	p.Run(&s.round, ceilDiv(t.rows, s.round.perChunk))
	s.round = roundTask{}
}

// fillUp makes zeros of what the last rows of a tile have that the product has not: sums of them
// are not kept, but those of denormals would be slow.
func (t *mulTask) fillUp() {
	q := t.m.codes
	for i := range q.runs {
		r := &q.runs[i]
		for span := range r.spans {
			_, at := t.spanOf(t.rows, r, span)
			clear(unsafe.Slice(at, t.sumRows-t.rows))
		}
	}
	for i := range q.sums * min(int(q.offset), 1) {
		clear(unsafe.Slice(t.sumOf(i, t.rows), t.sumRows-t.rows))
	}
}

// portableDots is a kernel in plain Go.
func portableDots(call *codeCall, rows int, form form) {
	w, scale, sums, x := call.w, call.scale, call.sums, call.x
	size := form.blockBytes(portableNR)
	for range call.runs {
		var part [portableRows][portableNR]float32
		by := (*[portableNR]int8)(unsafe.Add(w, -int(call.parts)))
		for range call.spans {
			for r := range rows {
				span := unsafe.Add(x, uintptr(r)*call.xStride)
				var sum [portableNR]int32
				for i := range sum {
					sum[i] = *(*int32)(span)
				}
				for b := range uintptr(call.blocks) {
					columns := (*[8]int8)(unsafe.Add(span, 4+8*b))
					if form == formTable {
						addLooked(&sum, unsafe.Add(w, b*size), columns,
							(*[16]uint8)(unsafe.Add(call.table, tableNumbers)))
						continue
					}
					addDots(&sum, unsafe.Add(w, b*size), columns, form)
				}
				factor := *(*float32)(unsafe.Add(span, 4+8*call.blocks))
				for i, v := range sum {
					if call.parts > 0 {
						v *= int32(by[i])
					}
					part[r][i] = fusedMultiplyAdd(float32(v), factor, part[r][i])
				}
			}
			w = unsafe.Add(w, uintptr(call.blocks)*size)
			x = unsafe.Add(x, dotHead+8*call.blocks)
			if call.parts > 0 {
				by = (*[portableNR]int8)(unsafe.Add(unsafe.Pointer(by), portableNR))
			}
		}
		s := factors(scale, call.flags&flagWideScale != 0)
		var o [portableNR]float32
		if call.offset > 0 {
			o = factors(unsafe.Add(scale, call.offset), call.flags&flagWideOffset != 0)
		}
		for r := range rows {
			c := (*[portableNR]float32)(unsafe.Add(call.c, uintptr(r)*call.cStride))
			for i := range c {
				c[i] = fusedMultiplyAdd(s[i], part[r][i], c[i])
				if call.offset > 0 {
					c[i] = fusedMultiplyAdd(o[i], sumOfX(call, sums, r, i, by), c[i])
				}
			}
		}
		w, scale = unsafe.Add(w, call.skip), unsafe.Add(scale, call.scaleStep)
		switch {
		case call.offset > 0 && call.parts > 0:
			sums = unsafe.Add(sums, uintptr(call.spans)*call.sumStep)
		case call.offset > 0:
			sums = unsafe.Add(sums, call.sumStep)
		}
	}
}

// sumOfX is what the offset of row i of a panel is multiplied by: the sum of row r of x over a run,
// or the sums over its spans, times an integer for each.
func sumOfX(call *codeCall, sums unsafe.Pointer, r, i int, by *[portableNR]int8) (sum float32) {
	if call.parts == 0 {
		return *(*float32)(unsafe.Add(sums, 4*r))
	}
	for span := range uintptr(call.spans) {
		factor := *(*int8)(unsafe.Add(unsafe.Pointer(by), span*portableNR+uintptr(i)))
		sum = fusedMultiplyAdd(float32(factor),
			*(*float32)(unsafe.Add(sums, span*call.sumStep+uintptr(4*r))), sum)
	}
	return sum
}

// addDots adds products of eight columns.
func addDots(sum *[portableNR]int32, block unsafe.Pointer, x *[8]int8, form form) {
	x0, x1, x2, x3 := int32(x[0]), int32(x[1]), int32(x[2]), int32(x[3])
	x4, x5, x6, x7 := int32(x[4]), int32(x[5]), int32(x[6]), int32(x[7])
	if form == formDots4 {
		for i, w := range (*[portableNR]uint32)(block) {
			sum[i] += int32(w&15)*x0 + int32(w>>8&15)*x1 + int32(w>>16&15)*x2 +
				int32(w>>24&15)*x3 + int32(w>>4&15)*x4 + int32(w>>12&15)*x5 +
				int32(w>>20&15)*x6 + int32(w>>28)*x7
		}
		return
	}
	low := (*[portableNR][4]int8)(block)
	high := (*[portableNR][4]int8)(unsafe.Add(block, 4*portableNR))
	for i := range low {
		v, u := &low[i], &high[i]
		sum[i] += int32(v[0])*x0 + int32(v[1])*x1 + int32(v[2])*x2 + int32(v[3])*x3 +
			int32(u[0])*x4 + int32(u[1])*x5 + int32(u[2])*x6 + int32(u[3])*x7
	}
}

// addLooked adds products of eight columns with what codes of four bits are looked up as.
func addLooked(sum *[portableNR]int32, block unsafe.Pointer, x *[8]int8, table *[16]uint8) {
	for i, w := range (*[portableNR]uint32)(block) {
		for k := range 4 {
			b := w >> (8 * k)
			sum[i] += int32(table[b&15])*int32(x[k]) + int32(table[b>>4&15])*int32(x[k+4])
		}
	}
}

// fusedMultiplyAdd is x·y + z, rounded once. The product is exact in float64; of a sum that is not,
// the last bit is made odd by what is lost ("Emulation of a FMA and correctly rounded sums: proved
// algorithms using rounding to odd", Boldo and Melquiond), so that rounding it again is right.
func fusedMultiplyAdd(x, y, z float32) float32 {
	p, a := float64(x)*float64(y), float64(z)
	s := p + a
	b := s - p
	e := (p - (s - b)) + (a - b)
	if e != 0 && s-s == 0 {
		if u := math.Float64bits(s); u&1 == 0 {
			if (e > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}
