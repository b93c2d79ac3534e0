package batch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spool is a file that lines are appended to: each is there as a whole or not at all, whatever
// happens to the process.
type spool struct {
	mu     sync.Mutex
	f      *os.File
	size   int64
	synced time.Time
}

// maxAnswer bounds a line of an output, in bytes.
const maxAnswer = 1 << 30

// beginning is that of every line.
const beginning = `{"id":"` + idPrefix

// openSpool makes or opens a file, keeps other processes from doing the same, and calls each with
// the lines that are there, by their numbers. A last answer without an end is cut off.
func openSpool(path string, each func(number int, o *outcome) error) (_ *spool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s := &spool{f: f, synced: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another process writes it: %w", err)
	}
	in := newLines(f, maxAnswer)
	for {
		text, err := in.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if in.torn {
			if n := min(len(text), len(beginning)); string(text[:n]) != beginning[:n] {
				return nil, fmt.Errorf("line %d is not the beginning of an answer of a batch",
					in.number)
			}
			break
		}
		o := &outcome{}
		if err := json.Unmarshal(text, o); err != nil {
			return nil, fmt.Errorf("line %d is not an answer of a batch: %w", in.number, err)
		}
		if err := each(in.number, o); err != nil {
			return nil, fmt.Errorf("line %d: %w", in.number, err)
		}
		s.size = in.size
	}
	if err := f.Truncate(s.size); err != nil {
		return nil, err
	}
	_, err = f.Seek(s.size, io.SeekStart)
	return s, err
}

// syncEvery is how much a machine that loses its power may take of what was written. (A process
// that is killed takes nothing.)
const syncEvery = time.Second

// append writes a line. Of one that fails, such as on a full disk, nothing stays.
func (s *spool) append(line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.f.Write(line); err != nil {
		if _, seek := s.f.Seek(s.size, io.SeekStart); seek != nil {
			return errors.Join(err, seek)
		}
		return errors.Join(err, s.f.Truncate(s.size))
	}
	s.size += int64(len(line))
	if now := time.Now(); now.Sub(s.synced) > syncEvery {
		s.synced = now
		if err := s.f.Sync(); err != nil { // the line is there, whatever the cause
			return fmt.Errorf("sync %s: %v", s.f.Name(), err)
		}
	}
	return nil
}

// close makes sure of what was written.
func (s *spool) close() error {
	return errors.Join(s.f.Sync(), s.f.Close())
}
