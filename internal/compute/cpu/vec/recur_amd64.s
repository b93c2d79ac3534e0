#include "textflag.h"
#include "macros_amd64.h"

#define ADV3 \
	ADDQ $32, DI; \
	ADDQ $32, SI; \
	ADDQ $32, DX

// The columns of a state are cut in pieces, whose rows are gone through one after the other: DI is
// where a piece begins in the first row, SI in out and DX in u; CX is how many columns are left.
#define SETUP \
	MOVQ state_base+0(FP), DI; \
	MOVQ out_base+24(FP), SI; \
	MOVQ out_len+32(FP), CX; \
	MOVQ k_base+48(FP), R10; \
	MOVQ k_len+56(FP), R11; \
	MOVQ q_base+72(FP), R12; \
	MOVQ u_base+96(FP), DX; \
	MOVQ CX, R13; \
	SHLQ $2, R13

// The first row is AX, its number BX.
#define FIRST \
	MOVQ DI, AX; \
	XORQ BX, BX
#define NEXT \
	ADDQ R13, AX; \
	INCQ BX; \
	CMPQ BX, R11

#define FACTORS(K, Q) \
	VBROADCASTSS (R10)(BX*4), K; \
	VBROADCASTSS (R12)(BX*4), Q

// The row's elements at off become decay·row + k·u, and sum += q·row.
#define RECUR(off, sum, u, T, T2, K, Q, decay) \
	VMULPS off(AX), decay, T; \
	VMULPS u, K, T2; \
	VADDPS T2, T, T; \
	VMOVUPS T, off(AX); \
	VMULPS T, Q, T; \
	VADDPS T, sum, sum

// func recurAVX2(state, out, k, q, u []float32, decay float32)
TEXT ·recurAVX2(SB), NOSPLIT, $0-124
	SETUP
	VBROADCASTSS decay+120(FP), Y14
wide:
	CMPQ CX, $32
	JLT  narrow
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	VMOVUPS (DX), Y4
	VMOVUPS 32(DX), Y5
	VMOVUPS 64(DX), Y6
	VMOVUPS 96(DX), Y7
	FIRST
wideRow:
	FACTORS(Y12, Y13)
	RECUR(0, Y0, Y4, Y8, Y9, Y12, Y13, Y14)
	RECUR(32, Y1, Y5, Y10, Y11, Y12, Y13, Y14)
	RECUR(64, Y2, Y6, Y8, Y9, Y12, Y13, Y14)
	RECUR(96, Y3, Y7, Y10, Y11, Y12, Y13, Y14)
	NEXT
	JLT wideRow
	VMOVUPS Y0, (SI)
	VMOVUPS Y1, 32(SI)
	VMOVUPS Y2, 64(SI)
	VMOVUPS Y3, 96(SI)
	ADDQ $128, DI
	ADDQ $128, SI
	ADDQ $128, DX
	SUBQ $32, CX
	JMP  wide
narrow:
	CMPQ CX, $8
	JLT  tail
	VMOVUPS (SI), Y0
	VMOVUPS (DX), Y4
	FIRST
narrowRow:
	FACTORS(Y12, Y13)
	RECUR(0, Y0, Y4, Y8, Y9, Y12, Y13, Y14)
	NEXT
	JLT narrowRow
	VMOVUPS Y0, (SI)
	ADV3
	SUBQ $8, CX
	JMP  narrow
tail:
	TESTQ CX, CX
	JEQ  done
	TAILMASK
	VMASKMOVPS (SI), Y15, Y0
	VMASKMOVPS (DX), Y15, Y4
	FIRST
tailRow:
	FACTORS(Y12, Y13)
	VMASKMOVPS (AX), Y15, Y8
	VMULPS Y8, Y14, Y8
	VMULPS Y4, Y12, Y9
	VADDPS Y9, Y8, Y8
	VMASKMOVPS Y8, Y15, (AX)
	VMULPS Y8, Y13, Y8
	VADDPS Y8, Y0, Y0
	NEXT
	JLT tailRow
	VMASKMOVPS Y0, Y15, (SI)
done:
	VZEROUPPER
	RET

// func recur512(state, out, k, q, u []float32, decay float32)
TEXT ·recur512(SB), NOSPLIT, $0-124
	SETUP
	VBROADCASTSS decay+120(FP), Z14
piece:
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	VMOVUPS 128(SI), Z2
	VMOVUPS 192(SI), Z3
	VMOVUPS (DX), Z4
	VMOVUPS 64(DX), Z5
	VMOVUPS 128(DX), Z6
	VMOVUPS 192(DX), Z7
	FIRST
row:
	FACTORS(Z12, Z13)
	RECUR(0, Z0, Z4, Z8, Z9, Z12, Z13, Z14)
	RECUR(64, Z1, Z5, Z10, Z11, Z12, Z13, Z14)
	RECUR(128, Z2, Z6, Z15, Z16, Z12, Z13, Z14)
	RECUR(192, Z3, Z7, Z17, Z18, Z12, Z13, Z14)
	NEXT
	JLT row
	VMOVUPS Z0, (SI)
	VMOVUPS Z1, 64(SI)
	VMOVUPS Z2, 128(SI)
	VMOVUPS Z3, 192(SI)
	ADDQ $256, DI
	ADDQ $256, SI
	ADDQ $256, DX
	SUBQ $64, CX
	JNE  piece
	VZEROUPPER
	RET
