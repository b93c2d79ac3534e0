//go:build !linux

package gemm

// memory is zeroed memory for packed weights.
type memory struct {
	data []byte
}

func allocate(size int) (memory, error) {
	return memory{data: aligned(make([]byte, size+cacheLine), size, cacheLine)}, nil
}

func (m *memory) free() { *m = memory{} }
