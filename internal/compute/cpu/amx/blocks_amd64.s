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

// Where the codes of two pairs of rows come from: four columns of the one, then of the other, so
// that bytes which are interleaved with others in each lane of 128 bits are in the order of pairs.
DATA wovenCodes<>+0(SB)/8, $0x1303120211011000
DATA wovenCodes<>+8(SB)/8, $0x3323322231213020
DATA wovenCodes<>+16(SB)/8, $0x1707160615051404
DATA wovenCodes<>+24(SB)/8, $0x3727362635253424
DATA wovenCodes<>+32(SB)/8, $0x1b0b1a0a19091808
DATA wovenCodes<>+40(SB)/8, $0x3b2b3a2a39293828
DATA wovenCodes<>+48(SB)/8, $0x1f0f1e0e1d0d1c0c
DATA wovenCodes<>+56(SB)/8, $0x3f2f3e2e3d2d3c2c
GLOBL wovenCodes<>(SB), RODATA|NOPTR, $64

// The lower and the upper bytes of bfloat16 numbers: of integers from 0 to 127, and of codes of 4
// bits of exponent and 3 of mantissa without their signs, times 2^-8.
DATA int8Low<>+0(SB)/8, $0xe0c0a08040008000
DATA int8Low<>+8(SB)/8, $0x7060504030201000
DATA int8Low<>+16(SB)/8, $0xb8b0a8a098908880
DATA int8Low<>+24(SB)/8, $0xf8f0e8e0d8d0c8c0
DATA int8Low<>+32(SB)/8, $0x1c1814100c080400
DATA int8Low<>+40(SB)/8, $0x3c3834302c282420
DATA int8Low<>+48(SB)/8, $0x5c5854504c484440
DATA int8Low<>+56(SB)/8, $0x7c7874706c686460
DATA int8Low<>+64(SB)/8, $0x8e8c8a8886848280
DATA int8Low<>+72(SB)/8, $0x9e9c9a9896949290
DATA int8Low<>+80(SB)/8, $0xaeacaaa8a6a4a2a0
DATA int8Low<>+88(SB)/8, $0xbebcbab8b6b4b2b0
DATA int8Low<>+96(SB)/8, $0xcecccac8c6c4c2c0
DATA int8Low<>+104(SB)/8, $0xdedcdad8d6d4d2d0
DATA int8Low<>+112(SB)/8, $0xeeeceae8e6e4e2e0
DATA int8Low<>+120(SB)/8, $0xfefcfaf8f6f4f2f0
GLOBL int8Low<>(SB), RODATA|NOPTR, $128
DATA int8High<>+0(SB)/8, $0x4040404040403f00
DATA int8High<>+8(SB)/8, $0x4141414141414141
DATA int8High<>+16(SB)/8, $0x4141414141414141
DATA int8High<>+24(SB)/8, $0x4141414141414141
DATA int8High<>+32(SB)/8, $0x4242424242424242
DATA int8High<>+40(SB)/8, $0x4242424242424242
DATA int8High<>+48(SB)/8, $0x4242424242424242
DATA int8High<>+56(SB)/8, $0x4242424242424242
DATA int8High<>+64(SB)/8, $0x4242424242424242
DATA int8High<>+72(SB)/8, $0x4242424242424242
DATA int8High<>+80(SB)/8, $0x4242424242424242
DATA int8High<>+88(SB)/8, $0x4242424242424242
DATA int8High<>+96(SB)/8, $0x4242424242424242
DATA int8High<>+104(SB)/8, $0x4242424242424242
DATA int8High<>+112(SB)/8, $0x4242424242424242
DATA int8High<>+120(SB)/8, $0x4242424242424242
GLOBL int8High<>(SB), RODATA|NOPTR, $128
DATA e4m3Low<>+0(SB)/8, $0x60402000c0800000
DATA e4m3Low<>+8(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+16(SB)/8, $0x7060504030201000
DATA e4m3Low<>+24(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+32(SB)/8, $0x7060504030201000
DATA e4m3Low<>+40(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+48(SB)/8, $0x7060504030201000
DATA e4m3Low<>+56(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+64(SB)/8, $0x7060504030201000
DATA e4m3Low<>+72(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+80(SB)/8, $0x7060504030201000
DATA e4m3Low<>+88(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+96(SB)/8, $0x7060504030201000
DATA e4m3Low<>+104(SB)/8, $0xf0e0d0c0b0a09080
DATA e4m3Low<>+112(SB)/8, $0x7060504030201000
DATA e4m3Low<>+120(SB)/8, $0xf0e0d0c0b0a09080
GLOBL e4m3Low<>(SB), RODATA|NOPTR, $128
DATA e4m3High<>+0(SB)/8, $0x3838383837373700
DATA e4m3High<>+8(SB)/8, $0x3838383838383838
DATA e4m3High<>+16(SB)/8, $0x3939393939393939
DATA e4m3High<>+24(SB)/8, $0x3939393939393939
DATA e4m3High<>+32(SB)/8, $0x3a3a3a3a3a3a3a3a
DATA e4m3High<>+40(SB)/8, $0x3a3a3a3a3a3a3a3a
DATA e4m3High<>+48(SB)/8, $0x3b3b3b3b3b3b3b3b
DATA e4m3High<>+56(SB)/8, $0x3b3b3b3b3b3b3b3b
DATA e4m3High<>+64(SB)/8, $0x3c3c3c3c3c3c3c3c
DATA e4m3High<>+72(SB)/8, $0x3c3c3c3c3c3c3c3c
DATA e4m3High<>+80(SB)/8, $0x3d3d3d3d3d3d3d3d
DATA e4m3High<>+88(SB)/8, $0x3d3d3d3d3d3d3d3d
DATA e4m3High<>+96(SB)/8, $0x3e3e3e3e3e3e3e3e
DATA e4m3High<>+104(SB)/8, $0x3e3e3e3e3e3e3e3e
DATA e4m3High<>+112(SB)/8, $0x3f3f3f3f3f3f3f3f
DATA e4m3High<>+120(SB)/8, $0x3f3f3f3f3f3f3f3f
GLOBL e4m3High<>(SB), RODATA|NOPTR, $128

// PAIRCODES weaves two pairs of rows of codes at a time. SIZE makes Z1 such that the lower seven
// bits of its bytes are places in the tables, in Z4 and Z5, and Z6 and Z7. Signs are the codes'.
#define PAIRCODES(SIZE, low, high) \
	MOVQ dst+0(FP), DI; \
	MOVQ step+8(FP), DX; \
	MOVQ src+16(FP), SI; \
	MOVQ pairs+24(FP), CX; \
	MOVQ ahead+32(FP), BX; \
	VMOVDQU64 wovenCodes<>(SB), Z3; \
	VMOVDQU64 low<>(SB), Z4; \
	VMOVDQU64 low<>+64(SB), Z5; \
	VMOVDQU64 high<>(SB), Z6; \
	VMOVDQU64 high<>+64(SB), Z7; \
	MOVL $0x80808080, AX; \
	VPBROADCASTD AX, Z8; \
pair: \
	PREFETCHT0 (SI)(BX*1); \
	VPERMB (SI), Z3, Z0; \
	SIZE; \
	VMOVDQA64 Z1, Z2; \
	VPERMI2B Z5, Z4, Z1; \
	VPERMI2B Z7, Z6, Z2; \
	VPTERNLOGD $0xf8, Z8, Z0, Z2; \
	VPUNPCKLBW Z2, Z1, Z0; \
	VPUNPCKHBW Z2, Z1, Z1; \
	VMOVDQU64 Z0, (DI); \
	VMOVDQU64 Z1, (DI)(DX*1); \
	ADDQ $64, SI; \
	LEAQ (DI)(DX*2), DI; \
	SUBQ $2, CX; \
	JNZ  pair; \
	VZEROUPPER; \
	RET

#define MAGNITUDE VPABSB Z0, Z1
#define SAME VMOVDQA64 Z0, Z1

// func PairInt8(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)
TEXT ·PairInt8(SB), NOSPLIT, $0-40
	PAIRCODES(MAGNITUDE, int8Low, int8High)

// func PairE4M3(dst unsafe.Pointer, step int, src unsafe.Pointer, pairs, ahead int)
TEXT ·PairE4M3(SB), NOSPLIT, $0-40
	PAIRCODES(SAME, e4m3Low, e4m3High)
