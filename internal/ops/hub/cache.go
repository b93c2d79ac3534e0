package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock that another process holds is tried.
const lockPoll = 100 * time.Millisecond

// repoCache is one repository's part of the Hub cache:
//
//	models--org--name/blobs/<etag>                    the files' contents
//	models--org--name/snapshots/<commit>/<file>       symbolic links to them
//	models--org--name/refs/<revision>                 the commit of a branch or tag when last seen
//	.locks/models--org--name/<etag>.lock              held while a blob is downloaded
//
// A bucket's is s3--bucket--path, with a hash of the list of its files for the commit.
type repoCache struct {
	root, repo string
}

func (c repoCache) folder() string          { return folderOf(c.repo) }
func (c repoCache) dir() string             { return filepath.Join(c.root, c.folder()) }
func (c repoCache) blob(etag string) string { return filepath.Join(c.dir(), "blobs", etag) }
func (c repoCache) snapshot(commit string) string {
	return filepath.Join(c.dir(), "snapshots", commit)
}

func (c repoCache) refPath(revision string) string {
	return filepath.Join(c.dir(), "refs", filepath.FromSlash(revision))
}

// Commit is that of a snapshot in the cache, or of a file in one, by what Resolve returns.
func Commit(path string) string {
	for dir := path; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if filepath.Base(filepath.Dir(dir)) == "snapshots" {
			return filepath.Base(dir)
		}
	}
	return ""
}

// ref reads the commit that a revision was last seen at.
func (c repoCache) ref(revision string) (string, error) {
	raw, err := os.ReadFile(c.refPath(revision))
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(raw))
	if !commitHash.MatchString(commit) {
		return "", fmt.Errorf("%s does not hold a commit", c.refPath(revision))
	}
	return commit, nil
}

// setRef notes the commit, replacing the file in one step.
func (c repoCache) setRef(revision, commit string) error {
	if old, err := c.ref(revision); err == nil && old == commit {
		return nil
	}
	path := c.refPath(revision)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".ref-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(commit)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// has reports whether the snapshot holds the file; a link to a blob that is gone does not count.
func (c repoCache) has(commit, file string) bool {
	info, err := os.Stat(filepath.Join(c.snapshot(commit), file))
	return err == nil && info.Mode().IsRegular()
}

// link puts the blob into the snapshot under the file's name, in one step. File systems without
// symbolic links get a hard link.
func (c repoCache) link(etag, commit, file string) error {
	pointer := filepath.Join(c.snapshot(commit), file)
	if err := os.MkdirAll(filepath.Dir(pointer), 0o755); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(pointer), c.blob(etag))
	if err != nil {
		return err
	}
	if err := c.replace(pointer,
		func(path string) error { return os.Symlink(target, path) }); err == nil {
		return nil
	}
	return c.replace(pointer, func(path string) error { return os.Link(c.blob(etag), path) })
}

// replace lets create make a file under a temporary name outside of all snapshots and moves it to
// path.
func (c repoCache) replace(path string, create func(path string) error) error {
	temporary := filepath.Join(c.dir(), fmt.Sprintf("%016x.link", rand.Uint64()))
	if err := create(temporary); err != nil {
		return err
	}
	// Renaming a hard link over another of the same file does nothing and leaves the temporary
	// name.
	defer os.Remove(temporary)
	return os.Rename(temporary, path)
}

// lock waits until this caller is the only one to download the blob, on this machine and where the
// file system honours flock across machines. Hugging Face's tools take the same lock.
func (c repoCache) lock(ctx context.Context, etag string) (unlock func(), err error) {
	path := filepath.Join(c.root, ".locks", c.folder(), etag+".lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return func() { f.Close() }, nil
		}
		f.Close()
		switch {
		case err == nil: // its holder removed the file that was locked: lock the new one
			continue
		case errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOLCK) ||
			errors.Is(err, unix.ENOSYS):
			// Without locks two processes may download the same file at once: they write the same
			// bytes to the same places (see partial), which costs time only.
			return func() {}, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s, which another process holds: %w", path, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

func sameFile(f *os.File, path string) bool {
	opened, err1 := f.Stat()
	named, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(opened, named)
}

// freeSpace is how many bytes can be written under dir, which need not exist yet; ok is false when
// it cannot be told.
func freeSpace(dir string) (free int64, ok bool) {
	for {
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		if err == nil {
			return int64(s.Bavail) * int64(s.Bsize), true
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, unix.ENOENT) || parent == dir {
			return 0, false
		}
		dir = parent
	}
}
