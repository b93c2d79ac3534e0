#include "textflag.h"

// columns is the order in which doublewords lie after four vectors were packed to bytes.
DATA columns<>+0(SB)/4, $0
DATA columns<>+4(SB)/4, $4
DATA columns<>+8(SB)/4, $1
DATA columns<>+12(SB)/4, $5
DATA columns<>+16(SB)/4, $2
DATA columns<>+20(SB)/4, $6
DATA columns<>+24(SB)/4, $3
DATA columns<>+28(SB)/4, $7
GLOBL columns<>(SB), RODATA|NOPTR, $32

// SPLAT makes all doublewords of Y a constant; X is its low half.
#define SPLAT(value, X, Y) \
	MOVL         $value, AX; \
	VMOVD        AX, X; \
	VPBROADCASTD X, Y

// func largestAVX2(x []float32) uint32
TEXT ·largestAVX2(SB), NOSPLIT, $0-28
	MOVQ  x_base+0(FP), SI
	MOVQ  x_len+8(FP), CX
	SPLAT(0x7fffffff, X15, Y15)
	VPXOR Y0, Y0, Y0

largest:
	VPAND   (SI), Y15, Y1
	VPMAXUD Y1, Y0, Y0
	ADDQ    $32, SI
	SUBQ    $8, CX
	JNZ     largest
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0x4e, X0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0xb1, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD   X0, AX
	MOVL    AX, ret+24(FP)
	VZEROUPPER
	RET

// func int8AVX2(dst []byte, x []float32, scale float32)
TEXT ·int8AVX2(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	VBROADCASTSS scale+48(FP), Y15
	SPLAT(0x81818181, X14, Y14) // -127
	VMOVDQU columns<>(SB), Y13

bytes:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	VDIVPS  Y15, Y0, Y0
	VDIVPS  Y15, Y1, Y1
	VDIVPS  Y15, Y2, Y2
	VDIVPS  Y15, Y3, Y3
	VCVTPS2DQ Y0, Y0
	VCVTPS2DQ Y1, Y1
	VCVTPS2DQ Y2, Y2
	VCVTPS2DQ Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPMAXSB   Y14, Y0, Y0
	VPERMD    Y0, Y13, Y0
	VMOVDQU   Y0, (DI)
	ADDQ $128, SI
	ADDQ $32, DI
	SUBQ $32, CX
	JNZ  bytes
	VZEROUPPER
	RET

// most is 448.
DATA most<>+0(SB)/8, $0x43e0000043e00000
DATA most<>+8(SB)/8, $0x43e0000043e00000
DATA most<>+16(SB)/8, $0x43e0000043e00000
DATA most<>+24(SB)/8, $0x43e0000043e00000
GLOBL most<>(SB), RODATA|NOPTR, $32

// FLOAT8 makes V the codes nearest to it divided by Y15, in doublewords. Sizes are in T and U.
#define FLOAT8(V, T, U) \
	VDIVPS  Y15, V, V; \
	VPAND   Y14, V, T; \
	VPMINUD most<>(SB), T, T; \
	VPSRLD  $20, T, U; \
	VPAND   Y12, U, U; \
	VPADDD  T, U, U; \
	VPADDD  Y11, U, U; \
	VPSRLD  $20, U, U; \
	VPSUBD  Y10, U, U; \
	VPANDN  V, Y14, V; \
	VPSRLD  $24, V, V; \
	VPOR    U, V, U; \
	VADDPS  Y9, T, Y13; \
	VPSUBD  Y9, Y13, Y13; \
	VPOR    V, Y13, V; \
	VPCMPGTD Y8, T, T; \
	VPBLENDVB T, U, V, V

// func e4m3AVX2(dst []byte, x []float32, scale float32)
TEXT ·e4m3AVX2(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	VBROADCASTSS scale+48(FP), Y15
	SPLAT(0x7fffffff, X14, Y14)
	SPLAT(1, X12, Y12)
	SPLAT(0x7ffff, X11, Y11)
	SPLAT(960, X10, Y10)
	SPLAT(0x46800000, X9, Y9) // 2^14
	SPLAT(0x3c7fffff, X8, Y8)

floats:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	FLOAT8(Y0, Y4, Y5)
	FLOAT8(Y1, Y6, Y7)
	FLOAT8(Y2, Y4, Y5)
	FLOAT8(Y3, Y6, Y7)
	VPACKUSDW Y1, Y0, Y0
	VPACKUSDW Y3, Y2, Y2
	VPACKUSWB Y2, Y0, Y0
	VMOVDQU   columns<>(SB), Y13
	VPERMD    Y0, Y13, Y0
	VMOVDQU   Y0, (DI)
	ADDQ $128, SI
	ADDQ $32, DI
	SUBQ $32, CX
	JNZ  floats
	VZEROUPPER
	RET

// NIBBLE makes V, at most 15, the integers nearest to it times Y15, plus 8.
#define NIBBLE(V) \
	VMULPS  Y15, V, V; \
	VADDPS  Y14, V, V; \
	VPSUBD  Y12, V, V; \
	VPMINSD Y11, V, V

// func int4AVX2(dst []byte, x []float32, factor float32)
TEXT ·int4AVX2(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ x_base+24(FP), SI
	MOVQ x_len+32(FP), CX
	VBROADCASTSS factor+48(FP), Y15
	SPLAT(0x4b400000, X14, Y14) // 1.5·2²³
	SPLAT(0x4b3ffff8, X12, Y12)
	SPLAT(15, X11, Y11)
	VMOVDQU columns<>(SB), Y13

nibbles:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	NIBBLE(Y0)
	NIBBLE(Y1)
	NIBBLE(Y2)
	NIBBLE(Y3)
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKUSWB Y2, Y0, Y0
	VPERMD    Y0, Y13, Y0
	VMOVDQU   Y0, (DI)
	ADDQ $128, SI
	ADDQ $32, DI
	SUBQ $32, CX
	JNZ  nibbles
	VZEROUPPER
	RET
