// Package checkpoint reads a model folder as Hugging Face lays it out: weights in safetensors
// files, one or in shards, mapped and never copied; config.json and generation_config.json, as
// transformers 4 and 5 write them. Everything in the folder is untrusted: what breaks its format is
// an error that names the file, the tensor or the field.
package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrMissing is wrapped by the error about a tensor that the checkpoint does not hold.
var ErrMissing = errors.New("no such tensor in the checkpoint")

// ErrClosed is returned for a tensor asked of a closed checkpoint.
var ErrClosed = errors.New("checkpoint is closed")

// Checkpoint is the tensors of a model. Its methods may be called from several goroutines.
type Checkpoint struct {
	location string
	// translated says that the tensors are of files of GGUF.
	translated bool
	tensors    map[string]*record
	names      []string
	bytes      int64
	backing    backing

	// mu is held for writing by Close only, so that no view is returned or released after it.
	mu     sync.RWMutex
	closed bool
}

// record is a tensor and what its backing knows about it.
type record struct {
	Tensor
	file int // files: index of the mapping the tensor lies in

	mu   sync.Mutex // generated: guards refs, and the filling of Data
	refs int        // generated: users of Data; the values exist while it is positive
}

// backing is where the bytes of a checkpoint come from: files, or a generator.
type backing interface {
	// use makes the record's data ready to be read.
	use(r *record)
	// release drops view, a part of the record's data, which is no longer needed.
	release(r *record, view []byte)
	close() error
}

// Open opens the weights in f: model.safetensors, else the shards that model.safetensors.index.json
// names; of a model in GGUF its files, whose tensors have the names and shapes of transformers. All
// headers are read and checked, no tensor is. Errors about the content wrap [ErrMalformed]; a
// folder without weights is an error that wraps [io/fs.ErrNotExist].
//
// Files are mapped shared: one that another process truncates while it is in use faults on access.
func Open(f Folder) (*Checkpoint, error) {
	b := &files{}
	b.releaser, _ = f.(releaser)
	c := &Checkpoint{location: f.Location(), tensors: map[string]*record{}, backing: b}
	if names := ggufsOf(f); names != nil {
		if err := c.mapGGUF(f, b, names); err != nil {
			return nil, errors.Join(err, b.close())
		}
		c.finish()
		return c, nil
	}
	shards, index, err := findShards(f)
	if err != nil {
		return nil, err
	}
	if err := c.mapShards(f, b, shards, index); err != nil {
		return nil, errors.Join(err, b.close())
	}
	c.finish()
	return c, nil
}

func (c *Checkpoint) mapShards(f Folder, b *files, shards []string, index map[string]string) error {
	for _, shard := range shards {
		view, err := f.Map(shard)
		if notExist(err) {
			return missingShard(f, shard)
		}
		if err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		b.maps = append(b.maps, view)
		if err := checkPointer(shard, view.Data); err != nil {
			return err
		}
		tensors, err := ParseFile(view.Data)
		if err != nil {
			return fmt.Errorf("%s: %w", shard, err)
		}
		for _, stored := range slices.Sorted(maps.Keys(tensors)) {
			name, t := LanguageModel(stored), tensors[stored]
			if prev, ok := c.tensors[name]; ok {
				return fmt.Errorf("%w: tensor %s is in both %s and %s", ErrMalformed, Short(name),
					shards[prev.file], shard)
			}
			if listed, ok := index[stored]; ok && listed != shard {
				return fmt.Errorf("%w: tensor %s is in %s, but %s says it is in %s", ErrMalformed,
					Short(stored), shard, indexFile, listed)
			}
			t.Name = name
			c.tensors[name] = &record{Tensor: t, file: len(b.maps) - 1}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		if c.tensors[LanguageModel(name)] == nil {
			return fmt.Errorf("%w: %s puts tensor %s in %s, which lacks it", ErrMalformed,
				indexFile, Short(name), index[name])
		}
	}
	return nil
}

// LanguageModel is the name of a tensor or module where the language model that it is of stands by
// itself: checkpoints that have encoders of images or audio beside it put "language_model" before
// or behind "model".
func LanguageModel(name string) string { return strings.ReplaceAll(name, "language_model.", "") }

// encoders are what the modules of encoders beside a language model are called, "model." or nothing
// before them.
var encoders = []string{"visual", "vision_tower", "vision_model", "vision_embedder",
	"multi_modal_projector", "mm_projector", "audio_tower", "embed_vision", "embed_audio"}

// OfEncoder says that a tensor is of an encoder beside a language model.
func OfEncoder(name string) bool {
	module, _, _ := strings.Cut(strings.TrimPrefix(name, "model."), ".")
	return slices.Contains(encoders, module)
}

// finish computes what the methods answer once all tensors are known.
func (c *Checkpoint) finish() {
	c.names = slices.Sorted(maps.Keys(c.tensors))
	for _, r := range c.tensors {
		c.bytes += int64(len(r.Data))
	}
}

// Tensor returns the tensor of that name. The error wraps [ErrMissing] when there is none, and
// names the type when it is none that weights may have.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, ErrClosed)
	}
	r := c.tensors[name]
	if r == nil {
		return Tensor{}, fmt.Errorf("tensor %q of %s: %w", name, c.location, ErrMissing)
	}
	if !r.DType.Weight() && r.DType != Quantised {
		return Tensor{}, fmt.Errorf("tensor %q of %s has type %v; weights may be BF16, F16, F32 "+
			"or blocks of GGUF", name, c.location, r.DType)
	}
	return c.use(r), nil
}

