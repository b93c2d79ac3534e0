#include "textflag.h"

// Row operations of AVX-512. They round where those of AVX2 do, which finish rows, and give the
// same bits.

// Runs BODY, which takes 32 elements and advances the pointers, as often as there are 32 of the CX.
#define LOOP32(BODY) \
	SHRQ $5, CX; \
	JEQ  done; \
loop: \
	BODY; \
	DECQ CX; \
	JNE  loop; \
	VZEROUPPER; \
done:

#define ADD32 \
	VMOVUPS (SI), Z0; \
	VMOVUPS 64(SI), Z1; \
	VADDPS (DX), Z0, Z0; \
	VADDPS 64(DX), Z1, Z1; \
	VMOVUPS Z0, (DI); \
	VMOVUPS Z1, 64(DI); \
	ADDQ $128, DI; \
	ADDQ $128, SI; \
	ADDQ $128, DX

// func add512(dst, a, b []float32)
TEXT ·add512(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ a_base+24(FP), SI
	MOVQ b_base+48(FP), DX
	LOOP32(ADD32)
	RET

#define SCALE32 \
	VMULPS (SI), Z14, Z0; \
	VMULPS 64(SI), Z14, Z1; \
	VMULPS (DX), Z0, Z0; \
	VMULPS 64(DX), Z1, Z1; \
	VMOVUPS Z0, (DI); \
	VMOVUPS Z1, 64(DI); \
	ADDQ $128, DI; \
	ADDQ $128, SI; \
	ADDQ $128, DX

// func scaleWeight512(dst, x, weight []float32, r float32)
TEXT ·scaleWeight512(SB), NOSPLIT, $0-76
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ x_base+24(FP), SI
	MOVQ weight_base+48(FP), DX
	VBROADCASTSS r+72(FP), Z14
	LOOP32(SCALE32)
	RET

// func ropeHeads512(x *float32, heads, step, half int, cos, sin *float32)
TEXT ·ropeHeads512(SB), NOSPLIT, $0-48
	MOVQ x+0(FP), R8
	MOVQ heads+8(FP), R9
	MOVQ step+16(FP), R10
	MOVQ half+24(FP), R11
head:
	MOVQ cos+32(FP), DX
	MOVQ sin+40(FP), BX
	MOVQ R8, DI
	LEAQ (R8)(R11*4), SI
	MOVQ R11, CX
turn:
	VMOVUPS (DI), Z0
	VMOVUPS (SI), Z1
	VMOVUPS (DX), Z2
	VMOVUPS (BX), Z3
	VMULPS  Z2, Z0, Z4
	VMULPS  Z3, Z1, Z5
	VSUBPS  Z5, Z4, Z4
	VMULPS  Z2, Z1, Z5
	VMULPS  Z3, Z0, Z6
	VADDPS  Z6, Z5, Z5
	VMOVUPS Z4, (DI)
	VMOVUPS Z5, (SI)
	ADDQ $64, DI
	ADDQ $64, SI
	ADDQ $64, DX
	ADDQ $64, BX
	SUBQ $16, CX
	JNE  turn
	ADDQ R10, R8
	DECQ R9
	JNE  head
	VZEROUPPER
	RET
