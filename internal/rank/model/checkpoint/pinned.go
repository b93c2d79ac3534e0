package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// smallFiles are those of names that are read of a model beside its weights.
func smallFiles(names []string) []string {
	small := tokenizer.Names(names)
	for _, name := range []string{"config.json", "generation_config.json", "chat_template.jinja",
		ToolTemplate, indexFile, quantFiles[0], quantFiles[1]} {
		if slices.Contains(names, name) {
			small = append(small, name)
		}
	}
	slices.Sort(small)
	return slices.Compact(small)
}

// Pinned is the folder of a model with the contents that Pin found, also after files are replaced
// under their names. The files of weights stay open, and other processes of this host open them by
// this one's descriptors (Known); the other files are small, and are copied to memory that is
// opened in the same way. It is a Folder, and safe for concurrent use.
type Pinned struct {
	// path is where the files are, called what the user calls the folder.
	path, called string
	names        []string
	// gguf is nil for a folder of transformers.
	gguf *translation

	mu sync.Mutex
	// files are in the order of their names.
	files []*pinnedFile
}

// pinnedFile is a file of a Pinned.
type pinnedFile struct {
	File
	// file is the folder's file, or a copy of a small one.
	file  *os.File
	small bool
	// seen is the stamp of the folder's file when its sum last matched, opened that of the open
	// file.
	seen, opened stamp
}

// Pin opens the files of the model in the folder at path, or of which path is a file of GGUF: its
// weights only if weights is set, of GGUF the file with the metadata in any case.
func Pin(path string, weights bool) (*Pinned, error) {
	dir, err := Dir(path)
	if err != nil {
		return nil, err
	}
	h := &Pinned{path: path, called: path}
	var names []string
	if ggufs := ggufsOf(dir); ggufs != nil {
		h.gguf = &translation{files: ggufs}
		if h.path, _, err = Locate(path); err != nil {
			return nil, err
		}
		if names = slices.Clone(ggufs); !weights {
			names = names[:1]
		}
	} else {
		h.names = dir.Names()
	}
	if weights && h.gguf == nil {
		if names, _, err = findShards(dir); err != nil {
			return nil, err
		}
	}
	small := smallFiles(h.names)
	names = append(names, small...)
	slices.Sort(names)
	for _, name := range names {
		f, err := h.pin(name, slices.Contains(small, name))
		if notExist(err) && h.gguf == nil {
			err = missingShard(dir, name)
		}
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
		h.files = append(h.files, f)
	}
	return h, nil
}

func (h *Pinned) pin(name string, small bool) (*pinnedFile, error) {
	f, _, err := openRegular(filepath.Join(h.path, name))
	if err != nil {
		return nil, err
	}
	x := &pinnedFile{File: File{Name: name}, file: f, small: small}
	if x.seen, err = stampFile(f); err != nil {
		f.Close()
		return nil, err
	}
	x.opened = x.seen
	if x.small {
		x.file, err = copied(f, name)
		f.Close()
		if err != nil {
			return nil, err
		}
		x.opened, err = stampFile(x.file)
	}
	if err == nil {
		x.Size = x.opened.size
		x.Sum, err = sumFile(x.file, name, x.Size)
	}
	if err != nil {
		x.file.Close()
		return nil, err
	}
	return x, nil
}

// copied is a copy of a small file, in memory.
func copied(f *os.File, name string) (*os.File, error) {
	data, err := readSmall(f)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("eagleray-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory for %s: %w", name, err)
	}
	m := os.NewFile(uintptr(fd), f.Name())
	if _, err := m.Write(data); err != nil {
		m.Close()
		return nil, fmt.Errorf("make memory for %s: %w", name, err)
	}
	return m, nil
}

// Names implements Folder.
func (h *Pinned) Names() []string {
	if h.gguf != nil {
		return h.gguf.names(h)
	}
	return slices.Clone(h.names)
}

// Location implements Folder.
func (h *Pinned) Location() string { return h.called }

// weights implements ggufFolder.
func (h *Pinned) weights() []string {
	if h.gguf == nil {
		return nil
	}
	return h.gguf.files
}

