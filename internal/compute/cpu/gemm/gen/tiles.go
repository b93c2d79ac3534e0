package main

import (
	"bytes"
	"fmt"
	"strings"
)

const tilesName = "amxTiles"

// tiles writes the kernel of AMX: up to 32 rows of x by one panel, as four tiles of sums (0 and 1
// of the upper 16 rows, 2 and 3 of the lower), two of x (4, 5) and two of weights (6, 7). The
// number of rows comes in the flags. Tiles are as high, and a block as deep, as there are rows and
// pairs of steps left: nothing is padded. Go's assembler does not know the instructions (Intel SDM
// vol. 2, chapter 3), so they are bytes.
//
//	SI, R8, DX    upper and lower rows of x, and bytes from a row to the next
//	DI, R9        weights; bytes of a pair
//	BX, R10, CX   upper and lower rows of sums, and bytes from a row to the next
//	R11           blocks left
//	R12, R13      rows of the upper tiles, and of the lower: none where there are 16 or fewer
//	AX            configuration, on the stack
func tiles() []byte {
	w := &tileWriter{}
	w.text(`%s#include "textflag.h"

// func %s(w unsafe.Pointer, wStride uintptr, x unsafe.Pointer, xStride uintptr, `+
		`pairs, flags int, c unsafe.Pointer, cStride uintptr, soon unsafe.Pointer, soonStep uintptr)
TEXT ·%s(SB), NOSPLIT, $64-80
	MOVQ x+16(FP), SI
	MOVQ xStride+24(FP), DX
	MOVQ w+0(FP), DI
	MOVQ $128, R9
	MOVQ c+48(FP), BX
	MOVQ cStride+56(FP), CX
	MOVQ DX, R8
	SHLQ $4, R8
	ADDQ SI, R8
	MOVQ CX, R10
	SHLQ $4, R10
	ADDQ BX, R10
	MOVQ flags+40(FP), R12
	SHRQ $8, R12
	XORQ R13, R13
	CMPQ R12, $16
	JLE configure
	LEAQ -16(R12), R13
	MOVQ $16, R12
configure:
	LEAQ 0(SP), AX
	XORQ R11, R11
	MOVQ $1, 0(AX)
	MOVQ R11, 8(AX)
	MOVQ R11, 32(AX)
	MOVQ R11, 40(AX)
	MOVQ R11, 56(AX)
	MOVQ pairs+32(FP), R11
	SHRQ $4, R11
	JNZ blocks
	TESTQ $15, pairs+32(FP)
	JNZ rest
blocks:
`, header, tilesName, tilesName)
	w.phase("blocks", "MOVQ $16, R14")
	w.text(`	TESTQ $15, pairs+32(FP)
	JZ done
	MOVQ $1, flags+40(FP)
rest:
	MOVQ $1, R11
`)
	w.phase("rest", "MOVQ pairs+32(FP), R14", "ANDQ $15, R14")
	w.text("done:\n")
	w.instruction("tilerelease", 0x78, 0x49, 0xc0)
	w.text("\tRET\n")
	return w.Bytes()
}

type tileWriter struct{ bytes.Buffer }

func (w *tileWriter) text(format string, args ...any) { fmt.Fprintf(w, format, args...) }

// encode writes an instruction of map 0F38 with the three-byte VEX prefix. high is 1 where its base
// is one of R8 to R15, 2 where its index is, else 0.
func (w *tileWriter) encode(name string, high int, code ...int) {
	second := [...]int{0xe2, 0xc2, 0xa2}[high]
	list := []string{"BYTE $0xc4", fmt.Sprintf("BYTE $%#02x", second)}
	for _, c := range code {
		list = append(list, fmt.Sprintf("BYTE $%#02x", c))
	}
	w.text("\t%s // %s\n", strings.Join(list, "; "), name)
}

func (w *tileWriter) instruction(name string, code ...int) { w.encode(name, 0, code...) }

// place is an address with a stride: base and index, as numbers, and an offset.
type place struct {
	name        string
	base, index int
	offset      int
}

var (
	upperSums = place{"[rbx+rcx]", 3, 1, 0}
	lowerSums = place{"[r10+rcx]", 10, 1, 0}
	upperX    = place{"[rsi+rdx]", 6, 2, 0}
	lowerX    = place{"[r8+rdx]", 8, 2, 0}
	weights   = place{"[rdi+r9]", 7, 9, 0}
)

