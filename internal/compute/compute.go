// Package compute holds what every device shares and the driver may know: element types, the shape
// of a KV cache, the rows of a batch. It imports no device; compute/cpu is one.
package compute

import (
	"errors"
	"fmt"
)

// DType is the element type a model is run in: how weights and the KV cache are stored, and whether
// products of bfloat16 numbers may be used where the device has them. Sums are always float32. A KV
// cache may have another one than the model.
type DType uint8

// The element types of --dtype, then those of KV caches alone, whose vectors have a scale each.
const (
	// BFloat16 is the upper half of a float32, rounded to nearest even.
	BFloat16 DType = iota
	// Float16 is IEEE 754 binary16, rounded to nearest even.
	Float16
	// Float32 is IEEE 754 binary32.
	Float32
	// Int8 is integers from -127 to 127.
	Int8
	// E4M3 is numbers of 4 bits of exponent and 3 of mantissa (CodeE4M3).
	E4M3
	dtypes
)

// ErrEnded is the error of what was computed when the group of ranks had ended: no sum waited any
// more. The device is as good as before.
var ErrEnded = errors.New("the group of ranks that sum together has ended")

// ParseDType reads a value of --dtype or of config.json's torch_dtype.
func ParseDType(s string) (DType, error) {
	switch s {
	case "bfloat16", "bf16":
		return BFloat16, nil
	case "float16", "half", "fp16":
		return Float16, nil
	case "float32", "float", "fp32":
		return Float32, nil
	}
	return 0, fmt.Errorf("dtype %q is not one of bfloat16, float16, float32", s)
}

// ParseCacheDType reads a value of --kv-cache-dtype, "auto" being the model's type.
func ParseCacheDType(s string, model DType) (DType, error) {
	switch s {
	case "auto":
		return model, nil
	case "int8":
		return Int8, nil
	case "fp8_e4m3", "fp8_per_token_head":
		return E4M3, nil
	}
	if d, err := ParseDType(s); err == nil {
		return d, nil
	}
	return 0, fmt.Errorf("kv cache dtype %q is not one of auto, bfloat16, float16, float32, "+
		"fp8_e4m3, fp8_per_token_head, int8", s)
}

