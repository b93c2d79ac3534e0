// Bodies of the AVX-512 kernels that sum in the order of AMX's tiles (see package amx), for one query
// or two: in blocks of 32 dimensions or positions, a chain of the even ones and one of the odd ones,
// whose sum is added to the accumulator. Queries and weights are bfloat16, in blocks: pairs lie
// together, and 32 of them 2048 bytes before the next. Denormals are zero. The including file has
// what kernels512_amd64.h needs.
//
// Z0 to Z7 are the accumulators: of four tiles or slices for the first query, and for the second; Z8
// to Z15 the chains of even numbers, Z16 to Z23 those of odd ones. Z30 has the upper halves of words.

#define ORDERED \
	SETUP512; \
	VPTERNLOGD $0xff, Z30, Z30, Z30; \
	VPSLLD $16, Z30, Z30; \
	STMXCSR mxcsr-8(SP); \
	MOVL mxcsr-8(SP), AX; \
	ORL $0x8040, AX; \
	MOVL AX, flushing-4(SP); \
	LDMXCSR flushing-4(SP)

#define ORDEREDEND \
	LDMXCSR mxcsr-8(SP); \
	VZEROUPPER; \
	RET

#define ZERO8CHAINS(a, b, c, d, e, f, g, h) \
	VPXORD a, a, a; \
	VPXORD b, b, b; \
	VPXORD c, c, c; \
	VPXORD d, d, d; \
	VPXORD e, e, e; \
	VPXORD f, f, f; \
	VPXORD g, g, g; \
	VPXORD h, h, h

#define ZEROCHAINS1 ZERO8CHAINS(Z8, Z9, Z10, Z11, Z16, Z17, Z18, Z19)
#define ZEROCHAINS2 \
	ZEROCHAINS1; \
	ZERO8CHAINS(Z12, Z13, Z14, Z15, Z20, Z21, Z22, Z23)

#define FOLD(acc, even, odd) \
	VADDPS odd, even, even; \
	VADDPS even, acc, acc

#define FOLDS1 \
	FOLD(Z0, Z8, Z16); \
	FOLD(Z1, Z9, Z17); \
	FOLD(Z2, Z10, Z18); \
	FOLD(Z3, Z11, Z19)

#define FOLDS2 \
	FOLDS1; \
	FOLD(Z4, Z12, Z20); \
	FOLD(Z5, Z13, Z21); \
	FOLD(Z6, Z14, Z22); \
	FOLD(Z7, Z15, Z23)

// The pair of numbers at p: the even one into Z27, the odd one into Z28; the second query's, at q, into
// Z25 and Z26.
#define NUMBERS1(p, q) \
	VPBROADCASTD p, Z28; \
	VPSLLD $16, Z28, Z27; \
	VPANDD Z30, Z28, Z28
#define NUMBERS2(p, q) \
	NUMBERS1(p, q); \
	VPBROADCASTD q, Z26; \
	VPSLLD $16, Z26, Z25; \
	VPANDD Z30, Z26, Z26

// Times the row in Z29.
#define EVEN1(first, second) VFMADD231PS Z29, Z27, first
#define EVEN2(first, second) \
	VFMADD231PS Z29, Z27, first; \
	VFMADD231PS Z29, Z25, second
#define ODD1(first, second) VFMADD231PS Z29, Z28, first
#define ODD2(first, second) \
	VFMADD231PS Z29, Z28, first; \
	VFMADD231PS Z29, Z26, second

#define STORES1 \
	VMOVUPS Z0, (DI); \
	VMOVUPS Z1, 64(DI); \
	VMOVUPS Z2, 128(DI); \
	VMOVUPS Z3, 192(DI)
#define STORES2 \
	STORES1; \
	VMOVUPS Z4, (DI)(R11*1); \
	VMOVUPS Z5, 64(DI)(R11*1); \
	VMOVUPS Z6, 128(DI)(R11*1); \
	VMOVUPS Z7, 192(DI)(R11*1)

// A pair of rows of the tile at a register, and the same lines of the tile that is to come.
#define TILEPAIR(at, next, EVEN, ODD, e, e2, o, o2) \
	PREFETCHT0 (next)(R11*1); \
	LOAD512(0, (at)(R11*1), Z29, Y29); \
	EVEN(e, e2); \
	LOAD512(ROWBYTES, (at)(R11*1), Z29, Y29); \
	ODD(o, o2)

