package amx

import "unsafe"

//go:generate go run ./gen

// Multiply writes to c, or adds to it where add is not 0, the products of rows of x with panels
// over some pairs of steps of K. Strides are in bytes: from a panel to the next, from Block rows of
// x to the next, from a row of c to the next. The products with a panel are of the same rows, and
// lie beside those with the one before, 4·Block bytes on: xStep is 0, and cStep that. Panels may
// also be whole blocks of steps of one, one after the other, which have their sums apart: xStep is
// what x has of them. It is one uninterruptible call, and touches of x and c no rows but these. The
// panel behind the last one is fetched meanwhile, if there is memory.
//
//go:noescape
func Multiply(w unsafe.Pointer, wStride, panels int, x unsafe.Pointer, xStride, pairs, rows int,
	c unsafe.Pointer, cStride, add, xStep, cStep int)

// Pair weaves rows of 16 numbers in pairs, which a panel has side by side: src is [2*pairs][16], a
// row's numbers j and j+8 side by side; a pair's are step bytes behind those of the one before.
// What lies ahead bytes from src on is fetched meanwhile.
//
//go:noescape
func Pair(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)

// PairInt8 is Pair of rows of 16 integers of 8 bits, in their order; pairs is even.
//
//go:noescape
func PairInt8(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)

// PairE4M3 is PairInt8 of numbers of 4 bits of exponent and 3 of mantissa, times 2^-8.
//
//go:noescape
func PairE4M3(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)

// maxBlocks is the greatest number of some blocks of x, NaN aside.
//
//go:noescape
func maxBlocks(x *float32, blocks int) float32

// weighBlocks writes Block weights times as many scales for each of some blocks, and returns the
// sum of the weights. The scales of a block are step bytes behind those of the one before.
//
//go:noescape
func weighBlocks(dst *uint16, x *float32, blocks int, top float32, scales *float32,
	step int) float32

// roundBlocks rounds Block numbers times scale for each of some blocks by VCVTNE2PS2BF16. What lies
// ahead bytes from src on is fetched meanwhile.
//
//go:noescape
func roundBlocks(dst *uint16, src *float32, blocks int, scale float32, ahead int)

//go:noescape
func multiplySpans(call *CodeCall)

//go:noescape
func multiplyRuns(call *CodeCall)

// Unpack writes to dst, as MultiplyCodes takes them, what runs of some blocks of 8 steps of codes
// of 4 bits are looked up as in values. A block is [32][4] of bytes, the codes of steps 4 to 7 in
// the upper halves, and skip bytes are between two runs.
//
//go:noescape
func Unpack(dst, src unsafe.Pointer, runs, blocks int, skip uintptr, values *[16]int8)

//go:noescape
func multiplySuper(call *CodeCall)
