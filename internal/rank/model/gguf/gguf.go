// Package gguf reads model files of llama.cpp: the container, its tensor types, and what its
// metadata and tensor names are called in a folder of transformers. The format is that of
// github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian. A file is
// untrusted: what breaks the format is an error that names the key or the tensor, and nothing is
// read outside it.
package gguf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// ErrUnsupported is wrapped by the error about a file that is well formed, but has what is not
// known here: a version, a tensor type, an architecture, a tokenizer.
var ErrUnsupported = errors.New("not supported")

// Limits of a file. GGML has tensors of four dimensions at most.
const (
	maxDims  = 4
	maxDepth = 4
	maxName  = 1 << 16
)

// File is a file's header. Its texts and tensors are views of the bytes that it was parsed from.
type File struct {
	// Tensors are in the order of the file.
	Tensors []Tensor
	// Header is how many bytes lie before the first tensor's.
	Header int
	meta   map[string]Value
}

// Tensor is a tensor of a file.
type Tensor struct {
	Name string
	Type Type
	// Shape has the outermost dimension first, as other formats have it; the file has it last.
	Shape []int
	// Data is its bytes; Offset is where in the file they begin.
	Data   []byte
	Offset int
}

// Kind is the type of a value of the metadata.
type Kind uint32

// The kinds of values.
const (
	Uint8 Kind = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
	kinds
)

// sizes are the bytes of a value; 0 where they vary.
var sizes = [kinds]int{Uint8: 1, Int8: 1, Uint16: 2, Int16: 2, Uint32: 4, Int32: 4, Float32: 4,
	Bool: 1, Uint64: 8, Int64: 8, Float64: 8}

// String names the kind as the format does.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind %d", uint32(k))
	}
	return [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool",
		"string", "array", "uint64", "int64", "float64"}[k]
}

// Value is a value of the metadata, or an array of them.
type Value struct {
	// Kind is that of the value, of the elements of an array.
	Kind Kind
	// List says that it is an array, of Len values.
	List bool
	Len  int
	raw  []byte
}

// Parse reads the header of a file. All lengths, counts and offsets are checked against the file.
func Parse(data []byte) (*File, error) {
	r := &reader{all: data, data: data}
	version, err := r.begin()
	if err != nil {
		return nil, err
	}
	tensors, pairs := r.uint64(), r.uint64()
	f := &File{meta: map[string]Value{}}
	// A tensor has 24 bytes beside its name at least, a pair 13.
	if err := r.room("tensors", tensors, 24); err != nil {
		return nil, err
	}
	if err := r.room("pairs of metadata", pairs, 13); err != nil {
		return nil, err
	}
	for i := range pairs {
		if err := f.readPair(r); err != nil {
			return nil, fmt.Errorf("metadata %d (version %d): %w", i, version, err)
		}
	}
	align, err := f.alignment()
	if err != nil {
		return nil, err
	}
	f.Tensors = make([]Tensor, 0, tensors)
	offsets := make([]uint64, 0, tensors)
	for i := range tensors {
		t, at, err := readTensor(r)
		if err != nil {
			return nil, fmt.Errorf("tensor %d: %w", i, err)
		}
		if at%align != 0 {
			return nil, fmt.Errorf("tensor %s: offset %d is not a multiple of %d", short(t.Name),
				at, align)
		}
		f.Tensors, offsets = append(f.Tensors, t), append(offsets, at)
	}
	read := uint64(len(data) - len(r.data))
	body := (read + align - 1) / align * align
	f.Header = int(min(body, uint64(len(data))))
	return f, f.lay(data, body, offsets)
}

