#include "go_asm.h"
#include "textflag.h"

#define ROWBYTES 64
#define ROWSHIFT 6
#define SETUP
#define LOAD(off, mem) \
	VMOVUPS off mem, Y13; \
	VMOVUPS (32+off)mem, Y14

#define SETUP512
#define LOAD512(off, mem, to, half) \
	VMOVUPS off mem, to

#include "kernels_amd64.h"
#include "kernels512_amd64.h"

TEXT ·qk1F32(SB), NOSPLIT, $0-72
	QK1

TEXT ·qk2F32(SB), NOSPLIT, $0-72
	QK2

TEXT ·qk4F32(SB), NOSPLIT, $0-72
	QK4

TEXT ·qk6F32(SB), NOSPLIT, $0-72
	QK6

TEXT ·pv1x1F32(SB), NOSPLIT, $24-72
	PV1x1

TEXT ·pv1x2F32(SB), NOSPLIT, $24-72
	PV1x2

TEXT ·pv1x4F32(SB), NOSPLIT, $24-72
	PV1x4

TEXT ·pv2x2F32(SB), NOSPLIT, $24-72
	PV2x2

TEXT ·pv4F32(SB), NOSPLIT, $24-72
	PV4

TEXT ·pv6F32(SB), NOSPLIT, $24-72
	PV6

TEXT ·qk4x2F32(SB), NOSPLIT, $8-72
	QK4x2

TEXT ·qk6x2F32(SB), NOSPLIT, $8-72
	QK6x2

TEXT ·pv4x2F32(SB), NOSPLIT, $24-72
	PV4x2

TEXT ·pv6x2F32(SB), NOSPLIT, $24-72
	PV6x2

TEXT ·qk12x2F32(SB), NOSPLIT, $8-72
	QK12x2

TEXT ·pv12F32(SB), NOSPLIT, $16-72
	PV12

TEXT ·pv12x2F32(SB), NOSPLIT, $16-72
	PV12x2
