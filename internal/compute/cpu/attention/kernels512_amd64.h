// Bodies of the AVX-512 kernels, which take four queries or more at a time. The including file has
// ROWBYTES, ROWSHIFT, SETUP and LOAD of kernels_amd64.h, and defines
//
//	SETUP512               what LOAD512 needs in Z31
//	LOAD512(off, mem, to, half)  widens the 16 elements at off bytes from mem, in their order; half is
//	                             to's lower half
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

#define ZERO24 \
	ZERO12; \
	VPXORD Z12, Z12, Z12; \
	VPXORD Z13, Z13, Z13; \
	VPXORD Z14, Z14, Z14; \
	VPXORD Z15, Z15, Z15; \
	VPXORD Z16, Z16, Z16; \
	VPXORD Z17, Z17, Z17; \
	VPXORD Z18, Z18, Z18; \
	VPXORD Z19, Z19, Z19; \
	VPXORD Z20, Z20, Z20; \
	VPXORD Z21, Z21, Z21; \
	VPXORD Z22, Z22, Z22; \
	VPXORD Z23, Z23, Z23

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

// Twelve queries, the last six of them at a register that it sets.
#define PAIRS12(six) \
	LEAQ (SI)(R9*2), six; \
	PAIR((SI), Z0, Z12); \
	PAIR((SI)(R8*1), Z1, Z13); \
	PAIR((SI)(R8*2), Z2, Z14); \
	PAIR((SI)(R9*1), Z3, Z15); \
	PAIR((SI)(R8*4), Z4, Z16); \
	PAIR((SI)(R10*1), Z5, Z17); \
	PAIR((six), Z6, Z18); \
	PAIR((six)(R8*1), Z7, Z19); \
	PAIR((six)(R8*2), Z8, Z20); \
	PAIR((six)(R9*1), Z9, Z21); \
	PAIR((six)(R8*4), Z10, Z22); \
	PAIR((six)(R10*1), Z11, Z23)

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

#define ROWS12x2(OP) \
	SIX(OP, DI, Z0, Z1, Z2, Z3, Z4, Z5); \
	ADDQ $64, DI; \
	SIX(OP, DI, Z12, Z13, Z14, Z15, Z16, Z17); \
	LEAQ (DI)(R12*2), DI; \
	SIX(OP, DI, Z18, Z19, Z20, Z21, Z22, Z23); \
	SUBQ $64, DI; \
	SIX(OP, DI, Z6, Z7, Z8, Z9, Z10, Z11); \
	SUBQ R12, DI; \
	SUBQ R12, DI

// Four queries or more, two tiles at a time; the second stands in for a missing one as a copy of the
// first. The frame of 8 bytes has the tiles left while DX has the way to the second one's next.
#define QKx2(ZEROS, PAIRS, ROWS) \
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
	MOVQ DX, left-8(SP); \
	MOVQ SOON(0), R15; \
	MOVQ SOON(1), DX; \
	ZEROS; \
dim: \
	PREFETCHT1 (AX)(R15*1); \
	LOAD512(0, (AX), Z29, Y29); \
	PREFETCHT1 (R14)(DX*1); \
	LOAD512(0, (R14), Z30, Y30); \
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

#define QK4x2 QKx2(ZERO12, PAIRS4, ROWS4x2)
#define QK6x2 QKx2(ZERO12, PAIRS6, ROWS6x2)

// R11 has the last six queries in the loop.
#define QKROWS12(OP) \
	MOVQ outStride+64(FP), R11; \
	ROWS12x2(OP)

#define QK12x2 QKx2(ZERO24, PAIRS12(R11), QKROWS12)

#define PVSTEPx2(PAIRS) \
	PREFETCHT1 (AX)(R15*1); \
	LOAD512(0, (AX), Z29, Y29); \
	PREFETCHT1 (16*ROWBYTES)(AX)(R15*1); \
	LOAD512((16*ROWBYTES), (AX), Z30, Y30); \
	PAIRS

// Four queries or more, two slices at a time.
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
	PREFETCHT1 (AX)(R15*1); \
	LOAD512(0, (AX), Z29, Y29); \
	STEP12

// Walks all positions for n slices, then for the next ones: twelve queries come with keys and values
// that are in a cache, and accumulators stay in registers. Registers are those of PVTILE, the frame
// has the slices' place within a tile and how many remain.
#define PVCOLUMNS(n, STEP, ROWS) \
	PVPROLOGUE; \
	SETUP512; \
	MOVQ acc+56(FP), DI; \
	MOVQ slices+32(FP), AX; \
	MOVQ AX, left-16(SP); \
	MOVQ $0, within-8(SP); \
slice: \
	ROWS(FETCHED); \
tile: \
	PVTILE; \
	ADDQ within-8(SP), AX; \
