// Package isa names the vector instruction sets the CPU kernels are written for and reports which
// of them this machine can run.
package isa

import "fmt"

// ISA is a level of vector instruction set. A higher level includes every lower one.
type ISA uint8

const (
	// Portable is plain Go and runs on every architecture.
	Portable ISA = iota
	// AVX2 is x86-64 with AVX2, FMA and F16C (Haswell and Zen, and newer).
	AVX2
	// AVX512 adds AVX-512 F, BW, DQ and VL (Skylake-SP and Zen 4, and newer).
	AVX512
	// AVX512BF16 adds the bf16 dot product VDPBF16PS (Cooper Lake, Sapphire Rapids and Zen 4, and
	// newer).
	AVX512BF16
	// AMX adds tiles and their products TDPBF16PS and TDPBSSD (Sapphire Rapids and newer), where
	// the operating system lends them.
	AMX
	count
)

var names = [count]string{"portable", "avx2", "avx512", "avx512bf16", "amx"}

// String returns the lower-case name that Parse accepts.
func (i ISA) String() string {
	if i >= count {
		return fmt.Sprintf("isa(%d)", uint8(i))
	}
	return names[i]
}

// Parse returns the instruction set with the given name: "portable", "avx2", "avx512",
// "avx512bf16" or "amx". The empty name and "auto" stand for Best. It does not ask whether this
// machine has the set; see Available.
func Parse(name string) (ISA, error) {
	if name == "" || name == "auto" {
		return Best(), nil
	}
	for i, n := range names {
		if n == name {
			return ISA(i), nil
		}
	}
	return Portable, fmt.Errorf("unknown instruction set %q "+
		"(want auto, portable, avx2, avx512, avx512bf16 or amx)", name)
}

// Best returns the highest instruction set this machine can run. AVX512BF16 is it on AMD's
// processors alone: VDPBF16PS takes them half as long as AVX512's multiply-adds, and a core that
// has AMX twice as long.
func Best() ISA { return best(All(), amd()) }

func best(of []ISA, amd bool) ISA {
	best := Portable
	for _, i := range of {
		if i != AVX512BF16 || amd {
			best = i
		}
	}
	return best
}

// Describe says which set a rank on this machine computes with, and why; asked is --cpu-isa, empty
// or "auto" for Best.
func Describe(asked string) string {
	if asked != "" && asked != "auto" {
		return asked + " (as --cpu-isa says)"
	}
	return fmt.Sprintf("%v (%s)", Best(), reason(All(), amd()))
}

func reason(of []ISA, amd bool) string {
	if best(of, amd) != of[len(of)-1] {
		return "avx512bf16 has other bits and may be slower: eagleray-lab kernels tells"
	}
	return "the highest that it has"
}

// All returns every instruction set this machine can run, lowest first.
func All() []ISA {
	var all []ISA
	for i := Portable; i < count; i++ {
		if Available(i) {
			all = append(all, i)
		}
	}
	return all
}