// Scores: qk(base, offs, tiles, q, qStride, dim, out, outStride), four tiles at a time, with a frame
// of 24 bytes. Registers are those of QKFOUR; DX has the way to the second query in the loop.
#define QKORDERED(ZEROS, NUMBERS, EVEN, ODD, FOLDS, STORES) \
	ORDERED; \
	MOVQ offs+8(FP), BX; \
	MOVQ tiles+16(FP), DX; \
	MOVQ out+48(FP), DI; \
tile: \
	QKFOUR; \
	MOVQ DX, left-16(SP); \
	MOVQ qStride+32(FP), DX; \
	ZERO8CHAINS(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7); \
	XORQ R11, R11; \
block: \
	MOVQ CX, rest-24(SP); \
	CMPQ CX, $32; \
	JLE  blocks; \
	MOVQ $32, CX; \
blocks: \
	SUBQ CX, rest-24(SP); \
	ZEROS; \
pair: \
	NUMBERS((SI), (SI)(DX*1)); \
	TILEPAIR(AX, R12, EVEN, ODD, Z8, Z12, Z16, Z20); \
	TILEPAIR(R8, R13, EVEN, ODD, Z9, Z13, Z17, Z21); \
	TILEPAIR(R9, R14, EVEN, ODD, Z10, Z14, Z18, Z22); \
	TILEPAIR(R10, R15, EVEN, ODD, Z11, Z15, Z19, Z23); \
	ADDQ $4, SI; \
	ADDQ $(2*ROWBYTES), R11; \
	SUBQ $2, CX; \
	JNE  pair; \
	FOLDS; \
	ADDQ $(2048-64), SI; \
	MOVQ rest-24(SP), CX; \
	TESTQ CX, CX; \
	JNE  block; \
	MOVQ outStride+56(FP), R11; \
	STORES; \
	MOVQ left-16(SP), DX; \
	ADDQ $256, DI; \
	ADDQ $32, BX; \
	SUBQ $4, DX; \
	JGT  tile; \
	ORDEREDEND

#define QKORDERED1 QKORDERED(ZEROCHAINS1, NUMBERS1, EVEN1, ODD1, FOLDS1, STORES1)
#define QKORDERED2 QKORDERED(ZEROCHAINS2, NUMBERS2, EVEN2, ODD2, FOLDS2, STORES2)

// Rows of four slices, so many bytes on from R10.
#define SLICES4(row, OP, a, a2, b, b2, c, c2, d, d2) \
	LOAD512(row, (R10), Z29, Y29); \
	OP(a, a2); \
	LOAD512((row+16*ROWBYTES), (R10), Z29, Y29); \
	OP(b, b2); \
	LOAD512((row+32*ROWBYTES), (R10), Z29, Y29); \
	OP(c, c2); \
	LOAD512((row+48*ROWBYTES), (R10), Z29, Y29); \
	OP(d, d2)

#define EVENS4(row, OP) SLICES4(row, OP, Z8, Z12, Z9, Z13, Z10, Z14, Z11, Z15)
#define ODDS4(row, OP) SLICES4(row, OP, Z16, Z20, Z17, Z21, Z18, Z22, Z19, Z23)

#define SOON4 \
	PREFETCHT0 (R10)(R15*1); \
	PREFETCHT0 (16*ROWBYTES)(R10)(R15*1); \
	PREFETCHT0 (32*ROWBYTES)(R10)(R15*1); \
	PREFETCHT0 (48*ROWBYTES)(R10)(R15*1)

#define EVENS1(row, OP) \
	LOAD512(row, (R10), Z29, Y29); \
	OP(Z8, Z12)
#define ODDS1(row, OP) \
	LOAD512(row, (R10), Z29, Y29); \
	OP(Z16, Z20)
#define SOON1 PREFETCHT0 (R10)(R15*1)
#define STORE1 VMOVUPS Z0, (DI)

