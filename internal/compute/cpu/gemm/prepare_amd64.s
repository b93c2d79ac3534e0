#include "textflag.h"

// ROUND leaves in the low halves of V's lanes the bf16 of its fp32: (u + 0x7fff + bit 16) >> 16,
// and for a NaN u >> 16 with the quiet bit set. Y12 = 1, Y13 = 0x7fff, Y14 = the quiet bit.
#define ROUND(V, A, B) \
	VPSRLD     $16, V, A; \
	VPAND      Y12, A, A; \
	VPADDD     Y13, A, A; \
	VPADDD     V, A, A; \
	VPOR       Y14, V, B; \
	VCMPPS     $3, V, V, V; \
	VPBLENDVB  V, B, A, V; \
	VPSRLD     $16, V, V

// func roundAVX2(dst *uint16, src *float32, n int)
TEXT ·roundAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VPCMPEQD Y12, Y12, Y12
	VPSRLD   $31, Y12, Y12
	VPSLLD   $15, Y12, Y13
	VPSUBD   Y12, Y13, Y13
	VPSLLD   $22, Y12, Y14
loop:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	ROUND(Y0, Y2, Y3)
	ROUND(Y1, Y4, Y5)
	VPACKUSDW Y1, Y0, Y0
	VPERMQ    $0xd8, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ $64, SI
	ADDQ $32, DI
	SUBQ $16, CX
	JNZ  loop
	VZEROUPPER
	RET

// func roundFloatsAVX2(dst, src *float32, n int)
TEXT ·roundFloatsAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VPCMPEQD Y12, Y12, Y12
	VPSRLD   $31, Y12, Y12
	VPSLLD   $15, Y12, Y13
	VPSUBD   Y12, Y13, Y13
	VPSLLD   $22, Y12, Y14
	VPSLLD   $31, Y12, Y10
	VPSLLD   $23, Y12, Y11
floats:
	VMOVUPS (SI), Y0
	VANDNPS Y0, Y10, Y1
	VCMPPS  $1, Y11, Y1, Y1
	VANDNPS Y0, Y1, Y2
	VANDPS  Y0, Y10, Y0
	VORPS   Y2, Y0, Y0
	ROUND(Y0, Y2, Y3)
	VPSLLD  $16, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	SUBQ $8, CX
	JNZ  floats
	VZEROUPPER
	RET

// func roundSpanAVX2(to, x unsafe.Pointer, blocks int) (scale float32, even, odd int32)
TEXT ·roundSpanAVX2(SB), NOSPLIT, $0-36
	MOVQ to+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ blocks+16(FP), CX
	VPCMPEQD Y7, Y7, Y7
	VPSRLD   $1, Y7, Y7
	VPXOR    Y0, Y0, Y0
	VPXOR    Y6, Y6, Y6
largest:
	VPAND   (SI), Y7, Y1
	VPMAXUD Y1, Y0, Y0
	ADDQ $32, SI
	DECQ CX
	JNZ  largest
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0x4e, X0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0xb1, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD   X0, AX
	MOVQ blocks+16(FP), CX
	CMPL AX, $0x7f800000
	JAE  none
	CMPL AX, $0x04000000
	JB   zero
	MOVL $0x42fe0000, BX // 127
	VMOVD BX, X1
	VDIVSS X0, X1, X2
	VDIVSS X1, X0, X0
	VMOVD  X0, AX
	VBROADCASTSS X2, Y2
	MOVQ x+8(FP), SI
round:
	VMULPS (SI), Y2, Y3
	VCVTPS2DQ Y3, Y3
	VPADDD Y3, Y6, Y6
	VEXTRACTI128 $1, Y3, X4
	VPACKSSDW X4, X3, X3
	VPACKSSWB X3, X3, X3
	VMOVQ X3, (DI)
	ADDQ $32, SI
	ADDQ $8, DI
	DECQ CX
	JNZ  round
	VEXTRACTI128 $1, Y6, X3
	VPADDD X3, X6, X6
	VPHADDD X6, X6, X6
	VMOVQ X6, BX
	MOVL AX, scale+24(FP)
	MOVL BX, even+28(FP)
	SHRQ $32, BX
	MOVL BX, odd+32(FP)
	VZEROUPPER
	RET
none:
	MOVL $0x7fc00000, AX
	JMP  fill
zero:
	XORL AX, AX
fill:
	MOVQ $0, (DI)
	ADDQ $8, DI
	DECQ CX
	JNZ  fill
	MOVL AX, scale+24(FP)
	MOVL $0, even+28(FP)
	MOVL $0, odd+32(FP)
	VZEROUPPER
	RET

// func roundSpans512(to unsafe.Pointer, step int, x *float32, spans, vectors int,
//	scale unsafe.Pointer, sums *spanSums)
TEXT ·roundSpans512(SB), NOSPLIT, $0-56
	MOVQ to+0(FP), DI
	MOVQ step+8(FP), DX
	MOVQ x+16(FP), SI
	MOVQ spans+24(FP), R8
	MOVQ vectors+32(FP), R9
	MOVQ scale+40(FP), R10
	MOVQ sums+48(FP), R11
	MOVL $0x7fffffff, AX
	VPBROADCASTD AX, Z7
	MOVL $0x42fe0000, BX // 127
	VMOVD BX, X5
span:
	VPANDD (SI), Z7, Z2
	LEAQ   64(SI), R12
	MOVQ   R9, CX
	DECQ   CX
	JZ     across
largest:
	VPANDD  (R12), Z7, Z1
	VPMAXUD Z1, Z2, Z2
	ADDQ $64, R12
	DECQ CX
	JNZ  largest
across:
	VEXTRACTI64X4 $1, Z2, Y1
	VPMAXUD Y1, Y2, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0x4e, X0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0xb1, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD   X0, AX
	MOVQ DI, R13
	MOVQ R9, CX
	CMPL AX, $0x7f800000
	JAE  none
	CMPL AX, $0x04000000
	JB   zero
	VDIVSS X0, X5, X2
	VDIVSS X5, X0, X0
	VMOVSS X0, (R10)
	VBROADCASTSS X2, Z2
	VPXORD Z6, Z6, Z6
round:
	VMULPS    (SI), Z2, Z3
	VCVTPS2DQ Z3, Z3
	VPADDD    Z3, Z6, Z6
	VPMOVDB   Z3, (R13)
	ADDQ $64, SI
	ADDQ $16, R13
	DECQ CX
	JNZ  round
	VEXTRACTI64X4 $1, Z6, Y3
	VPADDD  Y3, Y6, Y4
	VEXTRACTI128 $1, Y4, X3
	VPADDD  X3, X4, X4
	VPHADDD X4, X4, X4
	VMOVQ   X4, (R11)
next:
	ADDQ DX, DI
	ADDQ DX, R10
	ADDQ $8, R11
	DECQ R8
	JNZ  span
	VZEROUPPER
	RET
none:
	MOVL $0x7fc00000, AX
	JMP  fill
zero:
	XORL AX, AX
fill:
	MOVL AX, (R10)
	MOVQ $0, (R11)
	VPXOR X3, X3, X3
filled:
	VMOVDQU X3, (R13)
	ADDQ $64, SI
	ADDQ $16, R13
	DECQ CX
	JNZ  filled
	JMP  next
