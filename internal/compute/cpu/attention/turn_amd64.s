#include "textflag.h"

// Each slice of a tile is turned as a matrix of 16 rows of 16 elements: what was a column becomes a
// row. Rows are read and written in such an order that elements lie by lane (see lane).

// Turns eight rows of 16-bit elements: interleaves words, double words, quadruple words. The low
// half of the n-th register from Y8 on is then column n, its high half column n+8.
#define TURN16 \
	VPUNPCKLWD Y1, Y0, Y8; \
	VPUNPCKHWD Y1, Y0, Y9; \
	VPUNPCKLWD Y3, Y2, Y10; \
	VPUNPCKHWD Y3, Y2, Y11; \
	VPUNPCKLWD Y5, Y4, Y12; \
	VPUNPCKHWD Y5, Y4, Y13; \
	VPUNPCKLWD Y7, Y6, Y14; \
	VPUNPCKHWD Y7, Y6, Y15; \
	VPUNPCKLDQ Y10, Y8, Y0; \
	VPUNPCKHDQ Y10, Y8, Y1; \
	VPUNPCKLDQ Y11, Y9, Y2; \
	VPUNPCKHDQ Y11, Y9, Y3; \
	VPUNPCKLDQ Y14, Y12, Y4; \
	VPUNPCKHDQ Y14, Y12, Y5; \
	VPUNPCKLDQ Y15, Y13, Y6; \
	VPUNPCKHDQ Y15, Y13, Y7; \
	VPUNPCKLQDQ Y4, Y0, Y8; \
	VPUNPCKHQDQ Y4, Y0, Y9; \
	VPUNPCKLQDQ Y5, Y1, Y10; \
	VPUNPCKHQDQ Y5, Y1, Y11; \
	VPUNPCKLQDQ Y6, Y2, Y12; \
	VPUNPCKHQDQ Y6, Y2, Y13; \
	VPUNPCKLQDQ Y7, Y3, Y14; \
	VPUNPCKHQDQ Y7, Y3, Y15

#define LOADROWS(r0, r1, r2, r3, r4, r5, r6, r7) \
	VMOVDQU (32*r0)(SI), Y0; \
	VMOVDQU (32*r1)(SI), Y1; \
	VMOVDQU (32*r2)(SI), Y2; \
	VMOVDQU (32*r3)(SI), Y3; \
	VMOVDQU (32*r4)(SI), Y4; \
	VMOVDQU (32*r5)(SI), Y5; \
	VMOVDQU (32*r6)(SI), Y6; \
	VMOVDQU (32*r7)(SI), Y7

// Stores the columns of a register as the halves, off bytes from their begin, of two rows.
#define STOREROWS(x, y, lo, hi, off) \
	VMOVDQU x, (32*lo+off)(DI); \
	VEXTRACTI128 $1, y, (32*hi+off)(DI)

// func turnBF16(dst, src unsafe.Pointer, slices int)
TEXT ·turnBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ slices+16(FP), CX
slice:
	LOADROWS(0, 8, 1, 9, 2, 10, 3, 11)
	TURN16
	STOREROWS(X8, Y8, 0, 4, 0)
	STOREROWS(X9, Y9, 8, 12, 0)
	STOREROWS(X10, Y10, 1, 5, 0)
	STOREROWS(X11, Y11, 9, 13, 0)
	STOREROWS(X12, Y12, 2, 6, 0)
	STOREROWS(X13, Y13, 10, 14, 0)
	STOREROWS(X14, Y14, 3, 7, 0)
	STOREROWS(X15, Y15, 11, 15, 0)
	LOADROWS(4, 12, 5, 13, 6, 14, 7, 15)
	TURN16
	STOREROWS(X8, Y8, 0, 4, 16)
	STOREROWS(X9, Y9, 8, 12, 16)
	STOREROWS(X10, Y10, 1, 5, 16)
	STOREROWS(X11, Y11, 9, 13, 16)
	STOREROWS(X12, Y12, 2, 6, 16)
	STOREROWS(X13, Y13, 10, 14, 16)
	STOREROWS(X14, Y14, 3, 7, 16)
	STOREROWS(X15, Y15, 11, 15, 16)
	ADDQ $512, SI
	ADDQ $512, DI
	DECQ CX
	JNE  slice
	VZEROUPPER
	RET

// func turnF16(dst, src unsafe.Pointer, slices int)
TEXT ·turnF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ slices+16(FP), CX
slice:
	LOADROWS(0, 1, 2, 3, 4, 5, 6, 7)
	TURN16
	STOREROWS(X8, Y8, 0, 8, 0)
	STOREROWS(X9, Y9, 1, 9, 0)
	STOREROWS(X10, Y10, 2, 10, 0)
	STOREROWS(X11, Y11, 3, 11, 0)
	STOREROWS(X12, Y12, 4, 12, 0)
	STOREROWS(X13, Y13, 5, 13, 0)
	STOREROWS(X14, Y14, 6, 14, 0)
	STOREROWS(X15, Y15, 7, 15, 0)
	LOADROWS(8, 9, 10, 11, 12, 13, 14, 15)
	TURN16
	STOREROWS(X8, Y8, 0, 8, 16)
	STOREROWS(X9, Y9, 1, 9, 16)
	STOREROWS(X10, Y10, 2, 10, 16)
	STOREROWS(X11, Y11, 3, 11, 16)
	STOREROWS(X12, Y12, 4, 12, 16)
	STOREROWS(X13, Y13, 5, 13, 16)
	STOREROWS(X14, Y14, 6, 14, 16)
	STOREROWS(X15, Y15, 7, 15, 16)
	ADDQ $512, SI
	ADDQ $512, DI
	DECQ CX
	JNE  slice
	VZEROUPPER
	RET

