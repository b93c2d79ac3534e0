#include "textflag.h"
#include "macros_amd64.h"

// Sums run in 32 lanes, element i in lane i mod 32: Y0 to Y3. A masked-out element adds +0, which
// changes no accumulator, since none is ever -0.
//
// STEP(off, acc) takes the eight elements at byte offset off into acc; MSTEP(acc) takes those under
// the mask in Y15; ADVANCE(bytes) moves the pointers.
#define REDUCE(STEP, MSTEP, ADVANCE) \
loop: \
	CMPQ CX, $32; \
	JLT  rest; \
	STEP(0, Y0); \
	STEP(32, Y1); \
	STEP(64, Y2); \
	STEP(96, Y3); \
	ADVANCE(128); \
	SUBQ $32, CX; \
	JMP  loop; \
rest: \
	TESTQ CX, CX; \
	JEQ  done; \
	CMPQ CX, $8; \
	JLT  tail0; \
	STEP(0, Y0); \
	ADVANCE(32); \
	SUBQ $8, CX; \
	CMPQ CX, $8; \
	JLT  tail1; \
	STEP(0, Y1); \
	ADVANCE(32); \
	SUBQ $8, CX; \
	CMPQ CX, $8; \
	JLT  tail2; \
	STEP(0, Y2); \
	ADVANCE(32); \
	SUBQ $8, CX; \
	TAILMASK; \
	MSTEP(Y3); \
	JMP  done; \
tail0: \
	TAILMASK; \
	MSTEP(Y0); \
	JMP  done; \
tail1: \
	TAILMASK; \
	MSTEP(Y1); \
	JMP  done; \
tail2: \
	TAILMASK; \
	MSTEP(Y2); \
done:

// X0 = the sum of the 32 lanes, in the order of lanes.sum.
#define SUMTREE \
	VADDPS Y1, Y0, Y0; \
	VADDPS Y3, Y2, Y2; \
	VADDPS Y2, Y0, Y0; \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPS X1, X0, X0; \
	VPERMILPS $0xEE, X0, X1; \
	VADDPS X1, X0, X0; \
	VPERMILPS $0x55, X0, X1; \
	VADDSS X1, X0, X0

#define ZERO4 \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3

#define ADV1(n) \
	ADDQ $n, SI
#define ADV2(n) \
	ADDQ $n, SI; \
	ADDQ $n, DI

#define SUM(off, acc) \
	VADDPS off(SI), acc, acc
#define MSUM(acc) \
	VMASKMOVPS (SI), Y15, Y4; \
	VADDPS Y4, acc, acc

