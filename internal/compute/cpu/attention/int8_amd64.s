#include "go_asm.h"
#include "textflag.h"

// Integers; the scores and weights of a position are multiplied by its scale.
#define ROWBYTES 16
#define ROWSHIFT 4
#define SETUP
#define LOAD(off, mem) \
	VPMOVSXBD off mem, Y13; \
	VPMOVSXBD (8+off)mem, Y14; \
	VCVTDQ2PS Y13, Y13; \
	VCVTDQ2PS Y14, Y14

#define SETUP512
#define LOAD512(off, mem, to, half) \
	VPMOVSXBD off mem, to; \
	VCVTDQ2PS to, to

#include "kernels_amd64.h"
#include "kernels512_amd64.h"
#include "ordered512_amd64.h"

TEXT ·qk1Int8(SB), NOSPLIT, $0-72
	QK1

TEXT ·qk2Int8(SB), NOSPLIT, $0-72
	QK2

TEXT ·qk4Int8(SB), NOSPLIT, $0-72
	QK4

TEXT ·qk6Int8(SB), NOSPLIT, $0-72
	QK6

TEXT ·pv1x1Int8(SB), NOSPLIT, $24-72
	PV1x1

TEXT ·pv1x2Int8(SB), NOSPLIT, $24-72
	PV1x2

TEXT ·pv1x4Int8(SB), NOSPLIT, $24-72
	PV1x4

TEXT ·pv2x2Int8(SB), NOSPLIT, $24-72
	PV2x2

TEXT ·pv4Int8(SB), NOSPLIT, $24-72
	PV4

TEXT ·pv6Int8(SB), NOSPLIT, $24-72
	PV6

TEXT ·qk4x2Int8(SB), NOSPLIT, $8-72
	QK4x2

TEXT ·qk6x2Int8(SB), NOSPLIT, $8-72
	QK6x2

TEXT ·pv4x2Int8(SB), NOSPLIT, $24-72
	PV4x2

TEXT ·pv6x2Int8(SB), NOSPLIT, $24-72
	PV6x2

TEXT ·qk12x2Int8(SB), NOSPLIT, $8-72
	QK12x2

TEXT ·pv12Int8(SB), NOSPLIT, $16-72
	PV12

TEXT ·pv12x2Int8(SB), NOSPLIT, $16-72
	PV12x2

TEXT ·qk1x4Int8(SB), NOSPLIT, $8-72
	QK1x4

TEXT ·qk2x4Int8(SB), NOSPLIT, $8-72
	QK2x4

TEXT ·pv1x4x512Int8(SB), NOSPLIT, $24-72
	PV1x4x512

TEXT ·pv2x4Int8(SB), NOSPLIT, $24-72
	PV2x4

TEXT ·qkOrdered1Int8(SB), NOSPLIT, $24-64
	QKORDERED1

TEXT ·qkOrdered2Int8(SB), NOSPLIT, $24-64
	QKORDERED2

TEXT ·pvOrdered1x4Int8(SB), NOSPLIT, $32-72
	PVORDERED1x4

TEXT ·pvOrdered2x4Int8(SB), NOSPLIT, $32-72
	PVORDERED2x4

TEXT ·pvOrdered1x1Int8(SB), NOSPLIT, $32-72
	PVORDERED1x1