// right is the place 64 bytes on: the right one of two tiles.
func (p place) right() place {
	p.name, p.offset = strings.Replace(p.name, "]", "+64]", 1), 64
	return p
}

// move loads or stores a tile.
func (w *tileWriter) move(name string, prefix, tile int, p place) {
	modRM := tile<<3 | 0b100
	code := []int{prefix, 0x4b, modRM, p.index&7<<3 | p.base&7}
	if p.offset != 0 {
		code[2] |= 0b01 << 6
		code = append(code, p.offset)
	}
	high := 0
	switch {
	case p.base > 7:
		high = 1
	case p.index > 7:
		high = 2
	}
	w.encode(fmt.Sprintf("%s tmm%d, %s", name, tile, p.name), high, code...)
}

func (w *tileWriter) load(tile int, p place)  { w.move("tileloadd", 0x7b, tile, p) }
func (w *tileWriter) store(tile int, p place) { w.move("tilestored", 0x7a, tile, p) }

func (w *tileWriter) configure() { w.instruction("ldtilecfg [rax]", 0x78, 0x49, 0x00) }

func (w *tileWriter) zero(tile int) {
	w.instruction(fmt.Sprintf("tilezero tmm%d", tile), 0x7b, 0x49, 0xc0|tile<<3)
}

// dot adds the products of tiles a and b to the sums.
func (w *tileWriter) dot(sums, a, b int) {
	w.instruction(fmt.Sprintf("tdpbf16ps tmm%d, tmm%d, tmm%d", sums, a, b), ^b&0xf<<3|0b010, 0x5c,
		0xc0|sums<<3|a)
}

// phase computes R11 blocks that are as deep as the instructions say in R14.
func (w *tileWriter) phase(name string, depth ...string) {
	for _, d := range depth {
		w.text("\t%s\n", d)
	}
	// Bytes of a row of each tile are 16-bit words from 16 on, its rows bytes from 48 on.
	w.text(`	MOVL $0x00400040, 16(AX)
	MOVL $0, 20(AX)
	SHLQ $2, R14
	MOVL R14, 24(AX)
	MOVL $0x00400040, 28(AX)
	SHRQ $2, R14
	MOVB R12, 48(AX)
	MOVB R12, 49(AX)
	MOVB R13, 50(AX)
	MOVB R13, 51(AX)
	MOVB R12, 52(AX)
	MOVB R13, 53(AX)
	MOVB R14, 54(AX)
	MOVB R14, 55(AX)
	TESTQ R13, R13
	JZ %[1]sUpper
	MOVL $0x00400040, 20(AX)
	MOVW 24(AX), R14
	MOVW R14, 26(AX)
`, name)
	w.half(name, true)
	w.text("\tJMP %sEnd\n%sUpper:\n", name, name)
	w.half(name+"Upper", false)
	w.text("%sEnd:\n", name)
}

// half computes the blocks with the lower tiles or without.
func (w *tileWriter) half(name string, lower bool) {
	w.configure()
	sums := []place{upperSums, upperSums.right(), lowerSums, lowerSums.right()}
	if !lower {
		sums = sums[:2]
	}
	w.text("\tTESTQ $1, flags+40(FP)\n\tJZ %sZero\n", name)
	for i, p := range sums {
		w.load(i, p)
	}
	w.text("\tJMP %sBegin\n%sZero:\n", name, name)
	for i := range sums {
		w.zero(i)
	}
	w.text("%[1]sBegin:\n\tTESTQ R11, R11\n\tJZ %[1]sStore\n\tPCALIGN $32\n%[1]sLoop:\n", name)
	w.load(6, weights)
	w.load(4, upperX)
	w.dot(0, 4, 6)
	w.load(7, weights.right())
	w.dot(1, 4, 7)
	if lower {
		w.load(5, lowerX)
		w.dot(2, 5, 6)
		w.dot(3, 5, 7)
		w.text("\tADDQ $64, R8\n")
	}
	w.text("\tADDQ $64, SI\n\tADDQ $2048, DI\n\tDECQ R11\n\tJNZ %[1]sLoop\n%[1]sStore:\n", name)
	for i, p := range sums {
		w.store(i, p)
	}
}
