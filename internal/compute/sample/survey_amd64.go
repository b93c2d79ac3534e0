package sample

import "golang.org/x/sys/cpu"

// vector says whether the kernels below run on this machine. Their results are those of the
// portable ones, bit by bit.
var vector = cpu.X86.HasAVX2

//go:noescape
func maxesAVX2(maxes, x *float32, blocks int)

//go:noescape
func sumsAVX2(sums, x *float32, blocks int, base, k float32)

//go:noescape
func countAVX2(x *float32, blocks int, value float32) int

//go:noescape
func aboveAVX2(words *uint64, x *float32, low float32)
