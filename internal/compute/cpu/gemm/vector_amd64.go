package gemm

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

//go:generate go run ./gen

// amxTILES has amx.Multiply, whose panels are those of AVX-512.
var amxTILES = kernelSet{nr: 32, rows: amx.Block, vector: true, blocks: true}

// vectorKernels returns the assembler kernels for the options, or nil for the portable set.
func vectorKernels(o Options) *kernelSet {
	switch {
	case o.ISA == isa.Portable:
		return nil
	case o.Rounded && o.ISA == isa.AVX512BF16:
		return &avx512DOT
	case o.Rounded:
		return &amxBLOCK
	case o.ISA == isa.AVX2:
		return [...]*kernelSet{&avx2BF16, &avx2F16, &avx2F32}[o.Kind]
	}
	return [...]*kernelSet{&avx512BF16, &avx512F16, &avx512F32}[o.Kind]
}

// halfRow rounds src to bf16 in dst, which is at least as long. It is called only where there is
// AVX2.
func halfRow(dst []uint16, src []float32) {
	n := len(src) &^ 15
	if n > 0 {
		roundAVX2(&dst[:n][0], &src[0], n)
	}
	for i, v := range src[n:] {
		dst[n+i] = half.ToBF16(v)
	}
}

// roundRow rounds src to bf16 in dst, which is at least as long, as fp32: as amx.Round does. It is
// called only where there is AVX2.
func roundRow(dst, src []float32) {
	n := len(src) &^ 7
	if n > 0 {
		roundFloatsAVX2(&dst[:n][0], &src[0], n)
	}
	for i, v := range src[n:] {
		dst[n+i] = BF16.round(amx.Flushed(v))
	}
}

// roundAVX2 rounds n elements, a positive multiple of 16, as half.ToBF16 does.
//
//go:noescape
func roundAVX2(dst *uint16, src *float32, n int)

// roundFloatsAVX2 rounds n elements, a positive multiple of 8, as half.ToBF16 does, but for
// denormals, which become zero.
//
//go:noescape
func roundFloatsAVX2(dst, src *float32, n int)

// vectorCodes picks the assembler kernels for codes; small says that bfloat16 has all numbers. It
// returns nil for the portable ones.
func (c *codes) vectorCodes(set isa.ISA, small bool) *kernelSet {
	if set == isa.Portable {
		return nil
	}
	nr := 16
	if set == isa.AVX2 {
		c.floats = &avx2CodesFloat
		c.tiles = map[compute.CodeType]*codeKernels{compute.Code8: &avx2CodesI8,
			compute.CodeE4M3: &avx2CodesE4m3}[c.kind]
		switch {
		case c.kind != compute.Code4:
		case small:
			c.form, c.tiles = formPairs, &avx2CodesHalf
		default:
			c.form, c.tiles = formQuads, &avx2CodesFull
		}
	} else {
		nr = 32
		c.floats = &avx512CodesFloat
		c.tiles = [...]*codeKernels{compute.Code4: &avx512CodesFull, compute.Code8: &avx512CodesI8,
			compute.CodeE4M3: &avx512CodesE4m3}[c.kind]
	}
	return &kernelSet{nr: nr, rows: c.tiles.rows, vector: true, codes: c.tiles}
}

// vectorDots picks the assembler kernels for products of integers, or nil for the portable ones.
// Levels above AVX2 have some of their own where the CPU has VPDPBUSD.
func (c *codes) vectorDots(set isa.ISA) *kernelSet {
	if set == isa.Portable {
		return nil
	}
	nr := 16
	switch wide := set >= isa.AVX512 && isa.VNNI(); {
	case wide && c.super > 0 && c.form == formDots4:
		nr, c.tiles = 32, &avx512CodesSuper4
	case wide && c.super > 0:
		nr, c.form, c.tiles, c.wide = 32, formDots6, &avx512CodesSuper6, &avx512CodesSuper8
		c.zero = c.least
	case c.super > 0 && c.form == formDots4:
		c.tiles, c.split = &avx2CodesSuper4, true
	case c.super > 0:
		c.form = formDots6
		c.tiles, c.split, c.zero = &avx2CodesSuper6, true, c.least
	case wide && c.form == formDots4:
		nr, c.tiles = 32, &avx512CodesDots4
	case wide && c.form == formTable:
		nr, c.tiles = 32, &avx512CodesTable
	case wide:
		nr, c.tiles, c.zero = 32, &avx512CodesDots8, byteZero
	case c.form == formDots4:
		c.tiles, c.split = &avx2CodesDots4, true
	case c.form == formTable && c.small:
		c.tiles, c.split = &avx2CodesTable, true
	case c.form == formTable: // signed, as the bytes of formDots8
		c.tiles, c.zero = &avx2CodesSigned, 0
	default:
		c.tiles = &avx2CodesDots8
	}
	k := &kernelSet{nr: nr, rows: c.tiles.rows, vector: true, codes: c.tiles}
	if set == isa.AMX && nr == 32 {
		k.many = &amxTILES
		if c.form != formDots8 || c.super > 0 {
			k.from = dearFrom
		}
	}
	return k
}

// dearFrom is how many rows are worth tiles of codes that are looked up for them, or whose spans
// have integers of their own.
const dearFrom = 32

// roundSpan is portableRound, by AVX2 where the kernels are.
func roundSpan(to, x unsafe.Pointer, blocks int, vector bool) (scale float32, even, odd int32) {
	if !vector {
		return portableRound(to, x, blocks)
	}
	return roundSpanAVX2(to, x, blocks)
}

//go:noescape
func roundSpanAVX2(to, x unsafe.Pointer, blocks int) (scale float32, even, odd int32)

// roundSpans is roundSpan of spans of size columns each, a multiple of wideSpan, one behind the
// other in x, by AVX-512. What they have lies step bytes apart.
func roundSpans(to, scale unsafe.Pointer, step int, x []float32, size int, sums []spanSums) {
	roundSpans512(to, step, &x[0], len(sums), size/wideSpan, scale, &sums[0])
}

//go:noescape
func roundSpans512(to unsafe.Pointer, step int, x *float32, spans, vectors int,
	scale unsafe.Pointer, sums *spanSums)
