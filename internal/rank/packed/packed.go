// Package packed stores packed weights in files, for the next start: a rank maps the file of its
// share of a model and has its weights without packing them. Its pages are the page cache's, in
// common with every rank and every restart that maps it.
//
// A file is named by a hash of all that its content follows from (Key). It appears under that name
// when all of it is on the disk, and is never written again. One that was damaged since is removed
// when it is opened.
//
//	0       header, in the first page: magic, key, size, where the index lies, checksums
//	4096    packed bytes, each part from a multiple of 4096 on
//	index   JSON, to the end of the file
package packed

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

const (
	magic    = "eagleray packed\n"
	page     = 4096
	suffix   = ".weights"
	keyBytes = 16
	// pieceSize is how much of a file each checksum is of: a multiple of a huge page, which is
	// written at once, so that the page cache has it in one piece.
	pieceSize = 4 << 20
	// mostIndex bounds what is parsed: 100,000 experts have 50 MB.
	mostIndex = 256 << 20
)

// checksum is of the polynomial that processors have an instruction for. Its tables are made when
// they are first used: most processes have no such file.
func checksum(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

// ErrDamaged is wrapped by errors about files that are not as they were written.
var ErrDamaged = errors.New("damaged")

// Key is the hash of a list of values, in hexadecimal.
func Key(values ...string) string {
	h := sha256.New()
	for _, v := range values {
		fmt.Fprintf(h, "%q\n", v)
	}
	return hex.EncodeToString(h.Sum(nil)[:keyBytes])
}

func pathOf(dir, key string) string { return filepath.Join(dir, key+suffix) }

// header is the first bytes of a file, little-endian. Sum is the CRC-32C of the fields before it.
type header struct {
	Magic                  [len(magic)]byte
	Key                    [2 * keyBytes]byte
	Size, IndexAt          int64
	IndexSum, Version, Sum uint32
}

const version = 1

func (h *header) encode() []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, h) // a buffer takes everything
	text := b.Bytes()
	h.Sum = checksum(text[:len(text)-4])
	binary.LittleEndian.PutUint32(text[len(text)-4:], h.Sum)
	return text
}

// index says what a file has.
type index struct {
	// Pieces are the CRC-32C of the packed bytes, pieceSize of the file each, but for the header.
	Pieces  []uint32
	Entries []entry
}

type entry struct {
	Key   string
	Read  int64
	Parts []part
}

// part is packed bytes and where they are in the file.
type part struct {
	Form     []byte
	At, Size int64
}

// File is the mapped weights of a share. It is a layers.Store.
type File struct {
	memory  offheap.Memory
	entries map[string]entry
}

// Open maps the file of a key in a folder, if all of it is as it was written. So many threads
// compare its bytes with their checksums, unless that was done since it was written and the machine
// was started. An error wraps fs.ErrNotExist where there is no file, or ErrDamaged: a damaged one
// is gone then.
func Open(dir, key string, threads int) (*File, error) {
	path := pathOf(dir, key)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := own(f); err != nil {
		return nil, err
	}
	known := isChecked(dir, key, f)
	if known {
		threads = 0
	}
	file, err := read(f, key, threads)
	switch {
	case errors.Is(err, ErrDamaged):
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), os.Remove(path))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !known {
		setChecked(dir, key, f)
	}
	_ = os.Chtimes(path, time.Now(), time.Time{}) // for removeUnused; others may own the file
	return file, nil
}

// own refuses a file that another user could have written: answers follow from it.
func own(f *os.File) error {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s is not a regular file", f.Name())
	}
	if user := uint32(os.Geteuid()); s.Uid != user && s.Uid != 0 || s.Mode&0o022 != 0 {
		return fmt.Errorf("%s can be written by others than user %d (it is user %d's, mode %04o)",
			f.Name(), user, s.Uid, s.Mode&0o7777)
	}
	return nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

