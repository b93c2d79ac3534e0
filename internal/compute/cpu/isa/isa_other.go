//go:build !amd64

package isa

// Available reports whether this machine can run the instruction set; only Portable exists here.
func Available(i ISA) bool { return i == Portable }

// Follows reports what only vector kernels ask.
func Follows() bool { return false }

func amd() bool { return false }
