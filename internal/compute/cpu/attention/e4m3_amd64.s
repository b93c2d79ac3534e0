#include "go_asm.h"
#include "textflag.h"

// The bits of a code, spread, are a binary16 of which the exponent is lower by 8: scales make up
// for it. Of its word, which has two signs, the lower one is cut.
#define ROWBYTES 16
#define ROWSHIFT 4
#define SETUP \
	VPCMPEQD Y15, Y15, Y15; \
	VPSLLW $15, Y15, Y12; \
	VPSRLW $2, Y15, Y15; \
	VPOR Y12, Y15, Y15
#define LOAD(off, mem) \
	VPMOVSXBW off mem, Y12; \
	VPSLLW $7, Y12, Y12; \
	VPAND Y15, Y12, Y12; \
	VCVTPH2PS X12, Y13; \
	VEXTRACTI128 $1, Y12, X12; \
	VCVTPH2PS X12, Y14

#define SETUP512 \
	VPTERNLOGD $0xff, Y31, Y31, Y31; \
	VPSLLW $15, Y31, Y30; \
	VPSRLW $2, Y31, Y31; \
	VPORD Y30, Y31, Y31
#define LOAD512(off, mem, to, half) \
	VPMOVSXBW off mem, half; \
	VPSLLW $7, half, half; \
	VPANDD Y31, half, half; \
	VCVTPH2PS half, to

#include "kernels_amd64.h"
#include "kernels512_amd64.h"
#include "ordered512_amd64.h"

TEXT ·qk1E4M3(SB), NOSPLIT, $0-72
	QK1

TEXT ·qk2E4M3(SB), NOSPLIT, $0-72
	QK2

TEXT ·qk4E4M3(SB), NOSPLIT, $0-72
	QK4

TEXT ·qk6E4M3(SB), NOSPLIT, $0-72
	QK6

TEXT ·pv1x1E4M3(SB), NOSPLIT, $24-72
	PV1x1

TEXT ·pv1x2E4M3(SB), NOSPLIT, $24-72
	PV1x2

TEXT ·pv1x4E4M3(SB), NOSPLIT, $24-72
	PV1x4

TEXT ·pv2x2E4M3(SB), NOSPLIT, $24-72
	PV2x2

TEXT ·pv4E4M3(SB), NOSPLIT, $24-72
	PV4

TEXT ·pv6E4M3(SB), NOSPLIT, $24-72
	PV6

TEXT ·qk4x2E4M3(SB), NOSPLIT, $8-72
	QK4x2

TEXT ·qk6x2E4M3(SB), NOSPLIT, $8-72
	QK6x2

TEXT ·pv4x2E4M3(SB), NOSPLIT, $24-72
	PV4x2

TEXT ·pv6x2E4M3(SB), NOSPLIT, $24-72
	PV6x2

TEXT ·qk12x2E4M3(SB), NOSPLIT, $8-72
	QK12x2

TEXT ·pv12E4M3(SB), NOSPLIT, $16-72
	PV12

TEXT ·pv12x2E4M3(SB), NOSPLIT, $16-72
	PV12x2

TEXT ·qk1x4E4M3(SB), NOSPLIT, $8-72
	QK1x4

TEXT ·qk2x4E4M3(SB), NOSPLIT, $8-72
	QK2x4

TEXT ·pv1x4x512E4M3(SB), NOSPLIT, $24-72
	PV1x4x512

TEXT ·pv2x4E4M3(SB), NOSPLIT, $24-72
	PV2x4

TEXT ·qkOrdered1E4M3(SB), NOSPLIT, $24-64
	QKORDERED1

TEXT ·qkOrdered2E4M3(SB), NOSPLIT, $24-64
	QKORDERED2

TEXT ·pvOrdered1x4E4M3(SB), NOSPLIT, $32-72
	PVORDERED1x4

TEXT ·pvOrdered2x4E4M3(SB), NOSPLIT, $32-72
	PVORDERED2x4

TEXT ·pvOrdered1x1E4M3(SB), NOSPLIT, $32-72
	PVORDERED1x1
