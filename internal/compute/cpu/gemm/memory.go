package gemm

import "unsafe"

const (
	cacheLine   = 64
	cachePeriod = 4096 // addresses this far apart fall into the same set of the L1 cache
)

// alignedSlice returns n elements at a cache line from a reusable buffer, which grows if needed.
func alignedSlice[T float32 | uint16 | int8](buffer *[]T, n int) []T {
	var one T
	line := cacheLine / int(unsafe.Sizeof(one))
	if len(*buffer) < n+line {
		*buffer = make([]T, n+line)
	}
	skip := int(-uintptr(unsafe.Pointer(&(*buffer)[0]))&(cacheLine-1)) / int(unsafe.Sizeof(one))
	return (*buffer)[skip : skip+n]
}