// String returns the name that ParseDType or ParseCacheDType reads.
func (d DType) String() string {
	if d >= dtypes {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return [...]string{"bfloat16", "float16", "float32", "int8", "fp8_e4m3"}[d]
}

// Size is the number of bytes of an element.
func (d DType) Size() int { return [...]int{2, 2, 4, 1, 1}[d] }

// Scaled says that each vector of a KV cache has a scale.
func (d DType) Scaled() bool { return d >= Int8 }

// ScaleSize is the number of bytes of a vector's scale, a float32; 0 where there is none.
func (d DType) ScaleSize() int {
	if d.Scaled() {
		return 4
	}
	return 0
}

// Packed is a part of a weight as a device has it, for a program that stores it and has the device
// make the weight again.
type Packed struct {
	// Form says what the bytes are; only the device reads it. Data are the bytes that are
	// multiplied by, not to be written.
	Form, Data []byte
	// Kept, unless nil, has the bytes instead, in a memory of the device's own.
	Kept KeptBytes
}

// KeptBytes are bytes that a device keeps. Any goroutine may read them until they are freed.
type KeptBytes interface {
	Size() int
	// Read visits all bytes, in pieces that are valid until visit returns.
	Read(visit func(piece []byte) error) error
}

// Size is how many bytes the part has.
func (p *Packed) Size() int {
	if p.Kept != nil {
		return p.Kept.Size()
	}
	return len(p.Data)
}

// Read visits all bytes, in pieces.
func (p *Packed) Read(visit func(piece []byte) error) error {
	if p.Kept != nil {
		return p.Kept.Read(visit)
	}
	return visit(p.Data)
}

// Activation is an element-wise non-linearity.
type Activation uint8

const (
	// ReLU is max(x, 0).
	ReLU Activation = iota
	// GELU is x·Φ(x), Φ being the normal distribution function.
	GELU
	// GELUTanh is GELU by its approximation with a hyperbolic tangent.
	GELUTanh
	// SiLU is x·σ(x), σ being the logistic function.
	SiLU
	// ReLU2 is max(x, 0)².
	ReLU2
)

// String names the activation as config.json does.
func (a Activation) String() string {
	return [...]string{"relu", "gelu", "gelu_tanh", "silu", "relu2"}[a]
}

// XIELU is an activation with numbers that are learned: Above·x² + Beta·x of an x above 0, of
// another Below·(exp(min(x, Eps))-1-x) + Beta·x (https://arxiv.org/abs/2411.13010).
type XIELU struct{ Above, Below, Beta, Eps float32 }

// Batch is what one step computes, row by row. All slices belong to the caller; a step only reads
// them.
type Batch struct {
	// Tokens is the input token of each row.
	Tokens []int32
	// Groups is how many groups the layers of the cache are in; 0 is 1. Slots, Tables and
	// Split.Slots are of each group in turn.
	Groups int
	// Slots is where the key and value of each row go: block·BlockSize + offset.
	Slots []int32
	// Position is the absolute position of each row in its sequence; the row attends to positions 0
	// to its own, and to some after it where AttentionArgs.Ahead says so.
	Position []int32
	// Types is the type of each row's token, for models that know several; empty is 0 for all.
	Types []int32
	// Seq is the index of each row's sequence in Tables. Rows of one sequence are fastest when they
	// follow each other in order of position.
	Seq []int32
	// Tables holds the block table of each sequence: entry i is the block of positions i·BlockSize
	// and following. Only entries of blocks that a row attends to are read.
	Tables [][]int32
	// States is where the state of each sequence is among CacheShape.States, for layers that keep
	// one. A sequence at position 0 starts from zero. With such layers the rows of a sequence
	// follow each other in order of position.
	States []int32
	// Kept is, of each row, where among CacheShape.States the state after it is kept as well, -1
	// for nowhere; empty is -1 for all.
	Kept []int32
	// Adapters are the runs of rows that have an adapter, in the order of rows.
	Adapters []AdapterRows
	// Turn differs from step to step: by it the copies of an expert take turns on a device that all
	// ranks' rows come to.
	Turn int32
	// Split says which of the rows other ranks lack, and what they compute in their place.
	Split Split
}

// AdapterRows are the rows From to To-1, which have an adapter by its id.
type AdapterRows struct {
	Adapter  uint32
	From, To int32
}

// Split is how a rank of those that divide the rows of long prompts among them (prefill context
// parallelism) takes part in a step. Its zero value is for a step in which every rank computes all
// rows.
type Split struct {
	// Share is how many rows each rank has keys and values of to give to the others: the most that
	// one of them has. With a Share of 0 there is no exchange.
	Share int
	// Rows are the rows of the batch that this rank computes alone, at most Share.
	Rows []int32
	// Slots is where the keys and values that a rank gets go, [ranks][Share]; it is negative where
	// a rank has no row, and for the rank's own.
	Slots []int32
	// WantedShare and Wanted are Share and Rows of those rows whose logits are wanted: the hidden
	// states that the first rank gets of the others.
	WantedShare int
	Wanted      []int32
	// Places is how many rows each of the ranks has in this step that have this one's number in the
	// places among which requests are divided; empty where there is one place.
	Places []int32
}

// Rows is the number of rows.
func (b *Batch) Rows() int { return len(b.Position) }

// SlotsOf, SharedSlotsOf and TablesOf are the Slots, Split.Slots and Tables of a group.
func (b *Batch) SlotsOf(group int) []int32       { return ofGroup(b, b.Slots, group) }
func (b *Batch) SharedSlotsOf(group int) []int32 { return ofGroup(b, b.Split.Slots, group) }
func (b *Batch) TablesOf(group int) [][]int32    { return ofGroup(b, b.Tables, group) }

func ofGroup[E any](b *Batch, list []E, group int) []E {
	n := len(list) / max(1, b.Groups)
	return list[group*n : (group+1)*n]
}