// ReadFile implements Folder.
func (h *Pinned) ReadFile(name string) ([]byte, error) {
	if h.gguf != nil {
		if data, ok, err := h.gguf.file(h, name); ok {
			return data, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.find(name); f != nil {
		data := make([]byte, f.Size)
		_, err := f.file.ReadAt(data, 0)
		if len(data) == 0 {
			err = nil
		}
		return data, err
	}
	return (&directory{path: h.path}).ReadFile(name)
}

// Map implements Folder.
func (h *Pinned) Map(name string) (*View, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.find(name)
	if f == nil {
		return (&directory{path: h.path}).Map(name)
	}
	fd, err := unix.FcntlInt(f.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	again := os.NewFile(uintptr(fd), f.file.Name())
	v, err := mapView(again)
	if err != nil {
		again.Close()
	}
	return v, err
}

func (h *Pinned) find(name string) *pinnedFile {
	for _, f := range h.files {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Files returns the pinned files, in the order of their names.
func (h *Pinned) Files() []File {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]File, len(h.files))
	for i, f := range h.files {
		list[i] = f.File
	}
	return list
}

// Age returns the time since a file of the folder was last written or renamed.
func (h *Pinned) Age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	var last int64
	for _, f := range h.files {
		last = max(last, f.seen.mtime.Nano(), f.seen.ctime.Nano())
	}
	return time.Duration(time.Now().UnixNano() - last)
}

// Compare compares the folder with the pinned files. changed names the first file that was replaced
// under its name, nil for none. lost names the first file that was overwritten in place, so that
// its content is lost. Without weights it skips their files.
func (h *Pinned) Compare(weights bool) (changed, lost *ChangedError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.files {
		if !weights && !f.small {
			continue
		}
		c, l := h.compare(f)
		if changed == nil {
			changed = c
		}
		if lost == nil {
			lost = l
		}
	}
	return changed, lost
}

// Overwritten names the first file of weights that was overwritten in place, nil for none. It costs
// a system call for each file.
func (h *Pinned) Overwritten() *ChangedError {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.files {
		if f.small || f.sound() {
			continue
		}
		if _, lost := h.compare(f); lost != nil {
			return lost
		}
	}
	return nil
}

func (h *Pinned) compare(f *pinnedFile) (changed, lost *ChangedError) {
	path := filepath.Join(h.path, f.Name)
	there, now, got := f.now(path)
	defer func() {
		if there != nil {
			there.Close()
		}
	}()
	if got == f.Sum {
		if now.stable() {
			f.seen = now
		}
	} else {
		changed = &ChangedError{Path: path, Want: f.Sum, Got: got}
	}
	if f.small || f.sound() {
		return changed, nil
	}
	if changed == nil { // it was put back under its name
		if there == nil {
			there, _, _ = openRegular(path)
		}
		if there != nil {
			f.file.Close()
			f.file, f.opened, there = there, now, nil
			return nil, nil
		}
	}
	was, _ := sumFile(f.file, f.Name, max(0, f.length()))
	lost = &ChangedError{Path: path, Want: f.Sum, Got: was, Written: true}
	return changed, lost
}

// now returns the sum of the file at path, "" if there is none. file is nil where it need not be
// opened.
func (f *pinnedFile) now(path string) (file *os.File, at stamp, sum string) {
	var s unix.Stat_t
	if unix.Stat(path, &s) == nil && stampOf(&s) == f.seen {
		return nil, f.seen, f.Sum
	}
	file, _, err := openRegular(path)
	if err != nil {
		return nil, at, ""
	}
	if at, err = stampFile(file); err == nil {
		sum, err = sumFile(file, f.Name, at.size)
	}
	if err != nil {
		sum = ""
	}
	return file, at, sum
}

// sound reports whether the open file still has the content that Pin found.
func (f *pinnedFile) sound() bool {
	now, err := stampFile(f.file)
	if err != nil || now == f.opened {
		return err == nil
	}
	if now.size != f.Size {
		return false
	}
	if sum, err := sumFile(f.file, f.Name, now.size); err != nil || sum != f.Sum {
		return false
	}
	if now.stable() {
		f.opened = now
	}
	return true
}

func (f *pinnedFile) length() int64 {
	now, _ := stampFile(f.file)
	return now.size
}

// Close closes the files.
func (h *Pinned) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, f := range h.files {
		errs = append(errs, f.file.Close())
	}
	h.files = nil
	return errors.Join(errs...)
}
