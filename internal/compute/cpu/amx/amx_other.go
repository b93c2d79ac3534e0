//go:build !amd64

package amx

import "unsafe"

// These are never called where isa.Available refuses AMX.

func Multiply(_ unsafe.Pointer, _, _ int, _ unsafe.Pointer, _, _, _ int, _ unsafe.Pointer,
	_, _ int) {
}

func Pair(unsafe.Pointer, int, unsafe.Pointer, int, int) {}

func roundBlocks(*uint16, *float32, int) {}
