#include "textflag.h"

// Pairs of steps of a packed panel become those of a panel of float32: see Matrix. A pair of bf16
// has both steps of a row in a lane, even below odd.

// func widenBF16AVX2(dst, src unsafe.Pointer, pairs int)
TEXT ·widenBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ pairs+16(FP), CX
	VPCMPEQD Y15, Y15, Y15
	VPSLLD   $16, Y15, Y15
loop:
	PREFETCHT0 4096(SI)
	VMOVUPS    (SI), Y0
	VMOVUPS    32(SI), Y1
	VPSLLD     $16, Y0, Y2
	VPSLLD     $16, Y1, Y3
	VPAND      Y15, Y0, Y0
	VPAND      Y15, Y1, Y1
	VMOVUPS    Y2, (DI)
	VMOVUPS    Y3, 32(DI)
	VMOVUPS    Y0, 64(DI)
	VMOVUPS    Y1, 96(DI)
	ADDQ       $64, SI
	ADDQ       $128, DI
	DECQ       CX
	JNZ        loop
	VZEROUPPER
	RET

// func widenF16AVX2(dst, src unsafe.Pointer, pairs int)
TEXT ·widenF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ pairs+16(FP), CX
loop:
	PREFETCHT0 4096(SI)
	VCVTPH2PS  (SI), Y0
	VCVTPH2PS  16(SI), Y1
	VCVTPH2PS  32(SI), Y2
	VCVTPH2PS  48(SI), Y3
	VMOVUPS    Y0, (DI)
	VMOVUPS    Y1, 32(DI)
	VMOVUPS    Y2, 64(DI)
	VMOVUPS    Y3, 96(DI)
	ADDQ       $64, SI
	ADDQ       $128, DI
	DECQ       CX
	JNZ        loop
	VZEROUPPER
	RET

// func widenBF16AVX512(dst, src unsafe.Pointer, pairs int)
TEXT ·widenBF16AVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ pairs+16(FP), CX
	VPTERNLOGD $255, Z15, Z15, Z15
	VPSLLD     $16, Z15, Z15
loop:
	PREFETCHT0 4096(SI)
	PREFETCHT0 4160(SI)
	VMOVUPS    (SI), Z0
	VMOVUPS    64(SI), Z1
	VPSLLD     $16, Z0, Z2
	VPSLLD     $16, Z1, Z3
	VPANDD     Z15, Z0, Z0
	VPANDD     Z15, Z1, Z1
	VMOVUPS    Z2, (DI)
	VMOVUPS    Z3, 64(DI)
	VMOVUPS    Z0, 128(DI)
	VMOVUPS    Z1, 192(DI)
	ADDQ       $128, SI
	ADDQ       $256, DI
	DECQ       CX
	JNZ        loop
	VZEROUPPER
	RET

// func widenF16AVX512(dst, src unsafe.Pointer, pairs int)
TEXT ·widenF16AVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ pairs+16(FP), CX
loop:
	PREFETCHT0 4096(SI)
	PREFETCHT0 4160(SI)
	VCVTPH2PS  (SI), Z0
	VCVTPH2PS  32(SI), Z1
	VCVTPH2PS  64(SI), Z2
	VCVTPH2PS  96(SI), Z3
	VMOVUPS    Z0, (DI)
	VMOVUPS    Z1, 64(DI)
	VMOVUPS    Z2, 128(DI)
	VMOVUPS    Z3, 192(DI)
	ADDQ       $128, SI
	ADDQ       $256, DI
	DECQ       CX
	JNZ        loop
	VZEROUPPER
	RET
