package ring

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a process' view of a segment. It lasts until close was called and no call is inside.
type mapping struct {
	layout
	mem []byte
	// users counts the calls inside and the records given out; close adds shut.
	users atomic.Int64
	// exposed is set when a caller may hold a pointer into the page at exposedAt.
	exposed   atomic.Bool
	exposedAt int
}

const shut = 1 << 62

func mapFile(f *os.File, l layout) (*mapping, error) {
	size := int(l.size())
	// Not populated: pages that are never used are never there.
	at, err := unix.MmapPtr(int(f.Fd()), 0, nil, uintptr(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("ring: map segment of %d bytes: %w", size, err)
	}
	return &mapping{layout: l, mem: unsafe.Slice((*byte)(at), size)}, nil
}

// acquire reports false when the mapping is closed; otherwise it keeps the mapping until release.
func (m *mapping) acquire() bool {
	for {
		n := m.users.Load()
		if n >= shut {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mapping) release() {
	if m.users.Add(-1) == shut {
		m.unmap()
	}
}

// close makes acquire return false, and the last release unmaps. It is called once, between acquire
// and release.
func (m *mapping) close() { m.users.Add(shut) }

// unmap removes the mapping. It fails only for addresses that are not mapped, which leaves nothing
// to do.
func (m *mapping) unmap() {
	base := unsafe.Pointer(unsafe.SliceData(m.mem))
	size, page, at := uintptr(len(m.mem)), uintptr(m.page), uintptr(m.exposedAt)
	if !m.exposed.Load() {
		_ = unix.MunmapPtr(base, size)
		return
	}
	// A pointer into the exposed page stays valid: private memory takes the page's place.
	kept := unsafe.Add(base, at)
	if _, err := unix.MmapPtr(-1, 0, kept, page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED); err != nil {
		return // no memory: the segment stays mapped
	}
	_ = unix.MunmapPtr(base, at)
	_ = unix.MunmapPtr(unsafe.Add(kept, page), size-at-page)
}

func (m *mapping) broadcastControl() *broadcastControl {
	return (*broadcastControl)(unsafe.Pointer(&m.mem[m.page]))
}

// rankPage is the offset of a rank's control page.
func (m *mapping) rankPage(rank int) int { return (2 + rank) * m.page }

func (m *mapping) rankControl(rank int) *rankControl {
	return (*rankControl)(unsafe.Pointer(&m.mem[m.rankPage(rank)]))
}

func (m *mapping) broadcastRing() []byte {
	at := int(m.control())
	return m.mem[at : at+m.broadcast : at+m.broadcast]
}

func (m *mapping) replyRing(rank int) []byte {
	at := int(m.control()) + m.broadcast + rank*m.reply
	return m.mem[at : at+m.reply : at+m.reply]
}
