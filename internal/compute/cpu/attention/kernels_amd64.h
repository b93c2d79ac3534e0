// Bodies of the AVX2 kernels, shared by the three element kinds. The including file defines
//
//	ROWBYTES          bytes of a row of 16 elements
//	ROWSHIFT          its logarithm
//	SETUP             what LOAD needs in Y15
//	LOAD(off, mem)    widens the 16 elements at off bytes from mem, a register in parentheses with an optional index,
//	                  into Y13 (0..7) and Y14 (8..15); may clobber Y12
//
// Every accumulator takes its terms one by one, in order of the head's dimension (scores) or of the
// position (values). Kernels for one query or two work on several tiles or slices side by side only
// to have enough independent accumulators; how queries, tiles and slices are put together never
// shows in a result.

// Takes the product of the element at p, in all lanes, with Y13 and Y14 into lo and hi.
#define FMA(p, lo, hi) \
	VBROADCASTSS p, Y12; \
	VFMADD231PS Y13, Y12, lo; \
	VFMADD231PS Y14, Y12, hi

#define ZERO(r) \
	VXORPS r, r, r

#define ZERO8 \
	ZERO(Y0); \
	ZERO(Y1); \
	ZERO(Y2); \
	ZERO(Y3); \
	ZERO(Y4); \
	ZERO(Y5); \
	ZERO(Y6); \
	ZERO(Y7)

// Scores: qk(base, offs, tiles, q, qStride, dim, scale, out, outStride).

#define QKPROLOGUE \
	MOVQ offs+8(FP), BX; \
	MOVQ tiles+16(FP), DX; \
	MOVQ out+56(FP), DI; \
	SETUP

// Multiples of the strides of queries (R8, R9, R10) and of score rows (R11, R12, R13): 1, 3, 5.
#define QKSTRIDES \
	MOVQ qStride+32(FP), R8; \
	LEAQ (R8)(R8*2), R9; \
	LEAQ (R8)(R8*4), R10; \
	MOVQ outStride+64(FP), R11; \
	LEAQ (R11)(R11*2), R12; \
	LEAQ (R11)(R11*4), R13

// Bytes from the n-th tile of K from (BX) on to the one that is fetched meanwhile: see walk.
#define SOON(n) (walk_keys+8*n)(BX)

// AX = the tile at (BX); SI = the queries; CX = the number of dimensions.
#define QKTILE \
	MOVQ (BX), AX; \
	ADDQ base+0(FP), AX; \
	MOVQ q+24(FP), SI; \
	MOVQ dim+40(FP), CX

#define QKSTORE(lo, hi, to, to32) \
	VMULPS Y12, lo, lo; \
	VMULPS Y12, hi, hi; \
	VMOVUPS lo, to; \
	VMOVUPS hi, to32

#define QKNEXT(n) \
	ADDQ $(64*n), DI; \
	ADDQ $(8*n), BX; \
	SUBQ $n, DX; \
	JGT  tile; \
	VZEROUPPER; \
	RET

// Six queries, one tile at a time.
#define QK6 \
	QKPROLOGUE; \
	QKSTRIDES; \
tile: \
	QKTILE; \
	MOVQ SOON(0), R15; \
	ZERO8; \
	ZERO(Y8); \
	ZERO(Y9); \
	ZERO(Y10); \
	ZERO(Y11); \
dim: \
	PREFETCHT1 (AX)(R15*1); \
	LOAD(0, (AX)); \
	FMA((SI), Y0, Y1); \
	FMA((SI)(R8*1), Y2, Y3); \
	FMA((SI)(R8*2), Y4, Y5); \
	FMA((SI)(R9*1), Y6, Y7); \
	FMA((SI)(R8*4), Y8, Y9); \
	FMA((SI)(R10*1), Y10, Y11); \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Y12; \
	QKSTORE(Y0, Y1, (DI), 32(DI)); \
	QKSTORE(Y2, Y3, (DI)(R11*1), 32(DI)(R11*1)); \
	QKSTORE(Y4, Y5, (DI)(R11*2), 32(DI)(R11*2)); \
	QKSTORE(Y6, Y7, (DI)(R12*1), 32(DI)(R12*1)); \
	QKSTORE(Y8, Y9, (DI)(R11*4), 32(DI)(R11*4)); \
	QKSTORE(Y10, Y11, (DI)(R13*1), 32(DI)(R13*1)); \
	QKNEXT(1)

// Four queries, one tile at a time.
#define QK4 \
	QKPROLOGUE; \
	QKSTRIDES; \
tile: \
	QKTILE; \
	MOVQ SOON(0), R15; \
	ZERO8; \
