#include "textflag.h"
#include "macros_amd64.h"

#define ADV1 \
	ADDQ $32, DI
#define ADV2 \
	ADDQ $32, DI; \
	ADDQ $32, SI
#define ADV3 \
	ADDQ $32, DI; \
	ADDQ $32, SI; \
	ADDQ $32, DX
#define ADV4 \
	ADDQ $32, DI; \
	ADDQ $32, SI; \
	ADDQ $32, DX; \
	ADDQ $32, BX

#define ADDF \
	VMOVUPS (SI), Y0; \
	VADDPS (DX), Y0, Y0; \
	VMOVUPS Y0, (DI)
#define ADDM \
	VMASKMOVPS (SI), Y15, Y0; \
	VMASKMOVPS (DX), Y15, Y1; \
	VADDPS Y1, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func addAVX2(dst, a, b []float32)
TEXT ·addAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	MOVQ b_base+48(FP), DX
	LOOP8(ADDF, ADDM, ADV3)
	RET

#define MULF \
	VMOVUPS (DI), Y0; \
	VMULPS (SI), Y0, Y0; \
	VMOVUPS Y0, (DI)
#define MULM \
	VMASKMOVPS (DI), Y15, Y0; \
	VMASKMOVPS (SI), Y15, Y1; \
	VMULPS Y1, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func mulAVX2(x, f []float32)
TEXT ·mulAVX2(SB), NOSPLIT, $0-48
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	MOVQ f_base+24(FP), SI
	LOOP8(MULF, MULM, ADV2)
	RET

#define AXPYF \
	VMULPS (SI), Y14, Y1; \
	VMOVUPS (DI), Y0; \
	VADDPS Y1, Y0, Y0; \
	VMOVUPS Y0, (DI)
#define AXPYM \
	VMASKMOVPS (DI), Y15, Y0; \
	VMASKMOVPS (SI), Y15, Y1; \
	VMULPS Y1, Y14, Y1; \
	VADDPS Y1, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func axpyAVX2(dst []float32, a float32, x []float32)
TEXT ·axpyAVX2(SB), NOSPLIT, $0-56
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	VBROADCASTSS a+24(FP), Y14
	MOVQ x_base+32(FP), SI
	LOOP8(AXPYF, AXPYM, ADV2)
	RET

#define PRODUCTF \
	VMOVUPS (SI), Y0; \
	VMULPS (DX), Y0, Y0; \
	VADDPS (DI), Y0, Y0; \
	VMOVUPS Y0, (DI)
#define PRODUCTM \
	VMASKMOVPS (SI), Y15, Y0; \
	VMASKMOVPS (DX), Y15, Y1; \
	VMASKMOVPS (DI), Y15, Y2; \
	VMULPS Y1, Y0, Y0; \
	VADDPS Y2, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func addProductsAVX2(dst, a, b []float32)
TEXT ·addProductsAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	MOVQ b_base+48(FP), DX
	LOOP8(PRODUCTF, PRODUCTM, ADV3)
	RET

#define SCALEF \
	VMULPS (SI), Y14, Y0; \
	VMOVUPS Y0, (DI)
#define SCALEM \
	VMASKMOVPS (SI), Y15, Y0; \
	VMULPS Y0, Y14, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func scaleAVX2(dst, x []float32, a float32)
TEXT ·scaleAVX2(SB), NOSPLIT, $0-52
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	VBROADCASTSS a+48(FP), Y14
	LOOP8(SCALEF, SCALEM, ADV2)
	RET

#define DIVF \
	VMOVUPS (DI), Y0; \
	VDIVPS Y14, Y0, Y0; \
	VMOVUPS Y0, (DI)
#define DIVM \
	VMASKMOVPS (DI), Y15, Y0; \
	VDIVPS Y14, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func divAVX2(x []float32, a float32)
