#include "textflag.h"

// func maxBlocks(x *float32, blocks int) float32
TEXT ·maxBlocks(SB), NOSPLIT, $64-20
	MOVQ x+0(FP), SI
	MOVQ blocks+8(FP), CX
	MOVL $0xff800000, AX // minus infinity
	MOVQ AX, X0
	VBROADCASTSS X0, Z0
	VMOVAPS Z0, Z1
blocks:
	// The first operand here unless the second is greater: a NaN is passed over.
	VMOVUPS (SI), Z2
	VMOVUPS 64(SI), Z3
	VMAXPS Z0, Z2, Z0
	VMAXPS Z1, Z3, Z1
	ADDQ $128, SI
	DECQ CX
	JNZ  blocks
	VMAXPS Z0, Z1, Z0
	VMOVUPS Z0, 0(SP)
	VMOVUPS 32(SP), Y1
	VMAXPS Y0, Y1, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X0, X1, X0
	VPERMILPS $0xee, X0, X1
	VMAXPS X0, X1, X0
	VPERMILPS $0x55, X0, X1
	VMAXSS X0, X1, X0
	VMOVSS X0, ret+16(FP)
	VZEROUPPER
	RET

// The numbers of Weigh, its polynomial's first coefficient last.
DATA weighing<>+0(SB)/4, $0x3fb8aa3b  // log2(e)
DATA weighing<>+4(SB)/4, $0x4b400000  // 1.5·2²³
DATA weighing<>+8(SB)/4, $0xc2fa0000  // -125
DATA weighing<>+12(SB)/4, $0x7f800000 // infinity
DATA weighing<>+16(SB)/4, $0x7f7fffff // the greatest number
DATA weighing<>+20(SB)/4, $0x3c1d0164
DATA weighing<>+24(SB)/4, $0x3d64fe23
DATA weighing<>+28(SB)/4, $0x3e7601bc
DATA weighing<>+32(SB)/4, $0x3f317096
DATA weighing<>+36(SB)/4, $0x3f800000
GLOBL weighing<>(SB), RODATA|NOPTR, $40

// x less the greatest, and its weight w, which is added to sum.
#define WEIGH(x, t, n, w, sum, under, nan) \
	VSUBPS Z31, x, x; \
	VMULPS Z16, x, t; \
	VADDPS Z17, t, n; \
	VCMPPS $22, Z18, t, under; \
	VSUBPS Z17, n, w; \
	VSUBPS w, t, t; \
	VMOVAPS Z21, w; \
	VFMADD213PS Z22, t, w; \
	VFMADD213PS Z23, t, w; \
	VFMADD213PS Z24, t, w; \
	VFMADD213PS Z25, t, w; \
	VPSLLD $23, n, n; \
	VPADDD.Z n, w, under, w; \
	VCMPPS $22, Z20, x, nan; \
	VADDPS Z19, x, nan, w; \
	VADDPS w, sum, sum

// func weighBlocks(dst *uint16, x *float32, blocks int, top float32, scales *float32,
//	step int) float32
TEXT ·weighBlocks(SB), NOSPLIT, $64-52
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ blocks+16(FP), CX
	VBROADCASTSS top+24(FP), Z31
	MOVQ scales+32(FP), BX
	MOVQ step+40(FP), DX
	LEAQ weighing<>(SB), AX
	VBROADCASTSS (AX), Z16
	VBROADCASTSS 4(AX), Z17
	VBROADCASTSS 8(AX), Z18
	VBROADCASTSS 12(AX), Z19
	VBROADCASTSS 16(AX), Z20
	VBROADCASTSS 20(AX), Z21
	VBROADCASTSS 24(AX), Z22
	VBROADCASTSS 28(AX), Z23
	VBROADCASTSS 32(AX), Z24
	VBROADCASTSS 36(AX), Z25
	VPXORD Z26, Z26, Z26
	VPXORD Z27, Z27, Z27
weights:
	VMOVUPS (SI), Z2
	VMOVUPS 64(SI), Z3
	WEIGH(Z2, Z4, Z6, Z0, Z26, K1, K3)
	WEIGH(Z3, Z5, Z7, Z1, Z27, K2, K4)
	VMULPS (BX), Z0, Z0
	VMULPS 64(BX), Z1, Z1
	ADDQ DX, BX
	// VCVTNE2PS2BF16 Z0, Z1, Z0
	BYTE $0x62; BYTE $0xf2; BYTE $0x77; BYTE $0x48; BYTE $0x72; BYTE $0xc0
	VMOVDQU64 Z0, (DI)
	ADDQ $128, SI
	ADDQ $2048, DI
	DECQ CX
	JNZ  weights
	VADDPS Z26, Z27, Z0
	VMOVUPS Z0, 0(SP)
	VMOVUPS 32(SP), Y1
	VADDPS Y0, Y1, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X0, X1, X0
	VPERMILPS $0xee, X0, X1
	VADDPS X0, X1, X0
	VPERMILPS $0x55, X0, X1
	VADDSS X0, X1, X0
	VMOVSS X0, ret+48(FP)
	VZEROUPPER
	RET
