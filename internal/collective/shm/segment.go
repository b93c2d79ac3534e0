// Package shm runs collective operations between the ranks of one node through a shared memory
// segment.
//
// The segment is a memfd: it has no name and is gone with its last holder. Each rank has two
// buffers and a sequence counter on a cache line of its own. An operation (or a piece of one that
// is larger than a buffer) is a step: every rank writes its contribution into its buffer of the
// step's parity, advances its counter, waits for the counters of those it needs, and reads their
// buffers.
//
// # Why two buffers are enough
//
// A rank advances its counter to s only after it has read everything it needs of step s-1. Before
// it writes into the buffer of step s, which was last used in step s-2, it waits until every
// counter is at least s-1: then every rank has finished reading step s-2. In an all-reduce that
// wait never blocks, because the step before ended only when all counters had reached s-1.
//
// # Memory order
//
// The contribution is written with plain stores, then the counter is advanced with an atomic add; a
// reader loads the counter atomically, then reads with plain loads. Go's atomics are sequentially
// consistent, so a reader that sees the counter sees the contribution (release and acquire), and a
// writer that sees a reader's next counter writes after that reader's loads.
//
// No wake-up is lost. A waiter first raises the sleepers count of the counter, then calls futex
// wait with the value it saw; the kernel compares value and word under the lock that wake takes
// too. The owner first advances the counter, then loads the sleepers count. In the one total order
// of these atomics either the owner sees the sleeper and wakes it, or the count was raised after
// the advance, and then the kernel's comparison fails and the waiter does not sleep. Abort and
// leaving are bits in the same word, set before the wake, so the same argument holds for them.
package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/collective"
)

const (
	magic = 0x31_53_43_59_41_52_47_45 // "EGRAYCS1"
	page  = 4096
	// maxSlot bounds a buffer: larger pieces leave the second-level cache and get slower, not faster.
	maxSlot = 256 << 10

	// Offsets in the first page.
	offMagic      = 0
	offRanks      = 8
	offSlot       = 16
	offAbortState = 64
	offAbortRank  = 68
	offAbortLen   = 72
	offAbortText  = 128
	maxAbortText  = 1024

	// Control blocks of the ranks fill the second page. Lines are 128 bytes apart because
	// processors fetch them in pairs.
	offControl  = page
	controlSize = 256
)

// control is one rank's block. The first line is written by its rank only, but for the flags; the
// second by the ranks that wait for it.
type control struct {
	// word is the futex word: the rank's step number in units of seqUnit, and the flags.
	word atomic.Uint32
	_    uint32
	// tag describes the step of each parity, so that ranks that disagree find out.
	tag [2]atomic.Uint64
	_   [128 - 24]byte

	sleepers atomic.Uint32
	joined   atomic.Uint32
	_        [128 - 8]byte
}

const (
	flagAborted = 1
	flagLeft    = 2
	seqUnit     = 4
)

// slotBytes is the size of one buffer for operations of up to maxBytes.
func slotBytes(maxBytes int) int {
	return min((max(maxBytes, 1)+page-1)/page*page, maxSlot)
}

func checkLayout(ranks, maxBytes int) error {
	if !collective.ValidRanks(ranks) {
		return fmt.Errorf("collective group of %d ranks: must be 1, 2, 4 or 8", ranks)
	}
	if maxBytes < 1 {
		return fmt.Errorf("collective segment for operations of %d bytes: must be at least 1",
			maxBytes)
	}
	return nil
}

// Size returns the bytes of the segment for this many ranks and operations of up to maxBytes.
// Larger operations go in pieces, and so do those beyond 256 KiB, for which no larger buffer pays.
func Size(ranks, maxBytes int) int64 {
	return 2*page + int64(ranks)*2*int64(slotBytes(maxBytes))
}

// Create makes the segment: an anonymous memory file (memfd) that is sealed against resizing. Pass
// it to the other processes as a descriptor; each joins it once. The caller closes the file when
// all have it.
func Create(ranks, maxBytes int) (*os.File, error) {
	if err := checkLayout(ranks, maxBytes); err != nil {
		return nil, err
	}
	const name = "eagleray-collective"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("create collective segment: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	size := Size(ranks, maxBytes)
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("size collective segment to %d bytes: %w", size, err)
	}
	var head [offSlot + 8]byte
	binary.NativeEndian.PutUint64(head[offMagic:], magic)
	binary.NativeEndian.PutUint64(head[offRanks:], uint64(ranks))
	binary.NativeEndian.PutUint64(head[offSlot:], uint64(slotBytes(maxBytes)))
	if _, err := f.WriteAt(head[:], 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("write header of collective segment: %w", err)
	}
	const seals = unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal collective segment: %w", err)
	}
	return f, nil
}

// segment is one process's mapping.
type segment struct {
	mem  []byte
	slot int
}

// open checks that the file is a segment of this layout that cannot shrink under the mapping, and
// maps it.
func open(f *os.File, ranks, maxBytes int) (*segment, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("read seals of collective segment: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("collective segment is not sealed against shrinking")
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat collective segment: %w", err)
	}
	size := Size(ranks, maxBytes)
	if info.Size() != size {
		return nil, fmt.Errorf("collective segment has %d bytes, want %d for %d ranks and %d bytes",
			info.Size(), size, ranks, maxBytes)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map collective segment: %w", err)
	}
	s := &segment{mem: mem, slot: slotBytes(maxBytes)}
	head := func(off int) uint64 { return binary.NativeEndian.Uint64(mem[off:]) }
	if head(offMagic) != magic || head(offRanks) != uint64(ranks) ||
		head(offSlot) != uint64(s.slot) {
		err := fmt.Errorf("collective segment is for %d ranks and buffers of %d bytes (magic %#x), "+
			"want %d and %d",
			head(offRanks), head(offSlot), head(offMagic), ranks, s.slot)
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	return s, nil
}

func (s *segment) control(rank int) *control {
	return (*control)(unsafe.Pointer(&s.mem[offControl+rank*controlSize]))
}

func (s *segment) word(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&s.mem[off]))
}

// buffer returns a rank's buffer of one parity.
func (s *segment) buffer(rank, parity int) []byte {
	off := 2*page + (2*rank+parity)*s.slot
	return s.mem[off : off+s.slot : off+s.slot]
}

// abort claims the right to say why the group ended; only the first rank gets it. The text goes
// into errors.
func (s *segment) abort(rank int, text string) {
	if !s.word(offAbortState).CompareAndSwap(0, 1) {
		return
	}
	n := copy(s.mem[offAbortText:offAbortText+maxAbortText], text)
	s.word(offAbortRank).Store(uint32(rank))
	s.word(offAbortLen).Store(uint32(n))
	s.word(offAbortState).Store(2)
}

// aborted returns which rank ended the group and why, if that is written yet.
func (s *segment) aborted() (rank int, text string, ok bool) {
	if s.word(offAbortState).Load() != 2 {
		return 0, "", false
	}
	n := min(int(s.word(offAbortLen).Load()), maxAbortText)
	return int(s.word(offAbortRank).Load()), string(s.mem[offAbortText : offAbortText+n]), true
}