func read(f *os.File, key string, threads int) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var h header
	first := make([]byte, binary.Size(h))
	if _, err := f.ReadAt(first, 0); err != nil {
		return nil, damaged("it has %d bytes", info.Size())
	}
	if _, err := binary.Decode(first, binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	switch sum := checksum(first[:len(first)-4]); {
	case string(h.Magic[:]) != magic || h.Version != version || sum != h.Sum:
		return nil, damaged("no header of such a file")
	case string(h.Key[:]) != key:
		return nil, damaged("it is that of %q", h.Key)
	case h.Size != info.Size():
		return nil, damaged("it has %d bytes of %d", info.Size(), h.Size)
	case h.IndexAt < page || h.IndexAt > h.Size || h.Size-h.IndexAt > mostIndex ||
		h.Size != int64(int(h.Size)):
		return nil, damaged("its index is at %d of %d", h.IndexAt, h.Size)
	}
	file := &File{entries: map[string]entry{}}
	if file.memory, err = offheap.MapFile(f, int(h.Size)); err != nil {
		return nil, err
	}
	if err := file.check(&h, threads); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// check reads the index and, unless there are no threads for it, all of the file.
func (f *File) check(h *header, threads int) error {
	text := f.memory.Bytes()[h.IndexAt:]
	if checksum(text) != h.IndexSum {
		return damaged("the checksum of its index is another one")
	}
	var x index
	if err := json.Unmarshal(text, &x); err != nil {
		return damaged("index: %v", err)
	}
	data := f.memory.Bytes()[:h.IndexAt]
	if len(x.Pieces) != (len(data)+pieceSize-1)/pieceSize {
		return damaged("%d checksums of %d bytes", len(x.Pieces), len(data))
	}
	for _, e := range x.Entries {
		for _, part := range e.Parts {
			if part.Size < 0 || part.Size > 0 && (part.At < page || part.At%page != 0 ||
				part.Size > h.IndexAt || part.At > h.IndexAt-part.Size) {
				return damaged("%d bytes at %d of %d", part.Size, part.At, h.IndexAt)
			}
		}
		f.entries[e.Key] = e
	}
	if threads == 0 {
		return nil
	}
	bad := int64(-1)
	var next atomic.Int64
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(x.Pieces)); i = next.Add(1) - 1 {
				from := i * pieceSize
				piece := data[max(from, page):min(from+pieceSize, int64(len(data)))]
				if checksum(piece) != x.Pieces[i] {
					atomic.StoreInt64(&bad, from)
				}
			}
		})
	}
	group.Wait()
	if bad >= 0 {
		return damaged("the checksum of the bytes from %d on is another one", bad)
	}
	return nil
}

// Entry implements layers.Store.
func (f *File) Entry(key string) (e layers.Entry, ok bool) {
	old, ok := f.entries[key]
	if !ok {
		return e, false
	}
	e = layers.Entry{Key: key, Read: old.Read}
	for _, p := range old.Parts {
		e.Parts = append(e.Parts, compute.Packed{Form: p.Form,
			Data: f.memory.Bytes()[p.At : p.At+p.Size : p.At+p.Size]})
	}
	return e, true
}

// Bytes is the size of the file.
func (f *File) Bytes() int64 { return int64(len(f.memory.Bytes())) }

// Close unmaps the file: no weight that came from it may be used afterwards.
func (f *File) Close() {
	_ = f.memory.Free() // nothing else unmaps it
	f.entries = nil
}

// ErrBusy is returned by Save where another process writes the same file.
var ErrBusy = errors.New("another process writes it")

// Save writes the file of a key into a folder, which it makes, until stop says that nothing more is
// to be written: then nothing is left. A file that is there stays unless replace is set. Errors are
// those of the file system, or ErrBusy.
func Save(dir, key string, entries []layers.Entry, replace bool, stop func() bool) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := lockPart(pathOf(dir, key) + partSuffix)
	if err != nil {
		return err
	}
	defer func() {
		// While it is locked no other process writes it.
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
		f.Close()
	}()
	if _, err := os.Stat(pathOf(dir, key)); !replace && err == nil {
		return os.Remove(f.Name())
	}
	removeUnused(dir)
	w := &writer{f: f, stop: stop, free: freeSpace}
	if err := w.write(key, entries); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), pathOf(dir, key)); err != nil {
		return err
	}
	setChecked(dir, key, f)
	return syncFolder(dir)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// partSuffix is of files that are being written. They are locked; one that is not was left behind.
const partSuffix = ".part"

// lockPart makes an empty file that this process alone writes.
func lockPart(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// The one who had the lock before may have renamed or removed it.
			var mine, there unix.Stat_t
			if unix.Fstat(int(f.Fd()), &mine) == nil && unix.Stat(path, &there) == nil &&
				mine.Ino == there.Ino {
				if err = f.Truncate(0); err == nil {
					return f, nil
				}
			}
		}
		f.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, ErrBusy
		case err != nil:
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// unusedFor is how long a file stays that no start opens.
const unusedFor = 30 * 24 * time.Hour