TEXT ·divAVX2(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	VBROADCASTSS a+24(FP), Y14
	LOOP8(DIVF, DIVM, ADV1)
	RET

#define RMSF \
	VMULPS (SI), Y14, Y0; \
	VMULPS (DX), Y0, Y0; \
	VMOVUPS Y0, (DI)
#define RMSM \
	VMASKMOVPS (SI), Y15, Y0; \
	VMASKMOVPS (DX), Y15, Y1; \
	VMULPS Y0, Y14, Y0; \
	VMULPS Y1, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func scaleWeightAVX2(dst, x, weight []float32, r float32)
TEXT ·scaleWeightAVX2(SB), NOSPLIT, $0-76
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	MOVQ weight_base+48(FP), DX
	VBROADCASTSS r+72(FP), Y14
	LOOP8(RMSF, RMSM, ADV3)
	RET

#define AFFINEF \
	VMOVUPS (SI), Y0; \
	VSUBPS Y13, Y0, Y0; \
	VMULPS Y14, Y0, Y0; \
	VMULPS (DX), Y0, Y0; \
	VADDPS (BX), Y0, Y0; \
	VMOVUPS Y0, (DI)
#define AFFINEM \
	VMASKMOVPS (SI), Y15, Y0; \
	VMASKMOVPS (DX), Y15, Y1; \
	VMASKMOVPS (BX), Y15, Y2; \
	VSUBPS Y13, Y0, Y0; \
	VMULPS Y14, Y0, Y0; \
	VMULPS Y1, Y0, Y0; \
	VADDPS Y2, Y0, Y0; \
	VMASKMOVPS Y0, Y15, (DI)

// func affineAVX2(dst, x, weight, bias []float32, mean, r float32)
TEXT ·affineAVX2(SB), NOSPLIT, $0-104
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	MOVQ weight_base+48(FP), DX
	MOVQ bias_base+72(FP), BX
	VBROADCASTSS mean+96(FP), Y13
	VBROADCASTSS r+100(FP), Y14
	LOOP8(AFFINEF, AFFINEM, ADV4)
	RET

// The halves of the vector at DI and SI, cosines at DX, sines at BX.
#define ROTATE \
	VMULPS Y2, Y0, Y4; \
	VMULPS Y3, Y1, Y5; \
	VSUBPS Y5, Y4, Y4; \
	VMULPS Y2, Y1, Y5; \
	VMULPS Y3, Y0, Y6; \
	VADDPS Y6, Y5, Y5
#define ROPEF \
	VMOVUPS (DI), Y0; \
	VMOVUPS (SI), Y1; \
	VMOVUPS (DX), Y2; \
	VMOVUPS (BX), Y3; \
	ROTATE; \
	VMOVUPS Y4, (DI); \
	VMOVUPS Y5, (SI)
#define ROPEM \
	VMASKMOVPS (DI), Y15, Y0; \
	VMASKMOVPS (SI), Y15, Y1; \
	VMASKMOVPS (DX), Y15, Y2; \
	VMASKMOVPS (BX), Y15, Y3; \
	ROTATE; \
	VMASKMOVPS Y4, Y15, (DI); \
	VMASKMOVPS Y5, Y15, (SI)

// func ropeAVX2(lo, hi, cos, sin []float32)
TEXT ·ropeAVX2(SB), NOSPLIT, $0-96
	MOVQ lo_base+0(FP), DI
	MOVQ lo_len+8(FP), CX
	MOVQ hi_base+24(FP), SI
	MOVQ cos_base+48(FP), DX
	MOVQ sin_base+72(FP), BX
	LOOP8(ROPEF, ROPEM, ADV4)
	RET

// func toBF16AVX2(dst []uint16, x []float32)
TEXT ·toBF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	VPCMPEQD Y14, Y14, Y14
	VPSRLD $31, Y14, Y13   // 1
	VPSRLD $17, Y14, Y14   // 0x7fff
	VPSLLD $6, Y13, Y12    // 0x40, the quiet bit of a bfloat16 NaN
	SHRQ $3, CX
	JEQ  done
loop:
	VMOVUPS (SI), Y0
	VPSRLD $16, Y0, Y1
	VPAND Y13, Y1, Y2
	VPADDD Y14, Y2, Y2
	VPADDD Y0, Y2, Y2
	VPSRLD $16, Y2, Y2
	VPOR Y12, Y1, Y1
	VCMPPS $3, Y0, Y0, Y3
	VBLENDVPS Y3, Y1, Y2, Y2
	VEXTRACTI128 $1, Y2, X3
	VPACKUSDW X3, X2, X2
	VMOVDQU X2, (DI)
	ADDQ $32, SI
	ADDQ $16, DI
	DECQ CX
	JNE  loop
done:
	VZEROUPPER
	RET

// func toBF16PairsAVX2(dst *uint16, step int, x []float32)
TEXT ·toBF16PairsAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ step+8(FP), DX
	MOVQ x_base+16(FP), SI
	MOVQ x_len+24(FP), CX
	VPCMPEQD Y14, Y14, Y14
	VPSRLD $31, Y14, Y13   // 1
	VPSLLD $16, Y14, Y11   // the upper half of a word
	VPSRLD $17, Y14, Y14   // 0x7fff
	VPSLLD $22, Y13, Y12   // the quiet bit of a NaN
	SHRQ $4, CX
loop:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y4
	VPSRLD $16, Y0, Y1
	VPSRLD $16, Y4, Y5
	VPAND Y13, Y1, Y1
	VPAND Y13, Y5, Y5
	VPADDD Y14, Y1, Y1
	VPADDD Y14, Y5, Y5
	VPADDD Y0, Y1, Y1
	VPADDD Y4, Y5, Y5
	VCMPPS $3, Y0, Y0, Y2
	VCMPPS $3, Y4, Y4, Y6
	VPOR Y12, Y0, Y0
	VPOR Y12, Y4, Y4
	VBLENDVPS Y2, Y0, Y1, Y1
	VBLENDVPS Y6, Y4, Y5, Y5
	VPSRLD $16, Y1, Y1
	VPAND Y11, Y5, Y5
	VPOR Y5, Y1, Y1
	VMOVDQU Y1, (DI)
	ADDQ $64, SI
	ADDQ DX, DI
	DECQ CX
	JNE  loop
	VZEROUPPER
	RET

// func fromBF16AVX2(dst []float32, x []uint16)
TEXT ·fromBF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	SHRQ $3, CX
	JEQ  done
loop:
	VPMOVZXWD (SI), Y0
	VPSLLD $16, Y0, Y0
	VMOVDQU Y0, (DI)
	ADDQ $16, SI
	ADDQ $32, DI
	DECQ CX
	JNE  loop
done:
	VZEROUPPER
	RET

// func toF16AVX2(dst []uint16, x []float32)
TEXT ·toF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	SHRQ $3, CX
	JEQ  done
loop:
	VMOVUPS (SI), Y0
	VCVTPS2PH $0, Y0, (DI)
	ADDQ $32, SI
	ADDQ $16, DI
	DECQ CX
	JNE  loop
done:
	VZEROUPPER
	RET

// func fromF16AVX2(dst []float32, x []uint16)
TEXT ·fromF16AVX2(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	SHRQ $3, CX
	JEQ  done
loop:
	VCVTPH2PS (SI), Y0
	VMOVUPS Y0, (DI)
	ADDQ $16, SI
	ADDQ $32, DI
	DECQ CX
	JNE  loop
done:
	VZEROUPPER
	RET
