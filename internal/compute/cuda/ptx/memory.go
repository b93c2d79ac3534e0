package ptx

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// heapBase is the address of the first allocation; the windows of shared, local and parameter
	// memory in the generic space lie below.
	heapBase = 0x7f00_0000_0000
	// guard is the least gap between allocations, in bytes: nothing is there.
	guard = 4096
	// granularity is what allocations are aligned to, as cuMemAlloc's are.
	granularity = 256
	// maxFreed is how many freed allocations are remembered by name.
	maxFreed = 1 << 14
)

// ErrOutOfMemory is Alloc's error where the limit would be passed.
var ErrOutOfMemory = errors.New("ptx: out of device memory")

// Memory is a device's memory: an address space with allocations in it. Addresses are not used
// again after Free, so that a use of freed memory is found. Its methods may be called from several
// goroutines, but none that changes the allocations while a kernel runs: these wait for its end.
type Memory struct {
	mu       sync.RWMutex
	limit    uint64
	used     uint64
	next     uint64
	all      []*allocation // by address
	freed    []*allocation // by address, without data
	loaded   map[*Module]uint64
	warps    uint32 // numbers of warps that launches have used, for the race detector
	launches uint64
	// knows is what launches that have ended knew of other machines (Ledger).
	knows devices
}

// allocation is a range of device memory.
type allocation struct {
	base, size uint64
	data       []byte
	start      unsafe.Pointer // of data
	readOnly   bool
	known      initialised
	touched    atomic.Bool // written by a launch that does not mark bytes
	shadow     shadow
	lent       bool    // the bytes are not the memory's own
	ledger     *Ledger // of bytes that other machines have as well, nil for none
}

func (a *allocation) touch() {
	if !a.touched.Load() {
		a.touched.Store(true)
	}
}

// NewMemory is a memory without allocations of which limit bytes can be allocated.
func NewMemory(limit uint64) *Memory {
	return &Memory{limit: limit, next: heapBase, loaded: map[*Module]uint64{}}
}

// Used is how many bytes are allocated, in steps of 256.
func (m *Memory) Used() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.used
}

// Limit is how many bytes can be allocated.
func (m *Memory) Limit() uint64 { return m.limit }

// Alloc makes an allocation of n bytes and returns its address, a multiple of 256. Its bytes are
// 0xFF and count as uninitialised. The error is ErrOutOfMemory, or says that n is 0.
func (m *Memory) Alloc(n uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.alloc(n)
}

func (m *Memory) alloc(n uint64) (uint64, error) {
	if n == 0 {
		return 0, errors.New("ptx: allocation of 0 bytes")
	}
	rounded := alignUp(n, granularity)
	if rounded < n || rounded > m.limit-m.used {
		return 0, ErrOutOfMemory
	}
	words := make([]uint64, (n+15)/16*2) // aligned for atomics and for vectors
	start := unsafe.Pointer(unsafe.SliceData(words))
	a := &allocation{base: m.next, size: n, start: start,
		data: unsafe.Slice((*byte)(start), n)}
	fill(words, math.MaxUint64)
	m.used += rounded
	m.next += alignUp(n, granularity) + guard
	m.all = append(m.all, a)
	return a.base, nil
}

// Free ends an allocation; addr is what Alloc returned, or the error says that it is not.
func (m *Memory) Free(addr uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := sort.Search(len(m.all), func(i int) bool { return m.all[i].base >= addr })
	if at == len(m.all) || m.all[at].base != addr || m.all[at].readOnly {
		return fmt.Errorf("ptx: free of %#x, which is no allocation", addr)
	}
	a := m.all[at]
	m.all = append(m.all[:at], m.all[at+1:]...)
	if a.lent {
		return nil
	}
	m.used -= alignUp(a.size, granularity)
	m.remember(&allocation{base: a.base, size: a.size})
	return nil
}

// Attach makes bytes of the host's an allocation, at an address where nothing else is: 0 is one of
// the memory's choice. They count as initialised, and not as used. The ledger, nil for none, is
// that of all machines that have them. Free ends it.
func (m *Memory) Attach(addr uint64, b []byte, l *Ledger) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addr == 0 {
		addr = m.next
		m.next += alignUp(uint64(len(b)), granularity) + guard
	}
	at := sort.Search(len(m.all), func(i int) bool { return m.all[i].base >= addr })
	if len(b) == 0 || at < len(m.all) && m.all[at].base < addr+uint64(len(b)) ||
		at > 0 && addr-m.all[at-1].base < m.all[at-1].size {
		return 0, fmt.Errorf("ptx: %d bytes at %#x: there is something else", len(b), addr)
	}
	a := &allocation{base: addr, size: uint64(len(b)), lent: true, ledger: l}
	a.move(b)
	a.known.all = true
	m.all = slices.Insert(m.all, at, a)
	return addr, nil
}

