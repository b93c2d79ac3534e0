// Package store keeps values under keys on disk, each until it expires: what the server must still
// know after a restart.
//
// A Store is one file of a B+ tree (bbolt). What an update wrote is there after it has returned,
// all of it, whatever happens to the process or the machine; of an update that has not returned,
// all or nothing is there.
package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/sys/memfile"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// ErrInUse says that another process has the store open.
var ErrInUse = errors.New("another process uses it: give each server a --store-dir of its own")

// Options of a Store; the zero value is good.
type Options struct {
	// MaxBytes bounds the sum of all keys and values, 1 GiB if 0. The file is larger by the
	// overhead of its pages, and does not shrink.
	MaxBytes int64
	// Now is the clock that values expire by; time.Now if nil.
	Now func() time.Time
	// Damaged, unless it is nil, is told that a file was damaged, where it is now, and what was
	// found: the store goes on, and is empty.
	Damaged func(path, aside string, cause error)
}

// Store is safe for concurrent use. Updates run one after another, readers beside them.
type Store struct {
	path string // "" for one in memory
	max  int64
	now  func() time.Time
	// damaged is Options.Damaged.
	damaged func(path, aside string, cause error)

	mu     sync.Mutex
	db     *bolt.DB
	closed bool
}

// Name is the file of a store in its folder.
const Name = "state.db"

// New is a store in a folder, or with an empty name one in memory, which goes with the process.
// Nothing is read, locked or made before it is first used.
func New(dir string, o Options) *Store {
	s := &Store{max: o.MaxBytes, now: o.Now, damaged: o.Damaged}
	if dir != "" {
		s.path = filepath.Join(dir, Name)
	}
	if s.max == 0 {
		s.max = 1 << 30
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

var (
	values  = []byte("values")  // key -> expiry, value
	expiry  = []byte("expiry")  // expiry, key -> nothing
	figures = []byte("figures") // "bytes" -> the sum of all keys and values
	total   = []byte("bytes")
)

// lockWait is how long Open waits for another process that has the store: one that ends.
const lockWait = 100 * time.Millisecond

// Open makes or opens the store, and says why it cannot: ErrInUse, or an error of the file system.
// A file that is damaged is set aside, and the store is empty (Options.Damaged). Every other call
// does the same when it is the first.
func (s *Store) Open() error {
	_, err := s.open()
	return err
}

func (s *Store) open() (*bolt.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.db != nil {
		return s.db, nil
	}
	var db *bolt.DB
	var err error
	if s.path == "" {
		db, err = openMemory()
	} else {
		db, err = openFile(s.path)
	}
	if broken := (*damage)(nil); errors.As(err, &broken) {
		db, err = s.renew(broken)
	}
	if err != nil {
		return nil, s.failure(err)
	}
	s.db = db
	return db, nil
}

// renew sets a damaged file aside and opens an empty one in its place. mu is held.
func (s *Store) renew(broken *damage) (*bolt.DB, error) {
	if s.path == "" {
		return openMemory()
	}
	aside, err := setAside(s.path, s.now())
	if err != nil {
		return nil, errors.Join(broken, err)
	}
	if s.damaged != nil {
		s.damaged(s.path, aside, broken)
	}
	return openFile(s.path)
}

// openFile opens the file after a check, so that bbolt is given none that it cannot read.
func openFile(path string) (*bolt.DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := checkFile(path); err != nil {
		return nil, err
	}
	var db *bolt.DB
	err := guard(func() (err error) {
		db, err = openBolt(path)
		return err
	})
	return db, err
}

// checkFile checks the file, if there is one and no other process has it.
func checkFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // and the lock ends
	for end := time.Now().Add(lockWait); ; time.Sleep(lockWait / 10) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // as bbolt's
		if err == nil {
			return check(f)
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return os.NewSyscallError("flock", err)
		}
		if time.Now().After(end) {
			return ErrInUse
		}
	}
}

