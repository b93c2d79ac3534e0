package isa

import (
	"sync"
	"syscall"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

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
	case AMX:
		return avx512 && x.HasAVX512VBMI && x.HasAVX512BF16 && x.HasAMXTile && x.HasAMXBF16 &&
			x.HasAMXInt8 && tiles()
	}
	return false
}

// VNNI reports whether this machine can run AVX512 and has its VPDPBUSD (Cascade Lake and Zen 4,
// and newer).
func VNNI() bool { return Available(AVX512) && cpu.X86.HasAVX512VNNI }

// Follows reports whether this machine's processor reads streams of memory faster where it is told
// less about what comes: AMD's do, Zen 4 by up to a third (eagleray-lab kernels).
func Follows() bool { return amd() }

func amd() bool { return cpuid.CPU.VendorID == cpuid.AMD }

// tiles asks Linux, once, for the process's permission to use AMX's tiles, and reports whether it
// has it: without, the first use of a tile ends the process.
var tiles = sync.OnceValue(func() bool { return requestTiles() == 0 })

// requestTiles is a function of its own for scripts/simulate, which answers in the system's place.
//
//go:noinline
func requestTiles() syscall.Errno {
	const (
		requestPermission = 0x1023 // ARCH_REQ_XCOMP_PERM, since Linux 5.16
		tileData          = 18     // the number of the state in XCR0
	)
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return errno
}