// begin reads what a file begins with.
func (r *reader) begin() (version uint32, err error) {
	magic := r.bytes(4)
	switch {
	case r.err == nil && string(magic) == "GGUF":
	case r.err == nil && slices.Contains([]string{"ggml", "ggmf", "ggjt", "lmgg", "fmgg", "tjgg"},
		string(magic)):
		return 0, fmt.Errorf("%w: the file is of llama.cpp before GGUF (%q): convert the model "+
			"again", ErrUnsupported, magic)
	default:
		return 0, fmt.Errorf("the file begins with %.8q, not with \"GGUF\"", r.all[:min(4,
			len(r.all))])
	}
	version = r.uint32()
	switch {
	case r.err != nil:
		return 0, r.err
	case version == 2 || version == 3:
		return version, nil
	case bits.ReverseBytes32(version) == 2 || bits.ReverseBytes32(version) == 3:
		return 0, fmt.Errorf("%w: the file is big-endian: convert the model again on a "+
			"little-endian machine, or with gguf_convert_endian.py", ErrUnsupported)
	}
	return 0, fmt.Errorf("%w: version %d of GGUF (versions 2 and 3 are)", ErrUnsupported, version)
}

// reader reads the header. Its first error stays.
type reader struct {
	all, data []byte
	err       error
}

// bytes are the next n.
func (r *reader) bytes(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.data)) {
		at := uint64(len(r.all) - len(r.data))
		r.err = cutOff(len(r.all), at+min(n, math.MaxUint64-at))
		return nil
	}
	b := r.data[:n:n]
	r.data = r.data[n:]
	return b
}

// cutOff is the error about a file that has fewer bytes than its header says.
func cutOff(have int, want uint64) error {
	return fmt.Errorf("the file ends after %d of at least %d bytes: it was cut off, download or "+
		"copy it again", have, want)
}

func (r *reader) uint32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// name reads a key or a tensor's name.
func (r *reader) name() (string, error) {
	n := r.uint64()
	if r.err == nil && (n == 0 || n > maxName) {
		return "", fmt.Errorf("a name of %d bytes", n)
	}
	return string(r.bytes(n)), r.err
}

// room refuses a count of things, each of so many bytes at least, that the file has no room for.
func (r *reader) room(things string, count, each uint64) error {
	if r.err == nil && count > uint64(len(r.data))/each {
		return fmt.Errorf("%d %s in the %d bytes that are left of the file", count, things,
			len(r.data))
	}
	return r.err
}

func (f *File) readPair(r *reader) error {
	key, err := r.name()
	if err != nil {
		return err
	}
	if _, twice := f.meta[key]; twice {
		return fmt.Errorf("key %s occurs twice", short(key))
	}
	v, err := readValue(r)
	if err != nil {
		return fmt.Errorf("key %s: %w", short(key), err)
	}
	f.meta[key] = v
	return nil
}

func readValue(r *reader) (Value, error) {
	v := Value{Kind: Kind(r.uint32())}
	if v.Kind == Array {
		v.List, v.Kind = true, Kind(r.uint32())
		n := r.uint64()
		if err := r.room("elements", n, 1); err != nil {
			return v, err
		}
		v.Len = int(n)
	} else {
		v.Len = 1
	}
	before := r.data
	if err := skip(r, v.Kind, v.Len, 1); err != nil {
		return v, err
	}
	v.raw = before[:len(before)-len(r.data)]
	return v, nil
}

// skip passes over n values of a kind.
func skip(r *reader, k Kind, n, depth int) error {
	switch {
	case r.err != nil:
	case k >= kinds:
		return fmt.Errorf("%w: values of %v", ErrUnsupported, k)
	case sizes[k] > 0:
		hi, total := bits.Mul64(uint64(n), uint64(sizes[k]))
		if hi != 0 {
			total = math.MaxUint64
		}
		r.bytes(total)
	case k == String:
		for i := 0; i < n && r.err == nil; i++ {
			r.bytes(r.uint64())
		}
	case depth == maxDepth:
		return fmt.Errorf("arrays more than %d deep", maxDepth)
	default:
		for i := 0; i < n && r.err == nil; i++ {
			inner, count := Kind(r.uint32()), r.uint64()
			if err := r.room("elements", count, 1); err != nil {
				return err
			}
			if err := skip(r, inner, int(count), depth+1); err != nil {
				return err
			}
		}
	}
	return r.err
}

