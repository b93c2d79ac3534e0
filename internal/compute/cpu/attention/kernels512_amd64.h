// Bodies of the AVX-512 kernels, which take four queries or more at a time. The including file has
// ROWBYTES, ROWSHIFT, SETUP and LOAD of kernels_amd64.h, and defines
//
//	SETUP512               what LOAD512 needs in Z31
//	LOAD512(off, mem, to)  widens the 16 elements at off bytes from mem, in their order
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

// The queries at SI and, six rows on, at R14, which it sets, times the row in Z29.
#define STEP12 \
	LEAQ (SI)(R9*2), R14; \
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
	NEXTTILE(1); \
	ZERO12; \
dim: \
	PREFETCHT0 (AX)(R15*1); \
	LOAD512(0, (AX), Z29); \
	STEP12; \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Z28; \
	LEAQ (DI)(R12*2), R14; \
	SIX(SCALED, DI, Z0, Z1, Z2, Z3, Z4, Z5); \
	SIX(SCALED, R14, Z6, Z7, Z8, Z9, Z10, Z11); \
	QKNEXT(1)

// Times the rows in Z29 and Z30.
#define PAIR(p, first, second) \
	VBROADCASTSS p, Z28; \
	VFMADD231PS Z29, Z28, first; \
	VFMADD231PS Z30, Z28, second

#define PAIRS4 \
	PAIR((SI), Z0, Z6); \
	PAIR((SI)(R8*1), Z1, Z7); \
	PAIR((SI)(R8*2), Z2, Z8); \
	PAIR((SI)(R9*1), Z3, Z9)

#define PAIRS6 \
	PAIRS4; \
	PAIR((SI)(R8*4), Z4, Z10); \
	PAIR((SI)(R10*1), Z5, Z11)

// Visits the rows at DI, two vectors each.
#define ROWS4x2(OP) \
	OP(Z0, (DI)); \
	OP(Z6, 64(DI)); \
	OP(Z1, (DI)(R11*1)); \
	OP(Z7, 64(DI)(R11*1)); \
	OP(Z2, (DI)(R11*2)); \
	OP(Z8, 64(DI)(R11*2)); \
	OP(Z3, (DI)(R12*1)); \
	OP(Z9, 64(DI)(R12*1))

#define ROWS6x2(OP) \
	ROWS4x2(OP); \
	OP(Z4, (DI)(R11*4)); \
	OP(Z10, 64(DI)(R11*4)); \
	OP(Z5, (DI)(R13*1)); \
	OP(Z11, 64(DI)(R13*1))

// Four or six queries, two tiles at a time; the second stands in for a missing one as a copy of the
// first. The frame of 8 bytes has the tiles left while DX has the way to the second one's next.
#define QKx2(PAIRS, ROWS) \
	QKPROLOGUE; \
	SETUP512; \
	QKSTRIDES; \
tile: \
	QKTILE; \
	MOVQ AX, R14; \
	CMPQ DX, $2; \
	JLT  start; \
	MOVQ 8(BX), R14; \
	ADDQ base+0(FP), R14; \
start: \
	NEXTTILE(2); \
	MOVQ DX, left-8(SP); \
	CMPQ DX, $3; \
	MOVQ $0, DX; \
	JLE  dims; \
	MOVQ 24(BX), DX; \
	SUBQ 8(BX), DX; \
dims: \
	ZERO12; \
dim: \
	PREFETCHT0 (AX)(R15*1); \
	LOAD512(0, (AX), Z29); \
	PREFETCHT0 (R14)(DX*1); \
	LOAD512(0, (R14), Z30); \
	PAIRS; \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	ADDQ $ROWBYTES, R14; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Z28; \
	ROWS(SCALED); \
	MOVQ left-8(SP), DX; \
	QKNEXT(2)

#define QK4x2 QKx2(PAIRS4, ROWS4x2)
#define QK6x2 QKx2(PAIRS6, ROWS6x2)

#define PVSTEPx2(PAIRS) \
	PREFETCHT0 (AX)(R15*1); \
	LOAD512(0, (AX), Z29); \
	PREFETCHT0 (16*ROWBYTES)(AX)(R15*1); \
	LOAD512((16*ROWBYTES), (AX), Z30); \
	PAIRS

// Four or six queries, two slices at a time.
#define PV4x2 \
	PVPROLOGUE; \
	SETUP512; \
	PVWALK(2, PVSTEPx2(PAIRS4), ROWS4x2, FETCHED, STORED)

#define PV6x2 \
	PVPROLOGUE; \
	SETUP512; \
	PVWALK(2, PVSTEPx2(PAIRS6), ROWS6x2, FETCHED, STORED)

// The accumulators at DI: of the first six queries and, six rows on, of the others.
#define ROWS12(OP) \
	SIX(OP, DI, Z0, Z1, Z2, Z3, Z4, Z5); \
	LEAQ (DI)(R12*2), DI; \
	SIX(OP, DI, Z6, Z7, Z8, Z9, Z10, Z11); \
	SUBQ R12, DI; \
	SUBQ R12, DI

#define PVSTEP12 \
	PREFETCHT0 (AX)(R15*1); \
	LOAD512(0, (AX), Z29); \
	STEP12

// Twelve queries, one slice of 16 dimensions at a time.
#define PV12 \
	PVPROLOGUE; \
	SETUP512; \
	PVWALK(1, PVSTEP12, ROWS12, FETCHED, STORED)
