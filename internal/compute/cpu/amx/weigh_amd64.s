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
DATA weighing<>+4(SB)/4, $0x3c5bfb98
DATA weighing<>+8(SB)/4, $0x3d55fc34
DATA weighing<>+12(SB)/4, $0x3e771228
DATA weighing<>+16(SB)/4, $0x3f316b63
DATA weighing<>+20(SB)/4, $0x3f800000
GLOBL weighing<>(SB), RODATA|NOPTR, $24

// The weight w of x less the greatest, which is added to sum. VREDUCEPS makes f = t less the
// greatest whole number below t, 0 of an infinity; VSCALEFPS multiplies by 2 to the power of that.
#define WEIGH(x, t, f, w, sum) \
	VSUBPS Z31, x, t; \
	VMULPS Z16, t, t; \
	VREDUCEPS $9, t, f; \
	VMOVAPS Z21, w; \
	VFMADD213PS Z22, f, w; \
	VFMADD213PS Z23, f, w; \
	VFMADD213PS Z24, f, w; \
	VFMADD213PS Z25, f, w; \
	VSCALEFPS t, w, w; \
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
	VBROADCASTSS 4(AX), Z21
	VBROADCASTSS 8(AX), Z22
	VBROADCASTSS 12(AX), Z23
	VBROADCASTSS 16(AX), Z24
	VBROADCASTSS 20(AX), Z25
	VPXORD Z26, Z26, Z26
	VPXORD Z27, Z27, Z27
weights:
	VMOVUPS (SI), Z2
	VMOVUPS 64(SI), Z3
	WEIGH(Z2, Z4, Z6, Z0, Z26)
	WEIGH(Z3, Z5, Z7, Z1, Z27)
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
