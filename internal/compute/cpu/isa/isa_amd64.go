package isa

import "golang.org/x/sys/cpu"

// Available reports whether this machine and its operating system can run the instruction set: the
// CPUID bits are set and the system saves the registers (x/sys/cpu checks XCR0).
func Available(i ISA) bool {
	x := &cpu.X86
	avx2 := x.HasAVX2 && x.HasFMA && x.HasF16C
	avx512 := avx2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL
	switch i {
	case Portable:
		return true
	case AVX2:
		return avx2
	case AVX512:
		return avx512
	case AVX512BF16:
		return avx512 && x.HasAVX512BF16 // CPUID leaf 7, sub-leaf 1, EAX bit 5
	}
	return false
}
