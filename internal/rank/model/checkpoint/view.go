package checkpoint

import (
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// View is the content of a file, mapped and not copied.
type View struct {
	// Data is read-only memory. That of a file changes with it: see Written.
	Data []byte
	// file is nil for content that is in memory already.
	file *os.File
	seen stamp
}

// stamp is the system's record of a file; every write changes it.
type stamp struct {
	device, inode uint64
	size          int64
	mtime, ctime  unix.Timespec
}

func stampOf(s *unix.Stat_t) stamp {
	return stamp{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim}
}

func stampFile(f *os.File) (stamp, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return stamp{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return stampOf(&s), nil
}

// stable reports whether every later write will change the stamp: the system's clock for files
// ticks slowly.
func (s stamp) stable() bool {
	const tick = 100 * time.Millisecond
	last := max(s.mtime.Nano(), s.ctime.Nano())
	return time.Now().UnixNano()-last > tick.Nanoseconds()
}

// mapView maps all of an open file, which the view then owns.
func mapView(f *os.File) (*View, error) {
	seen, err := stampFile(f)
	if err != nil {
		return nil, err
	}
	v := &View{file: f, seen: seen}
	if seen.size == 0 {
		return v, nil
	}
	if seen.size != int64(int(seen.size)) {
		return nil, fmt.Errorf("%s has %d bytes, more than can be mapped", f.Name(), seen.size)
	}
	v.Data, err = unix.Mmap(int(f.Fd()), 0, int(seen.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	return v, nil
}

// advise tells the system how a mapped file will be read. A kernel that declines the advice costs
// time, not correctness.
func (v *View) advise(how int) {
	if v.file != nil && len(v.Data) > 0 {
		_ = unix.Madvise(v.Data, how)
	}
}

// readAtOnce is how much a kernel reads at one advice, whatever the disk: its default read-ahead.
// Of more it would leave the rest to be read page by page.
const readAtOnce = 128 << 10

// Prefetch has the system read part of a tensor's data, and does not wait for it.
func Prefetch(part []byte) {
	if len(part) == 0 {
		return
	}
	before := int(address(part)) % os.Getpagesize()
	page := unsafe.Add(unsafe.Pointer(unsafe.SliceData(part)), -before)
	for b := range slices.Chunk(unsafe.Slice((*byte)(page), before+len(part)), readAtOnce) {
		_ = unix.Madvise(b, unix.MADV_WILLNEED) // advice only
	}
}

// Written reports whether the file may have been written since the last call, or since it was
// mapped; also when it was only touched or renamed. It is for one goroutine at a time.
func (v *View) Written() bool {
	if v.file == nil {
		return false
	}
	var s unix.Stat_t
	if unix.Fstat(int(v.file.Fd()), &s) != nil {
		return true
	}
	now := stampOf(&s)
	if now == v.seen {
		return false
	}
	if now.stable() {
		v.seen = now
	}
	return true
}

// Close ends the view: Data may not be read afterwards.
func (v *View) Close() error {
	if v.file == nil {
		return nil
	}
	var err error
	if v.Data != nil {
		err = unix.Munmap(v.Data)
	}
	v.file.Close()
	v.Data, v.file = nil, nil
	return err
}