// func sumAVX2(x []float32) float32
TEXT ·sumAVX2(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	ZERO4
	REDUCE(SUM, MSUM, ADV1)
	SUMTREE
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

#define DOT(off, acc) \
	VMOVUPS off(SI), Y4; \
	VMULPS off(DI), Y4, Y4; \
	VADDPS Y4, acc, acc
#define MDOT(acc) \
	VMASKMOVPS (SI), Y15, Y4; \
	VMASKMOVPS (DI), Y15, Y5; \
	VMULPS Y5, Y4, Y4; \
	VADDPS Y4, acc, acc

// func dotAVX2(a, b []float32) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-52
	MOVQ a_base+0(FP), SI
	MOVQ a_len+8(FP), CX
	MOVQ b_base+24(FP), DI
	ZERO4
	REDUCE(DOT, MDOT, ADV2)
	SUMTREE
	VMOVSS X0, ret+48(FP)
	VZEROUPPER
	RET

#define SQDIFF(off, acc) \
	VMOVUPS off(SI), Y4; \
	VSUBPS Y14, Y4, Y4; \
	VMULPS Y4, Y4, Y4; \
	VADDPS Y4, acc, acc
#define MSQDIFF(acc) \
	VMASKMOVPS (SI), Y15, Y4; \
	VSUBPS Y14, Y4, Y4; \
	VMULPS Y4, Y4, Y4; \
	VANDPS Y15, Y4, Y4; \
	VADDPS Y4, acc, acc

// func sumSqDiffAVX2(x []float32, mean float32) float32
TEXT ·sumSqDiffAVX2(SB), NOSPLIT, $0-36
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS mean+24(FP), Y14
	ZERO4
	REDUCE(SQDIFF, MSQDIFF, ADV1)
	SUMTREE
	VMOVSS X0, ret+32(FP)
	VZEROUPPER
	RET

#define EXPF \
	VMOVUPS (SI), Y4; \
	VSUBPS Y14, Y4, Y4; \
	EXP(Y4, Y5, Y6, Y7, Y8); \
	VMOVUPS Y5, (SI)
#define EXPM \
	VMASKMOVPS (SI), Y15, Y4; \
	VSUBPS Y14, Y4, Y4; \
	EXP(Y4, Y5, Y6, Y7, Y8); \
	VMASKMOVPS Y5, Y15, (SI)

// EXP of four vectors, step by step: chains of dependent instructions fill the waits of each other.
// So that all fit the registers, x is read twice.
#define EXP4 \
	VMOVUPS (SI), Y2; \
	VMOVUPS 32(SI), Y5; \
	VMOVUPS 64(SI), Y8; \
	VMOVUPS 96(SI), Y11; \
	VSUBPS Y14, Y2, Y2; \
	VSUBPS Y14, Y5, Y5; \
	VSUBPS Y14, Y8, Y8; \
	VSUBPS Y14, Y11, Y11; \
	VMULPS expLog2e<>(SB), Y2, Y1; \
	VMULPS expLog2e<>(SB), Y5, Y4; \
	VMULPS expLog2e<>(SB), Y8, Y7; \
	VMULPS expLog2e<>(SB), Y11, Y10; \
	VADDPS expMagic<>(SB), Y1, Y1; \
	VADDPS expMagic<>(SB), Y4, Y4; \
	VADDPS expMagic<>(SB), Y7, Y7; \
	VADDPS expMagic<>(SB), Y10, Y10; \
	VSUBPS expMagic<>(SB), Y1, Y0; \
	VSUBPS expMagic<>(SB), Y4, Y3; \
	VSUBPS expMagic<>(SB), Y7, Y6; \
	VSUBPS expMagic<>(SB), Y10, Y9; \
	VMULPS expLn2Hi<>(SB), Y0, Y12; \
	VSUBPS Y12, Y2, Y2; \
	VMULPS expLn2Hi<>(SB), Y3, Y13; \
	VSUBPS Y13, Y5, Y5; \
	VMULPS expLn2Hi<>(SB), Y6, Y12; \
	VSUBPS Y12, Y8, Y8; \
	VMULPS expLn2Hi<>(SB), Y9, Y13; \
	VSUBPS Y13, Y11, Y11; \
	VMULPS expLn2Lo<>(SB), Y0, Y0; \
	VMULPS expLn2Lo<>(SB), Y3, Y3; \
	VMULPS expLn2Lo<>(SB), Y6, Y6; \
	VMULPS expLn2Lo<>(SB), Y9, Y9; \
	VSUBPS Y0, Y2, Y2; \
	VSUBPS Y3, Y5, Y5; \
	VSUBPS Y6, Y8, Y8; \
	VSUBPS Y9, Y11, Y11; \
	VMULPS expP5<>(SB), Y2, Y0; \
	VMULPS expP5<>(SB), Y5, Y3; \
	VMULPS expP5<>(SB), Y8, Y6; \
	VMULPS expP5<>(SB), Y11, Y9; \
	VADDPS expP4<>(SB), Y0, Y0; \
	VADDPS expP4<>(SB), Y3, Y3; \
	VADDPS expP4<>(SB), Y6, Y6; \
	VADDPS expP4<>(SB), Y9, Y9; \
	VMULPS Y2, Y0, Y0; \
	VMULPS Y5, Y3, Y3; \
	VMULPS Y8, Y6, Y6; \
	VMULPS Y11, Y9, Y9; \
	VADDPS expP3<>(SB), Y0, Y0; \
	VADDPS expP3<>(SB), Y3, Y3; \
	VADDPS expP3<>(SB), Y6, Y6; \
	VADDPS expP3<>(SB), Y9, Y9; \
	VMULPS Y2, Y0, Y0; \
	VMULPS Y5, Y3, Y3; \
	VMULPS Y8, Y6, Y6; \
	VMULPS Y11, Y9, Y9; \
	VADDPS expP2<>(SB), Y0, Y0; \
	VADDPS expP2<>(SB), Y3, Y3; \
	VADDPS expP2<>(SB), Y6, Y6; \
	VADDPS expP2<>(SB), Y9, Y9; \
	VMULPS Y2, Y0, Y0; \
	VMULPS Y5, Y3, Y3; \
	VMULPS Y8, Y6, Y6; \
	VMULPS Y11, Y9, Y9; \
	VADDPS expP1<>(SB), Y0, Y0; \
	VADDPS expP1<>(SB), Y3, Y3; \
	VADDPS expP1<>(SB), Y6, Y6; \
	VADDPS expP1<>(SB), Y9, Y9; \
	VMULPS Y2, Y0, Y0; \
	VMULPS Y5, Y3, Y3; \
	VMULPS Y8, Y6, Y6; \
	VMULPS Y11, Y9, Y9; \
	VADDPS expP0<>(SB), Y0, Y0; \
	VADDPS expP0<>(SB), Y3, Y3; \
	VADDPS expP0<>(SB), Y6, Y6; \
	VADDPS expP0<>(SB), Y9, Y9; \
	VMULPS Y2, Y2, Y12; \
	VMULPS Y12, Y0, Y0; \
	VMULPS Y5, Y5, Y13; \
	VMULPS Y13, Y3, Y3; \
	VMULPS Y8, Y8, Y12; \
	VMULPS Y12, Y6, Y6; \
	VMULPS Y11, Y11, Y13; \
	VMULPS Y13, Y9, Y9; \
	VADDPS Y2, Y0, Y0; \
	VADDPS Y5, Y3, Y3; \
	VADDPS Y8, Y6, Y6; \
	VADDPS Y11, Y9, Y9; \
	VPSLLD $23, Y1, Y1; \
	VPSLLD $23, Y4, Y4; \
	VPSLLD $23, Y7, Y7; \
	VPSLLD $23, Y10, Y10; \
	VADDPS one<>(SB), Y0, Y0; \
	VADDPS one<>(SB), Y3, Y3; \
	VADDPS one<>(SB), Y6, Y6; \
	VADDPS one<>(SB), Y9, Y9; \
	VPADDD Y1, Y0, Y0; \
	VPADDD Y4, Y3, Y3; \
	VPADDD Y7, Y6, Y6; \
	VPADDD Y10, Y9, Y9; \
	VMOVUPS (SI), Y2; \
	VMOVUPS 32(SI), Y5; \
	VMOVUPS 64(SI), Y8; \
	VMOVUPS 96(SI), Y11; \
	VSUBPS Y14, Y2, Y2; \
	VSUBPS Y14, Y5, Y5; \
	VSUBPS Y14, Y8, Y8; \
	VSUBPS Y14, Y11, Y11; \
	VCMPPS $17, expMin<>(SB), Y2, Y1; \
	VCMPPS $17, expMin<>(SB), Y5, Y4; \
	VCMPPS $17, expMin<>(SB), Y8, Y7; \
	VCMPPS $17, expMin<>(SB), Y11, Y10; \
	VANDNPS Y0, Y1, Y0; \
	VANDNPS Y3, Y4, Y3; \
	VANDNPS Y6, Y7, Y6; \
	VANDNPS Y9, Y10, Y9; \
	VCMPPS $22, expMax<>(SB), Y2, Y1; \
	VCMPPS $22, expMax<>(SB), Y5, Y4; \
	VCMPPS $22, expMax<>(SB), Y8, Y7; \
	VCMPPS $22, expMax<>(SB), Y11, Y10; \
	VADDPS inf<>(SB), Y2, Y2; \
	VADDPS inf<>(SB), Y5, Y5; \
	VADDPS inf<>(SB), Y8, Y8; \
	VADDPS inf<>(SB), Y11, Y11; \
	VBLENDVPS Y1, Y2, Y0, Y0; \
	VBLENDVPS Y4, Y5, Y3, Y3; \
	VBLENDVPS Y7, Y8, Y6, Y6; \
	VBLENDVPS Y10, Y11, Y9, Y9; \
	VMOVUPS Y0, (SI); \
	VMOVUPS Y3, 32(SI); \
	VMOVUPS Y6, 64(SI); \
	VMOVUPS Y9, 96(SI)

// func expAVX2(x []float32, max float32)
TEXT ·expAVX2(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS max+24(FP), Y14

fours:
	CMPQ CX, $32
	JLT  loop
	EXP4
	ADDQ $128, SI
	SUBQ $32, CX
	JMP  fours
	LOOP8(EXPF, EXPM, ADV1(32))
	RET

CONST8(negInf, 0xff800000ff800000)

// VMAXPS gives its first operand here unless the second is greater: a NaN in the data is passed
// over.
#define MAX(off, acc) \
	VMOVUPS off(SI), Y4; \
	VMAXPS acc, Y4, acc
#define MMAX(acc) \
	VMASKMOVPS (SI), Y15, Y4; \
	VBLENDVPS Y15, Y4, Y14, Y4; \
	VMAXPS acc, Y4, acc

// func maxAVX2(x []float32) float32
TEXT ·maxAVX2(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VMOVUPS negInf<>(SB), Y14
	VMOVAPS Y14, Y0
	VMOVAPS Y14, Y1
	VMOVAPS Y14, Y2
	VMOVAPS Y14, Y3
	REDUCE(MAX, MMAX, ADV1)
	VMAXPS Y0, Y1, Y0
	VMAXPS Y2, Y3, Y2
	VMAXPS Y0, Y2, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X0, X1, X0
	VPERMILPS $0xEE, X0, X1
	VMAXPS X0, X1, X0
	VPERMILPS $0x55, X0, X1
	VMAXSS X0, X1, X0
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET
