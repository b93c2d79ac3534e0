package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxReadFile bounds what ReadFile brings into memory. The largest such file in use is a
// tokenizer.json of some 35 MB.
const maxReadFile = 512 << 20

// Folder is where a model's files are: a directory, or files embedded in the program.
type Folder interface {
	// ReadFile returns the content of a small file, such as config.json. The caller does not write
	// to it. The error wraps [fs.ErrNotExist] when there is no such file.
	ReadFile(name string) ([]byte, error)
	// Map returns a view of the content of a file of any size, which the caller closes.
	Map(name string) (*View, error)
	// Names lists the files in sorted order.
	Names() []string
	// Location says where the folder is, for messages.
	Location() string
}

// releaser is implemented by a Folder whose views can be dropped from memory and read again from
// their file.
type releaser interface {
	// release advises that the pages of view, which lies in mapping, are not needed soon.
	release(mapping, view []byte)
}

// directory is a Folder on disk.
type directory struct {
	path  string
	names []string
	// called is what the user calls it: path, or a file there.
	called string
}

// Dir returns the folder at path, or that of the model of which path is a file of GGUF. Files are
// found through symbolic links, as a Hub cache lays them out. A folder with one model in GGUF and
// no other weights is one of transformers, whose files are made of the metadata.
func Dir(path string) (Folder, error) {
	dir, ggufs, err := Locate(path)
	if err != nil {
		return nil, err
	}
	d := &directory{path: dir, called: path}
	if ggufs != nil {
		return translated{d, &translation{files: ggufs}}, nil
	}
	d.names, err = regularFiles(dir)
	return d, err
}

// ToolTemplate is the one file of a model that lies in a folder of its own: the chat template of
// conversations with tools.
const ToolTemplate = "additional_chat_templates/tool_use.jinja"

// regularFiles lists the files of a directory that are, or are links to, regular ones.
func regularFiles(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("model folder: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(ToolTemplate, name+"/") {
			name = ToolTemplate
		}
		info, err := os.Stat(filepath.Join(path, name))
		if err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

func (d *directory) Names() []string  { return slices.Clone(d.names) }
func (d *directory) Location() string { return d.called }

// open opens a regular file; a name that could lead out of the folder, a pipe or a device is
// refused.
func (d *directory) open(name string) (*os.File, int64, error) {
	if !plainName(name) {
		return nil, 0, fmt.Errorf("file name %s is not a plain name", Short(name))
	}
	return openRegular(filepath.Join(d.path, name))
}

// openRegular opens a regular file, and says how large it is.
func openRegular(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (d *directory) ReadFile(name string) ([]byte, error) {
	f, _, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readSmall(f)
}

// readSmall reads all of a file that is not too large for it, and is no pointer to another one.
func readSmall(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	if size > maxReadFile {
		return nil, fmt.Errorf("%s has %d bytes, above the limit of %d", f.Name(), size,
			maxReadFile)
	}
	b := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := b.ReadFrom(io.LimitReader(f, maxReadFile+1)); err != nil {
		return nil, err
	}
	data := b.Bytes()
	if len(data) > maxReadFile {
		return nil, fmt.Errorf("%s grew above the limit of %d bytes while it was read", f.Name(),
			maxReadFile)
	}
	return data, checkPointer(f.Name(), data)
}

func (d *directory) Map(name string) (*View, error) {
	f, _, err := d.open(name)
	if err != nil {
		return nil, err
	}
	v, err := mapView(f)
	if err != nil {
		f.Close()
	}
	return v, err
}

// release drops the whole pages that view touches. Losing a neighbour's bytes on a shared page
// costs it one page fault: the mapping is of a file and read-only, so the content comes back from
// the page cache.
func (d *directory) release(mapping, view []byte) { dropPages(mapping, view) }

func dropPages(mapping, view []byte) {
	if len(view) == 0 {
		return
	}
	begin, end := span(mapping, view)
	page := os.Getpagesize()
	begin -= begin % page
	end = min((end+page-1)/page*page, len(mapping))
	// Advice only: a kernel that declines it costs memory, not correctness.
	_ = unix.Madvise(mapping[begin:end], unix.MADV_DONTNEED)
}

// embedded is a Folder of files that are already in memory.
type embedded struct {
	location string
	files    map[string][]byte
}

// Embedded returns a folder of the given files. The contents are neither copied nor written to, so
// they may lie in the program's read-only data.
func Embedded(location string, files map[string][]byte) Folder {
	return embedded{location, maps.Clone(files)}
}

func (e embedded) Names() []string  { return slices.Sorted(maps.Keys(e.files)) }
func (e embedded) Location() string { return e.location }

func (e embedded) ReadFile(name string) ([]byte, error) {
	data, ok := e.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: e.location + "/" + name, Err: fs.ErrNotExist}
	}
	return data, nil
}

func (e embedded) Map(name string) (*View, error) {
	data, err := e.ReadFile(name)
	return &View{Data: data}, err
}

// single is a Folder in which one file has the name of a model's weights.
type single struct {
	Folder
	name string
}

// Single returns a folder of one file, under the name of a model's weights.
func Single(f Folder, name string) Folder { return single{f, name} }

func (s single) Names() []string           { return []string{weightsFile} }
func (s single) Map(string) (*View, error) { return s.Folder.Map(s.name) }

// plainName reports whether name is that of a file in the folder itself, or ToolTemplate.
func plainName(name string) bool {
	return name == ToolTemplate ||
		name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00")
}

// exists reports whether the folder has the file, telling absence from trouble.
func exists(f Folder, name string) bool { return slices.Contains(f.Names(), name) }

// notExist reports whether err is about a file that is not there.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