func openBolt(path string) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait,
		FreelistType: bolt.FreelistMapType, NoFreelistSync: true})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, ErrInUse
	case err != nil:
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{values, expiry, figures} {
			_, err := tx.CreateBucketIfNotExists(name)
			if errors.Is(err, berrors.ErrIncompatibleValue) {
				return &damage{err}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// setAside gives a damaged file another name, which it returns.
func setAside(path string, now time.Time) (string, error) {
	for n := 0; ; n++ {
		aside := path + ".damaged-" + now.UTC().Format("20060102T150405Z")
		if n > 0 {
			aside += fmt.Sprint("-", n)
		}
		if _, err := os.Lstat(aside); err == nil {
			continue
		}
		return aside, os.Rename(path, aside)
	}
}

// openMemory opens a file without a name: what is in it is gone once it is closed.
func openMemory() (*bolt.DB, error) {
	f, err := memfile.Create("eagleray-store", 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // bbolt opens it once more
	return openFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// Close waits for what is under way. The store is not used any more.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	return db.Close()
}

// View calls f with the store as it is now. f must not call the store.
func (s *Store) View(f func(*Tx) error) error {
	return s.within((*bolt.DB).View, f)
}

// Update calls f with the store as it is now, and keeps what f wrote unless f or the disk fails. f
// must not call the store.
// Some values that have expired are removed.
func (s *Store) Update(f func(*Tx) error) error {
	return s.within((*bolt.DB).Update, func(tx *Tx) error {
		if _, err := tx.sweep(); err != nil {
			return err
		}
		return f(tx)
	})
}

func (s *Store) within(run func(*bolt.DB, func(*bolt.Tx) error) error, f func(*Tx) error) error {
	db, err := s.open()
	if err != nil {
		return err
	}
	var ours error
	err = guard(func() error {
		return run(db, func(tx *bolt.Tx) error {
			ours = f(&Tx{tx.Bucket(values), tx.Bucket(expiry), tx.Bucket(figures),
				s.now().UnixNano(), s.max})
			return ours
		})
	})
	if broken := (*damage)(nil); errors.As(err, &broken) {
		return s.failure(s.broken(db, broken))
	}
	switch {
	case err == nil, ours != nil:
		return ours
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return ErrClosed
	}
	return s.failure(err)
}

// broken handles a panic, or a page that was not there, while a file was in use: another one takes
// the place of a file that is damaged. It returns why the call has failed, which found it out. A
// panic over a file that is sound is a mistake of this program, and goes on.
func (s *Store) broken(db *bolt.DB, found *damage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != db {
		return found // another call has seen to it
	}
	if s.path != "" {
		f, err := os.Open(s.path)
		if err != nil {
			return errors.Join(found, err)
		}
		defer f.Close()
		if broken := (*damage)(nil); !errors.As(check(f), &broken) {
			panic(found.error)
		}
	}
	// What bbolt holds is given up: it may not be able to close what it cannot read.
	fresh, err := s.renew(found)
	if err != nil {
		return errors.Join(found, err)
	}
	s.db = fresh
	return found
}

// failure says which store it is that fails.
func (s *Store) failure(err error) error {
	return fmt.Errorf("store %s: %w", cmp.Or(s.path, "in memory"), err)
}

// Get returns a copy of the value of a key, or ErrNotFound.
func (s *Store) Get(key string) (value []byte, err error) {
	err = s.View(func(tx *Tx) error {
		v, err := tx.Get(key)
		value = append([]byte{}, v...)
		return err
	})
	return value, err
}

// Put sets the value of a key until a time, the zero one for ever.
func (s *Store) Put(key string, value []byte, until time.Time) error {
	return s.Update(func(tx *Tx) error { return tx.Put(key, value, until) })
}

// Delete removes keys. Those that are not there are no error.
func (s *Store) Delete(keys ...string) error {
	return s.Update(func(tx *Tx) error {
		for _, key := range keys {
			if err := tx.Delete(key); err != nil {
				return err
			}
		}
		return nil
	})
}

func be64(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }
