package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Repo is what the cache has of a repository of models, or of a bucket's folder.
type Repo struct {
	// Name is org/name or s3://bucket/path, Dir its folder in the cache.
	Name, Dir string
	// Bytes are what it takes on the disk, of all revisions, whole files and begun ones.
	Bytes int64
	// Changed is when a file was last added.
	Changed time.Time
	// Missing is what the newest snapshot lacks of a model, nil for nothing.
	Missing []string
	// GGUF are the models in GGUF that the newest snapshot has, by the names of their files.
	GGUF []string
}

// List are the repositories of models in the cache, in alphabetical order. The Hub is not asked. A
// cache that is not there has none.
func List(opt Options) ([]Repo, error) {
	root, err := CacheDir(opt.DownloadDir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var repos []Repo
	for _, e := range entries {
		name, ok := repoOf(e.Name())
		if !e.IsDir() || !ok {
			continue
		}
		r, err := readRepo(repoCache{root: root, repo: name})
		if err != nil {
			r.Missing = []string{err.Error()} // the others can be read
		}
		repos = append(repos, r)
	}
	sort.Slice(repos, func(i, j int) bool { return repos[i].Name < repos[j].Name })
	return repos, nil
}

// readRepo looks at a repository's folder. Symbolic links are not followed: their files are counted
// where they lie.
func readRepo(c repoCache) (Repo, error) {
	r := Repo{Name: c.repo, Dir: c.dir()}
	err := filepath.WalkDir(r.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		r.Bytes += info.Size()
		if info.ModTime().After(r.Changed) {
			r.Changed = info.ModTime()
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	dir := c.newest()
	if dir == "" {
		r.Missing = []string{"a snapshot"}
		return r, nil
	}
	r.GGUF = wholeGGUF(dir)
	missing, err := missingFiles(dir, nil)
	if err != nil {
		missing = []string{err.Error()}
	}
	if r.GGUF == nil {
		r.Missing = missing
	}
	return r, nil
}

// ignoreGone drops the error about a file that another process has removed meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// newest is the snapshot of main, else the one that was changed last; "" for none.
func (c repoCache) newest() string {
	if commit, err := c.ref("main"); err == nil {
		if info, err := os.Stat(c.snapshot(commit)); err == nil && info.IsDir() {
			return c.snapshot(commit)
		}
	}
	entries, err := os.ReadDir(filepath.Join(c.dir(), "snapshots"))
	if err != nil {
		return ""
	}
	newest := ""
	var at time.Time
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.IsDir() && info.ModTime().After(at) {
			newest, at = c.snapshot(e.Name()), info.ModTime()
		}
	}
	return newest
}

// Remove deletes what the cache has of a repository, all revisions of it, and returns how many
// bytes are free again. A server that has loaded the model goes on with it, and finds none when it
// has to start ranks anew.
//
// The error wraps [ErrOffline] for what is not in the cache. Nothing is removed while a process
// downloads a file of it.
func Remove(ctx context.Context, name string, opt Options) (freed int64, err error) {
	at, err := Locate(name, "")
	if err != nil {
		return 0, err
	}
	repo := at.Model
	if at.Repo != "" {
		repo = at.Repo
	}
	b, tag, inBucket, err := parseBucket(repo)
	switch {
	case err != nil:
		return 0, err
	case inBucket:
		repo = b.String()
	default:
		repo, tag, _ = strings.Cut(repo, ":")
	}
	if tag != "" {
		return 0, fmt.Errorf("model %q: all of %s is removed, not %s alone: leave that out", name,
			repo, tag)
	}
	if !inBucket {
		if err := validRepo(repo); err != nil {
			return 0, fmt.Errorf("model %q is not a Hub repository: %w", name, err)
		}
	}
	root, err := CacheDir(opt.DownloadDir)
	if err != nil {
		return 0, err
	}
	c := repoCache{root: root, repo: repo}
	if info, err := os.Lstat(c.dir()); err != nil || !info.IsDir() {
		return 0, fmt.Errorf("model %s: %w (%s)", repo, ErrOffline, root)
	}
	if err := c.unused(ctx); err != nil {
		return 0, err
	}
	r, err := readRepo(c)
	if err != nil {
		return 0, err
	}
	// Its name is free at once: what another process downloads meanwhile is not deleted.
	aside := filepath.Join(root, fmt.Sprintf("%s%s-%d", removed, c.folder(), os.Getpid()))
	if err := os.Rename(c.dir(), aside); err != nil {
		return 0, err
	}
	return r.Bytes, errors.Join(removeRemoved(root),
		os.RemoveAll(filepath.Join(root, ".locks", c.folder())))
}

// removed begins the names of folders that are being deleted.
const removed = ".removed-"

// removeRemoved deletes them all: those of a removal that was cut off, too.
func removeRemoved(root string) error {
	entries, err := os.ReadDir(root)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), removed) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(root, e.Name())))
		}
	}
	return err
}

// unused refuses a repository of which a process downloads a file.
func (c repoCache) unused(ctx context.Context) error {
	locks, err := os.ReadDir(filepath.Join(c.root, ".locks", c.folder()))
	if err != nil {
		return ignoreGone(err)
	}
	for _, l := range locks {
		etag, found := strings.CutSuffix(l.Name(), ".lock")
		if !found {
			continue
		}
		soon, cancel := context.WithTimeout(ctx, lockPoll/2)
		unlock, err := c.lock(soon, etag)
		cancel()
		if err != nil {
			return fmt.Errorf("model %s: another process downloads it", c.repo)
		}
		unlock()
	}
	return nil
}
