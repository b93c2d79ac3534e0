// Bodies of the AVX-512 kernels, which take twelve queries at a time. The including file has
// ROWBYTES, ROWSHIFT, SETUP and LOAD of kernels_amd64.h, and defines
//
//	SETUP512          what LOAD512 needs in Z31
//	LOAD512(off, mem) widens the 16 elements at off bytes from mem into Z29, in their order
//
// A vector has the 16 accumulators that two of AVX2 have, so the bits are the same.

#define FMA512(p, sum) \
	VBROADCASTSS p, Z28; \
	VFMADD231PS Z29, Z28, sum

#define ZERO12 \
	VPXORD Z0, Z0, Z0; \
	VPXORD Z1, Z1, Z1; \
	VPXORD Z2, Z2, Z2; \
	VPXORD Z3, Z3, Z3; \
	VPXORD Z4, Z4, Z4; \
	VPXORD Z5, Z5, Z5; \
	VPXORD Z6, Z6, Z6; \
	VPXORD Z7, Z7, Z7; \
	VPXORD Z8, Z8, Z8; \
	VPXORD Z9, Z9, Z9; \
	VPXORD Z10, Z10, Z10; \
	VPXORD Z11, Z11, Z11

// The queries at SI and, six rows on, at R14 times the row in Z29.
#define STEP12 \
	FMA512((SI), Z0); \
	FMA512((SI)(R8*1), Z1); \
	FMA512((SI)(R8*2), Z2); \
	FMA512((SI)(R9*1), Z3); \
	FMA512((SI)(R8*4), Z4); \
	FMA512((SI)(R10*1), Z5); \
	FMA512((R14), Z6); \
	FMA512((R14)(R8*1), Z7); \
	FMA512((R14)(R8*2), Z8); \
	FMA512((R14)(R9*1), Z9); \
	FMA512((R14)(R8*4), Z10); \
	FMA512((R14)(R10*1), Z11)

// Visits six rows at a register, R11 bytes apart.
#define SIX(OP, at, r0, r1, r2, r3, r4, r5) \
	OP(r0, (at)); \
	OP(r1, (at)(R11*1)); \
	OP(r2, (at)(R11*2)); \
	OP(r3, (at)(R12*1)); \
	OP(r4, (at)(R11*4)); \
	OP(r5, (at)(R13*1))

#define SCALED(r, to) \
	VMULPS Z28, r, r; \
	VMOVUPS r, to

#define FETCHED(r, from) VMOVUPS from, r

#define STORED(r, to) VMOVUPS r, to

// Twelve queries, one tile at a time.
#define QK12 \
	QKPROLOGUE; \
	SETUP512; \
	QKSTRIDES; \
tile: \
	QKTILE; \
	LEAQ (SI)(R9*2), R14; \
	NEXTTILE(1); \
	ZERO12; \
dim: \
	PREFETCHT0 (AX)(R15*1); \
	LOAD512(0, (AX)); \
	STEP12; \
	ADDQ $4, SI; \
	ADDQ $4, R14; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Z28; \
	LEAQ (DI)(R12*2), R14; \
	SIX(SCALED, DI, Z0, Z1, Z2, Z3, Z4, Z5); \
	SIX(SCALED, R14, Z6, Z7, Z8, Z9, Z10, Z11); \
	QKNEXT(1)

// The accumulators at DI: of the first six queries and, six rows on, of the others.
#define ROWS12(OP) \
	SIX(OP, DI, Z0, Z1, Z2, Z3, Z4, Z5); \
	LEAQ (DI)(R12*2), DI; \
	SIX(OP, DI, Z6, Z7, Z8, Z9, Z10, Z11); \
	SUBQ R12, DI; \
	SUBQ R12, DI

// Twelve queries, one slice of 16 dimensions at a time: PVWALK with the row of the slice in a frame
// of 24 bytes, for R14 has the weights of the last six queries.
#define PV12 \
	PVPROLOGUE; \
	SETUP512; \
tile: \
	MOVQ $16, CX; \
	SUBQ R14, CX; \
	CMPQ CX, DX; \
	CMOVQGT DX, CX; \
	SUBQ CX, DX; \
	MOVQ CX, inTile-8(SP); \
	XORQ R15, R15; \
	TESTQ DX, DX; \
	JEQ  last; \
	MOVQ 8(BX), R15; \
	SUBQ (BX), R15; \
last: \
	MOVQ R14, AX; \
	SHLQ $ROWSHIFT, AX; \
	ADDQ (BX), AX; \
	ADDQ base+0(FP), AX; \
	ADDQ $8, BX; \
	MOVQ acc+56(FP), DI; \
	MOVQ slices+32(FP), R14; \
	MOVQ R14, left-16(SP); \
slice: \
	MOVQ AX, row-24(SP); \
	LEAQ (SI)(R9*2), R14; \
	ROWS12(FETCHED); \
pos: \
	PREFETCHT0 (AX)(R15*1); \
	LOAD512(0, (AX)); \
	STEP12; \
	ADDQ $4, SI; \
	ADDQ $4, R14; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  pos; \
	ROWS12(STORED); \
	ADDQ $64, DI; \
	MOVQ row-24(SP), AX; \
	ADDQ $(16*ROWBYTES), AX; \
	MOVQ inTile-8(SP), CX; \
	SHLQ $2, CX; \
	SUBQ CX, SI; \
	SHRQ $2, CX; \
	SUBQ $1, left-16(SP); \
	JNE  slice; \
	LEAQ (SI)(CX*4), SI; \
	XORQ R14, R14; \
	TESTQ DX, DX; \
	JNE  tile; \
	VZEROUPPER; \
	RET