dim: \
	PREFETCHT1 (AX)(R15*1); \
	LOAD(0, (AX)); \
	FMA((SI), Y0, Y1); \
	FMA((SI)(R8*1), Y2, Y3); \
	FMA((SI)(R8*2), Y4, Y5); \
	FMA((SI)(R9*1), Y6, Y7); \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Y12; \
	QKSTORE(Y0, Y1, (DI), 32(DI)); \
	QKSTORE(Y2, Y3, (DI)(R11*1), 32(DI)(R11*1)); \
	QKSTORE(Y4, Y5, (DI)(R11*2), 32(DI)(R11*2)); \
	QKSTORE(Y6, Y7, (DI)(R12*1), 32(DI)(R12*1)); \
	QKNEXT(1)

// Two queries, two tiles at a time; the second stands in for a missing one as a copy of the first.
#define QK2 \
	QKPROLOGUE; \
	QKSTRIDES; \
tile: \
	QKTILE; \
	MOVQ AX, R9; \
	CMPQ DX, $2; \
	JLT  start; \
	MOVQ 8(BX), R9; \
	ADDQ base+0(FP), R9; \
start: \
	MOVQ SOON(0), R15; \
	MOVQ SOON(1), R10; \
	ZERO8; \
dim: \
	VBROADCASTSS (SI), Y10; \
	VBROADCASTSS (SI)(R8*1), Y11; \
	PREFETCHT1 (AX)(R15*1); \
	LOAD(0, (AX)); \
	VFMADD231PS Y13, Y10, Y0; \
	VFMADD231PS Y14, Y10, Y1; \
	VFMADD231PS Y13, Y11, Y2; \
	VFMADD231PS Y14, Y11, Y3; \
	PREFETCHT1 (R9)(R10*1); \
	LOAD(0, (R9)); \
	VFMADD231PS Y13, Y10, Y4; \
	VFMADD231PS Y14, Y10, Y5; \
	VFMADD231PS Y13, Y11, Y6; \
	VFMADD231PS Y14, Y11, Y7; \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	ADDQ $ROWBYTES, R9; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Y12; \
	QKSTORE(Y0, Y1, (DI), 32(DI)); \
	QKSTORE(Y2, Y3, (DI)(R11*1), 32(DI)(R11*1)); \
	QKSTORE(Y4, Y5, 64(DI), 96(DI)); \
	QKSTORE(Y6, Y7, 64(DI)(R11*1), 96(DI)(R11*1)); \
	QKNEXT(2)

// AX, R8, R9, R10 = the tile at (BX) and the three after it; copies of the first stand in for
// missing ones. R12 to R15 = what is fetched meanwhile.
#define QKFOUR \
	QKTILE; \
	MOVQ AX, R8; \
	MOVQ AX, R9; \
	MOVQ AX, R10; \
	CMPQ DX, $2; \
	JLT  start; \
	MOVQ 8(BX), R8; \
	ADDQ base+0(FP), R8; \
	CMPQ DX, $3; \
	JLT  start; \
	MOVQ 16(BX), R9; \
	ADDQ base+0(FP), R9; \
	CMPQ DX, $4; \
	JLT  start; \
	MOVQ 24(BX), R10; \
	ADDQ base+0(FP), R10; \
start: \
	MOVQ SOON(0), R12; \
	MOVQ SOON(1), R13; \
	MOVQ SOON(2), R14; \
	MOVQ SOON(3), R15; \
	ADDQ AX, R12; \
	ADDQ R8, R13; \
	ADDQ R9, R14; \
	ADDQ R10, R15

// One query, four tiles at a time.
#define QK1 \
	QKPROLOGUE; \
tile: \
	QKFOUR; \
	ZERO8; \
	XORQ R11, R11; \
dim: \
	VBROADCASTSS (SI), Y11; \
	PREFETCHT1 (R12)(R11*1); \
	LOAD(0, (AX)(R11*1)); \
	VFMADD231PS Y13, Y11, Y0; \
	VFMADD231PS Y14, Y11, Y1; \
	PREFETCHT1 (R13)(R11*1); \
	LOAD(0, (R8)(R11*1)); \
	VFMADD231PS Y13, Y11, Y2; \
	VFMADD231PS Y14, Y11, Y3; \
	PREFETCHT1 (R14)(R11*1); \
	LOAD(0, (R9)(R11*1)); \
	VFMADD231PS Y13, Y11, Y4; \
	VFMADD231PS Y14, Y11, Y5; \
	PREFETCHT1 (R15)(R11*1); \
	LOAD(0, (R10)(R11*1)); \
	VFMADD231PS Y13, Y11, Y6; \
	VFMADD231PS Y14, Y11, Y7; \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, R11; \
	DECQ CX; \
	JNE  dim; \
	VBROADCASTSS scale+48(FP), Y12; \
	QKSTORE(Y0, Y1, (DI), 32(DI)); \
	QKSTORE(Y2, Y3, 64(DI), 96(DI)); \
	QKSTORE(Y4, Y5, 128(DI), 160(DI)); \
	QKSTORE(Y6, Y7, 192(DI), 224(DI)); \
	QKNEXT(4)

