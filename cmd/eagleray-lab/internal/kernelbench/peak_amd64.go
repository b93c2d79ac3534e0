package kernelbench

import "github.com/eagleray/eagleray/internal/compute/cpu/isa"

func fmaAVX2(n int)

func fmaAVX512(n int)

func dotAVX512(n int)

func dotAMX(n int)

// instructionOf is the multiplication that the kernels of a level are made of; bf16 says that they
// multiply bfloat16 numbers.
func instructionOf(level isa.ISA, bf16 bool) *instruction {
	switch {
	case level == isa.AMX && bf16:
		return &instruction{"TDPBF16PS", dotAMX, 4 * 16 * 16 * 32}
	case level == isa.AVX512BF16 && bf16:
		return &instruction{"VDPBF16PS", dotAVX512, 24 * 32}
	case level >= isa.AVX512:
		return &instruction{"VFMADD231PS zmm", fmaAVX512, 24 * 16}
	case level == isa.AVX2:
		return &instruction{"VFMADD231PS ymm", fmaAVX2, 12 * 8}
	}
	return nil
}
