#include "textflag.h"
#include "macros_amd64.h"

// Kernels of AVX-512 that take exponentials of 64 elements at a time, in the four vectors Z0 to Z3:
// chains of dependent instructions fill the waits of each other. They round where those of AVX2 do,
// and give the same bits.

// OP of a constant and four vectors, from the register on that the name has, to r0 to r3.
#define OF0(OP, c, r0, r1, r2, r3) \
	OP c, Z0, r0; \
	OP c, Z1, r1; \
	OP c, Z2, r2; \
	OP c, Z3, r3
#define OF4(OP, c, r0, r1, r2, r3) \
	OP c, Z4, r0; \
	OP c, Z5, r1; \
	OP c, Z6, r2; \
	OP c, Z7, r3
#define OF8(OP, c, r0, r1, r2, r3) \
	OP c, Z8, r0; \
	OP c, Z9, r1; \
	OP c, Z10, r2; \
	OP c, Z11, r3
#define OF12(OP, c, r0, r1, r2, r3) \
	OP c, Z12, r0; \
	OP c, Z13, r1; \
	OP c, Z14, r2; \
	OP c, Z15, r3
#define TO4(OF, OP, c) OF(OP, c, Z4, Z5, Z6, Z7)
#define TO8(OF, OP, c) OF(OP, c, Z8, Z9, Z10, Z11)
#define TO12(OF, OP, c) OF(OP, c, Z12, Z13, Z14, Z15)

// The constants of exp32 that EXP64 needs.
#define EXPSETUP \
	VBROADCASTSS expLog2e<>(SB), Z16; \
	VBROADCASTSS expMagic<>(SB), Z17; \
	VBROADCASTSS expLn2Hi<>(SB), Z18; \
	VBROADCASTSS expLn2Lo<>(SB), Z19; \
	VBROADCASTSS expP5<>(SB), Z20; \
	VBROADCASTSS expP4<>(SB), Z21; \
	VBROADCASTSS expP3<>(SB), Z22; \
	VBROADCASTSS expP2<>(SB), Z23; \
	VBROADCASTSS expP1<>(SB), Z24; \
	VBROADCASTSS expP0<>(SB), Z25; \
	VBROADCASTSS one<>(SB), Z26; \
	VBROADCASTSS expMin<>(SB), Z27; \
	VBROADCASTSS expMax<>(SB), Z28; \
	VBROADCASTSS inf<>(SB), Z29

// R *= U, R += c, for each of the four.
#define TERM(c) \
	VMULPS Z12, Z8, Z8; \
	VMULPS Z13, Z9, Z9; \
	VMULPS Z14, Z10, Z10; \
	VMULPS Z15, Z11, Z11; \
	TO8(OF8, VADDPS, c)

// U = u less the product of R and c.
#define LESS(c, u0, u1, u2, u3) \
	VMULPS c, Z8, Z31; \
	VSUBPS Z31, u0, Z12; \
	VMULPS c, Z9, Z31; \
	VSUBPS Z31, u1, Z13; \
	VMULPS c, Z10, Z31; \
	VSUBPS Z31, u2, Z14; \
	VMULPS c, Z11, Z31; \
	VSUBPS Z31, u3, Z15

// R = R·U² + U.
#define SQUARE(r, u) \
	VMULPS u, u, Z31; \
	VMULPS Z31, r, r; \
	VADDPS u, r, r

// Powers of 2, zero below the least normal number, and infinity or NaN.
#define LIMITS(x, t, r, k) \
	VCMPPS $21, Z27, x, k; \
	VPADDD.Z t, r, k, r; \
	VCMPPS $22, Z28, x, k; \
	VADDPS Z29, x, k, r

// Z8 to Z11 = exp of Z0 to Z3, which are kept, as exp32 computes it. Z4 to Z7, Z12 to Z15 and Z31
// are clobbered.
#define EXP64 \
	TO4(OF0, VMULPS, Z16); \
	TO4(OF4, VADDPS, Z17); \
	TO8(OF4, VSUBPS, Z17); \
	LESS(Z18, Z0, Z1, Z2, Z3); \
	LESS(Z19, Z12, Z13, Z14, Z15); \
	TO8(OF12, VMULPS, Z20); \
	TO8(OF8, VADDPS, Z21); \
	TERM(Z22); \
	TERM(Z23); \
	TERM(Z24); \
	TERM(Z25); \
	SQUARE(Z8, Z12); \
	SQUARE(Z9, Z13); \
	SQUARE(Z10, Z14); \
	SQUARE(Z11, Z15); \
	TO8(OF8, VADDPS, Z26); \
	VPSLLD $23, Z4, Z4; \
	VPSLLD $23, Z5, Z5; \
	VPSLLD $23, Z6, Z6; \
	VPSLLD $23, Z7, Z7; \
	LIMITS(Z0, Z4, Z8, K1); \
	LIMITS(Z1, Z5, Z9, K2); \
	LIMITS(Z2, Z6, Z10, K3); \
	LIMITS(Z3, Z7, Z11, K4)

#define LOAD64(from, r0, r1, r2, r3) \
	VMOVUPS (from), r0; \
	VMOVUPS 64(from), r1; \
	VMOVUPS 128(from), r2; \
	VMOVUPS 192(from), r3
#define STORE64(r0, r1, r2, r3, to) \
	VMOVUPS r0, (to); \
	VMOVUPS r1, 64(to); \
	VMOVUPS r2, 128(to); \
	VMOVUPS r3, 192(to)

