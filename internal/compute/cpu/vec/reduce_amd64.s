#include "textflag.h"
#include "macros_amd64.h"

// Sums run in 32 lanes, element i in lane i mod 32: Y0 to Y3. A masked-out element adds +0, which
// changes no accumulator, since none is ever -0.
//
// STEP(off, acc) takes the eight elements at byte offset off into acc, FOUR those at 0, 32, 64 and
// 96 into Y0 to Y3; MSTEP(acc) takes those under the mask in Y15; ADVANCE(bytes) moves the pointers.
#define REDUCE(FOUR, STEP, MSTEP, ADVANCE) \
loop: \
	CMPQ CX, $32; \
	JLT  rest; \
	FOUR(STEP); \
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

#define FOUR(STEP) \
	STEP(0, Y0); \
	STEP(32, Y1); \
	STEP(64, Y2); \
	STEP(96, Y3)

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
	REDUCE(FOUR, SUM, MSUM, ADV1)
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
	REDUCE(FOUR, DOT, MDOT, ADV2)
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
	REDUCE(FOUR, SQDIFF, MSQDIFF, ADV1)
	SUMTREE
	VMOVSS X0, ret+32(FP)
	VZEROUPPER
	RET

#define EXPSUM(off, acc) \
	VMOVUPS off(SI), Y4; \
	VSUBPS Y14, Y4, Y4; \
	EXP(Y4, Y5, Y6, Y7, Y8); \
	VADDPS Y5, acc, acc; \
	VMOVUPS Y5, off(SI)
#define EXPSUM2(off, off2, acc, acc2) \
	VMOVUPS off(SI), Y4; \
	VMOVUPS off2(SI), Y9; \
	VSUBPS Y14, Y4, Y4; \
	VSUBPS Y14, Y9, Y9; \
	EXPPAIR(Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13); \
	VADDPS Y5, acc, acc; \
	VADDPS Y10, acc2, acc2; \
	VMOVUPS Y5, off(SI); \
	VMOVUPS Y10, off2(SI)
#define EXPSUM4(STEP) \
	EXPSUM2(0, 32, Y0, Y1); \
	EXPSUM2(64, 96, Y2, Y3)
#define MEXPSUM(acc) \
	VMASKMOVPS (SI), Y15, Y4; \
	VSUBPS Y14, Y4, Y4; \
	EXP(Y4, Y5, Y6, Y7, Y8); \
	VANDPS Y15, Y5, Y5; \
	VADDPS Y5, acc, acc; \
	VMASKMOVPS Y5, Y15, (SI)

// func expSumAVX2(x []float32, max float32) float32
TEXT ·expSumAVX2(SB), NOSPLIT, $0-36
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS max+24(FP), Y14
	ZERO4
	REDUCE(EXPSUM4, EXPSUM, MEXPSUM, ADV1)
	SUMTREE
	VMOVSS X0, ret+32(FP)
	VZEROUPPER
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
	REDUCE(FOUR, MAX, MMAX, ADV1)
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
