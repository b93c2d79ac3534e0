package checkpoint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strconv"

	"github.com/eagleray/eagleray/internal/rank/model/gguf"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// ErrMalformed is wrapped by every error about a file that breaks its own format: a safetensors
// header, a weight index, a missing or truncated shard, an implausible or contradictory value in
// config.json.
var ErrMalformed = errors.New("malformed checkpoint")

// Limits on a safetensors header. maxHeader is the reference implementation's; no model has tensors
// of rank above 8.
const (
	lengthSize = 8
	maxHeader  = 100_000_000
	maxRank    = 32
	maxTensors = 1 << 22
)

// headerLimits: the names are checked for duplicates here, because they go into a table anyway.
var headerLimits = jsonx.Limits{Bytes: maxHeader, Depth: 3, Members: maxTensors, Duplicates: true}

// DType is the element type of a tensor.
type DType uint8

// The element types of the safetensors format. Weights are BF16, F16 or F32; the others are
// understood, so that a file holding one is not refused as a whole, but [Checkpoint.Tensor] hands
// none of them out.
const (
	Invalid DType = iota
	BF16
	F16
	F32
	F64
	C64
	I64
	I32
	I16
	I8
	U64
	U32
	U16
	U8
	Bool
	F8E4M3
	F8E5M2
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	F6E2M3
	F6E3M2
	F4
	// Quantised is blocks of quantised numbers, of a type of GGUF (see Tensor.Blocks). safetensors
	// has none.
	Quantised
)

// dtypes holds the format's name and width in bits of each type.
var dtypes = [...]struct {
	name string
	bits int
}{
	Invalid: {"invalid", 0},
	BF16:    {"BF16", 16}, F16: {"F16", 16}, F32: {"F32", 32}, F64: {"F64", 64}, C64: {"C64", 64},
	I64: {"I64", 64}, I32: {"I32", 32}, I16: {"I16", 16}, I8: {"I8", 8},
	U64: {"U64", 64}, U32: {"U32", 32}, U16: {"U16", 16}, U8: {"U8", 8}, Bool: {"BOOL", 8},
	F8E4M3: {"F8_E4M3", 8}, F8E5M2: {"F8_E5M2", 8}, F8E8M0: {"F8_E8M0", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6}, F4: {"F4", 4},
	Quantised: {"blocks", 0},
}

// Size is the number of bytes of one element, 0 for the types narrower than a byte.
func (d DType) Size() int { return d.bits() / 8 }

// String is the type's name in the safetensors format, such as "BF16".
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return "DType(" + strconv.Itoa(int(d)) + ")"
	}
	return dtypes[d].name
}

// Weight reports whether d is a type that model weights may have by themselves: BF16, F16 or F32.
func (d DType) Weight() bool { return d == BF16 || d == F16 || d == F32 }

func (d DType) bits() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}

func parseDType(name string) (DType, bool) {
	for d := BF16; d <= F4; d++ {
		if dtypes[d].name == name {
			return d, true
		}
	}
	return Invalid, false
}

// Tensor is one named tensor of a checkpoint.
type Tensor struct {
	// Name is the tensor's name, such as "model.embed_tokens.weight".
	Name string
	// DType is the type of an element; Blocks is that of a tensor that is Quantised.
	DType  DType
	Blocks gguf.Type
	// Shape holds the dimensions, outermost first; none for a scalar, and a dimension may be 0.
	Shape []int
	// Data holds the elements in row-major order, little endian. It is a read-only view of the
	// mapped file: writing to it faults, it is valid until the checkpoint is closed, and its start
	// need not be aligned to the element size.
	Data []byte
}

// Size is how many bytes so many of the elements take: of a quantised tensor whole blocks.
func (t Tensor) Size(elements int) int64 {
	if t.DType == Quantised {
		return int64(elements/t.Blocks.Block()) * int64(t.Blocks.Bytes())
	}
	return int64(elements) * int64(t.DType.Size())
}

// Elements is the product of the dimensions.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// ParseFile reads the header of one safetensors file and returns its tensors by name, as views of
// data.
//
// The file is an 8-byte little-endian header length, a JSON header, and the tensors' bytes. Every
// rule of the format (https://github.com/huggingface/safetensors#format) is checked: the data is
// covered by the tensors without hole or overlap to its last byte, each tensor has the size its
// shape and type ask for, and no name occurs twice. An error wraps [ErrMalformed] and names the
// tensor.
func ParseFile(data []byte) (map[string]Tensor, error) {
	tensors, err := parseFile(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return tensors, nil
}

// entry is a tensor as the header declares it.
type entry struct {
	tensor     Tensor
	begin, end int64
}

func parseFile(data []byte) (map[string]Tensor, error) {
	if len(data) < lengthSize {
		return nil, fmt.Errorf("file of %d bytes is shorter than the header length", len(data))
	}
	n := binary.LittleEndian.Uint64(data)
	body := data[lengthSize:]
	if n > maxHeader {
		return nil, fmt.Errorf("header length %d is above the limit of %d", n, maxHeader)
	}
	if n > uint64(len(body)) {
		return nil, cutOff(uint64(len(data)), lengthSize+n)
	}
	header, body := body[:n], body[n:]
	if n == 0 || header[0] != '{' {
		return nil, errors.New("header does not begin with '{'")
	}
	entries, err := parseHeader(header)
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	end := int64(0)
	for _, e := range entries {
		end = max(end, e.end)
	}
	if end > int64(len(body)) {
		return nil, cutOff(uint64(len(data)), lengthSize+n+uint64(end))
	}
	return lay(entries, body)
}

// cutOff is the error about a file that has fewer bytes than its header says, or its length.
func cutOff(have, want uint64) error {
	return fmt.Errorf("the file ends after %d of at least %d bytes: it was cut off, download or "+
		"copy it again", have, want)
}

// lay gives every entry its bytes, which are in body, and checks that together they cover it.
func lay(entries []entry, body []byte) (map[string]Tensor, error) {
	sort.Slice(entries, func(i, j int) bool {
		a, b := &entries[i], &entries[j]
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end),
			cmp.Compare(a.tensor.Name, b.tensor.Name)) < 0
	})
	tensors := make(map[string]Tensor, len(entries))
	at := int64(0)
	for i := range entries {
		e := &entries[i]
		t := &e.tensor
		if e.end < e.begin {
			return nil, fmt.Errorf("tensor %s: ends at byte %d, before it begins at %d",
				Short(t.Name), e.end, e.begin)
		}
		if e.begin < at {
			return nil, fmt.Errorf("tensor %s: byte %d is already another tensor's", Short(t.Name),
				e.begin)
		}
		if e.begin > at {
			return nil, fmt.Errorf("tensor %s: bytes %d to %d before it belong to no tensor",
				Short(t.Name), at, e.begin)
		}
		at = e.end
		want, err := byteSize(t.Shape, t.DType)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", Short(t.Name), err)
		}
		if want != e.end-e.begin {
			return nil, fmt.Errorf("tensor %s: %d bytes for %v of %v, which needs %d",
				Short(t.Name), e.end-e.begin, t.Shape, t.DType, want)
		}
		t.Data = body[e.begin:e.end:e.end]
		tensors[t.Name] = *t
	}
	if at != int64(len(body)) {
		return nil, fmt.Errorf("the last %d of %d bytes of data belong to no tensor",
			int64(len(body))-at, len(body))
	}
	return tensors, nil
}

