// Package attached keeps a second program behind the executable file of a first one, from which it
// differs little: as a zstd frame of a delta. What follows an ELF file's segments is nothing to the
// kernel and to linkers.
//
//	the first program | the frame | the trailer
package attached

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// ErrNone says that there is no program behind an executable.
var ErrNone = errors.New("no program is attached")

// trailer is the end of the file, in this order, little endian.
type trailer struct {
	// Base, Frame and Program are sizes: of the first program, the frame, and the second program.
	Base, Frame, Program uint64
	// Moves and Numbers are sizes of the delta's first parts.
	Moves, Numbers uint64
	// Sum is the SHA-256 of the second program.
	Sum   [sha256.Size]byte
	Magic [8]byte
}

var (
	magic       = [8]byte([]byte("EAGLRAY3"))
	trailerSize = int64(binary.Size(trailer{}))
)

const (
	// window has room for a delta.
	window = 64 << 20
	// most bounds what is unpacked.
	most = 1 << 30
)

// Attach writes the executable file at path anew with the program of another file behind it, in the
// place of one that is there. Equal files give equal bytes.
func Attach(path, program string) error {
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	second, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	base := whole
	t, err := read(bytes.NewReader(whole), int64(len(whole)))
	switch {
	case err == nil:
		base = whole[:t.Base]
		if t.Sum == sha256.Sum256(second) {
			if _, err := t.decode(base, whole[t.Base:]); err == nil {
				return nil
			}
		}
	case !errors.Is(err, ErrNone):
		return fmt.Errorf("%s: %w", path, err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window))
	if err != nil {
		return err
	}
	moves, numbers, rest := delta(base, second)
	frame := enc.EncodeAll(slices.Concat(moves, numbers, rest), nil)
	t = trailer{Base: uint64(len(base)), Frame: uint64(len(frame)), Program: uint64(len(second)),
		Moves: uint64(len(moves)), Numbers: uint64(len(numbers)), Sum: sha256.Sum256(second),
		Magic: magic}
	end, err := binary.Append(nil, binary.LittleEndian, t)
	if err != nil {
		return err
	}
	return replace(path, base, frame, end)
}

// replace replaces a file by one of these parts with the same mode and time, of which archives are
// made. The file may be running.
func replace(path string, parts ...[]byte) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			return err
		}
	}
	if err := f.Chmod(info.Mode().Perm()); err != nil {
		return err
	}
	if err := os.Chtimes(f.Name(), time.Time{}, info.ModTime()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}

// read reads the trailer of a file of a size, ErrNone where it has none.
func read(f io.ReaderAt, size int64) (t trailer, err error) {
	if size < trailerSize {
		return t, ErrNone
	}
	r := io.NewSectionReader(f, size-trailerSize, trailerSize)
	if err := binary.Read(r, binary.LittleEndian, &t); err != nil {
		return t, err
	}
	if t.Magic != magic {
		return t, ErrNone
	}
	if t.Base > uint64(size) || t.Frame > uint64(size) || t.Program > most ||
		t.Base+t.Frame+uint64(trailerSize) != uint64(size) {
		return t, fmt.Errorf("its trailer says %d, %d and %d bytes of %d", t.Base, t.Frame,
			t.Program, size)
	}
	return t, nil
}

// decode returns the second program, of which the frame is at the beginning of rest.
func (t *trailer) decode(base, rest []byte) ([]byte, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(most))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	parts, err := dec.DecodeAll(rest[:t.Frame], nil)
	if err != nil {
		return nil, err
	}
	if n := uint64(len(parts)); t.Moves > n || t.Numbers > n-t.Moves {
		return nil, fmt.Errorf("its delta has %d bytes, of which %d and %d are the first parts",
			n, t.Moves, t.Numbers)
	}
	numbers := t.Moves + t.Numbers
	program, err := undo(base, parts[:t.Moves], parts[t.Moves:numbers], parts[numbers:],
		int(t.Program))
	if err != nil {
		return nil, err
	}
	if len(program) != int(t.Program) {
		return nil, fmt.Errorf("it has %d bytes instead of %d", len(program), t.Program)
	}
	if sum := sha256.Sum256(program); sum != t.Sum {
		return nil, fmt.Errorf("its SHA-256 is %x instead of %x", sum[:6], t.Sum[:6])
	}
	return program, nil
}

// Unpack returns the program behind an executable file in a file without a name, in memory, that
// can be executed: ErrNone where there is none. Its descriptor is closed in programs that are
// executed.
func Unpack(executable *os.File, name string) (*os.File, error) {
	info, err := executable.Stat()
	if err != nil {
		return nil, err
	}
	t, err := read(executable, info.Size())
	if err != nil {
		return nil, err
	}
	if info.Size() > math.MaxInt {
		return nil, fmt.Errorf("a file of %d bytes", info.Size())
	}
	whole, err := unix.Mmap(int(executable.Fd()), 0, int(info.Size()), unix.PROT_READ,
		unix.MAP_PRIVATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	defer unix.Munmap(whole)
	program, err := t.decode(whole[:t.Base], whole[t.Base:])
	if err != nil {
		return nil, fmt.Errorf("the program that is attached is damaged: %w", err)
	}
	f, err := inMemory(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// inMemory makes a file that can be executed in memory.
func inMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3, of which all can be executed
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("memfd_create: %w (the sysctl vm.memfd_noexec forbids programs "+
			"in memory)", err)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
