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
//
// # Runs
//
// In an all-to-all each rank's runs for the others, one after the other, are a stream that goes
// through its buffers, in as many steps as the longest stream takes. Its first buffer begins with
// where each run ends, in front of the first elements: every rank meets all others in the first
// step, reads the ends, and knows how many steps there are and in which buffer of which rank
// something is for it. Ends are plain stores and loads like the rest of the buffer, before and
// after the same counter; what a rank will need of them it copies before it advances its counter to
// the next step, after which their buffer may be written again. In later steps it meets the ranks
// that have something for it there, and no others: that a rank is two steps ahead is excluded by
// the wait before a buffer is written. Within a step a rank writes first and waits then, so that
// ranks cannot wait for each other in a circle.
//
// # Messages
//
// Send and Recv move bytes through a ring for each ordered pair of ranks, with one writer and one
// reader. Each of the two has a counter of its own, of the lines it has written or read, with the
// same words, flags and waits as above: the writer waits until the reader is far enough, the reader
// until there is a line. A message is a header of what both must agree on, then its bytes, filled
// up to whole lines; a long one goes in pieces, so that both copy at once. Lines are written with
// plain stores before the writer's counter is advanced, and read with plain loads before the
// reader's is: by the same two pairs of release and acquire the reader sees what was written, and
// the writer overwrites only what has been read. The rings are at the end of the file, of which the
// kernel takes memory for what is used only.
package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/sys/futex"
	"github.com/eagleray/eagleray/internal/sys/memfile"
)

const (
	magic = 0x31_53_43_59_41_52_47_45 // "EGRAYCS1"
	page  = 4096
	// maxSlot bounds a buffer: larger pieces leave the second-level cache and get slower, not
	// faster.
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

	// The marks of the ranks begin with the second page. Lines are 128 bytes apart because
	// processors fetch them in pairs.
	offMarks = page
	markSize = 256
)

// mark counts the steps of one rank, and the ranks that sleep on it. Only its rank writes the first
// line, but for the flags; the sleepers write the second.
type mark struct {
	// word is the futex word: a count in units of seqUnit, and the flags. A rank's own mark counts
	// steps, those of a ring lines.
	word atomic.Uint32
	_    uint32
	// stamp describes the step of each parity, so that ranks that disagree find out. It is written
	// and read like the buffer of the parity.
	stamp [2]stamp
	_     [128 - 40]byte

	sleepers atomic.Uint32
	joined   atomic.Uint32
	_        [128 - 8]byte
}

// stamp is what ranks that meet must agree on.
type stamp struct{ tag, guard uint64 }

const (
	flagAborted = 1
	flagLeft    = 2
	seqUnit     = 4
)

// wake wakes those that sleep on the mark, after its word has changed.
func (m *mark) wake() {
	if m.sleepers.Load() > 0 {
		futex.Wake(&m.word)
	}
}

// slotBytes is the size of one buffer for operations of up to maxBytes.
func slotBytes(maxBytes int) int {
	return min((max(maxBytes, 1)+page-1)/page*page, maxSlot)
}

// ringBytes is the size of the ring of each ordered pair of ranks: a power of two.
func ringBytes(ranks int) int {
	const most = 1 << 30 // of all rings together, but that each has the least
	n := collective.MessageBuffer
	for n > collective.MinMessageBuffer && n*ranks*ranks > most {
		n /= 2
	}
	return n
}

// Where what a group of so many ranks has begins: the buffers, and, for each ordered pair of ranks,
// the marks and the bytes of its ring.
func offBuffers(ranks int) int { return offMarks + (ranks*markSize+page-1)/page*page }

func offRingMarks(ranks, slot int) int { return offBuffers(ranks) + 2*ranks*slot }

func offRings(ranks, slot int) int {
	return offRingMarks(ranks, slot) + (2*ranks*ranks*markSize+page-1)/page*page
}

func checkLayout(ranks, maxBytes int) error {
	if err := collective.CheckMembers(ranks); err != nil {
		return err
	}
	if maxBytes < 1 {
		return fmt.Errorf("collective segment for operations of %d bytes: must be at least 1",
			maxBytes)
	}
	return nil
}

