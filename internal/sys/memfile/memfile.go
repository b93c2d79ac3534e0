// Package memfile makes anonymous memory files (memfd_create(2)), which other processes map once
// they are given the descriptor, and which leave nothing behind.
package memfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Create makes a file of so many bytes, zero, that take no memory before they are written. It is
// closed on exec, can be sealed, and is not executable where the system knows of that (Linux 6.3).
// The name is for people who look at /proc.
func Create(name string, size int64) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("create memory file %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("size memory file %s to %d bytes: %w", name, size, err),
			f.Close())
	}
	return f, nil
}

// Passed are the descriptors in the control message that came with bytes over a unix socket; the
// kernel has installed them in this process, whatever else the message holds. Go asks for
// close-on-exec.
func Passed(control []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if more, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, more...)
		}
	}
	return fds
}

const seals = unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL

// Seal gives the file the size that it has for good.
func Seal(f *os.File) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal memory file %s: %w", f.Name(), err)
	}
	return nil
}

// Sealed returns an error unless the file is sealed as Seal does: a process that maps one that can
// shrink is killed (SIGBUS) by a process that truncates it.
func Sealed(f *os.File) error {
	have, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("read seals (is it a memory file?): %w", err)
	}
	if have&seals != seals {
		return fmt.Errorf("memory file has seals %#x, needs %#x", have, seals)
	}
	return nil
}
