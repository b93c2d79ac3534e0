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

#include "kernels_amd64.h"

TEXT ·qk1BF16(SB), NOSPLIT, $0-72
	QK1

TEXT ·qk2BF16(SB), NOSPLIT, $0-72
	QK2

TEXT ·qk4BF16(SB), NOSPLIT, $0-72
	QK4

TEXT ·qk6BF16(SB), NOSPLIT, $0-72
	QK6

TEXT ·pv1x1BF16(SB), NOSPLIT, $16-72
	PV1x1

TEXT ·pv1x2BF16(SB), NOSPLIT, $16-72
	PV1x2

TEXT ·pv1x4BF16(SB), NOSPLIT, $16-72
	PV1x4

TEXT ·pv2x2BF16(SB), NOSPLIT, $16-72
	PV2x2

TEXT ·pv4BF16(SB), NOSPLIT, $16-72
	PV4

TEXT ·pv6BF16(SB), NOSPLIT, $16-72
	PV6
