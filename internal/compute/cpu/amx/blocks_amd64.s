#include "textflag.h"

// func roundBlocks(dst *uint16, src *float32, blocks int, scale float32, ahead int)
TEXT ·roundBlocks(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX
	VBROADCASTSS scale+24(FP), Z2
	MOVQ ahead+32(FP), BX
blocks:
	PREFETCHT0 (SI)(BX*1)
	PREFETCHT0 64(SI)(BX*1)
	VMULPS (SI), Z2, Z0
	VMULPS 64(SI), Z2, Z1
	// VCVTNE2PS2BF16 Z0, Z1, Z0
	BYTE $0x62; BYTE $0xf2; BYTE $0x77; BYTE $0x48; BYTE $0x72; BYTE $0xc0
	VMOVDQU64 Z0, (DI)
	ADDQ $128, SI
	ADDQ $2048, DI
	DECQ CX
	JNZ  blocks
	VZEROUPPER
	RET

// Where the numbers of a pair of rows come from: a row has number j at 2j, and number j+8 behind
// it.
DATA woven<>+0(SB)/8, $0x0012000200100000
DATA woven<>+8(SB)/8, $0x0016000600140004
DATA woven<>+16(SB)/8, $0x001a000a00180008
DATA woven<>+24(SB)/8, $0x001e000e001c000c
DATA woven<>+32(SB)/8, $0x0013000300110001
DATA woven<>+40(SB)/8, $0x0017000700150005
DATA woven<>+48(SB)/8, $0x001b000b00190009
DATA woven<>+56(SB)/8, $0x001f000f001d000d
GLOBL woven<>(SB), RODATA|NOPTR, $64

// func Pair(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)
TEXT ·Pair(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ step+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ pairs+24(FP), CX
	MOVQ ahead+32(FP), BX
	VMOVDQU64 woven<>(SB), Z1
pair:
	PREFETCHT0 (SI)(BX*1)
	VPERMW    (SI), Z1, Z0
	VMOVDQU64 Z0, (DI)
	ADDQ $64, SI
	ADDQ DX, DI
	DECQ CX
	JNZ  pair
	VZEROUPPER
	RET

// func Unpack(dst, src unsafe.Pointer, runs, blocks int, skip uintptr, values *[16]int8)
TEXT ·Unpack(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ runs+16(FP), DX
	MOVQ skip+32(FP), R8
	MOVQ values+40(FP), AX
	VBROADCASTI32X4 (AX), Z16
	MOVL $0x0f0f0f0f, AX
	VMOVD AX, X0
	VPBROADCASTD X0, Z17
run:
	MOVQ blocks+24(FP), CX
block:
	PREFETCHT0 4096(SI)
	PREFETCHT0 4160(SI)
	VMOVUPS (SI), Z18
	VMOVUPS 64(SI), Z19
	VPSRLW $4, Z18, Z20
	VPSRLW $4, Z19, Z21
	VPANDD Z17, Z18, Z18
	VPANDD Z17, Z19, Z19
	VPANDD Z17, Z20, Z20
	VPANDD Z17, Z21, Z21
	VPSHUFB Z18, Z16, Z18
	VPSHUFB Z19, Z16, Z19
	VPSHUFB Z20, Z16, Z20
	VPSHUFB Z21, Z16, Z21
	VMOVUPS Z18, (DI)
	VMOVUPS Z19, 64(DI)
	VMOVUPS Z20, 128(DI)
	VMOVUPS Z21, 192(DI)
	ADDQ $128, SI
	ADDQ $256, DI
	DECQ CX
	JNZ  block
	ADDQ R8, SI
	DECQ DX
	JNZ  run
	VZEROUPPER
	RET
