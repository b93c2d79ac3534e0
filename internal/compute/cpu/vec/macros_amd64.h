// Constants and macros shared by the AVX2 kernels of this package. Every kernel walks n elements
// (CX) eight at a time and ends with one masked step, so no kernel reads or writes beyond its
// slices. No kernel fuses a multiplication with an addition: the portable kernels round in the same
// places and give the same bits.

#define CONST8(name, bits) \
	DATA name<>+0(SB)/8, $bits; \
	DATA name<>+8(SB)/8, $bits; \
	DATA name<>+16(SB)/8, $bits; \
	DATA name<>+24(SB)/8, $bits; \
	GLOBL name<>(SB), RODATA|NOPTR, $32

// The mask of r leading lanes starts 4*r bytes before the middle of tailMask.
DATA tailMask<>+0(SB)/8, $-1
DATA tailMask<>+8(SB)/8, $-1
DATA tailMask<>+16(SB)/8, $-1
DATA tailMask<>+24(SB)/8, $-1
DATA tailMask<>+32(SB)/8, $0
DATA tailMask<>+40(SB)/8, $0
DATA tailMask<>+48(SB)/8, $0
DATA tailMask<>+56(SB)/8, $0
GLOBL tailMask<>(SB), RODATA|NOPTR, $64

// Y15 = lanes 0..CX-1 set; clobbers R8 and R9.
#define TAILMASK \
	LEAQ tailMask<>(SB), R8; \
	MOVQ CX, R9; \
	NEGQ R9; \
	VMOVDQU 32(R8)(R9*4), Y15

// Runs FULL for each eight elements, then MASKED (with Y15 set) for the remaining ones. ADVANCE
// moves the pointers.
#define LOOP8(FULL, MASKED, ADVANCE) \
loop: \
	CMPQ CX, $8; \
	JLT  tail; \
	FULL; \
	ADVANCE; \
	SUBQ $8, CX; \
	JMP  loop; \
tail: \
	TESTQ CX, CX; \
	JEQ  done; \
	TAILMASK; \
	MASKED; \
done: \
	VZEROUPPER

// LOOP8 with PAIR for each sixteen elements before.
#define LOOP16(PAIR, FULL, MASKED, ADVANCE) \
pairs: \
	CMPQ CX, $16; \
	JLT  loop; \
	PAIR; \
	ADVANCE; \
	ADVANCE; \
	SUBQ $16, CX; \
	JMP  pairs; \
	LOOP8(FULL, MASKED, ADVANCE)

// The constants of exp32 in exp.go.
CONST8(expLog2e, 0x3fb8aa3b3fb8aa3b)
CONST8(expMagic, 0x4b4000004b400000)
CONST8(expLn2Hi, 0x3f3180003f318000)
CONST8(expLn2Lo, 0xb95e8083b95e8083)
CONST8(expP5, 0x3950696739506967)
CONST8(expP4, 0x3ab743ce3ab743ce)
CONST8(expP3, 0x3c0889083c088908)
CONST8(expP2, 0x3d2aa9c13d2aa9c1)
CONST8(expP1, 0x3e2aaaaa3e2aaaaa)
CONST8(expP0, 0x3f0000003f000000)
CONST8(one, 0x3f8000003f800000)
CONST8(expMin, 0xc2aeac4fc2aeac4f)
CONST8(expMax, 0x42b1721742b17217)
CONST8(inf, 0x7f8000007f800000)
CONST8(signBit, 0x8000000080000000)

// The constants of geluErf32 in exp.go.
CONST8(sqrtHalf, 0x3f3504f33f3504f3)
CONST8(half, 0x3f0000003f000000)
CONST8(erfcQ0, 0xbf906ebbbf906ebb)
CONST8(erfcQ1, 0xbf22f986bf22f986)
CONST8(erfcQ2, 0xbdd2793cbdd2793c)
CONST8(erfcQ3, 0x3c9c92843c9c9284)
CONST8(erfcQ4, 0x398ae64a398ae64a)
CONST8(erfcQ5, 0xbaedf2e0baedf2e0)
CONST8(erfcQ6, 0x3a4575703a457570)
CONST8(erfcQ7, 0xb93585fab93585fa)
CONST8(erfcQ8, 0x37be5d6337be5d63)
CONST8(erfcQ9, 0xb5b1a177b5b1a177)

