package offload

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// PathOf is the path of a folder that was asked for; "" is one in memory, of which every user of a
// machine has one.
func PathOf(dir string) string {
	if dir == "" {
		return fmt.Sprintf("/dev/shm/eagleray-kv-%d", os.Geteuid())
	}
	return dir
}

// makeDir makes a folder that no other user writes to: answers follow from what is in it.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if user := uint32(os.Geteuid()); s.Uid != user || s.Mode&0o022 != 0 {
		return fmt.Errorf("%s can be written by others than user %d (it is user %d's, mode %04o)",
			dir, user, s.Uid, s.Mode&0o7777)
	}
	f, err := os.CreateTemp(dir, "try*"+partSuffix)
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}

// room is how much the files of a folder may have. Others write to the folder too: it is looked at
// again from time to time.
type room struct {
	dir string
	// most is the bound in bytes.
	most     int64
	capacity capacity

	mu    sync.Mutex
	limit int64 // most, or what the file system allows
	used  int64
	// looked is when, and took how long.
	looked time.Time
	took   time.Duration
}

func newRoom(dir string, most int64, capacity capacity) *room {
	return &room{dir: dir, most: most, capacity: capacity}
}

// capacity returns how many bytes a folder's file system has, and how many of them are free.
type capacity func(dir string) (size, free int64, err error)

func capacityOf(dir string) (size, free int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize, nil
}

// InMemory is how much of the machine's memory files of a folder (PathOf) may take beside those
// that are there: nothing on a disk, also one that hangs, or where no files are asked for.
func InMemory(dir string, most int64) int64 {
	var n int64
	p := Patience{Limit: hangsAfter}
	if p.Run(func() error {
		n = inMemory(dir, most)
		return nil
	}) != nil {
		return 0 // n may yet change
	}
	return n
}

func inMemory(dir string, most int64) int64 {
	path, at := PathOf(dir), PathOf(dir)
	var s unix.Statfs_t
	for most > 0 && unix.Statfs(at, &s) != nil { // it is yet to be made
		if at == filepath.Dir(at) {
			return 0
		}
		at = filepath.Dir(at)
	}
	if most == 0 || s.Type != unix.TMPFS_MAGIC && s.Type != unix.RAMFS_MAGIC {
		return 0
	}
	r := newRoom(path, most, capacityOf)
	var err error
	if at == path {
		_, err = r.look()
	} else {
		err = r.bound(at)
	}
	if err != nil {
		return 0 // which opening it says
	}
	return max(0, r.limit-r.used)
}

// Files count as whole pages. spare is left free on a file system, or a sixteenth of a small one.
const (
	page  = 4096
	spare = 64 << 20
)

func pages(n int64) int64 { return (n + page - 1) &^ (page - 1) }

// stored is a file of the folder.
type stored struct {
	path string
	size int64
	used time.Time
}

// abandoned is how old a file is that no rank goes on writing.
const abandoned = time.Minute

// look lists the files and removes those that were left half written.
func (r *room) look() ([]stored, error) {
	began := time.Now()
	list, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var files []stored
	r.used = 0
	for _, e := range list {
		path, part := filepath.Join(r.dir, e.Name()), strings.HasSuffix(e.Name(), partSuffix)
		if !part && !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // another process has removed it
		}
		if part && began.Sub(info.ModTime()) > abandoned {
			_ = os.Remove(path)
			continue
		}
		r.used += pages(info.Size())
		if !part {
			files = append(files, stored{path, pages(info.Size()), info.ModTime()})
		}
	}
	if err := r.bound(r.dir); err != nil {
		return nil, err
	}
	r.looked = time.Now()
	r.took = r.looked.Sub(began)
	return files, nil
}

// bound sets the limit by what the file system of a folder has beside the files.
func (r *room) bound(dir string) error {
	size, free, err := r.capacity(dir)
	if err != nil {
		return err
	}
	r.limit = min(r.most, r.used+free-min(spare, size/16))
	return nil
}

// Bounds on how often the folder is looked at: each second, and for a fiftieth of the time.
const (
	lookEvery = time.Second
	lookPart  = 50
)

// reserve takes room for a file, and removes those that were not used for the longest time, as far
// as it must.
func (r *room) reserve(size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	size = pages(size)
	if r.used+size <= r.limit && time.Since(r.looked) < max(lookEvery, lookPart*r.took) {
		r.used += size
		return nil
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	files, err := r.look()
	if err != nil {
		return err
	}
	if r.used+size > r.limit {
		sort.Slice(files, func(i, j int) bool {
			a, b := &files[i], &files[j]
			return cmp.Or(a.used.Compare(b.used), strings.Compare(a.path, b.path)) < 0
		})
		for _, f := range files {
			if r.used+size <= r.limit-r.limit/16 {
				break
			}
			if os.Remove(f.path) == nil {
				r.used -= f.size
			}
		}
	}
	if r.used+size > r.limit {
		return fmt.Errorf("%s: a block of %d KB does not fit: --kv-offloading-size is %d MB, the "+
			"file system leaves %d MB", r.dir, size>>10, r.most>>20, max(0, r.limit-r.used)>>20)
	}
	r.used += size
	return nil
}

// clear removes all files.
func (r *room) clear() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	files, err := r.look()
	for _, f := range files {
		if e := os.Remove(f.path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
			continue
		}
		r.used -= f.size
	}
	return err
}

// lock keeps other processes from removing files too. The lock ends with the process; one that
// has it for long, because it is stopped, holds up no other.
func (r *room) lock() (unlock func(), err error) {
	d, err := os.Open(r.dir)
	if err != nil {
		return nil, err
	}
	for range 20 {
		if unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return func() { d.Close() }, nil
}
