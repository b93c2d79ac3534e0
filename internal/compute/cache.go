package compute

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/grouping"
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
	// Group is the number of the layer's group, of those that have blocks of their own of the same
	// positions (grouping.Groups).
	Group int `json:"group,omitempty"`
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
	if l.Group > 0 {
		s += fmt.Sprintf(", in group %d", l.Group)
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
	case l.Window < 0 || l.Group < 0:
		return fmt.Errorf("kv cache window %d and group %d: must not be negative", l.Window,
			l.Group)
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
// their windows; 0 is all, which one layer without a window reads, unless such are in groups of
// their own. A State reads none.
func Window(layers []CacheLayer, groups grouping.Groups) (most int) {
	for _, l := range layers {
		if l.Window == 0 && l.Kind != State && groups.Count() == 1 {
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
	// Blocks is the number of blocks, each of the layers of one group.
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
	}
	for i, l := range c.Layers {
		if err := l.Check(); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if c.Blocks > math.MaxInt32/c.BlockSize/c.Factor(l.Group) {
			return fmt.Errorf("layer %d: kv cache of %d blocks of %d positions: slots do not fit "+
				"int32", i, c.Blocks, c.BlockSize)
		}
		if l.Kind == State && c.States < 1 {
			return fmt.Errorf("layer %d: %v is kept of %d requests: must be at least 1", i, l,
				c.States)
		}
	}
	return nil
}

// BytesPerBlock is the memory that one block takes, in all layers of a group together. Of several
// groups blocks have one size: a multiple of what each layer has of it.
func (c CacheShape) BytesPerBlock() int {
	sums, multiple := make([]int, 0, 16), 1
	for i := range c.Layers {
		l := &c.Layers[i]
		for len(sums) <= l.Group {
			sums = append(sums, 0)
		}
		if n := l.Bytes(c.BlockSize, c.DType); n > 0 {
			sums[l.Group] += n
			multiple = leastCommonMultiple(multiple, n)
		}
	}
	switch len(sums) {
	case 0:
		return 0
	case 1:
		return sums[0]
	}
	return (slices.Max(sums) + multiple - 1) / multiple * multiple
}

func leastCommonMultiple(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// grouped says whether there are several groups.
func (c CacheShape) grouped() bool {
	return slices.ContainsFunc(c.Layers, func(l CacheLayer) bool { return l.Group > 0 })
}

// Factor is how many blocks of a layer of the group would fit into a block: block b is the layer's
// own block b·Factor. So layers of several groups share one memory, and each finds what it keeps in
// it as it does in one of its own. All layers of a group keep as much. A group that has no layer
// here has 1.
func (c CacheShape) Factor(group int) int {
	if !c.grouped() {
		return 1
	}
	for i := range c.Layers {
		if l := &c.Layers[i]; l.Group == group {
			return c.BytesPerBlock() / l.Bytes(c.BlockSize, c.DType)
		}
	}
	return 1
}

// LayerPlace is where a cache has what a layer keeps: Blocks of its own, one after the other, from
// a byte on, Factor of them for each block of the cache.
type LayerPlace struct{ At, Blocks, Factor int }

// Lay places the layers in a memory of size bytes. Those of one group follow each other, each with
// all of its blocks, or states, from a multiple of align on. Those of several begin side by side in
// the first block, and have theirs a block apart.
func (c CacheShape) Lay(align int) (places []LayerPlace, size int, err error) {
	places = make([]LayerPlace, len(c.Layers))
	add := func(i, count, each int) {
		over, bytes := bits.Mul64(uint64(count), uint64(each))
		if over != 0 || bytes > uint64(math.MaxInt-align-size) {
			err = fmt.Errorf("kv cache of %d blocks of %d positions, layer %d of %v, does not fit "+
				"the address space", c.Blocks, c.BlockSize, i, c.Layers[i])
			return
		}
		size = (size + int(bytes) + align - 1) / align * align
	}
	if c.grouped() {
		block, used := c.BytesPerBlock(), map[int]int{}
		for i, l := range c.Layers {
			each := l.Bytes(c.BlockSize, c.DType)
			places[i] = LayerPlace{used[l.Group], (c.Blocks-1)*(block/each) + 1, block / each}
			used[l.Group] += each
		}
		add(0, c.Blocks, block)
		return places, size, err
	}
	for i, l := range c.Layers {
		places[i] = LayerPlace{size, c.Blocks, 1}
		if l.Kind == State {
			add(i, c.States, l.StateBytes())
		} else {
			add(i, c.Blocks, l.Bytes(c.BlockSize, c.DType))
		}
	}
	return places, size, err
}

// GroupsOf chooses the groups that a model's layers are in which serves contexts of so many
// positions: those that waste least, or one where layers with windows would save too little. Layers
// that keep a state are in one group with all others.
func GroupsOf(layers []CacheLayer, positions, blockSize int, dtype DType) grouping.Groups {
	var of [2]struct{ layers, bytes int }
	one, window := grouping.Groups{}, 0
	for _, l := range layers {
		k := &of[0]
		if l.Window > 0 {
			k, window = &of[1], max(window, l.Window)
		}
		n := l.Bytes(blockSize, dtype)
		if l.Kind == State || k.layers > 0 && k.bytes != n {
			return one
		}
		k.layers, k.bytes = k.layers+1, n
	}
	whole, windowed := &of[0], &of[1]
	if whole.layers == 0 || windowed.layers == 0 {
		return one
	}
	multiple := leastCommonMultiple(whole.bytes, windowed.bytes)
	if multiple > max(whole.bytes, windowed.bytes) {
		return one
	}
	best, least := one, math.Inf(1)
	block := 0
	for a := 1; a <= whole.layers; a++ {
		for b := 1; b <= windowed.layers && a+b <= mostGroups; b++ {
			n := max((whole.layers+a-1)/a*whole.bytes, (windowed.layers+b-1)/b*windowed.bytes)
			n = (n + multiple - 1) / multiple * multiple
			cost := float64(a*n) / float64(whole.layers*whole.bytes) *
				float64(b*n) / float64(windowed.layers*windowed.bytes) *
				(1 + groupCost*float64(a+b))
			if cost < least {
				best, least, block = grouping.Groups{Whole: a, Windowed: b}, cost, n
			}
		}
	}
	parts := func(n int) int { return (n + blockSize - 1) / blockSize }
	all := parts(positions)
	grouped := (best.Whole*all + best.Windowed*min(all, parts(window)+1)) * block
	if ungrouped := all * (whole.layers*whole.bytes + windowed.layers*windowed.bytes); grouped*
		10 > ungrouped*9 {
		return one
	}
	return best
}

// mostGroups bounds what tables of blocks take. A group more is worth it that saves groupCost of
// the cache.
const (
	mostGroups = 16
	groupCost  = 0.02
)
