package gemm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// memory is zeroed memory outside the Go heap.
type memory struct {
	data    []byte // what may be used
	mapping []byte // what must be unmapped
}

// allocate maps size bytes. Large memory begins at a huge page and asks for huge pages: with 4 KiB
// pages a streaming read of weights loses a quarter of the bandwidth to address translation. The
// last, incomplete huge page stays in small pages, so nothing is wasted; small matrices take whole
// 4 KiB pages.
func allocate(size int) (memory, error) {
	length := size
	if size >= hugeFrom {
		length += hugePage
	}
	mapping, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return memory{}, fmt.Errorf("map %d bytes for weights: %w", length, err)
	}
	if size < hugeFrom {
		return memory{data: mapping[:size:size], mapping: mapping}, nil
	}
	data := aligned(mapping, size, hugePage)
	// The kernel may be built without huge pages; the memory works all the same.
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE)
	return memory{data: data, mapping: mapping}, nil
}

func (m *memory) free() {
	if m.mapping == nil {
		return
	}
	// Unmapping a mapping of our own fails only if it is not one.
	_ = unix.Munmap(m.mapping)
	*m = memory{}
}
