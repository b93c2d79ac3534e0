// Package ring is the message queue between the driver and the ranks of one host, in shared memory.
//
// A segment holds a broadcast ring, which the driver writes and every rank reads; a reply ring of
// each rank, which the driver reads; and each rank's status. It is a memfd: it has no name, needs
// no /dev/shm, and is gone with its last holder. Records are copied in by the sender and read in
// place. Waiting is adaptive: it spins while experience says that it pays and the processors
// suffice, then it parks in the kernel, where it costs nothing (see event).
//
// Every process that maps a segment can write all of it, so it is for processes that trust each
// other with their data. They need not trust each other with more: whatever is written there leads
// to an error at worst, never to an access out of bounds. A record that is read in place can change
// while it is read.
//
// A goroutine that waits in Recv often should be locked to its thread (runtime.LockOSThread): the
// loop of a rank, and the driver's receiver. Each wait hands the thread's processor back to the Go
// scheduler, and after it an unlocked goroutine may have to wait for another thread to run it. A
// goroutine that mostly computes, or that talks to other goroutines more than to ranks, should not
// be.
package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// Options describe a segment.
type Options struct {
	// Ranks is how many read the broadcast, 1 to MaxRanks.
	Ranks int
	// Memory bounds the whole segment in bytes, DefaultMemory if 0. Half of it is for the broadcast
	// ring, and the reply rings share the rest. It is address space: pages are used as records
	// reach them.
	Memory int64
}

// Segment is the shared memory of one driver and its ranks, on the driver's side.
type Segment struct {
	file   *os.File
	driver *Driver
}

// Create makes a segment and maps it. Driver.Close releases it.
func Create(o Options) (*Segment, error) {
	l, err := plan(o.Ranks, o.Memory)
	if err != nil {
		return nil, err
	}
	f, err := createFile(l)
	if err != nil {
		return nil, err
	}
	m, err := mapFile(f, l)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Segment{file: f, driver: newDriver(f, m)}, nil
}

// File returns the segment's memory file, to be inherited by the ranks or passed over a socket. The
// caller may close it when every rank has it; Driver.Close does.
func (s *Segment) File() *os.File { return s.file }

// Driver returns the driver's end, always the same.
func (s *Segment) Driver() *Driver { return s.driver }

func createFile(l layout) (*os.File, error) {
	f, err := memfile.Create("eagleray-queue", l.size())
	if err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	if err := prepare(f, l); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func prepare(f *os.File, l layout) error {
	var header [headerBytes]byte
	put := func(off, v int) { binary.NativeEndian.PutUint64(header[off:], uint64(v)) }
	put(offMagic, magic)
	put(offVersion, version)
	put(offPage, l.page)
	put(offRanks, l.ranks)
	put(offBroadcast, l.broadcast)
	put(offReply, l.reply)
	if _, err := f.WriteAt(header[:], 0); err != nil {
		return fmt.Errorf("ring: write header: %w", err)
	}
	if err := memfile.Seal(f); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	return nil
}

// readLayout checks that the file is a segment that is sealed against resizing, before any of it is
// mapped.
func readLayout(f *os.File) (layout, error) {
	if err := memfile.Sealed(f); err != nil {
		return layout{}, fmt.Errorf("ring: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return layout{}, fmt.Errorf("ring: stat segment: %w", err)
	}
	var header [headerBytes]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return layout{}, fmt.Errorf("ring: read header of a segment of %d bytes: %w",
			info.Size(), err)
	}
	// Whatever does not fit an int of a sane layout becomes -1, which no check accepts.
	get := func(off int) int {
		if v := binary.NativeEndian.Uint64(header[off:]); v <= maxRing {
			return int(v)
		}
		return -1
	}
	if m := binary.NativeEndian.Uint64(header[offMagic:]); m != magic {
		return layout{}, fmt.Errorf("ring: segment has magic %#x, not %#x", m, uint64(magic))
	}
	if v := get(offVersion); v != version {
		return layout{}, fmt.Errorf("ring: segment has version %d, not %d", v, version)
	}
	l := layout{page: get(offPage), ranks: get(offRanks),
		broadcast: get(offBroadcast), reply: get(offReply)}
	if err := l.check(); err != nil {
		return layout{}, fmt.Errorf("ring: segment has %w", err)
	}
	if info.Size() != l.size() {
		return layout{}, fmt.Errorf("ring: segment has %d bytes, not %d", info.Size(), l.size())
	}
	return l, nil
}
