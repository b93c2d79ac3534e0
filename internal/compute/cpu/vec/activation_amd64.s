#include "textflag.h"
#include "macros_amd64.h"

// Activations take x in Y0 and leave the result in Y0; they clobber Y1 to Y6. In pairs, x and the
// result are in Y0 and Y7, and they clobber Y1 to Y5 and Y8 to Y12 as well.

#define ADV1 \
	ADDQ $32, DI
#define ADV3 \
	ADDQ $32, DI; \
	ADDQ $32, SI; \
	ADDQ $32, DX

// VMAXPS gives its first operand, x, unless zero is greater: NaN and -0 stay.
#define RELUF \
	VMOVUPS (DI), Y0; \
	VMAXPS Y0, Y14, Y0; \
	VMOVUPS Y0, (DI)
#define RELUM \
	VMASKMOVPS (DI), Y15, Y0; \
	VMAXPS Y0, Y14, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func reluAVX2(x []float32)
TEXT ·reluAVX2(SB), NOSPLIT, $0-24
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	VXORPS Y14, Y14, Y14
	LOOP8(RELUF, RELUM, ADV1)
	RET

#define SILU \
	VXORPS signBit<>(SB), Y0, Y1; \
	EXP(Y1, Y2, Y3, Y4, Y5); \
	VADDPS one<>(SB), Y2, Y2; \
	VDIVPS Y2, Y0, Y0
#define SILUMULPAIR \
	VMOVUPS (SI), Y0; \
	VMOVUPS 32(SI), Y7; \
	VXORPS signBit<>(SB), Y0, Y1; \
	VXORPS signBit<>(SB), Y7, Y8; \
	EXPPAIR(Y1, Y2, Y3, Y4, Y5, Y8, Y9, Y10, Y11, Y12); \
	VADDPS one<>(SB), Y2, Y2; \
	VADDPS one<>(SB), Y9, Y9; \
	VDIVPS Y2, Y0, Y0; \
	VDIVPS Y9, Y7, Y7; \
	VMULPS (DX), Y0, Y0; \
	VMULPS 32(DX), Y7, Y7; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y7, 32(DI)
#define SILUMULF \
	VMOVUPS (SI), Y0; \
	SILU; \
	VMULPS (DX), Y0, Y0; \
	VMOVUPS Y0, (DI)
#define SILUMULM \
	VMASKMOVPS (SI), Y15, Y0; \
	VMASKMOVPS (DX), Y15, Y6; \
	SILU; \
	VMULPS Y6, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func siluMulAVX2(dst, gate, up []float32)
TEXT ·siluMulAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ gate_base+24(FP), SI
	MOVQ up_base+48(FP), DX
	LOOP16(SILUMULPAIR, SILUMULF, SILUMULM, ADV3)
	RET

#define HORNER(c) \
	VMULPS Y1, Y2, Y2; \
	VADDPS c<>(SB), Y2, Y2

#define GELUERF \
	VMOVUPS signBit<>(SB), Y2; \
	VANDNPS Y0, Y2, Y1; \
	VMULPS sqrtHalf<>(SB), Y1, Y1; \
	VMOVUPS erfcQ9<>(SB), Y2; \
	HORNER(erfcQ8); \
	HORNER(erfcQ7); \
	HORNER(erfcQ6); \
	HORNER(erfcQ5); \
	HORNER(erfcQ4); \
	HORNER(erfcQ3); \
	HORNER(erfcQ2); \
	HORNER(erfcQ1); \
	HORNER(erfcQ0); \
	VMULPS Y1, Y2, Y1; \
	EXP(Y1, Y2, Y3, Y4, Y5); \
	VMULPS half<>(SB), Y2, Y2; \
	VMOVUPS one<>(SB), Y3; \
	VSUBPS Y2, Y3, Y3; \
	VBLENDVPS Y0, Y2, Y3, Y3; \
	VMULPS Y3, Y0, Y0
#define HORNERPAIR(c) \
	VMULPS Y1, Y2, Y2; \
	VMULPS Y8, Y9, Y9; \
	VADDPS c<>(SB), Y2, Y2; \
	VADDPS c<>(SB), Y9, Y9
#define GELUERFPAIR \
	VMOVUPS (DI), Y0; \
	VMOVUPS 32(DI), Y7; \
	VMOVUPS signBit<>(SB), Y2; \
	VANDNPS Y0, Y2, Y1; \
	VANDNPS Y7, Y2, Y8; \
	VMULPS sqrtHalf<>(SB), Y1, Y1; \
	VMULPS sqrtHalf<>(SB), Y8, Y8; \
	VMOVUPS erfcQ9<>(SB), Y2; \
	VMOVAPS Y2, Y9; \
	HORNERPAIR(erfcQ8); \
	HORNERPAIR(erfcQ7); \
	HORNERPAIR(erfcQ6); \
	HORNERPAIR(erfcQ5); \
	HORNERPAIR(erfcQ4); \
	HORNERPAIR(erfcQ3); \
	HORNERPAIR(erfcQ2); \
	HORNERPAIR(erfcQ1); \
	HORNERPAIR(erfcQ0); \
	VMULPS Y1, Y2, Y1; \
	VMULPS Y8, Y9, Y8; \
	EXPPAIR(Y1, Y2, Y3, Y4, Y5, Y8, Y9, Y10, Y11, Y12); \
	VMULPS half<>(SB), Y2, Y2; \
	VMULPS half<>(SB), Y9, Y9; \
	VMOVUPS one<>(SB), Y4; \
	VSUBPS Y2, Y4, Y3; \
	VSUBPS Y9, Y4, Y10; \
	VBLENDVPS Y0, Y2, Y3, Y3; \
	VBLENDVPS Y7, Y9, Y10, Y10; \
	VMULPS Y3, Y0, Y0; \
	VMULPS Y10, Y7, Y7; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y7, 32(DI)
#define GELUERFF \
	VMOVUPS (DI), Y0; \
	GELUERF; \
	VMOVUPS Y0, (DI)
#define GELUERFM \
	VMASKMOVPS (DI), Y15, Y0; \
	GELUERF; \
	VMASKMOVPS Y0, Y15, (DI)

// func geluErfAVX2(x []float32)
TEXT ·geluErfAVX2(SB), NOSPLIT, $0-24
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	LOOP16(GELUERFPAIR, GELUERFF, GELUERFM, ADV1)
	RET