// alignment is what the offsets of tensors are multiples of.
func (f *File) alignment() (uint64, error) {
	v, ok := f.meta["general.alignment"]
	if !ok {
		return 32, nil
	}
	n, ok := v.Integer()
	if !ok || n < 1 || n > 1<<20 || n&(n-1) != 0 {
		return 0, fmt.Errorf("general.alignment is %v, not a power of two up to %d", v, 1<<20)
	}
	return uint64(n), nil
}

// readTensor reads what a file says of a tensor, and its offset.
func readTensor(r *reader) (t Tensor, offset uint64, err error) {
	if t.Name, err = r.name(); err != nil {
		return t, 0, err
	}
	fail := func(format string, args ...any) (Tensor, uint64, error) {
		return t, 0, fmt.Errorf("%s: "+format, append([]any{short(t.Name)}, args...)...)
	}
	dims := r.uint32()
	if r.err == nil && dims > maxDims {
		return fail("%d dimensions, more than %d", dims, maxDims)
	}
	for range dims {
		n := r.uint64()
		if n < 1 || n > math.MaxInt32 {
			if r.err != nil {
				return t, 0, r.err
			}
			return fail("a dimension of %d", n)
		}
		t.Shape = append(t.Shape, int(n))
	}
	slices.Reverse(t.Shape)
	t.Type = Type(r.uint32())
	offset = r.uint64()
	if r.err != nil {
		return t, 0, r.err
	}
	if !t.Type.known() {
		return fail("%w: tensors of type %v", ErrUnsupported, t.Type)
	}
	if n := t.width(); n%t.Type.Block() != 0 {
		return fail("rows of %d elements are not whole blocks of %d (%v)", n, t.Type.Block(),
			t.Type)
	}
	if _, err := t.size(); err != nil {
		return fail("%w", err)
	}
	return t, offset, nil
}

// width is how many elements a row has.
func (t *Tensor) width() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// size is how many bytes a tensor takes.
func (t *Tensor) size() (uint64, error) {
	elements := uint64(1)
	for _, n := range t.Shape {
		hi, lo := bits.Mul64(elements, uint64(n))
		if hi != 0 || lo > math.MaxInt64/64 {
			return 0, fmt.Errorf("the size of %v overflows", t.Shape)
		}
		elements = lo
	}
	return elements / uint64(t.Type.Block()) * uint64(t.Type.Bytes()), nil
}

// lay gives each tensor its bytes, from body on.
func (f *File) lay(data []byte, body uint64, offsets []uint64) error {
	byPlace := make([]int, len(f.Tensors))
	names := make(map[string]bool, len(f.Tensors))
	for i := range byPlace {
		byPlace[i] = i
		if name := f.Tensors[i].Name; names[name] {
			return fmt.Errorf("tensor %s occurs twice", short(name))
		}
		names[f.Tensors[i].Name] = true
	}
	slices.SortFunc(byPlace, func(a, b int) int { return cmp.Compare(offsets[a], offsets[b]) })
	end := body // of the tensor before
	for n, i := range byPlace {
		t := &f.Tensors[i]
		size, err := t.size()
		if err != nil {
			return err
		}
		begin := body + offsets[i]
		last := begin + size
		if begin < body || last < begin || last > math.MaxInt64 {
			return fmt.Errorf("tensor %s: offset %d is outside any file", short(t.Name), offsets[i])
		}
		if begin < end {
			return fmt.Errorf("tensor %s: byte %d is already that of %s", short(t.Name), offsets[i],
				short(f.Tensors[byPlace[n-1]].Name))
		}
		end = last
	}
	if end > uint64(len(data)) && len(f.Tensors) > 0 {
		return cutOff(len(data), end)
	}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		size, _ := t.size()
		t.Offset = int(body + offsets[i])
		t.Data = data[t.Offset : t.Offset+int(size) : t.Offset+int(size)]
	}
	return nil
}

// short quotes a name for a message, cut so that a hostile one cannot fill a log.
func short(name string) string {
	const most = 120
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
}
