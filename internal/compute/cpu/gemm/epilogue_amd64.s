#include "textflag.h"

// The sums are made as in epilogue.tree, eight columns at a time. Register use:
// DI dst, SI parts, DX addend (0: none; its stride is then 0 too), R8 chunk stride, R9 3·chunk
// stride, R12 and R10 parts 0 and 4 at the column, R13 addend at the column, BX byte offset of the
// column, CX columns in bytes, R11 rows left.

#define ROWS_BEGIN \
	MOVQ e+0(FP), AX; \
	MOVQ 0(AX), DI; \
	MOVQ 16(AX), SI; \
	MOVQ 32(AX), R8; \
	MOVQ 40(AX), DX; \
	MOVQ 64(AX), R11; \
	MOVQ 72(AX), CX; \
	ANDQ $-8, CX; \
	SHLQ $2, CX; \
	LEAQ (R8)(R8*2), R9

#define ROWS_REPEAT(again) \
	ADDQ 8(AX), DI; \
	ADDQ 24(AX), SI; \
	ADDQ 48(AX), DX; \
	DECQ R11; \
	JNZ  again; \
	VZEROUPPER

#define ROWS_NEXT(again) \
	ROWS_REPEAT(again); \
	RET

// func epilogue1(e *epilogue)
TEXT ·epilogue1(SB), NOSPLIT, $0-8
	ROWS_BEGIN
	CMPQ DX, $0
	JE   plain
row:
	XORL BX, BX
column:
	VMOVUPS (SI)(BX*1), Y0
	VADDPS  (DX)(BX*1), Y0, Y0
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, CX
	JB      column
	ROWS_NEXT(row)
plain:
	XORL BX, BX
plaincolumn:
	VMOVUPS (SI)(BX*1), Y0
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, CX
	JB      plaincolumn
	ROWS_NEXT(plain)

// func epilogueStream(e *epilogue)
TEXT ·epilogueStream(SB), NOSPLIT, $0-8
	ROWS_BEGIN
stream:
	XORL BX, BX
streamcolumn:
	VMOVUPS  (SI)(BX*1), Y0
	VMOVNTPS Y0, (DI)(BX*1)
	ADDQ     $32, BX
	CMPQ     BX, CX
	JB       streamcolumn
	ROWS_REPEAT(stream)
	SFENCE
	RET

// The three tree sums skip the addend by a branch, which is predicted: it goes one way for a call.
#define ADDEND(skip) \
	CMPQ   DX, $0; \
	JE     skip; \
	VADDPS (R13), Y0, Y0; \
	ADDQ   $32, R13

// func epilogue2(e *epilogue)
TEXT ·epilogue2(SB), NOSPLIT, $0-8
	ROWS_BEGIN
row:
	MOVQ SI, R12
	MOVQ DX, R13
	XORL BX, BX
column:
	VMOVUPS (R12), Y0
	VADDPS  (R12)(R8*1), Y0, Y0
	ADDQ    $32, R12
	ADDEND(store)
store:
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, CX
	JB      column
	ROWS_NEXT(row)

// func epilogue4(e *epilogue)
TEXT ·epilogue4(SB), NOSPLIT, $0-8
	ROWS_BEGIN
row:
	MOVQ SI, R12
	MOVQ DX, R13
	XORL BX, BX
column:
	VMOVUPS (R12), Y0
	VADDPS  (R12)(R8*1), Y0, Y0
	VMOVUPS (R12)(R8*2), Y1
	VADDPS  (R12)(R9*1), Y1, Y1
	VADDPS  Y1, Y0, Y0
	ADDQ    $32, R12
	ADDEND(store)
store:
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, CX
	JB      column
	ROWS_NEXT(row)

// func epilogue8(e *epilogue)
TEXT ·epilogue8(SB), NOSPLIT, $0-8
	ROWS_BEGIN
row:
	MOVQ SI, R12
	LEAQ (SI)(R8*4), R10
	MOVQ DX, R13
	XORL BX, BX
column:
	VMOVUPS (R12), Y0
	VADDPS  (R12)(R8*1), Y0, Y0
	VMOVUPS (R12)(R8*2), Y1
	VADDPS  (R12)(R9*1), Y1, Y1
	VMOVUPS (R10), Y2
	VADDPS  (R10)(R8*1), Y2, Y2
	VMOVUPS (R10)(R8*2), Y3
	VADDPS  (R10)(R9*1), Y3, Y3
	VADDPS  Y1, Y0, Y0
	VADDPS  Y3, Y2, Y2
	VADDPS  Y2, Y0, Y0
	ADDQ    $32, R12
	ADDQ    $32, R10
	ADDEND(store)
store:
	VMOVUPS Y0, (DI)(BX*1)
	ADDQ    $32, BX
	CMPQ    BX, CX
	JB      column
	ROWS_NEXT(row)

// func epilogue8x512(e *epilogue)
TEXT ·epilogue8x512(SB), NOSPLIT, $0-8
	ROWS_BEGIN
	ANDQ $-64, CX
row:
	MOVQ SI, R12
	LEAQ (SI)(R8*4), R10
	MOVQ DX, R13
	XORL BX, BX
column:
	VMOVUPS (R12), Z0
	VADDPS  (R12)(R8*1), Z0, Z0
	VMOVUPS (R12)(R8*2), Z1
	VADDPS  (R12)(R9*1), Z1, Z1
	VMOVUPS (R10), Z2
	VADDPS  (R10)(R8*1), Z2, Z2
	VMOVUPS (R10)(R8*2), Z3
	VADDPS  (R10)(R9*1), Z3, Z3
	VADDPS  Z1, Z0, Z0
	VADDPS  Z3, Z2, Z2
	VADDPS  Z2, Z0, Z0
	ADDQ    $64, R12
	ADDQ    $64, R10
	CMPQ    DX, $0
	JE      store
	VADDPS  (R13), Z0, Z0
	ADDQ    $64, R13
store:
	VMOVUPS Z0, (DI)(BX*1)
	ADDQ    $64, BX
	CMPQ    BX, CX
	JB      column
	ROWS_NEXT(row)
