package compute

import (
	"fmt"
	"math"
)

// CacheTile is the number of positions, and of dimensions of a head, that a KV cache keeps
// together: block sizes are multiples of it, and a head takes its dimension rounded up to one.
const CacheTile = 16

// CacheKind is what a layer keeps: of each position, or of a request.
type CacheKind uint8

const (
	// KeysValues is a key and a value of each key/value head.
	KeysValues CacheKind = iota
	// Latent is one vector, which is the key of all query heads, and whose first dimensions are
	// their value (multi-head latent attention with its projections absorbed, DeepSeek-V2).
	Latent
	// State is so many float32 of a request, however many positions it has: what a recurrence goes
	// on with (Qwen3-Next).
	State
)

// CacheLayer is what one layer keeps, on one rank, or in the whole model.
type CacheLayer struct {
	Kind CacheKind `json:"kind"`
	// Heads is the number of key/value heads. A Latent counts as one, which every rank has; of a
	// State it is the number of parts that can be on different ranks.
	Heads int `json:"heads"`
	// Dim is the dimension of a key and of a value, or of a Latent's vector; it is even. Multiples
	// of CacheTile waste no memory. Of a State it is the number of float32 of a head.
	Dim int `json:"dim"`
	// Values is how many leading dimensions of a Latent are its value, even; 0 for KeysValues.
	Values int `json:"values,omitempty"`
	// Window, if positive, says that the row at position p reads the positions p-Window+1 to p
	// only; 0 is all up to p.
	Window int `json:"window,omitempty"`
}

// String names a layer's kind and sizes, for errors.
func (l CacheLayer) String() string {
	s := fmt.Sprintf("%d heads of %d", l.Heads, l.Dim)
	if l.Kind == Latent {
		s = fmt.Sprintf("a latent of %d, %d of them values", l.Dim, l.Values)
	}
	if l.Kind == State {
		s = fmt.Sprintf("a state of %d heads of %d", l.Heads, l.Dim)
	}
	if l.Window > 0 {
		s += fmt.Sprintf(", in a window of %d", l.Window)
	}
	return s
}

// Check returns an error that names the first value that no layer can have.
func (l CacheLayer) Check() error {
	switch {
	case l.Kind > State:
		return fmt.Errorf("kv cache of kind %d is not known", l.Kind)
	case l.Heads < 1:
		return fmt.Errorf("kv cache of %d heads must have at least 1", l.Heads)
	case l.Dim < 1 || l.Kind != State && l.Dim%2 != 0:
		return fmt.Errorf("kv cache head dimension %d is not even and positive", l.Dim)
	case l.Window < 0:
		return fmt.Errorf("kv cache window %d is negative", l.Window)
	case l.Kind == KeysValues && l.Values != 0:
		return fmt.Errorf("kv cache of keys and values has a value dimension %d of its own",
			l.Values)
	case l.Kind == State && (l.Values != 0 || l.Window != 0):
		return fmt.Errorf("kv cache of %v has a window %d and a value dimension %d: must have none",
			l, l.Window, l.Values)
	case l.Kind == Latent && (l.Heads != 1 || l.Values < 2 || l.Values%2 != 0 || l.Values > l.Dim):
		return fmt.Errorf("kv cache of %d latents of dimension %d, %d of it values: must be one, "+
			"with an even number of values within it", l.Heads, l.Dim, l.Values)
	}
	return nil
}

// Vectors is how many vectors of a head are kept of a position: its key and its value, one that is
// both, or none.
func (l CacheLayer) Vectors() int {
	switch l.Kind {
	case Latent:
		return 1
	case State:
		return 0
	}
	return 2
}

// ValueDim is the dimension of what a query head reads: of its value.
func (l CacheLayer) ValueDim() int {
	if l.Kind == Latent {
		return l.Values
	}
	return l.Dim
}

// Width is how many numbers are kept of a position.
func (l CacheLayer) Width() int { return l.Heads * l.Vectors() * l.Dim }

// PaddedDim is Dim rounded up to whole tiles.
func (l CacheLayer) PaddedDim() int { return (l.Dim + CacheTile - 1) / CacheTile * CacheTile }

// Bytes is the memory that so many positions take, a multiple of CacheTile.
func (l CacheLayer) Bytes(positions int, dtype DType) int {
	return l.Heads * l.Vectors() * positions * (l.PaddedDim()*dtype.Size() + dtype.ScaleSize())
}

// stateAlign is the bytes that a State is rounded up to: a line of a processor's cache, of which
// two threads never write parts.
const stateAlign = 64

// StateBytes is the memory that a State takes of a request; 0 for what is kept of positions.
func (l CacheLayer) StateBytes() int {
	if l.Kind != State {
		return 0
	}
	return (4*l.Heads*l.Dim + stateAlign - 1) / stateAlign * stateAlign
}

// StateBytes is the memory that the states of a request take in all layers together, 0 where no
// layer keeps one.
func StateBytes(layers []CacheLayer) (n int) {
	for _, l := range layers {
		n += l.StateBytes()
	}
	return n
}

// Window is how many positions back the layers read at most, the row's own included: the largest of
// their windows; 0 is all, which one layer without a window reads. A State reads none.
func Window(layers []CacheLayer) (most int) {
	for _, l := range layers {
		if l.Kind == State {
			continue
		}
		if l.Window == 0 {
			return 0
		}
		most = max(most, l.Window)
	}
	return most
}

// CacheScales are what keys and values are divided by before they are rounded to the codes of a KV
// cache: a scale for each head, or none where each vector has its own, by which its largest number
// becomes the largest code.
type CacheScales struct{ Keys, Values []float32 }

// CacheShape is the shape of one rank's KV cache.
type CacheShape struct {
	// Layers is what each layer of the rank keeps.
	Layers []CacheLayer
	// Blocks is the number of blocks of each layer.
	Blocks int
	// BlockSize is the number of positions of a block, a multiple of CacheTile.
	BlockSize int
	// DType is the element type of what is kept of positions.
	DType DType
	// States is how many requests the layers that keep a State have one of.
	States int
}

// Check returns an error that names the first value that no cache can have.
func (c CacheShape) Check() error {
	switch {
	case len(c.Layers) < 1 || c.Blocks < 1:
		return fmt.Errorf("kv cache of %d layers, %d blocks: each must be at least 1",
			len(c.Layers), c.Blocks)
	case c.BlockSize < CacheTile || c.BlockSize%CacheTile != 0:
		return fmt.Errorf("kv cache block size %d is not a multiple of %d", c.BlockSize, CacheTile)
	case c.DType >= dtypes:
		return fmt.Errorf("kv cache element %v is not bfloat16, float16, float32, int8 or fp8_e4m3",
			c.DType)
	case c.Blocks > math.MaxInt32/c.BlockSize:
		return fmt.Errorf("kv cache of %d blocks of %d positions: slots do not fit int32",
			c.Blocks, c.BlockSize)
	}
	for i, l := range c.Layers {
		if err := l.Check(); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if l.Kind == State && c.States < 1 {
			return fmt.Errorf("layer %d: %v is kept of %d requests: must be at least 1", i, l,
				c.States)
		}
	}
	return nil
}

// BytesPerBlock is the memory that one block takes in all layers together.
func (c CacheShape) BytesPerBlock() int {
	n := 0
	for _, l := range c.Layers {
		n += l.Bytes(c.BlockSize, c.DType)
	}
	return n
}
