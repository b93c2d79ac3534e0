package ring

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/link/status"
)

// DefaultMemory is the size of a segment when Options says nothing.
const DefaultMemory = 16 << 20

// MaxRanks is how many ranks one segment can serve.
const MaxRanks = 64

const (
	minRing = 4 << 10
	maxRing = 1 << 30
)

// layout is where things lie in a segment: a page with the header, a page for the broadcast ring's
// control words, a page for each rank, then the rings: the broadcast, and the replies by rank.
type layout struct {
	page, ranks int
	// broadcast and reply are the capacities of the rings in bytes, powers of two.
	broadcast, reply int
}

// plan divides memory: half for the broadcast ring, the rest for the reply rings, each rounded down
// to a power of two.
func plan(ranks int, memory int64) (layout, error) {
	if ranks < 1 || ranks > MaxRanks {
		return layout{}, fmt.Errorf("ring: segment for %d ranks, not 1 to %d", ranks, MaxRanks)
	}
	if memory == 0 {
		memory = DefaultMemory
	}
	l := layout{page: os.Getpagesize(), ranks: ranks}
	if least := l.least(); memory < least {
		return layout{}, fmt.Errorf("ring: %d bytes of shared memory for %d ranks, which need at "+
			"least %d", memory, ranks, least)
	}
	l.broadcast = ringSize(memory / 2)
	l.reply = ringSize((memory - l.control() - int64(l.broadcast)) / int64(ranks))
	return l, nil
}

// least is the smallest memory that plan can divide.
func (l layout) least() int64 {
	small := int64(max(minRing, l.page))
	for b := small; ; b *= 2 {
		memory := max(2*b, l.control()+b+int64(l.ranks)*small)
		if memory < 4*b {
			return memory
		}
	}
}

// ringSize is the largest power of two up to n, within limits.
func ringSize(n int64) int {
	return min(1<<(bits.Len64(uint64(n))-1), maxRing)
}

func (l layout) control() int64 { return int64(2+l.ranks) * int64(l.page) }

func (l layout) size() int64 {
	return l.control() + int64(l.broadcast) + int64(l.ranks)*int64(l.reply)
}

// check reports whether a layout read from a segment is one that plan makes on this machine.
func (l layout) check() error {
	valid := func(ring int) bool { return ring >= minRing && ring <= maxRing && ring&(ring-1) == 0 }
	switch {
	case l.page != os.Getpagesize():
		return fmt.Errorf("pages of %d bytes, here they have %d", l.page, os.Getpagesize())
	case l.ranks < 1 || l.ranks > MaxRanks:
		return fmt.Errorf("%d ranks, not 1 to %d", l.ranks, MaxRanks)
	case !valid(l.broadcast) || !valid(l.reply):
		return fmt.Errorf("rings of %d and %d bytes", l.broadcast, l.reply)
	}
	return nil
}

// Offsets in the header, each a 64-bit number of native byte order.
const (
	offMagic     = 0
	offVersion   = 8
	offPage      = 16
	offRanks     = 24
	offBroadcast = 32
	offReply     = 40
	headerBytes  = 48
)

const (
	magic   = 0x31_51_52_59_41_52_47_45 // "EGRAYRQ1"
	version = 1
)

// Words that different processes write lie 128 bytes apart, because processors fetch cache lines in
// pairs.
const linePair = 128

// broadcastControl is the second page.
type broadcastControl struct {
	// sent is the position behind the last record; written by the driver.
	sent atomic.Uint64
	// closed is not 0 once the driver has closed.
	closed atomic.Uint32
	_      [linePair - 12]byte
	// data is for the ranks, which wait for a record.
	data event
	_    [linePair - 8]byte
	// space is for the driver, which waits for room.
	space event
	_     [linePair - 8]byte
	// replies is for the driver, which waits for a record of any rank.
	replies event
	_       [linePair - 8]byte
}

// States of a rank; only the rank itself moves them, and only forward.
const (
	stateAbsent = iota
	stateJoined
	stateLeft
)

// rankControl is a rank's page.
type rankControl struct {
	// read is the rank's position in the broadcast ring: what lies before it may be overwritten.
	// records and bytes count what it received. All are written by the rank.
	read           atomic.Uint64
	records, bytes atomic.Uint64
	state          atomic.Uint32
	_              [linePair - 28]byte
	// sent is the position behind the last record of the reply ring; written by the rank.
	sent atomic.Uint64
	_    [linePair - 8]byte
	// taken is the driver's position in the reply ring, dropped not 0 after Drop. The driver writes
	// both.
	taken   atomic.Uint64
	dropped atomic.Uint32
	_       [linePair - 12]byte
	// space is for the rank, which waits for room in its reply ring.
	space  event
	_      [linePair - 8]byte
	status status.Rank
}