func (c *Checkpoint) use(r *record) Tensor {
	c.backing.use(r)
	t := r.Tensor
	t.Shape = slices.Clone(t.Shape)
	return t
}

// Stored is Tensor for one of a given type, whatever it is: quantised weights have several tensors,
// of types that are no weights by themselves.
func (c *Checkpoint) Stored(name string, dtype DType) (Tensor, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	r := c.tensors[name]
	switch {
	case c.closed:
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, ErrClosed)
	case r == nil:
		return Tensor{}, fmt.Errorf("tensor %q of %s: %w", name, c.location, ErrMissing)
	case r.DType != dtype:
		return Tensor{}, fmt.Errorf("tensor %q of %s has type %v, not %v", name, c.location,
			r.DType, dtype)
	}
	return c.use(r), nil
}

// Has reports whether the checkpoint holds the tensor.
func (c *Checkpoint) Has(name string) bool { return c.tensors[name] != nil }

// Header returns a tensor without its data, and whether there is one of that name.
func (c *Checkpoint) Header(name string) (t Tensor, ok bool) {
	r := c.tensors[name]
	if r == nil {
		return t, false
	}
	return Tensor{Name: name, DType: r.DType, Shape: slices.Clone(r.Shape)}, true
}

// Names lists the tensors in sorted order.
func (c *Checkpoint) Names() []string { return slices.Clone(c.names) }

// Bytes is the size of all tensors together.
func (c *Checkpoint) Bytes() int64 { return c.bytes }

// Release says that t, as returned by [Checkpoint.Tensor], is not needed any more, so that the
// memory behind it can be used for something else. Call it at most once for each call of Tensor.
// The pages of a mapped file leave the process (t.Data stays readable, and may be a part of the
// tensor's data only); the values of a dummy tensor are gone with its last user; embedded weights
// stay as they are. A tensor of another checkpoint is ignored.
func (c *Checkpoint) Release(t Tensor) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	r := c.tensors[t.Name]
	if c.closed || r == nil || !within(r.Data, t.Data) {
		return
	}
	c.backing.release(r, t.Data)
}

// Rest says that the bytes of t will not all be read soon: the pages of a mapped file leave the
// process, and come back as they are read.
func (c *Checkpoint) Rest(t Tensor) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	f, ok := c.backing.(*files)
	if r := c.tensors[t.Name]; ok && r != nil && !c.closed && within(r.Data, t.Data) {
		f.release(r, t.Data)
	}
}

// ReadSparsely says that parts of tensors are read, which [Prefetch] announces: the system reads
// nothing around them. Without it a rank's part of a tensor draws in most of the parts of others.
func (c *Checkpoint) ReadSparsely() {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if f, ok := c.backing.(*files); ok && !c.closed {
		for _, v := range f.maps {
			v.advise(unix.MADV_RANDOM)
		}
	}
}

// Watch returns [View.Written] of the file of t, or nil where t is in no file.
func (c *Checkpoint) Watch(t Tensor) (written func() bool) {
	f, ok := c.backing.(*files)
	if r := c.tensors[t.Name]; ok && r != nil && !c.closed {
		return f.maps[r.file].Written
	}
	return nil
}

// CheckStable returns an error that names a file that was written since the checkpoint was opened.
// It is called before a file is watched.
func (c *Checkpoint) CheckStable() error {
	f, ok := c.backing.(*files)
	if !ok {
		return nil
	}
	for _, v := range f.maps {
		if v.Written() {
			return fmt.Errorf("model file %s was written while it was loaded: it may be a mix of "+
				"two", v.file.Name())
		}
	}
	return nil
}

// Close ends all views: no Data of a tensor may be read afterwards. Closing again does nothing.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return c.backing.close()
}

// files is the backing of a checkpoint read from a Folder.
type files struct {
	maps     []*View
	releaser releaser // nil where nothing can be released
}

func (f *files) use(*record) {}

func (f *files) release(r *record, view []byte) {
	// What was made of a tensor is no part of its file.
	if f.releaser != nil && within(f.maps[r.file].Data, view) {
		f.releaser.release(f.maps[r.file].Data, view)
	}
}

func (f *files) close() error {
	var errs []error
	for _, v := range f.maps {
		errs = append(errs, v.Close())
	}
	f.maps = nil
	return errors.Join(errs...)
}

// address is where b begins.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// span is where view begins and ends in whole, which contains it.
func span(whole, view []byte) (begin, end int) {
	begin = int(address(view) - address(whole))
	return begin, begin + len(view)
}

// within reports whether view is a part of whole.
func within(whole, view []byte) bool {
	if len(view) == 0 {
		return true
	}
	w, v := address(whole), address(view)
	return v >= w && v+uintptr(len(view)) <= w+uintptr(len(whole))
}
