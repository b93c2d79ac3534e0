#include "go_asm.h"
#include "textflag.h"

// A row of 16 bfloat16 numbers holds element j < 8 in the low half of word j and element j+8 in the
// high half, so that one shift and one mask widen it.
#define ROWBYTES 32
#define ROWSHIFT 5
#define SETUP \
	VPCMPEQD Y15, Y15, Y15; \
	VPSLLD $16, Y15, Y15
#define LOAD(off, mem) \
	VMOVDQU off mem, Y12; \
	VPSLLD $16, Y12, Y13; \
	VPAND Y15, Y12, Y14

// The bytes of 16 elements: each lane of 128 bits has the rows' words, of which the low halves are
// taken, then, from the row's second copy, the high ones.
DATA widen<>+0(SB)/8, $0x0504808001008080
DATA widen<>+8(SB)/8, $0x0d0c808009088080
DATA widen<>+16(SB)/8, $0x0504808001008080
DATA widen<>+24(SB)/8, $0x0d0c808009088080
DATA widen<>+32(SB)/8, $0x0706808003028080
DATA widen<>+40(SB)/8, $0x0f0e80800b0a8080
DATA widen<>+48(SB)/8, $0x0706808003028080
DATA widen<>+56(SB)/8, $0x0f0e80800b0a8080
GLOBL widen<>(SB), RODATA|NOPTR, $64

#define SETUP512 \
	VMOVUPS widen<>(SB), Z31
#define LOAD512(off, mem, to, half) \
	VBROADCASTI64X4 off mem, to; \
	VPSHUFB Z31, to, to

#include "kernels_amd64.h"
#include "kernels512_amd64.h"
#include "ordered512_amd64.h"

TEXT ·qk1BF16(SB), NOSPLIT, $0-72
	QK1

TEXT ·qk2BF16(SB), NOSPLIT, $0-72
	QK2

TEXT ·qk4BF16(SB), NOSPLIT, $0-72
	QK4

TEXT ·qk6BF16(SB), NOSPLIT, $0-72
	QK6

TEXT ·pv1x1BF16(SB), NOSPLIT, $24-72
	PV1x1

TEXT ·pv1x2BF16(SB), NOSPLIT, $24-72
	PV1x2

TEXT ·pv1x4BF16(SB), NOSPLIT, $24-72
	PV1x4

TEXT ·pv2x2BF16(SB), NOSPLIT, $24-72
	PV2x2

TEXT ·pv4BF16(SB), NOSPLIT, $24-72
	PV4

TEXT ·pv6BF16(SB), NOSPLIT, $24-72
	PV6

TEXT ·qk4x2BF16(SB), NOSPLIT, $8-72
	QK4x2

TEXT ·qk6x2BF16(SB), NOSPLIT, $8-72
	QK6x2

TEXT ·pv4x2BF16(SB), NOSPLIT, $24-72
	PV4x2

TEXT ·pv6x2BF16(SB), NOSPLIT, $24-72
	PV6x2

TEXT ·qk12x2BF16(SB), NOSPLIT, $8-72
	QK12x2

TEXT ·pv12BF16(SB), NOSPLIT, $16-72
	PV12

TEXT ·pv12x2BF16(SB), NOSPLIT, $16-72
	PV12x2

TEXT ·qkOrdered1BF16(SB), NOSPLIT, $24-64
	QKORDERED1

TEXT ·qkOrdered2BF16(SB), NOSPLIT, $24-64
	QKORDERED2

TEXT ·pvOrdered1x4BF16(SB), NOSPLIT, $32-72
	PVORDERED1x4

TEXT ·pvOrdered2x4BF16(SB), NOSPLIT, $32-72
	PVORDERED2x4

TEXT ·pvOrdered1x1BF16(SB), NOSPLIT, $32-72
	PVORDERED1x1