// Values: pv(base, offs, first, count, slices, p, pStride, acc, accStride), with a frame of 24
// bytes.

#define PVPROLOGUE \
	MOVQ offs+8(FP), BX; \
	MOVQ count+24(FP), DX; \
	MOVQ p+40(FP), SI; \
	MOVQ first+16(FP), R14; \
	MOVQ pStride+48(FP), R8; \
	LEAQ (R8)(R8*2), R9; \
	LEAQ (R8)(R8*4), R10; \
	MOVQ accStride+64(FP), R11; \
	LEAQ (R11)(R11*2), R12; \
	LEAQ (R11)(R11*4), R13; \
	SETUP

#define PVLOAD(lo, hi, from, from32) \
	VMOVUPS from, lo; \
	VMOVUPS from32, hi

#define PVSTORE(lo, hi, to, to32) \
	VMOVUPS lo, to; \
	VMOVUPS hi, to32

// The tile at (BX), and BX moves on: AX = the row of position R14 within it, CX = how many positions
// it has from there on, which are taken off those that remain, DX; R15 = from it to what is fetched.
#define PVTILE \
	MOVQ $16, CX; \
	SUBQ R14, CX; \
	CMPQ CX, DX; \
	CMOVQGT DX, CX; \
	SUBQ CX, DX; \
	MOVQ walk_values(BX), R15; \
	MOVQ R14, AX; \
	SHLQ $ROWSHIFT, AX; \
	ADDQ (BX), AX; \
	ADDQ base+0(FP), AX; \
	ADDQ $8, BX

// Walks tile by tile, within it in steps of n slices, within these position by position, so as to
// read memory in order. Registers are those of PVTILE, CX counts the positions, and the frame holds
// how many the tile has, how many slices remain and the row that these begin at. R14 is free to
// STEP. ROWS visits the accumulators of the slices at DI, to load and to store them.
#define PVWALK(n, STEP, ROWS, FETCH, STORE) \
tile: \
	PVTILE; \
	MOVQ CX, inTile-8(SP); \
	MOVQ acc+56(FP), DI; \
	MOVQ slices+32(FP), R14; \
	MOVQ R14, left-16(SP); \
slice: \
	MOVQ AX, row-24(SP); \
	ROWS(FETCH); \
pos: \
	STEP; \
	ADDQ $4, SI; \
	ADDQ $ROWBYTES, AX; \
	DECQ CX; \
	JNE  pos; \
	ROWS(STORE); \
	ADDQ $(64*n), DI; \
	MOVQ row-24(SP), AX; \
	ADDQ $(n*16*ROWBYTES), AX; \
	MOVQ inTile-8(SP), CX; \
	SHLQ $2, CX; \
	SUBQ CX, SI; \
	SHRQ $2, CX; \
	SUBQ $n, left-16(SP); \
	JNE  slice; \
	LEAQ (SI)(CX*4), SI; \
	XORQ R14, R14; \
	TESTQ DX, DX; \
	JNE  tile; \
	VZEROUPPER; \
	RET

#define PVSTEP6 \
	PREFETCHT1 (AX)(R15*1); \
	LOAD(0, (AX)); \
	FMA((SI), Y0, Y1); \
	FMA((SI)(R8*1), Y2, Y3); \
	FMA((SI)(R8*2), Y4, Y5); \
	FMA((SI)(R9*1), Y6, Y7); \
	FMA((SI)(R8*4), Y8, Y9); \
	FMA((SI)(R10*1), Y10, Y11)

#define PVROWS6(OP) \
	OP(Y0, Y1, (DI), 32(DI)); \
	OP(Y2, Y3, (DI)(R11*1), 32(DI)(R11*1)); \
	OP(Y4, Y5, (DI)(R11*2), 32(DI)(R11*2)); \
	OP(Y6, Y7, (DI)(R12*1), 32(DI)(R12*1)); \
	OP(Y8, Y9, (DI)(R11*4), 32(DI)(R11*4)); \
	OP(Y10, Y11, (DI)(R13*1), 32(DI)(R13*1))

