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
floats:
	VMOVUPS (SI), Y0
	ROUND(Y0, Y2, Y3)
	VPSLLD  $16, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	SUBQ $8, CX
	JNZ  floats
	VZEROUPPER
	RET