// removeUnused removes files that no start has opened for long, and those that were left behind
// half written. What fails is tried again with the next file.
func removeUnused(dir string) {
	list, _ := os.ReadDir(dir)
	for _, d := range list {
		path := filepath.Join(dir, d.Name())
		switch filepath.Ext(d.Name()) {
		case suffix:
			var s unix.Stat_t
			if unix.Stat(path, &s) == nil && time.Since(time.Unix(s.Atim.Unix())) > unusedFor {
				_ = os.Remove(path)
			}
		case checkedSuffix:
			if _, err := os.Stat(strings.TrimSuffix(path, checkedSuffix)); IsMissing(err) {
				_ = os.Remove(path)
			}
		case partSuffix:
			if f, err := lockPart(path); err == nil {
				_ = os.Remove(path)
				f.Close()
			}
		}
	}
}

// errStopped says that nothing more is to be written.
var errStopped = errors.New("stopped")

// writer writes a file from its beginning on, pieceSize at a time.
type writer struct {
	f    *os.File
	stop func() bool
	// free is freeSpace, but in tests.
	free func(*os.File) (int64, error)
	// piece is what is not yet written, at is where it begins.
	piece []byte
	at    int64
	index index
}

// spareSpace is left free on the disk.
const spareSpace = 64 << 20

func (w *writer) write(key string, entries []layers.Entry) error {
	w.piece = make([]byte, page, pieceSize)
	if err := w.room(entries); err != nil {
		return err
	}
	for _, e := range entries {
		to := entry{Key: e.Key, Read: e.Read}
		for _, p := range e.Parts {
			to.Parts = append(to.Parts, part{p.Form, w.offset(), int64(p.Size())})
			if err := p.Read(w.append); err != nil {
				return err
			}
			if err := w.pad(); err != nil {
				return err
			}
		}
		w.index.Entries = append(w.index.Entries, to)
	}
	if err := w.flush(); err != nil {
		return err
	}
	text, err := json.Marshal(w.index)
	if err != nil {
		return err
	}
	h := header{Version: version, Size: w.at + int64(len(text)), IndexAt: w.at,
		IndexSum: checksum(text)}
	copy(h.Magic[:], magic)
	copy(h.Key[:], key)
	if _, err := w.f.WriteAt(text, h.IndexAt); err != nil {
		return err
	}
	if _, err := w.f.WriteAt(h.encode(), 0); err != nil {
		return err
	}
	return w.f.Sync()
}

// room returns an error if the disk has no room for the entries.
func (w *writer) room(entries []layers.Entry) error {
	var need int64
	for _, e := range entries {
		for _, p := range e.Parts {
			need += int64(p.Size()) + page
		}
	}
	free, err := w.free(w.f)
	if err == nil && need+spareSpace > free {
		return fmt.Errorf("%s: %d MB are needed, the disk has %d free", w.f.Name(),
			(need+spareSpace)>>20, free>>20)
	}
	return err
}

// freeSpace is how many bytes the disk of a file has for this user.
func freeSpace(f *os.File) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

func (w *writer) offset() int64 { return w.at + int64(len(w.piece)) }

// append adds bytes.
func (w *writer) append(data []byte) error {
	for len(data) > 0 {
		n := min(len(data), pieceSize-len(w.piece))
		w.piece = append(w.piece, data[:n]...)
		if data = data[n:]; len(w.piece) == pieceSize {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// pad adds zeros up to the next page.
func (w *writer) pad() error {
	if pad := int(-w.offset() & (page - 1)); pad > 0 {
		w.piece = append(w.piece, make([]byte, pad)...)
	}
	if len(w.piece) == pieceSize {
		return w.flush()
	}
	return nil
}

// flush writes what is there of a piece.
func (w *writer) flush() error {
	if w.stop() {
		return errStopped
	}
	if len(w.piece) == 0 {
		return nil
	}
	body := w.piece
	if w.at == 0 {
		body = body[page:]
	}
	w.index.Pieces = append(w.index.Pieces, checksum(body))
	if _, err := w.f.WriteAt(w.piece, w.at); err != nil {
		return err
	}
	w.at += int64(len(w.piece))
	w.piece = w.piece[:0]
	return nil
}

// IsMissing tells whether Open found no file.
func IsMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// IsStopped tells whether Save was stopped.
func IsStopped(err error) bool { return errors.Is(err, errStopped) }
