//go:build !amd64

package amx

import "unsafe"

// These are never called where isa.Available refuses AMX.

func Multiply(_ unsafe.Pointer, _, _ int, _ unsafe.Pointer, _, _, _ int, _ unsafe.Pointer,
	_, _, _, _ int) {
}

func Pair(unsafe.Pointer, int, unsafe.Pointer, int, int) {}

func PairInt8(unsafe.Pointer, int, unsafe.Pointer, int, int) {}

func PairE4M3(unsafe.Pointer, int, unsafe.Pointer, int, int) {}

func roundBlocks(*uint16, *float32, int, float32, int) {}

func maxBlocks(*float32, int) float32 { return 0 }

func weighBlocks(*uint16, *float32, int, float32, *float32, int) float32 { return 0 }

func multiplySpans(*CodeCall) {}

func multiplyRuns(*CodeCall) {}

func Unpack(_, _ unsafe.Pointer, _, _ int, _ uintptr, _ *[16]int8) {}

func multiplySuper(*CodeCall) {}