// byteSize is the number of bytes of a tensor, refusing products that overflow and a last byte that
// is not whole.
func byteSize(shape []int, d DType) (int64, error) {
	total := uint64(1)
	for _, dim := range append(slices.Clone(shape), d.bits()) {
		if dim < 0 {
			return 0, fmt.Errorf("dimension %d is negative", dim)
		}
		hi, lo := bits.Mul64(total, uint64(dim))
		if hi != 0 || lo >= 1<<63 {
			return 0, fmt.Errorf("the size of %v of %v overflows", shape, d)
		}
		total = lo
	}
	if total%8 != 0 {
		return 0, fmt.Errorf("%v of %v does not end on a byte", shape, d)
	}
	return int64(total / 8), nil
}

func parseHeader(header []byte) ([]entry, error) {
	var entries []entry
	seen := map[string]bool{}
	err := jsonx.Read(header, headerLimits, func(r *jsonx.Reader) error {
		return r.Object(func(name string) error {
			if seen[name] {
				return fmt.Errorf("tensor %s occurs twice", Short(name))
			}
			seen[name] = true
			if name == "__metadata__" {
				if err := readMetadata(r); err != nil {
					return fmt.Errorf("__metadata__: %w", err)
				}
				return nil
			}
			e, err := readEntry(r)
			if err != nil {
				return fmt.Errorf("tensor %s: %w", Short(name), err)
			}
			e.tensor.Name = name
			entries = append(entries, e)
			return nil
		})
	})
	return entries, err
}

// readMetadata reads the free string-to-string map, which nothing here needs.
func readMetadata(r *jsonx.Reader) error {
	seen := map[string]bool{}
	return r.Object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("key %s occurs twice", Short(key))
		}
		seen[key] = true
		if _, err := r.Text(); err != nil {
			return fmt.Errorf("key %s: %w", Short(key), err)
		}
		return nil
	})
}

func readEntry(r *jsonx.Reader) (entry, error) {
	var e entry
	var hasType, hasShape, hasOffsets bool
	err := r.Object(func(key string) (err error) {
		var seen *bool
		switch key {
		case "dtype":
			seen = &hasType
		case "shape":
			seen = &hasShape
		case "data_offsets":
			seen = &hasOffsets
		default:
			return fmt.Errorf("unknown key %s", Short(key))
		}
		if *seen {
			return fmt.Errorf("key %q occurs twice", key)
		}
		*seen = true
		switch key {
		case "dtype":
			e.tensor.DType, err = readDType(r)
		case "shape":
			e.tensor.Shape, err = readShape(r)
		default:
			e.begin, e.end, err = readOffsets(r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	if !hasType || !hasShape || !hasOffsets {
		return e, errors.New("dtype, shape and data_offsets are all required")
	}
	return e, nil
}

func readDType(r *jsonx.Reader) (DType, error) {
	name, err := r.Text()
	if err != nil {
		return Invalid, err
	}
	d, ok := parseDType(name)
	if !ok {
		return Invalid, fmt.Errorf("unknown type %s", Short(name))
	}
	return d, nil
}

func readShape(r *jsonx.Reader) ([]int, error) {
	shape := []int{}
	err := r.Array(func(i int) error {
		if i == maxRank {
			return fmt.Errorf("more than %d dimensions", maxRank)
		}
		v, err := r.Natural(math.MaxInt64)
		shape = append(shape, int(v))
		return err
	})
	return shape, err
}

func readOffsets(r *jsonx.Reader) (begin, end int64, err error) {
	var at [2]int64
	n := 0
	err = r.Array(func(i int) (err error) {
		if i == len(at) {
			return errors.New("more than two offsets")
		}
		n = i + 1
		at[i], err = r.Natural(math.MaxInt64)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if n != len(at) {
		return 0, 0, fmt.Errorf("%d offsets instead of two", n)
	}
	return at[0], at[1], nil
}

// Short quotes a name from a file for a message, cut so that a hostile name cannot fill a log.
func Short(name string) string {
	const most = 120
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
}