// Move has the bytes of an allocation elsewhere, with what they hold: other machines may have them
// as well, and share the ledger. b is aligned for vectors.
func (m *Memory) Move(addr uint64, b []byte, l *Ledger) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.find(addr)
	if a == nil || a.base != addr || a.size != uint64(len(b)) {
		return fmt.Errorf("ptx: %d bytes at %#x are no allocation", len(b), addr)
	}
	copy(b, a.data)
	a.move(b)
	a.ledger = l
	return nil
}

func (a *allocation) move(b []byte) {
	a.data, a.start = b, unsafe.Pointer(unsafe.SliceData(b))
}

// remember notes a freed allocation for the messages of faults.
func (m *Memory) remember(a *allocation) {
	at := sort.Search(len(m.freed), func(i int) bool { return m.freed[i].base >= a.base })
	m.freed = slices.Insert(m.freed, at, a)
	if len(m.freed) > maxFreed {
		m.freed = m.freed[1:]
	}
}

// find is the allocation that an address lies in, nil for none.
func (m *Memory) find(addr uint64) *allocation { return search(m.all, addr) }

func search(all []*allocation, addr uint64) *allocation {
	at := sort.Search(len(all), func(i int) bool { return all[i].base > addr })
	if at == 0 || addr-all[at-1].base >= all[at-1].size {
		return nil
	}
	return all[at-1]
}

// describe says what an address outside all allocations is near to.
func (m *Memory) describe(addr uint64) string {
	if a := search(m.freed, addr); a != nil {
		return fmt.Sprintf("byte %d of an allocation of %d bytes that was freed",
			addr-a.base, a.size)
	}
	at := sort.Search(len(m.all), func(i int) bool { return m.all[i].base > addr })
	if at > 0 {
		a := m.all[at-1]
		return fmt.Sprintf("%d bytes beyond an allocation of %d bytes", addr-a.base-a.size, a.size)
	}
	return "no allocation is near"
}

// span is the bytes of a range, which must lie in one allocation.
func (m *Memory) span(addr, n uint64) (*allocation, uint64, error) {
	a := m.find(addr)
	if a == nil {
		return nil, 0, fmt.Errorf("ptx: %d bytes at %#x: %s", n, addr, m.describe(addr))
	}
	off := addr - a.base
	if n > a.size-off {
		return nil, 0, fmt.Errorf("ptx: %d bytes at %#x: only %d of the allocation follow",
			n, addr, a.size-off)
	}
	return a, off, nil
}

// Read copies len(dst) bytes at addr to the host. They must lie in one allocation, but need not be
// initialised.
func (m *Memory) Read(dst []byte, addr uint64) error {
	if len(dst) == 0 {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	a, off, err := m.span(addr, uint64(len(dst)))
	if err != nil {
		return err
	}
	copy(dst, a.data[off:])
	return nil
}

// Write copies src to addr; the bytes must lie in one allocation, and count as initialised then.
func (m *Memory) Write(addr uint64, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, off, err := m.span(addr, uint64(len(src)))
	if err != nil {
		return err
	}
	copy(a.data[off:], src)
	a.known.set(off, uint64(len(src)), a.size)
	return nil
}

// Copy copies n bytes from src to dst, each in one allocation, and with them whether they are
// initialised. The ranges may overlap.
func (m *Memory) Copy(dst, src, n uint64) error {
	if n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	from, fromAt, err := m.span(src, n)
	if err != nil {
		return err
	}
	to, toAt, err := m.span(dst, n)
	if err != nil {
		return err
	}
	copy(to.data[toAt:toAt+n], from.data[fromAt:])
	to.known.copyFrom(toAt, &from.known, fromAt, n, to.size)
	return nil
}

// Fill sets n bytes at addr, in one allocation.
func (m *Memory) Fill(addr uint64, value byte, n uint64) error {
	if n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, off, err := m.span(addr, n)
	if err != nil {
		return err
	}
	fill(a.data[off:off+n], value)
	a.known.set(off, n, a.size)
	return nil
}

// Initialised says whether all of n bytes at addr are in one allocation and were written, by the
// host or by a kernel. A launch without Machine.Check does not look: all of an allocation that it
// writes to counts as initialised.
func (m *Memory) Initialised(addr, n uint64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	a, off, err := m.span(addr, n)
	return err == nil && a.known.has(off, n)
}

// launched ends a launch: allocations that an unchecked one has written to count as initialised.
func (m *Memory) launched(l *launch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.knows != nil {
		m.knows = l.knows // which began with those before
	}
	m.trim()
	for _, a := range m.all {
		if a.touched.Load() {
			a.touched.Store(false)
			a.known.all, a.known.bits = true, nil
		}
	}
}

// load places the variables of a module in the memory, once.
func (m *Memory) load(mod *Module) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if base, ok := m.loaded[mod]; ok || mod.imageSize == 0 {
		return base, nil
	}
	base, err := m.alloc(mod.imageSize)
	if err != nil {
		return 0, fmt.Errorf("the module's variables: %w", err)
	}
	a := m.find(base)
	clear(a.data[copy(a.data, mod.image):])
	for _, r := range mod.relocs {
		*(*uint64)(unsafe.Add(a.start, r.at)) = base + r.target
	}
	a.known.all = true
	m.loaded[mod] = base
	return base, nil
}
