// Package offheap maps memory outside the Go heap: zeroed, invisible to the garbage collector,
// backed page by page when it is first written, and given back to the system when it is freed.
package offheap

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugePage = 2 << 20
	hugeFrom = 4 << 20
)

// Option is a choice for one mapping. Options are combined by |.
type Option uint8

const (
	// HugePages asks for huge pages if the memory has 4 MiB or more, and aligns it to one. With
	// pages of 4 KiB a streaming read loses a quarter of the bandwidth to address translation. The
	// first write to a huge page takes all 2 MiB of it, so this is for memory that is filled
	// wholly. What is left behind the last whole huge page stays in small pages. The kernel may be
	// built without huge pages; the memory works all the same.
	HugePages Option = 1 << iota
	// NoReserve maps more than the machine has: memory is accounted for only once it is written. It
	// is for a mapping of which only a part is in use at a time.
	NoReserve
)

// Memory is one mapping. The zero value has no bytes and can be freed.
type Memory struct {
	data    []byte // what may be used
	mapping []byte // what must be unmapped
	file    bool   // it is a file's
	arena   *chunk // that it is a part of, nil for a mapping of its own
}

// Map maps size bytes, at least 1, aligned to a page. The error is the system's, with the size.
func Map(size int, o Option) (Memory, error) {
	m, err := anonymous(size, o)
	if err == nil {
		inUse.Add(int64(size))
	}
	return m, err
}

// anonymous is Map of memory that is not counted.
func anonymous(size int, o Option) (Memory, error) {
	length := size
	huge := o&HugePages != 0 && size >= hugeFrom
	if huge {
		length += hugePage
	}
	flags := unix.MAP_PRIVATE | unix.MAP_ANON
	if o&NoReserve != 0 {
		flags |= unix.MAP_NORESERVE
	}
	mapping, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return Memory{}, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	m := Memory{data: mapping[:size:size], mapping: mapping}
	if huge {
		skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mapping))) & (hugePage - 1))
		m.data = mapping[skip : skip+size : skip+size]
		_ = unix.Madvise(m.data, unix.MADV_HUGEPAGE) // advice only
	}
	return m, nil
}

// MapFile maps the first size bytes of a file, to be read only: its pages are the page cache's, in
// common with all that map them, and no part of InUse. Where the file system has huge pages they
// are mapped as such. The file may be closed then; reading what it has lost since is a fault.
func MapFile(f *os.File, size int) (Memory, error) {
	// Its place is found first, because a huge page lies at a multiple of its size.
	mapping, err := unix.Mmap(-1, 0, size+hugePage, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return Memory{}, fmt.Errorf("map %d bytes of %s: %w", size, f.Name(), err)
	}
	m := Memory{mapping: mapping, file: true}
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mapping))) & (hugePage - 1))
	m.data = mapping[skip : skip+size : skip+size]
	if _, err := unix.MmapPtr(int(f.Fd()), 0, unsafe.Pointer(unsafe.SliceData(m.data)),
		uintptr(size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		_ = m.Free()
		return Memory{}, fmt.Errorf("map %d bytes of %s: %w", size, f.Name(), err)
	}
	_ = unix.Madvise(m.data, unix.MADV_HUGEPAGE) // advice only
	return m, nil
}

// Borrowed is memory that another owner unmaps, and that is not to be written: Free leaves it.
func Borrowed(data []byte) Memory { return Memory{data: data} }

// Borrowed tells whether the memory is another owner's.
func (m *Memory) Borrowed() bool { return m.data != nil && m.mapping == nil && m.arena == nil }

// inUse is the size of all memory that is not freed, but for files.
var inUse atomic.Int64

// InUse is how many bytes are mapped, or given out by arenas.
func InUse() int64 { return inUse.Load() }

// Bytes returns the memory, nil after Free.
func (m *Memory) Bytes() []byte { return m.data }

// Drop gives the pages of part back to the system; they read as zeros from then on. part begins at
// a page of the memory and ends at one or at the memory's end. It is advice: if the system
// declines, the pages keep what they hold.
func Drop(part []byte) { _ = unix.Madvise(part, unix.MADV_DONTNEED) }

// Populate has the system find the pages of part now, which begins at a page, as if each were
// written with what it holds. It is advice: a kernel before 5.14 finds them when they are written.
func Populate(part []byte) { _ = unix.Madvise(part, unix.MADV_POPULATE_WRITE) }

// Free unmaps the memory: no slice of it may be used afterwards. A second call does nothing. An
// error means that the mapping was unmapped by other means before.
func (m *Memory) Free() error {
	mapping := m.mapping
	if mapping != nil && !m.file || m.arena != nil {
		inUse.Add(-int64(len(m.data)))
	}
	if m.arena != nil {
		mapping = m.arena.leave()
	}
	*m = Memory{}
	if mapping == nil {
		return nil
	}
	if err := unix.Munmap(mapping); err != nil {
		return fmt.Errorf("unmap %d bytes of memory: %w", len(mapping), err)
	}
	return nil
}
