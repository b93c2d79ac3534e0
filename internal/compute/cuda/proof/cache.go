package proof

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// cacheCases write a cache and read it again: each number is rounded once.
func cacheCases() (list []Case) {
	for _, c := range []struct {
		heads, dim int
		latent     bool
		dtype      compute.DType
		cost       Cost
	}{{2, 34, false, compute.BFloat16, Small}, {3, 64, false, compute.Float16, Full},
		{1, 128, false, compute.BFloat16, Full}, {1, 40, true, compute.BFloat16, Full},
		{2, 34, false, compute.Float32, Full}, {2, 34, false, compute.Int8, Small},
		{2, 64, false, compute.E4M3, Small}, {1, 40, true, compute.E4M3, Full}} {
		name := fmt.Sprintf("cache of %v, %d heads of %d", c.dtype, c.heads, c.dim)
		layer := compute.CacheLayer{Heads: c.heads, Dim: c.dim}
		if c.latent {
			name = fmt.Sprintf("cache of %v, a latent of %d", c.dtype, c.dim)
			layer.Kind, layer.Values = compute.Latent, c.dim/2
		}
		kernel := kernels.WriteCache
		if c.dtype.Scaled() {
			kernel = kernels.WriteCodes
		}
		list = append(list, Case{Name: name, Kernels: []kernels.ID{kernel},
			cost: c.cost, run: func(s *subject) { writeCache(s, layer, c.dtype) }})
	}
	return list
}

func writeCache(s *subject, layer compute.CacheLayer, dtype compute.DType) {
	const blocks = 4
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer, layer},
		Blocks: blocks, BlockSize: blockSize, DType: dtype})
	if err != nil {
		s.check(err)
		return
	}
	defer cache.Free()
	// All slots of two blocks but one, in no order, and a row that goes nowhere.
	var slots []int32
	for i := range 2*blockSize - 1 {
		slots = append(slots, int32((i*7+3)%(2*blockSize)+blockSize))
	}
	slots[5] = -1
	width := layer.Heads * layer.Dim
	kv, numbers := s.tensor(len(slots), 2*width)
	v := kv.Columns(width, width)
	if layer.Kind == compute.Latent {
		v = compute.View{}
	}
	s.WriteCache(cache, 1, kv.Columns(0, width), v, compute.CacheScales{}, slots)
	for n := range layer.Vectors() {
		got, want := s.readCache(cache, &layer, dtype, n == 1, slots,
			columns(numbers, 2*width, n*width, width))
		tolerance := float64(exactly)
		if dtype.Scaled() {
			tolerance = rounding // of a number and a scale
		}
		s.report([]string{"keys", "values"}[n], got, want, tolerance)
	}
}

// readCache is what a cache has of rows that were written to slots, and what it should have:
// behind each head zeros.
func (s *subject) readCache(cache compute.Cache, l *compute.CacheLayer, dtype compute.DType,
	values bool, slots []int32, numbers []float32) (got []float32, want []float64) {
	padded := l.PaddedDim()
	if s.Finish() != nil {
		return nil, nil // the driver's error is found at the end
	}
	for r, slot := range slots {
		if slot < 0 {
			continue
		}
		var b []byte
		span := compute.Span{Layer: 1, Block: int(slot) / blockSize, Values: values, To: l.Heads}
		if err := cache.Read(slices.Values([]compute.Span{span}), func(more []byte) error {
			b = append(b, more...)
			return nil
		}); err != nil {
			s.check(err)
			return nil, nil
		}
		have := decoded(b, l, dtype)
		for n := range l.Heads {
			got = append(got, have[(n*blockSize+int(slot)%blockSize)*padded:][:padded]...)
			want = append(want, stored(numbers[(r*l.Heads+n)*l.Dim:][:l.Dim], l.Dim, dtype)...)
			want = append(want, make([]float64, padded-l.Dim)...)
		}
	}
	return got, want
}

// decoded are the heads of a block as numbers.
func decoded(b []byte, l *compute.CacheLayer, dtype compute.DType) []float32 {
	v := make([]float32, l.Heads*blockSize*l.PaddedDim())
	if dtype.Scaled() {
		codes, each := codesOf(dtype), len(b)/l.Heads
		for i := range v {
			head, at := i/(blockSize*l.PaddedDim()), i%(blockSize*l.PaddedDim())
			scales := b[head*each+blockSize*l.PaddedDim():]
			scale := binary.LittleEndian.Uint32(scales[4*(at/l.PaddedDim()):])
			v[i] = codes.Number(b[head*each+at]) * math.Float32frombits(scale)
		}
		return v
	}
	switch dtype {
	case compute.BFloat16:
		half.DecodeBF16(v, b)
	case compute.Float16:
		half.DecodeF16(v, b)
	default:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(b)), b)
	}
	return v
}
