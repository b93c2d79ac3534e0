package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Known returns a folder of files of known content. Each is read from the descriptors of a process
// that has pinned it (Pinned), else from the folder that dir returns if its content is the same. A
// *ChangedError names a file that is in neither. The path is for messages.
func Known(path string, files []File, holders []int, dir func() (Folder, error)) Folder {
	k := &known{path: path, files: files, holders: holders, dir: dir}
	if ggufs := ggufModels(k.Names()); len(ggufs) > 0 {
		return translated{k, &translation{files: partsOf(ggufs[0])}}
	}
	return k
}

type known struct {
	path    string
	files   []File
	holders []int
	dir     func() (Folder, error)
}

// Names implements Folder: the known files.
func (k *known) Names() []string {
	names := make([]string, len(k.files))
	for i, f := range k.files {
		names[i] = f.Name
	}
	return names
}

// Location implements Folder.
func (k *known) Location() string { return k.path }

// ReadFile implements Folder.
func (k *known) ReadFile(name string) ([]byte, error) {
	f, err := k.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readSmall(f)
}

// Map implements Folder.
func (k *known) Map(name string) (*View, error) {
	f, err := k.open(name)
	if err != nil {
		return nil, err
	}
	v, err := mapView(f)
	if err != nil {
		f.Close()
	}
	return v, err
}

// release implements releaser.
func (k *known) release(mapping, view []byte) { dropPages(mapping, view) }

// directoryOf is the directory of a folder that may be called by a file in it.
func directoryOf(path string) string {
	if IsGGUF(path) {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			return filepath.Dir(path)
		}
	}
	return path
}

// open finds a file.
func (k *known) open(name string) (*os.File, error) {
	var want *File
	for i := range k.files {
		if k.files[i].Name == name {
			want = &k.files[i]
		}
	}
	if want == nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(directoryOf(k.path), name), os.ErrNotExist)
	}
	for _, pid := range k.holders {
		if f := want.openFrom(pid); f != nil {
			return f, nil
		}
	}
	folder, err := k.dir()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(directoryOf(folder.Location()), name)
	f, size, err := openRegular(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &ChangedError{Path: path, Want: want.Sum}
	}
	if err != nil {
		return nil, err
	}
	sum, err := sumFile(f, name, size)
	if err == nil && sum != want.Sum {
		err = &ChangedError{Path: path, Want: want.Sum, Got: sum}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openFrom opens the file among the descriptors of a process of this host. It compares contents, so
// a process that has reused the number does no harm.
func (w *File) openFrom(pid int) *os.File {
	folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil // of another user, or gone
	}
	for _, d := range list {
		path := filepath.Join(folder, d.Name())
		// A pipe must not be opened: that may wait.
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() ||
			info.Size() != w.Size {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if sum, err := sumFile(f, w.Name, w.Size); err == nil && sum == w.Sum {
			return f
		}
		f.Close()
	}
	return nil
}
