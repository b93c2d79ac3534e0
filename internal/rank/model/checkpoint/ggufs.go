package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/eagleray/eagleray/internal/rank/model/gguf"
)

// ggufSuffix ends the names of llama.cpp's files.
const ggufSuffix = ".gguf"

// IsGGUF tells llama.cpp's files by their names.
func IsGGUF(name string) bool { return strings.HasSuffix(strings.ToLower(name), ggufSuffix) }

// translation is a model in files of GGUF, which have in their metadata what folders of
// transformers have in other files: it makes those. It is safe for concurrent use.
type translation struct {
	// files are those of the model, in the order of their numbers.
	files []string

	mu   sync.Mutex
	made map[string]madeFile
}

// madeFile is the content of a file that was made, or why it could not be.
type madeFile struct {
	data []byte
	err  error
}

// The files that are made beside the tokenizer's.
const (
	generationFile      = "generation_config.json"
	tokenizerConfigFile = "tokenizer_config.json"
)

// mapper opens the files of a folder.
type mapper interface {
	Map(name string) (*View, error)
}

// names are the files that there are for those who read the folder.
func (t *translation) names(m mapper) []string {
	names := []string{configFile, generationFile, tokenizerConfigFile}
	if name := t.tokenizer(m); name != "" {
		names = append(names, name)
	}
	names = append(names, t.files...)
	slices.Sort(names)
	return names
}

// tokenizer names the file of the tokenizer, "" where the metadata cannot be read.
func (t *translation) tokenizer(m mapper) string {
	name, _ := t.make(m, "", func(f *gguf.File) ([]byte, error) {
		return []byte(f.TokenizerName()), nil
	})
	return string(name)
}

// make makes a file once.
func (t *translation) make(m mapper, name string,
	content func(f *gguf.File) ([]byte, error)) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x, ok := t.made[name]; ok {
		return x.data, x.err
	}
	var x madeFile
	x.data, x.err = t.read(m, content)
	if notExist(x.err) { // it may come back
		return nil, x.err
	}
	if t.made == nil {
		t.made = map[string]madeFile{}
	}
	t.made[name] = x
	return x.data, x.err
}

func (t *translation) read(m mapper, content func(f *gguf.File) ([]byte, error)) ([]byte, error) {
	views, parts, err := mapParts(m, t.files)
	defer closeViews(views)
	if err != nil {
		return nil, err
	}
	for _, part := range parts[1:] {
		parts[0].Join(part)
	}
	data, err := content(parts[0])
	if err != nil {
		return nil, ggufError(t.files[0], err)
	}
	return data, nil
}

func closeViews(views []*View) {
	for _, v := range views {
		v.Close()
	}
}

// mapParts maps the files of a model and reads their headers.
func mapParts(m mapper, names []string) (views []*View, parts []*gguf.File, err error) {
	for n, name := range names {
		view, err := m.Map(name)
		switch {
		case notExist(err) && len(names) > 1:
			return views, nil, fmt.Errorf("%w: %s is missing, one of the %d files of the model: "+
				"download or copy it again", ErrMalformed, name, len(names))
		case err != nil:
			return views, nil, fmt.Errorf("weights: %w", err)
		}
		views = append(views, view)
		if err := checkPointer(name, view.Data); err != nil {
			return views, nil, err
		}
		f, err := gguf.Parse(view.Data)
		if err != nil {
			return views, nil, ggufError(name, err)
		}
		if err := checkSplit(name, f, n, len(names)); err != nil {
			return views, nil, err
		}
		parts = append(parts, f)
	}
	return views, parts, nil
}

// ggufError says which file an error is about, and of which kind it is.
func ggufError(name string, err error) error {
	if errors.Is(err, gguf.ErrUnsupported) {
		return fmt.Errorf("%s: %w", name, unsupported{err})
	}
	return fmt.Errorf("%w: %s: %w", ErrMalformed, name, err)
}

// unsupported is an error of package gguf about what is not supported here.
type unsupported struct{ err error }

func (u unsupported) Error() string   { return u.err.Error() }
func (u unsupported) Unwrap() []error { return []error{u.err, ErrUnsupported} }

// file is the content of a file that is made; ok says that it is one of them.
func (t *translation) file(m mapper, name string) (data []byte, ok bool, err error) {
	switch name {
	case configFile:
		data, err = t.make(m, name, (*gguf.File).ConfigJSON)
	case generationFile:
		data, err = t.make(m, name, (*gguf.File).GenerationConfig)
	case tokenizerConfigFile:
		data, err = t.make(m, name, (*gguf.File).TokenizerConfig)
	case "tokenizer.json", "tokenizer.model":
		if t.tokenizer(m) == name {
			data, err = t.make(m, name, (*gguf.File).Tokenizer)
			return data, true, err
		}
		return nil, false, nil
	default:
		return nil, false, nil
	}
	return data, true, err
}

// translated is a folder of a model in GGUF.
type translated struct {
	Folder
	*translation
}