// Turns four rows of the 16 by 16 elements of 32 bits from row r on, eight columns from c on.
#define TURN32(r, c) \
	VMOVUPS (64*r+4*c)(SI), Y0; \
	VMOVUPS (64*(r+1)+4*c)(SI), Y1; \
	VMOVUPS (64*(r+2)+4*c)(SI), Y2; \
	VMOVUPS (64*(r+3)+4*c)(SI), Y3; \
	VPUNPCKLDQ Y1, Y0, Y4; \
	VPUNPCKHDQ Y1, Y0, Y5; \
	VPUNPCKLDQ Y3, Y2, Y6; \
	VPUNPCKHDQ Y3, Y2, Y7; \
	VPUNPCKLQDQ Y6, Y4, Y8; \
	VPUNPCKHQDQ Y6, Y4, Y9; \
	VPUNPCKLQDQ Y7, Y5, Y10; \
	VPUNPCKHQDQ Y7, Y5, Y11; \
	VMOVDQU X8, (64*c+4*r)(DI); \
	VMOVDQU X9, (64*(c+1)+4*r)(DI); \
	VMOVDQU X10, (64*(c+2)+4*r)(DI); \
	VMOVDQU X11, (64*(c+3)+4*r)(DI); \
	VEXTRACTI128 $1, Y8, (64*(c+4)+4*r)(DI); \
	VEXTRACTI128 $1, Y9, (64*(c+5)+4*r)(DI); \
	VEXTRACTI128 $1, Y10, (64*(c+6)+4*r)(DI); \
	VEXTRACTI128 $1, Y11, (64*(c+7)+4*r)(DI)

// func turnF32(dst, src unsafe.Pointer, slices int)
TEXT ·turnF32(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ slices+16(FP), CX
slice:
	TURN32(0, 0)
	TURN32(4, 0)
	TURN32(8, 0)
	TURN32(12, 0)
	TURN32(0, 8)
	TURN32(4, 8)
	TURN32(8, 8)
	TURN32(12, 8)
	ADDQ $1024, SI
	ADDQ $1024, DI
	DECQ CX
	JNE  slice
	VZEROUPPER
	RET

// Two rows of bytes, eight apart.
#define LOADCODES(r, X, Y) \
	VMOVDQU (16*r)(SI), X; \
	VINSERTI128 $1, (16*(r+8))(SI), Y, Y

// Two columns: of each the first eight rows are in the lower lane.
#define STORECODES(c, Y) \
	VPERMQ $0xd8, Y, Y; \
	VMOVDQU Y, (16*c)(DI)

// func turnCodes(dst, src unsafe.Pointer, slices int)
TEXT ·turnCodes(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ slices+16(FP), CX
slice:
	LOADCODES(0, X0, Y0)
	LOADCODES(1, X1, Y1)
	LOADCODES(2, X2, Y2)
	LOADCODES(3, X3, Y3)
	LOADCODES(4, X4, Y4)
	LOADCODES(5, X5, Y5)
	LOADCODES(6, X6, Y6)
	LOADCODES(7, X7, Y7)
	VPUNPCKLBW Y1, Y0, Y8
	VPUNPCKHBW Y1, Y0, Y9
	VPUNPCKLBW Y3, Y2, Y10
	VPUNPCKHBW Y3, Y2, Y11
	VPUNPCKLBW Y5, Y4, Y12
	VPUNPCKHBW Y5, Y4, Y13
	VPUNPCKLBW Y7, Y6, Y14
	VPUNPCKHBW Y7, Y6, Y15
	VPUNPCKLWD Y10, Y8, Y0
	VPUNPCKHWD Y10, Y8, Y1
	VPUNPCKLWD Y11, Y9, Y2
	VPUNPCKHWD Y11, Y9, Y3
	VPUNPCKLWD Y14, Y12, Y4
	VPUNPCKHWD Y14, Y12, Y5
	VPUNPCKLWD Y15, Y13, Y6
	VPUNPCKHWD Y15, Y13, Y7
	VPUNPCKLDQ Y4, Y0, Y8
	VPUNPCKHDQ Y4, Y0, Y9
	VPUNPCKLDQ Y5, Y1, Y10
	VPUNPCKHDQ Y5, Y1, Y11
	VPUNPCKLDQ Y6, Y2, Y12
	VPUNPCKHDQ Y6, Y2, Y13
	VPUNPCKLDQ Y7, Y3, Y14
	VPUNPCKHDQ Y7, Y3, Y15
	STORECODES(0, Y8)
	STORECODES(2, Y9)
	STORECODES(4, Y10)
	STORECODES(6, Y11)
	STORECODES(8, Y12)
	STORECODES(10, Y13)
	STORECODES(12, Y14)
	STORECODES(14, Y15)
	ADDQ $256, SI
	ADDQ $256, DI
	DECQ CX
	JNE  slice
	VZEROUPPER
	RET