pos: \
	STEP; \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  pos; \
	XORQ R14, R14; \
	TESTQ DX, DX; \
	JNE  tile; \
	ROWS(STORED); \
	ADDQ $(64*n), DI; \
	ADDQ $(n*16*ROWBYTES), within-8(SP); \
	MOVQ offs+8(FP), BX; \
	MOVQ first+16(FP), R14; \
	MOVQ count+24(FP), DX; \
	MOVQ p+40(FP), SI; \
	SUBQ $n, left-16(SP); \
	JNE  slice; \
	VZEROUPPER; \
	RET

#define PV12 PVCOLUMNS(1, PVSTEP12, ROWS12)
#define PV12x2 PVCOLUMNS(2, PVSTEPx2(PAIRS12(R14)), ROWS12x2)

// One query or two, four tiles at a time. The frame of 8 bytes has the tiles left while DX has the
// way to the second query.
#define QKx4(ZEROS, FETCH, PRODUCT, ROWS) \
	QKPROLOGUE; \
	SETUP512; \
tile: \
	QKFOUR; \
	MOVQ DX, left-8(SP); \
	MOVQ qStride+32(FP), DX; \
	ZEROS; \
	XORQ R11, R11; \
dim: \
	FETCH(DX); \
	PREFETCHT1 (R12)(R11*1); \
	LOAD512(0, (AX)(R11*1), Z29, Y29); \
	PRODUCT(Z0, Z4); \
	PREFETCHT1 (R13)(R11*1); \
	LOAD512(0, (R8)(R11*1), Z29, Y29); \
	PRODUCT(Z1, Z5); \
	PREFETCHT1 (R14)(R11*1); \
	LOAD512(0, (R9)(R11*1), Z29, Y29); \
	PRODUCT(Z2, Z6); \
	PREFETCHT1 (R15)(R11*1); \
	LOAD512(0, (R10)(R11*1), Z29, Y29); \
	PRODUCT(Z3, Z7); \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, R11; \
	DECQ CX; \
	JNE  dim; \
	MOVQ left-8(SP), DX; \
	MOVQ outStride+64(FP), R11; \
	VBROADCASTSS scale+48(FP), Z28; \
	ROWS(SCALED); \
	QKNEXT(4)

#define ZERO4 \
	VPXORD Z0, Z0, Z0; \
	VPXORD Z1, Z1, Z1; \
	VPXORD Z2, Z2, Z2; \
	VPXORD Z3, Z3, Z3

#define ZERO8x512 \
	ZERO4; \
	VPXORD Z4, Z4, Z4; \
	VPXORD Z5, Z5, Z5; \
	VPXORD Z6, Z6, Z6; \
	VPXORD Z7, Z7, Z7

// What multiplies the row in Z29: of one query, or of the second one, so many bytes on, too.
#define FETCH1(stride) VBROADCASTSS (SI), Z28
#define FETCH2(stride) \
	VBROADCASTSS (SI), Z28; \
	VBROADCASTSS (SI)(stride*1), Z27

#define PRODUCT1(first, second) VFMADD231PS Z29, Z28, first
#define PRODUCT2(first, second) \
	VFMADD231PS Z29, Z28, first; \
	VFMADD231PS Z29, Z27, second

// Visits four vectors at DI of the first query, and of the second one.
#define ROWS1x4(OP) \
	OP(Z0, (DI)); \
	OP(Z1, 64(DI)); \
	OP(Z2, 128(DI)); \
	OP(Z3, 192(DI))

#define ROWS2x4(OP) \
	ROWS1x4(OP); \
	OP(Z4, (DI)(R11*1)); \
	OP(Z5, 64(DI)(R11*1)); \
	OP(Z6, 128(DI)(R11*1)); \
	OP(Z7, 192(DI)(R11*1))

#define QK1x4 QKx4(ZERO4, FETCH1, PRODUCT1, ROWS1x4)
#define QK2x4 QKx4(ZERO8x512, FETCH2, PRODUCT2, ROWS2x4)

#define PVSTEPx4(FETCH, PRODUCT) \
	FETCH(R8); \
	PREFETCHT1 (AX)(R15*1); \
	LOAD512(0, (AX), Z29, Y29); \
	PRODUCT(Z0, Z4); \
	PREFETCHT1 (16*ROWBYTES)(AX)(R15*1); \
	LOAD512((16*ROWBYTES), (AX), Z29, Y29); \
	PRODUCT(Z1, Z5); \
	PREFETCHT1 (32*ROWBYTES)(AX)(R15*1); \
	LOAD512((32*ROWBYTES), (AX), Z29, Y29); \
	PRODUCT(Z2, Z6); \
	PREFETCHT1 (48*ROWBYTES)(AX)(R15*1); \
	LOAD512((48*ROWBYTES), (AX), Z29, Y29); \
	PRODUCT(Z3, Z7)

// One query or two, four slices at a time.
#define PV1x4x512 \
	PVPROLOGUE; \
	SETUP512; \
	PVWALK(4, PVSTEPx4(FETCH1, PRODUCT1), ROWS1x4, FETCHED, STORED)

#define PV2x4 \
	PVPROLOGUE; \
	SETUP512; \
	PVWALK(4, PVSTEPx4(FETCH2, PRODUCT2), ROWS2x4, FETCHED, STORED)