// Size returns the bytes of the segment for this many ranks and operations of up to maxBytes.
// Larger operations go in pieces, and so do those beyond 256 KiB, for which no larger buffer pays.
// Most of it is room for messages, which takes no memory before it is used.
func Size(ranks, maxBytes int) int64 {
	return int64(offRings(ranks, slotBytes(maxBytes)) + ranks*ranks*ringBytes(ranks))
}

// Create makes the segment: an anonymous memory file (memfd) that is sealed against resizing. Pass
// it to the other processes as a descriptor; each joins it once. The caller closes the file when
// all have it.
func Create(ranks, maxBytes int) (*os.File, error) {
	if err := checkLayout(ranks, maxBytes); err != nil {
		return nil, err
	}
	f, err := memfile.Create("eagleray-collective", Size(ranks, maxBytes))
	if err != nil {
		return nil, fmt.Errorf("collective segment: %w", err)
	}
	var head [offSlot + 8]byte
	binary.NativeEndian.PutUint64(head[offMagic:], magic)
	binary.NativeEndian.PutUint64(head[offRanks:], uint64(ranks))
	binary.NativeEndian.PutUint64(head[offSlot:], uint64(slotBytes(maxBytes)))
	if _, err := f.WriteAt(head[:], 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("write header of collective segment: %w", err)
	}
	if err := memfile.Seal(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("collective segment: %w", err)
	}
	return f, nil
}

// segment is one process's mapping: what every operation uses, and the rings with their marks,
// whose pages come as they are used.
type segment struct {
	ranks, slot, ring int
	mem, rings        []byte
}

// open checks that the file is a segment of this layout that cannot shrink under the mapping, and
// maps it.
func open(f *os.File, ranks, maxBytes int) (*segment, error) {
	if err := memfile.Sealed(f); err != nil {
		return nil, fmt.Errorf("collective segment: %w", err)
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
	s := &segment{ranks: ranks, slot: slotBytes(maxBytes), ring: ringBytes(ranks)}
	const access = unix.PROT_READ | unix.PROT_WRITE
	at := offRingMarks(ranks, s.slot)
	s.mem, err = unix.Mmap(int(f.Fd()), 0, at, access, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map collective segment: %w", err)
	}
	s.rings, err = unix.Mmap(int(f.Fd()), int64(at), int(size)-at, access, unix.MAP_SHARED)
	if err != nil {
		err = fmt.Errorf("map rings of collective segment: %w", err)
		return nil, errors.Join(err, unix.Munmap(s.mem))
	}
	head := func(off int) uint64 { return binary.NativeEndian.Uint64(s.mem[off:]) }
	if head(offMagic) != magic || head(offRanks) != uint64(ranks) ||
		head(offSlot) != uint64(s.slot) {
		err := fmt.Errorf("collective segment is for %d ranks and buffers of %d bytes "+
			"(magic %#x), want %d and %d", head(offRanks), head(offSlot), head(offMagic), ranks,
			s.slot)
		return nil, errors.Join(err, s.unmap())
	}
	return s, nil
}

func (s *segment) unmap() error {
	if err := errors.Join(unix.Munmap(s.mem), unix.Munmap(s.rings)); err != nil {
		return fmt.Errorf("unmap collective segment: %w", err)
	}
	return nil
}

// mark returns a rank's own mark.
func (s *segment) mark(rank int) *mark {
	return (*mark)(unsafe.Pointer(&s.mem[offMarks+rank*markSize]))
}

// ringMarks returns the marks of the writer and the reader of the ring between two ranks.
func (s *segment) ringMarks(from, to int) (written, read *mark) {
	at := 2 * (from*s.ranks + to) * markSize
	return (*mark)(unsafe.Pointer(&s.rings[at])), (*mark)(unsafe.Pointer(&s.rings[at+markSize]))
}

// lines returns the bytes of the ring between two ranks.
func (s *segment) lines(from, to int) []byte {
	at := offRings(s.ranks, s.slot) - offRingMarks(s.ranks, s.slot) + (from*s.ranks+to)*s.ring
	return s.rings[at : at+s.ring : at+s.ring]
}

func (s *segment) word(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&s.mem[off]))
}

// buffer returns a rank's buffer of one parity.
func (s *segment) buffer(rank, parity int) []byte {
	off := offBuffers(s.ranks) + (2*rank+parity)*s.slot
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