// func exp512(x []float32, max float32)
TEXT ·exp512(SB), NOSPLIT, $0-28
	MOVQ x_base+0(FP), SI
	MOVQ x_len+8(FP), CX
	SHRQ $6, CX
	JEQ  done
	EXPSETUP
	VBROADCASTSS max+24(FP), Z30

loop:
	LOAD64(SI, Z0, Z1, Z2, Z3)
	OF0(VSUBPS, Z30, Z0, Z1, Z2, Z3)
	EXP64
	STORE64(Z8, Z9, Z10, Z11, SI)
	ADDQ $256, SI
	DECQ CX
	JNE  loop
	VZEROUPPER

done:
	RET

// The gate divided by one more than its exponential, times what goes up.
#define GATE(off, r) \
	VMOVUPS off(SI), Z31; \
	VDIVPS r, Z31, r; \
	VMULPS off(DX), r, r

// Z8 to Z11 = silu of the gate at SI times what goes up at DX.
#define SILU64 \
	LOAD64(SI, Z0, Z1, Z2, Z3); \
	OF0(VPXORD, Z30, Z0, Z1, Z2, Z3); \
	EXP64; \
	TO8(OF8, VADDPS, Z26); \
	GATE(0, Z8); \
	GATE(64, Z9); \
	GATE(128, Z10); \
	GATE(192, Z11); \
	ADDQ $256, SI; \
	ADDQ $256, DX

// func siluMul512(dst, gate, up []float32)
TEXT ·siluMul512(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	MOVQ gate_base+24(FP), SI
	MOVQ up_base+48(FP), DX
	SHRQ $6, CX
	JEQ  done
	EXPSETUP
	VPBROADCASTD signBit<>(SB), Z30

loop:
	SILU64
	STORE64(Z8, Z9, Z10, Z11, DI)
	ADDQ $256, DI
	DECQ CX
	JNE  loop
	VZEROUPPER

done:
	RET

// func siluMulBlocks512(dst *uint16, gate, up []float32)
TEXT ·siluMulBlocks512(SB), NOSPLIT, $0-56
	MOVQ dst+0(FP), DI
	MOVQ gate_base+8(FP), SI
	MOVQ gate_len+16(FP), CX
	MOVQ up_base+32(FP), DX
	SHRQ $6, CX
	JEQ  done
	EXPSETUP
	VPBROADCASTD signBit<>(SB), Z30

loop:
	SILU64
	// VCVTNE2PS2BF16 Z8, Z9, Z8
	BYTE $0x62; BYTE $0x52; BYTE $0x37; BYTE $0x48; BYTE $0x72; BYTE $0xc0
	// VCVTNE2PS2BF16 Z10, Z11, Z10
	BYTE $0x62; BYTE $0x52; BYTE $0x27; BYTE $0x48; BYTE $0x72; BYTE $0xd2
	VMOVDQU64 Z8, (DI)
	VMOVDQU64 Z10, 2048(DI)
	ADDQ $4096, DI
	DECQ CX
	JNE  loop
	VZEROUPPER

done:
	RET

CONST8(magnitude, 0x7fffffff7fffffff)

#define HORNER(c) \
	VBROADCASTSS c<>(SB), Z31; \
	TERM(Z31)

// x times the half exponential at r, or one less it, by the sign of x. Z31 is zero.
#define GELU(off, r, t, k) \
	VMOVUPS off(DI), t; \
	VCMPPS $21, Z31, t, k; \
	VSUBPS r, Z26, k, r; \
	VMULPS r, t, r

// func geluErf512(x []float32)
TEXT ·geluErf512(SB), NOSPLIT, $0-24
	MOVQ x_base+0(FP), DI
	MOVQ x_len+8(FP), CX
	SHRQ $6, CX
	JEQ  done
	EXPSETUP
	VPBROADCASTD magnitude<>(SB), Z30

loop:
	LOAD64(DI, Z0, Z1, Z2, Z3)
	OF0(VPANDD, Z30, Z0, Z1, Z2, Z3)
	VBROADCASTSS sqrtHalf<>(SB), Z31
	TO12(OF0, VMULPS, Z31)
	VBROADCASTSS erfcQ9<>(SB), Z31
	TO8(OF12, VMULPS, Z31)
	VBROADCASTSS erfcQ8<>(SB), Z31
	TO8(OF8, VADDPS, Z31)
	HORNER(erfcQ7)
	HORNER(erfcQ6)
	HORNER(erfcQ5)
	HORNER(erfcQ4)
	HORNER(erfcQ3)
	HORNER(erfcQ2)
	HORNER(erfcQ1)
	HORNER(erfcQ0)
	VMULPS Z12, Z8, Z0
	VMULPS Z13, Z9, Z1
	VMULPS Z14, Z10, Z2
	VMULPS Z15, Z11, Z3
	EXP64
	VBROADCASTSS half<>(SB), Z31
	TO8(OF8, VMULPS, Z31)
	VPXORD Z31, Z31, Z31
	GELU(0, Z8, Z4, K1)
	GELU(64, Z9, Z5, K2)
	GELU(128, Z10, Z6, K3)
	GELU(192, Z11, Z7, K4)
	STORE64(Z8, Z9, Z10, Z11, DI)
	ADDQ $256, DI
	DECQ CX
	JNE  loop
	VZEROUPPER

done:
	RET