// Names implements Folder.
func (t translated) Names() []string { return t.names(t.Folder) }

// ReadFile implements Folder.
func (t translated) ReadFile(name string) ([]byte, error) {
	if data, ok, err := t.file(t.Folder, name); ok {
		return data, err
	}
	return nil, &fs.PathError{Op: "open", Path: filepath.Join(t.Location(), name),
		Err: fs.ErrNotExist}
}

// release implements releaser.
func (t translated) release(mapping, view []byte) {
	if r, ok := t.Folder.(releaser); ok {
		r.release(mapping, view)
	}
}

// weights implements ggufFolder.
func (t translated) weights() []string { return t.files }

// ggufFolder is a Folder whose weights may be in files of GGUF.
type ggufFolder interface {
	// weights are the files; nil for none.
	weights() []string
}

// ggufsOf are the files of a folder's weights in GGUF, nil for none.
func ggufsOf(f Folder) []string {
	if g, ok := f.(ggufFolder); ok {
		return g.weights()
	}
	return nil
}

// HasGGUF tells whether a folder's weights are in files of GGUF.
func HasGGUF(f Folder) bool { return ggufsOf(f) != nil }

// split is a file of several: of llama.cpp's gguf-split, and of people who upload such files.
var split = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.(?i:gguf)$`)

// partsOf are the files of the model that a file is of: itself, or all of its number.
func partsOf(name string) []string {
	m := split.FindStringSubmatch(name)
	if m == nil {
		return []string{name}
	}
	n, _ := strconv.Atoi(m[3]) // five digits
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf("%s-%05d-of-%s%s", m[1], i+1, m[3], filepath.Ext(name))
	}
	return parts
}

// ggufModels are the models among a folder's files that are in GGUF, by their first file. Those
// that see or hear for another, mmproj-…, are none.
func ggufModels(names []string) (models []string) {
	for _, name := range names {
		if !IsGGUF(name) || strings.HasPrefix(strings.ToLower(name), "mmproj") {
			continue
		}
		if first := partsOf(name); len(first) > 0 && !slices.Contains(models, first[0]) {
			models = append(models, first[0])
		}
	}
	return models
}

// Locate says in which folder the files of a model are that a user calls path, and which of them
// are its weights in GGUF: path is such a file, or a folder that has one model in GGUF and no other
// weights. It is nil for any other folder.
func Locate(path string) (dir string, files []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return path, nil, fmt.Errorf("model folder: %w", err)
	}
	if !info.IsDir() {
		if !IsGGUF(path) {
			return path, nil, fmt.Errorf("model %q is neither a folder nor a file of GGUF", path)
		}
		return filepath.Dir(path), partsOf(filepath.Base(path)), nil
	}
	names, err := regularFiles(path)
	if err != nil || slices.Contains(names, weightsFile) || slices.Contains(names, indexFile) {
		return path, nil, err
	}
	if models := ggufModels(names); len(models) == 1 {
		return path, partsOf(models[0]), nil
	}
	return path, nil, nil
}

// Description names what says of which shapes the tensors should be.
func (c *Checkpoint) Description() string {
	if c.translated {
		return "the file's metadata"
	}
	return configFile
}

// mapGGUF adds the tensors of files of GGUF under the names that models ask for.
func (c *Checkpoint) mapGGUF(f Folder, b *files, names []string) error {
	views, parts, err := mapParts(f, names)
	b.maps, c.translated = views, true
	if err != nil {
		return err
	}
	for n, part := range parts {
		tensors, err := parts[0].Named(part.Tensors)
		if err != nil {
			return ggufError(names[n], err)
		}
		for _, t := range tensors {
			if prev := c.tensors[t.Name]; prev != nil {
				return fmt.Errorf("%w: tensor %s is in both %s and %s", ErrMalformed, Short(t.Name),
					names[prev.file], names[n])
			}
			c.tensors[t.Name] = &record{Tensor: Tensor{Name: t.Name, DType: ggufType(t.Type),
				Blocks: t.Type, Shape: t.Shape, Data: t.Data}, file: n}
		}
	}
	return nil
}

// checkSplit holds a file to its number among so many.
func checkSplit(name string, f *gguf.File, n, count int) error {
	for key, want := range map[string]int{"split.no": n, "split.count": count} {
		v, ok := f.Value(key)
		if !ok {
			continue
		}
		// A model that is not split may say that it is of no files.
		if got, _ := v.Integer(); got != int64(want) && !(key == "split.count" && got == 0) {
			return fmt.Errorf("%w: %s is named as number %d of %d files, but its %s is %v",
				ErrMalformed, name, n+1, count, key, v)
		}
	}
	return nil
}

// ggufType is the type of a tensor of GGUF.
func ggufType(t gguf.Type) DType {
	switch t {
	case gguf.F32:
		return F32
	case gguf.F16:
		return F16
	case gguf.BF16:
		return BF16
	}
	return Quantised
}
