#include "textflag.h"
#include "macros_amd64.h"

CONST8(fixedRoundTo, 0x4158000000000000)
CONST8(fixedCutTo, 0x42b8000000000000)

// The kernels of fixed.go, four float64 at a time, of which one instruction makes four float32 or
// back. Those that are left go one by one.

// func fixedAxpyAVX2(dst []float64, a float32, x []float32, chunks, step int)
TEXT ·fixedAxpyAVX2(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	VCVTSS2SD a+24(FP), X14, X14
	VBROADCASTSD X14, Y14
	MOVQ x_base+32(FP), SI
	MOVQ step+64(FP), DX
	SHLQ $2, DX
	VMOVUPD fixedRoundTo<>(SB), Y11
loop:
	CMPQ CX, $8
	JLT  done
	MOVQ SI, R8
	MOVQ chunks+56(FP), R9
	VMOVUPD (DI), Y0
	VMOVUPD 32(DI), Y1
chunk:
	VCVTPS2PD (R8), Y2
	VCVTPS2PD 16(R8), Y3
	VMULPD Y14, Y2, Y2
	VMULPD Y14, Y3, Y3
	VADDPD Y11, Y2, Y2
	VADDPD Y11, Y3, Y3
	VSUBPD Y11, Y2, Y2
	VSUBPD Y11, Y3, Y3
	VADDPD Y2, Y0, Y0
	VADDPD Y3, Y1, Y1
	ADDQ DX, R8
	DECQ R9
	JNZ  chunk
	VMOVUPD Y0, (DI)
	VMOVUPD Y1, 32(DI)
	ADDQ $32, SI
	ADDQ $64, DI
	SUBQ $8, CX
	JMP  loop
done:
	VZEROUPPER
	RET

// func fixedAxpy512(dst []float64, a float32, x []float32, chunks, step int)
TEXT ·fixedAxpy512(SB), NOSPLIT, $0-72
	MOVQ dst_base+0(FP), DI
	MOVQ dst_len+8(FP), CX
	VCVTSS2SD a+24(FP), X14, X14
	VBROADCASTSD X14, Z14
	MOVQ x_base+32(FP), SI
	MOVQ step+64(FP), DX
	SHLQ $2, DX
	VBROADCASTSD fixedRoundTo<>(SB), Z11
loop:
	CMPQ CX, $16
	JLT  done
	MOVQ SI, R8
	MOVQ chunks+56(FP), R9
	VMOVUPD (DI), Z0
	VMOVUPD 64(DI), Z1
chunk:
	VCVTPS2PD (R8), Z2
	VCVTPS2PD 32(R8), Z3
	VFMADD213PD Z11, Z14, Z2
	VFMADD213PD Z11, Z14, Z3
	VSUBPD Z11, Z2, Z2
	VSUBPD Z11, Z3, Z3
	VADDPD Z2, Z0, Z0
	VADDPD Z3, Z1, Z1
	ADDQ DX, R8
	DECQ R9
	JNZ  chunk
	VMOVUPD Z0, (DI)
	VMOVUPD Z1, 64(DI)
	ADDQ $64, SI
	ADDQ $128, DI
	SUBQ $16, CX
	JMP  loop
done:
	VZEROUPPER
	RET

// func fixedCutAVX2(high, low []float32, x []float64)
TEXT ·fixedCutAVX2(SB), NOSPLIT, $0-72
	MOVQ high_base+0(FP), DI
	MOVQ low_base+24(FP), DX
	MOVQ x_base+48(FP), SI
	MOVQ x_len+56(FP), CX
	VMOVUPD fixedCutTo<>(SB), Y11
loop:
	CMPQ CX, $4
	JLT  tail
	VMOVUPD (SI), Y0
	VADDPD Y11, Y0, Y1
	VSUBPD Y11, Y1, Y1
	VSUBPD Y1, Y0, Y0
	VCVTPD2PSY Y1, X1
	VCVTPD2PSY Y0, X0
	VMOVUPS X1, (DI)
	VMOVUPS X0, (DX)
	ADDQ $32, SI
	ADDQ $16, DI
	ADDQ $16, DX
	SUBQ $4, CX
	JMP  loop
tail:
	TESTQ CX, CX
	JEQ  done
	VMOVSD (SI), X0
	VADDSD X11, X0, X1
	VSUBSD X11, X1, X1
	VSUBSD X1, X0, X0
	VCVTSD2SS X1, X1, X1
	VCVTSD2SS X0, X0, X0
	VMOVSS X1, (DI)
	VMOVSS X0, (DX)
	ADDQ $8, SI
	ADDQ $4, DI
	ADDQ $4, DX
	DECQ CX
	JMP  tail
done:
	VZEROUPPER
	RET

// func fixedJoinAVX2(high, low []float32)
TEXT ·fixedJoinAVX2(SB), NOSPLIT, $0-48
	MOVQ high_base+0(FP), DI
	MOVQ high_len+8(FP), CX
	MOVQ low_base+24(FP), DX
loop:
	CMPQ CX, $4
	JLT  tail
	VCVTPS2PD (DI), Y0
	VCVTPS2PD (DX), Y1
	VADDPD Y1, Y0, Y0
	VCVTPD2PSY Y0, X0
	VMOVUPS X0, (DI)
	ADDQ $16, DI
	ADDQ $16, DX
	SUBQ $4, CX
	JMP  loop
tail:
	TESTQ CX, CX
	JEQ  done
	VCVTSS2SD (DI), X0, X0
	VCVTSS2SD (DX), X1, X1
	VADDSD X1, X0, X0
	VCVTSD2SS X0, X0, X0
	VMOVSS X0, (DI)
	ADDQ $4, DI
	ADDQ $4, DX
	DECQ CX
	JMP  tail
done:
	VZEROUPPER
	RET
