package gemm

import "unsafe"

const (
	hugePage    = 2 << 20
	hugeFrom    = 4 << 20 // from this size on huge pages are asked for
	cacheLine   = 64
	cachePeriod = 4096 // addresses this far apart fall into the same set of the L1 cache
)

// aligned returns size bytes of b that begin at a multiple of align.
func aligned(b []byte, size, align int) []byte {
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(align-1))
	return b[skip : skip+size : skip+size]
}

// alignedSlice returns n elements at a cache line from a reusable buffer, which grows if needed.
func alignedSlice[T float32 | uint16](buffer *[]T, n int) []T {
	var one T
	line := cacheLine / int(unsafe.Sizeof(one))
	if len(*buffer) < n+line {
		*buffer = make([]T, n+line)
	}
	skip := int(-uintptr(unsafe.Pointer(&(*buffer)[0]))&(cacheLine-1)) / int(unsafe.Sizeof(one))
	return (*buffer)[skip : skip+n]
}
