#include "go_asm.h"
#include "textflag.h"

#define ROWBYTES 32
#define ROWSHIFT 5
#define SETUP
#define LOAD(off, mem) \
	VCVTPH2PS off mem, Y13; \
	VCVTPH2PS (16+off)mem, Y14

#define SETUP512
#define LOAD512(off, mem, to, half) \
	VCVTPH2PS off mem, to

#include "kernels_amd64.h"
#include "kernels512_amd64.h"

TEXT ·qk1F16(SB), NOSPLIT, $0-72
	QK1

TEXT ·qk2F16(SB), NOSPLIT, $0-72
	QK2

TEXT ·qk4F16(SB), NOSPLIT, $0-72
	QK4

TEXT ·qk6F16(SB), NOSPLIT, $0-72
	QK6

TEXT ·pv1x1F16(SB), NOSPLIT, $24-72
	PV1x1

TEXT ·pv1x2F16(SB), NOSPLIT, $24-72
	PV1x2

TEXT ·pv1x4F16(SB), NOSPLIT, $24-72
	PV1x4

TEXT ·pv2x2F16(SB), NOSPLIT, $24-72
	PV2x2

TEXT ·pv4F16(SB), NOSPLIT, $24-72
	PV4

TEXT ·pv6F16(SB), NOSPLIT, $24-72
	PV6

TEXT ·qk4x2F16(SB), NOSPLIT, $8-72
	QK4x2

TEXT ·qk6x2F16(SB), NOSPLIT, $8-72
	QK6x2

TEXT ·pv4x2F16(SB), NOSPLIT, $24-72
	PV4x2

TEXT ·pv6x2F16(SB), NOSPLIT, $24-72
	PV6x2

TEXT ·qk12x2F16(SB), NOSPLIT, $8-72
	QK12x2

TEXT ·pv12F16(SB), NOSPLIT, $16-72
	PV12

TEXT ·pv12x2F16(SB), NOSPLIT, $16-72
	PV12x2
