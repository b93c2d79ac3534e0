package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"slices"

	"github.com/eagleray/eagleray/internal/sys/half"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// dummyScale bounds the values of dummy weights: small enough that no activation overflows,
// whatever the depth. It is what vLLM's dummy loader uses.
const dummyScale = 1e-3

// Spec names a tensor and its dimensions.
type Spec struct {
	Name  string
	Shape []int
}

// Dummy returns a checkpoint of random weights, spread evenly between -1e-3 and 1e-3, for
// --load-format dummy: the speed of a model can be measured without its weights. The values depend
// only on seed, the tensor's name and the element's index.
//
// They live in anonymous memory outside the Go heap, come into being when [Checkpoint.Tensor] is
// called and vanish when each of its callers has called [Checkpoint.Release], so a loader that
// releases what it has copied needs no memory for a second copy of the model. The data of a
// released tensor reads as anything.
func Dummy(specs []Spec, seed uint64, dtype DType) (*Checkpoint, error) {
	if !dtype.Weight() {
		return nil, fmt.Errorf("dummy weights cannot be %v: want BF16, F16 or F32", dtype)
	}
	offsets, total, err := layDummy(specs, dtype)
	if err != nil {
		return nil, fmt.Errorf("dummy weights: %w", err)
	}
	g := &generated{seed: seed}
	if total > 0 {
		if g.memory, err = offheap.Map(int(total), offheap.NoReserve); err != nil {
			return nil, fmt.Errorf("dummy weights: %w", err)
		}
	}
	c := &Checkpoint{location: "dummy weights", tensors: make(map[string]*record, len(specs)),
		backing: g}
	memory := g.memory.Bytes()
	for i, s := range specs {
		size, _ := byteSize(s.Shape, dtype)
		data := memory[offsets[i] : offsets[i]+size : offsets[i]+size]
		c.tensors[s.Name] = &record{Tensor: Tensor{Name: s.Name, DType: dtype,
			Shape: slices.Clone(s.Shape), Data: data}}
	}
	c.finish()
	return c, nil
}

// layDummy gives every tensor its own pages, so that releasing one touches no other.
func layDummy(specs []Spec, dtype DType) (offsets []int64, total int64, err error) {
	page := int64(os.Getpagesize())
	seen := make(map[string]bool, len(specs))
	for _, s := range specs {
		if seen[s.Name] {
			return nil, 0, fmt.Errorf("tensor %s occurs twice", Short(s.Name))
		}
		seen[s.Name] = true
		size, err := byteSize(s.Shape, dtype)
		if err != nil {
			return nil, 0, fmt.Errorf("tensor %s: %w", Short(s.Name), err)
		}
		if size > math.MaxInt64-page-total {
			return nil, 0, errors.New("the total size overflows")
		}
		offsets = append(offsets, total)
		total += (size + page - 1) / page * page
	}
	if total != int64(int(total)) {
		return nil, 0, fmt.Errorf("%d bytes are more than can be mapped", total)
	}
	return offsets, total, nil
}

// generated is the backing of a checkpoint of dummy weights.
type generated struct {
	seed   uint64
	memory offheap.Memory
}

func (g *generated) use(r *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs == 0 {
		fillUniform(r.Data, dummyKey(g.seed, r.Name), r.DType)
	}
	r.refs++
}

func (g *generated) release(r *record, _ []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs == 0 {
		return
	}
	r.refs--
	if r.refs > 0 || len(r.Data) == 0 {
		return
	}
	page := os.Getpagesize()
	memory := g.memory.Bytes()
	begin, end := span(memory, r.Data)
	offheap.Drop(memory[begin : (end+page-1)/page*page])
}

func (g *generated) close() error { return g.memory.Free() }

// dummyKey starts the random sequence of one tensor.
func dummyKey(seed uint64, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix64(seed ^ mix64(h.Sum64()))
}

// mix64 is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014).
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fillUniform writes values evenly spread over 256 steps from -dummyScale to dummyScale. Element i
// is byte i mod 8, the lowest first, of the SplitMix64 output number i/8, so that any element can
// be computed alone. Fewer steps than the types can tell apart keep this near the speed of memory:
// a model has billions of weights.
func fillUniform(dst []byte, key uint64, dtype DType) {
	const gamma = 0x9e3779b97f4a7c15
	state := key
	if dtype == BF16 || dtype == F16 {
		var steps [256]uint64
		for b := range steps {
			steps[b] = uint64(dummyStep(b, dtype))
		}
		for ; len(dst) >= 16; dst = dst[16:] {
			state += gamma
			w := mix64(state)
			low := steps[w&255] | steps[w>>8&255]<<16 | steps[w>>16&255]<<32 | steps[w>>24&255]<<48
			high := steps[w>>32&255] | steps[w>>40&255]<<16 |
				steps[w>>48&255]<<32 | steps[w>>56]<<48
			binary.LittleEndian.PutUint64(dst, low)
			binary.LittleEndian.PutUint64(dst[8:], high)
		}
	}
	size := dtype.Size()
	var one [4]byte
	for len(dst) > 0 {
		state += gamma
		for w, lane := mix64(state), 0; lane < 8 && len(dst) > 0; w, lane = w>>8, lane+1 {
			binary.LittleEndian.PutUint32(one[:], dummyStep(int(w&255), dtype))
			dst = dst[copy(dst, one[:size]):]
		}
	}
}

// dummyStep is the bit pattern of step b of 256 in the given type, rounded to the nearest.
func dummyStep(b int, dtype DType) uint32 {
	v := float32(2*b-255) * float32(dummyScale/255)
	switch dtype {
	case BF16:
		return uint32(half.ToBF16(v))
	case F16:
		return uint32(half.ToF16(v))
	default:
		return math.Float32bits(v)
	}
}