// Six queries, one slice of 16 dimensions at a time.
#define PV6 \
	PVPROLOGUE; \
	PVWALK(1, PVSTEP6, PVROWS6, PVLOAD, PVSTORE)

#define PVSTEP4 \
	PREFETCHT1 (AX)(R15*1); \
	LOAD(0, (AX)); \
	FMA((SI), Y0, Y1); \
	FMA((SI)(R8*1), Y2, Y3); \
	FMA((SI)(R8*2), Y4, Y5); \
	FMA((SI)(R9*1), Y6, Y7)

#define PVROWS4(OP) \
	OP(Y0, Y1, (DI), 32(DI)); \
	OP(Y2, Y3, (DI)(R11*1), 32(DI)(R11*1)); \
	OP(Y4, Y5, (DI)(R11*2), 32(DI)(R11*2)); \
	OP(Y6, Y7, (DI)(R12*1), 32(DI)(R12*1))

// Four queries, one slice at a time.
#define PV4 \
	PVPROLOGUE; \
	PVWALK(1, PVSTEP4, PVROWS4, PVLOAD, PVSTORE)

#define PVSTEP2x2 \
	VBROADCASTSS (SI), Y10; \
	VBROADCASTSS (SI)(R8*1), Y11; \
	PREFETCHT1 (AX)(R15*1); \
	LOAD(0, (AX)); \
	VFMADD231PS Y13, Y10, Y0; \
	VFMADD231PS Y14, Y10, Y1; \
	VFMADD231PS Y13, Y11, Y2; \
	VFMADD231PS Y14, Y11, Y3; \
	PREFETCHT1 (16*ROWBYTES)(AX)(R15*1); \
	LOAD((16*ROWBYTES), (AX)); \
	VFMADD231PS Y13, Y10, Y4; \
	VFMADD231PS Y14, Y10, Y5; \
	VFMADD231PS Y13, Y11, Y6; \
	VFMADD231PS Y14, Y11, Y7

#define PVROWS2x2(OP) \
	OP(Y0, Y1, (DI), 32(DI)); \
	OP(Y2, Y3, (DI)(R11*1), 32(DI)(R11*1)); \
	OP(Y4, Y5, 64(DI), 96(DI)); \
	OP(Y6, Y7, 64(DI)(R11*1), 96(DI)(R11*1))

// Two queries, two slices at a time.
#define PV2x2 \
	PVPROLOGUE; \
	PVWALK(2, PVSTEP2x2, PVROWS2x2, PVLOAD, PVSTORE)

#define PVSLICE(off, lo, hi) \
	PREFETCHT1 off(AX)(R15*1); \
	LOAD(off, (AX)); \
	VFMADD231PS Y13, Y11, lo; \
	VFMADD231PS Y14, Y11, hi

#define PVSTEP1x4 \
	VBROADCASTSS (SI), Y11; \
	PVSLICE(0, Y0, Y1); \
	PVSLICE((16*ROWBYTES), Y2, Y3); \
	PVSLICE((32*ROWBYTES), Y4, Y5); \
	PVSLICE((48*ROWBYTES), Y6, Y7)

#define PVROWS1x4(OP) \
	OP(Y0, Y1, (DI), 32(DI)); \
	OP(Y2, Y3, 64(DI), 96(DI)); \
	OP(Y4, Y5, 128(DI), 160(DI)); \
	OP(Y6, Y7, 192(DI), 224(DI))

// One query, four slices at a time.
#define PV1x4 \
	PVPROLOGUE; \
	PVWALK(4, PVSTEP1x4, PVROWS1x4, PVLOAD, PVSTORE)

#define PVSTEP1x2 \
	VBROADCASTSS (SI), Y11; \
	PVSLICE(0, Y0, Y1); \
	PVSLICE((16*ROWBYTES), Y2, Y3)

#define PVROWS1x2(OP) \
	OP(Y0, Y1, (DI), 32(DI)); \
	OP(Y2, Y3, 64(DI), 96(DI))

// One query, two slices at a time.
#define PV1x2 \
	PVPROLOGUE; \
	PVWALK(2, PVSTEP1x2, PVROWS1x2, PVLOAD, PVSTORE)

#define PVSTEP1x1 \
	VBROADCASTSS (SI), Y11; \
	PVSLICE(0, Y0, Y1)

#define PVROWS1x1(OP) \
	OP(Y0, Y1, (DI), 32(DI))

// One query, one slice at a time.
#define PV1x1 \
	PVPROLOGUE; \
	PVWALK(1, PVSTEP1x1, PVROWS1x1, PVLOAD, PVSTORE)