// R = exp(X), as exp32 computes it. X is kept; T, U and V are clobbered; all five differ.
#define EXP(X, R, T, U, V) \
	VMULPS expLog2e<>(SB), X, T; \
	VADDPS expMagic<>(SB), T, T; \
	VSUBPS expMagic<>(SB), T, R; \
	VMULPS expLn2Hi<>(SB), R, U; \
	VSUBPS U, X, U; \
	VMULPS expLn2Lo<>(SB), R, R; \
	VSUBPS R, U, U; \
	VMULPS expP5<>(SB), U, R; \
	VADDPS expP4<>(SB), R, R; \
	VMULPS U, R, R; \
	VADDPS expP3<>(SB), R, R; \
	VMULPS U, R, R; \
	VADDPS expP2<>(SB), R, R; \
	VMULPS U, R, R; \
	VADDPS expP1<>(SB), R, R; \
	VMULPS U, R, R; \
	VADDPS expP0<>(SB), R, R; \
	VMULPS U, U, V; \
	VMULPS V, R, R; \
	VADDPS U, R, R; \
	VADDPS one<>(SB), R, R; \
	VPSLLD $23, T, T; \
	VPADDD T, R, R; \
	VCMPPS $17, expMin<>(SB), X, T; \
	VANDNPS R, T, R; \
	VCMPPS $22, expMax<>(SB), X, T; \
	VADDPS inf<>(SB), X, U; \
	VBLENDVPS T, U, R, R

// Both R = exp(X) and R2 = exp(X2), step by step: the two chains of dependent instructions fill the
// waits of each other.
#define EXPPAIR(X, R, T, U, V, X2, R2, T2, U2, V2) \
	VMULPS expLog2e<>(SB), X, T; \
	VMULPS expLog2e<>(SB), X2, T2; \
	VADDPS expMagic<>(SB), T, T; \
	VADDPS expMagic<>(SB), T2, T2; \
	VSUBPS expMagic<>(SB), T, R; \
	VSUBPS expMagic<>(SB), T2, R2; \
	VMULPS expLn2Hi<>(SB), R, U; \
	VMULPS expLn2Hi<>(SB), R2, U2; \
	VSUBPS U, X, U; \
	VSUBPS U2, X2, U2; \
	VMULPS expLn2Lo<>(SB), R, R; \
	VMULPS expLn2Lo<>(SB), R2, R2; \
	VSUBPS R, U, U; \
	VSUBPS R2, U2, U2; \
	VMULPS expP5<>(SB), U, R; \
	VMULPS expP5<>(SB), U2, R2; \
	VADDPS expP4<>(SB), R, R; \
	VADDPS expP4<>(SB), R2, R2; \
	VMULPS U, R, R; \
	VMULPS U2, R2, R2; \
	VADDPS expP3<>(SB), R, R; \
	VADDPS expP3<>(SB), R2, R2; \
	VMULPS U, R, R; \
	VMULPS U2, R2, R2; \
	VADDPS expP2<>(SB), R, R; \
	VADDPS expP2<>(SB), R2, R2; \
	VMULPS U, R, R; \
	VMULPS U2, R2, R2; \
	VADDPS expP1<>(SB), R, R; \
	VADDPS expP1<>(SB), R2, R2; \
	VMULPS U, R, R; \
	VMULPS U2, R2, R2; \
	VADDPS expP0<>(SB), R, R; \
	VADDPS expP0<>(SB), R2, R2; \
	VMULPS U, U, V; \
	VMULPS U2, U2, V2; \
	VMULPS V, R, R; \
	VMULPS V2, R2, R2; \
	VADDPS U, R, R; \
	VADDPS U2, R2, R2; \
	VADDPS one<>(SB), R, R; \
	VADDPS one<>(SB), R2, R2; \
	VPSLLD $23, T, T; \
	VPSLLD $23, T2, T2; \
	VPADDD T, R, R; \
	VPADDD T2, R2, R2; \
	VCMPPS $17, expMin<>(SB), X, T; \
	VCMPPS $17, expMin<>(SB), X2, T2; \
	VANDNPS R, T, R; \
	VANDNPS R2, T2, R2; \
	VCMPPS $22, expMax<>(SB), X, T; \
	VCMPPS $22, expMax<>(SB), X2, T2; \
	VADDPS inf<>(SB), X, U; \
	VADDPS inf<>(SB), X2, U2; \
	VBLENDVPS T, U, R, R; \
	VBLENDVPS T2, U2, R2, R2
