#include "textflag.h"

#define CONST8(name, bits) \
	DATA name<>+0(SB)/8, $bits; \
	DATA name<>+8(SB)/8, $bits; \
	DATA name<>+16(SB)/8, $bits; \
	DATA name<>+24(SB)/8, $bits; \
	GLOBL name<>(SB), RODATA|NOPTR, $32

// The constants of sumPortable in survey.go.
CONST8(least, 0xc2c80000c2c80000)
CONST8(whole, 0x4b4000004b400000)
CONST8(pow0, 0x3f8000003f800000)
CONST8(pow1, 0x3f3172153f317215)
CONST8(pow2, 0x3e75fcde3e75fcde)
CONST8(pow3, 0x3d635ba93d635ba9)
CONST8(pow4, 0x3c1e75443c1e7544)
CONST8(pow5, 0x3aaddd073aaddd07)
CONST8(negInf, 0xff800000ff800000)

// func maxesAVX2(maxes, x *float32, blocks int)
//
// VMAXPS gives its first operand here unless the second is greater: a NaN in the data is passed
// over.
TEXT ·maxesAVX2(SB), NOSPLIT, $0-24
	MOVQ maxes+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ blocks+16(FP), DX
	VMOVUPS negInf<>(SB), Y15

block:
	VMOVAPS Y15, Y0
	VMOVAPS Y15, Y1
	VMOVAPS Y15, Y2
	VMOVAPS Y15, Y3
	MOVQ    $16, CX

step:
	VMOVUPS (SI), Y4
	VMOVUPS 32(SI), Y5
	VMOVUPS 64(SI), Y6
	VMOVUPS 96(SI), Y7
	VMAXPS  Y0, Y4, Y0
	VMAXPS  Y1, Y5, Y1
	VMAXPS  Y2, Y6, Y2
	VMAXPS  Y3, Y7, Y3
	ADDQ    $128, SI
	DECQ    CX
	JNE     step
	VMAXPS  Y0, Y1, Y0
	VMAXPS  Y2, Y3, Y2
	VMAXPS  Y0, Y2, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS  X0, X1, X0
	VPERMILPS $0xEE, X0, X1
	VMAXPS  X0, X1, X0
	VPERMILPS $0x55, X0, X1
	VMAXSS  X0, X1, X0
	VMOVSS  X0, (DI)
	ADDQ    $4, DI
	DECQ    DX
	JNE     block
	VZEROUPPER
	RET

// Eight weights at (SI) and eight at 32(SI), added to Y0 and Y1; the base is in Y14, k in Y15,
// whole and least in Y12 and Y13.
#define SUM16 \
	VMOVUPS (SI), Y2; \
	VMOVUPS 32(SI), Y7; \
	VSUBPS Y14, Y2, Y2; \
	VSUBPS Y14, Y7, Y7; \
	VMULPS Y15, Y2, Y2; \
	VMULPS Y15, Y7, Y7; \
	VMAXPS Y13, Y2, Y2; \
	VMAXPS Y13, Y7, Y7; \
	VADDPS Y12, Y2, Y3; \
	VADDPS Y12, Y7, Y8; \
	VSUBPS Y12, Y3, Y4; \
	VSUBPS Y12, Y8, Y9; \
	VSUBPS Y4, Y2, Y2; \
	VSUBPS Y9, Y7, Y7; \
	VMULPS pow5<>(SB), Y2, Y4; \
	VMULPS pow5<>(SB), Y7, Y9; \
	VMULPS pow3<>(SB), Y2, Y5; \
	VMULPS pow3<>(SB), Y7, Y10; \
	VMULPS pow1<>(SB), Y2, Y6; \
	VMULPS pow1<>(SB), Y7, Y11; \
	VMULPS Y2, Y2, Y2; \
	VMULPS Y7, Y7, Y7; \
	VADDPS pow4<>(SB), Y4, Y4; \
	VADDPS pow4<>(SB), Y9, Y9; \
	VADDPS pow2<>(SB), Y5, Y5; \
	VADDPS pow2<>(SB), Y10, Y10; \
	VADDPS pow0<>(SB), Y6, Y6; \
	VADDPS pow0<>(SB), Y11, Y11; \
	VMULPS Y2, Y4, Y4; \
	VMULPS Y7, Y9, Y9; \
	VADDPS Y5, Y4, Y4; \
	VADDPS Y10, Y9, Y9; \
	VMULPS Y2, Y4, Y4; \
	VMULPS Y7, Y9, Y9; \
	VPSLLD $23, Y3, Y3; \
	VPSLLD $23, Y8, Y8; \
	VADDPS Y6, Y4, Y4; \
	VADDPS Y11, Y9, Y9; \
	VPADDD Y3, Y4, Y4; \
	VPADDD Y8, Y9, Y9; \
	VADDPS Y4, Y0, Y0; \
	VADDPS Y9, Y1, Y1

// func sumsAVX2(sums, x *float32, blocks int, base, k float32)
TEXT ·sumsAVX2(SB), NOSPLIT, $0-32
	MOVQ sums+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ blocks+16(FP), DX
	VBROADCASTSS base+24(FP), Y14
	VBROADCASTSS k+28(FP), Y15
	VMOVUPS whole<>(SB), Y12
	VMOVUPS least<>(SB), Y13

block:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	MOVQ   $32, CX

step:
	SUM16
	ADDQ   $64, SI
	DECQ   CX
	JNE    step
	VADDPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VPERMILPS $0xEE, X0, X1
	VADDPS X1, X0, X0
	VPERMILPS $0x55, X0, X1
	VADDSS X1, X0, X0
	VMOVSS X0, (DI)
	ADDQ   $4, DI
	DECQ   DX
	JNE    block
	VZEROUPPER
	RET

// func countAVX2(x *float32, blocks int, value float32) int
TEXT ·countAVX2(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ blocks+8(FP), DX
	VBROADCASTSS value+16(FP), Y15
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	SHLQ $5, DX

step:
	VMOVUPS (SI), Y2
	VMOVUPS 32(SI), Y3
	VCMPPS  $29, Y15, Y2, Y2
	VCMPPS  $29, Y15, Y3, Y3
	VPSUBD  Y2, Y0, Y0
	VPSUBD  Y3, Y1, Y1
	ADDQ    $64, SI
	DECQ    DX
	JNE     step
	VPADDD  Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDD  X1, X0, X0
	VPSHUFD $0xEE, X0, X1
	VPADDD  X1, X0, X0
	VPSHUFD $0x55, X0, X1
	VPADDD  X1, X0, X0
	VMOVD   X0, AX
	MOVQ    AX, ret+24(FP)
	VZEROUPPER
	RET

#define ABOVE8(off, shift) \
	VMOVUPS off(SI), Y0; \
	VCMPPS $30, Y15, Y0, Y0; \
	VMOVMSKPS Y0, BX; \
	SHLQ $shift, BX; \
	ORQ BX, AX

// func aboveAVX2(words *uint64, x *float32, low float32)
TEXT ·aboveAVX2(SB), NOSPLIT, $0-20
	MOVQ words+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS low+16(FP), Y15
	MOVQ $8, CX

word:
	XORQ AX, AX
	ABOVE8(0, 0)
	ABOVE8(32, 8)
	ABOVE8(64, 16)
	ABOVE8(96, 24)
	ABOVE8(128, 32)
	ABOVE8(160, 40)
	ABOVE8(192, 48)
	ABOVE8(224, 56)
	MOVQ AX, (DI)
	ADDQ $8, DI
	ADDQ $256, SI
	DECQ CX
	JNE  word
	VZEROUPPER
	RET