// Values: pv(base, offs, first, count, slices, p, pStride, acc, accStride), with a frame of 32 bytes:
// all positions for n slices, then for the next ones. offs and p begin with a block, which has the
// first position. R9 is the position within the block, CX how many are left of it, R11 how many of
// those the tile has, of which R10 is at a row; SI and R12 have the block's weights, BX its tiles; R15
// is the way to the tile two after this one, or 0.
#define PVORDERED(n, ZEROS, NUMBERS, EVEN, ODD, EVENS, ODDS, SOON, FOLDS, STORES) \
	ORDERED; \
	MOVQ acc+56(FP), DI; \
	MOVQ slices+32(FP), AX; \
	MOVQ AX, left-16(SP); \
	MOVQ $0, within-24(SP); \
	MOVQ pStride+48(FP), DX; \
slice: \
	MOVQ offs+8(FP), BX; \
	MOVQ first+16(FP), R9; \
	MOVQ count+24(FP), AX; \
	MOVQ AX, behind-32(SP); \
	MOVQ p+40(FP), SI; \
	ZERO8CHAINS(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7); \
block: \
	ZEROS; \
	LEAQ (SI)(DX*1), R12; \
	MOVQ behind-32(SP), AX; \
	MOVQ $32, CX; \
	SUBQ R9, CX; \
	CMPQ CX, AX; \
	CMOVQGT AX, CX; \
	SUBQ CX, AX; \
	MOVQ AX, behind-32(SP); \
tile: \
	MOVQ R9, R8; \
	SHRQ $4, R8; \
	MOVQ (BX)(R8*8), R10; \
	MOVQ R8, R13; \
	SHLQ $4, R13; \
	XORQ R15, R15; \
	CMPQ AX, R13; \
	JLE  rows; \
	MOVQ 16(BX)(R8*8), R15; \
	SUBQ R10, R15; \
rows: \
	ADDQ base+0(FP), R10; \
	ADDQ within-24(SP), R10; \
	MOVQ R9, R8; \
	ANDQ $15, R8; \
	MOVQ $16, R11; \
	SUBQ R8, R11; \
	SHLQ $ROWSHIFT, R8; \
	ADDQ R8, R10; \
	CMPQ R11, CX; \
	CMOVQGT CX, R11; \
	SUBQ R11, CX; \
	TESTQ $1, R9; \
	JEQ  even; \
	NUMBERS(-2(SI)(R9*2), -2(R12)(R9*2)); \
	ODDS(0, ODD); \
	INCQ R9; \
	ADDQ $ROWBYTES, R10; \
	DECQ R11; \
even: \
	SUBQ $2, R11; \
	JLT  last; \
pair: \
	SOON; \
	NUMBERS((SI)(R9*2), (R12)(R9*2)); \
	EVENS(0, EVEN); \
	ODDS(ROWBYTES, ODD); \
	ADDQ $2, R9; \
	ADDQ $(2*ROWBYTES), R10; \
	SUBQ $2, R11; \
	JGE  pair; \
last: \
	CMPQ R11, $-1; \
	JNE  tiles; \
	NUMBERS((SI)(R9*2), (R12)(R9*2)); \
	EVENS(0, EVEN); \
	INCQ R9; \
tiles: \
	TESTQ CX, CX; \
	JNE  tile; \
	FOLDS; \
	XORQ R9, R9; \
	ADDQ $16, BX; \
	ADDQ $2048, SI; \
	TESTQ AX, AX; \
	JNE  block; \
	MOVQ accStride+64(FP), R11; \
	STORES; \
	ADDQ $(64*n), DI; \
	ADDQ $(n*16*ROWBYTES), within-24(SP); \
	SUBQ $n, left-16(SP); \
	JNE  slice; \
	ORDEREDEND

#define PVORDERED1x4 PVORDERED(4, ZEROCHAINS1, NUMBERS1, EVEN1, ODD1, EVENS4, ODDS4, SOON4, FOLDS1, STORES1)
#define PVORDERED2x4 PVORDERED(4, ZEROCHAINS2, NUMBERS2, EVEN2, ODD2, EVENS4, ODDS4, SOON4, FOLDS2, STORES2)
#define PVORDERED1x1 PVORDERED(1, ZEROCHAINS1, NUMBERS1, EVEN1, ODD1, EVENS1, ODDS1, SOON1, FOLD(Z0, Z8, Z16), STORE1)
