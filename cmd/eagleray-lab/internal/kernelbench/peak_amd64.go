package kernelbench

import (
	"math/rand/v2"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/sys/half"
)

func fmaAVX2(n int)

func fmaAVX512(n int)

func dotAVX512(n int)

//go:noescape
func dotAMX(n int, operand *[16 * 32]uint16)

// peakAMX is dotAMX of numbers as products have them: of zeros a core makes more, for its clock is
// as fast as its power allows.
func peakAMX() func(n int) {
	r := rand.New(rand.NewPCG(1, 2))
	operand := new([16 * 32]uint16)
	for i := range operand {
		operand[i] = half.ToBF16(float32(r.NormFloat64()))
	}
	return func(n int) { dotAMX(n, operand) }
}

// instructionOf is the multiplication that the kernels of a level are made of; bf16 says that they
// multiply bfloat16 numbers.
func instructionOf(level isa.ISA, bf16 bool) *instruction {
	switch {
	case level == isa.AMX && bf16:
		return &instruction{"TDPBF16PS", peakAMX(), 4 * 16 * 16 * 32}
	case level == isa.AVX512BF16 && bf16:
		return &instruction{"VDPBF16PS", dotAVX512, 24 * 32}
	case level >= isa.AVX512:
		return &instruction{"VFMADD231PS zmm", fmaAVX512, 24 * 16}
	case level == isa.AVX2:
		return &instruction{"VFMADD231PS ymm", fmaAVX2, 12 * 8}
	}
	return nil
}
