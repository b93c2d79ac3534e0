package layers

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Scheme says which tensors of a checkpoint hold a module's weight, and what it is multiplied as.
// It is chosen by quantization_config, or by --quantization for weights that are quantised as they
// are loaded.
type Scheme interface {
	// weight makes the weight of parts, stacked; chunks is 1 for whole sums, else the rank's share
	// of Chunks. It returns the bytes that it read of the checkpoint.
	weight(l *Loader, chunks int, parts []part) (w compute.Weight, bytes int64, err error)
	// bytes is what weight would take, and read, of which only types and shapes are looked at.
	bytes(l *Loader, chunks int, parts []part) (held, read int64, err error)
	// name is another one for schemes that make other weights of the same tensors.
	name() string
}

// Plain is the scheme of a tensor for each module, "weight", multiplied in the type that models run
// in.
type Plain struct{}

// Int8PerChannel is Plain, made bytes as it is loaded: round(w/s), s being the largest magnitude of
// an output feature divided by 127. Activations stay as they are.
type Int8PerChannel struct{ Plain }

// ByName is the scheme of weights that are quantised as they are loaded, by a name that
// --quantization has; nil for another name.
func ByName(name string) Scheme {
	switch name {
	case "int8", "int8_per_channel_weight_only":
		return Int8PerChannel{}
	case "int4":
		return Int4{32}
	case "int4_g64":
		return Int4{64}
	case "int4_g128":
		return Int4{128}
	}
	return nil
}

func (Plain) name() string { return "plain" }

func (Int8PerChannel) name() string { return "int8" }

func (Plain) weight(l *Loader, chunks int, parts []part) (compute.Weight, int64, error) {
	return pack(l, parts, func(s []compute.Source) (compute.Weight, error) {
		return l.dev.Pack(chunks, s...)
	})
}

func (Plain) bytes(l *Loader, chunks int, parts []part) (held, read int64, err error) {
	return packedBytes(l, parts, func(s []compute.Source) (int64, error) {
		return l.scale.planner.PackedBytes(chunks, s...)
	})
}

func (Int8PerChannel) weight(l *Loader, chunks int, parts []part) (compute.Weight, int64, error) {
	return pack(l, parts, func(s []compute.Source) (compute.Weight, error) {
		return l.dev.PackInt8(chunks, s...)
	})
}

func (Int8PerChannel) bytes(l *Loader, chunks int, parts []part) (held, read int64, err error) {
	return packedBytes(l, parts, func(s []compute.Source) (int64, error) {
		return l.scale.planner.Int8Bytes(chunks, s...)
	})
}

// pack makes a weight of the plain tensors of parts.
func pack(l *Loader, parts []part,
	make func([]compute.Source) (compute.Weight, error)) (compute.Weight, int64, error) {
	sources, bytes, release, err := l.sources(parts)
	defer release()
	if err != nil {
		return nil, 0, err
	}
	for i := range sources {
		prefetch(&sources[i])
	}
	w, err := make(sources)
	if bad := (*compute.NotFinite)(nil); errors.As(err, &bad) {
		return nil, 0, &NotFinite{nameOf(parts[bad.Source]), err}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("tensor %q: %w", nameOf(parts[0]), err)
	}
	return w, bytes, nil
}

func nameOf(p part) string {
	name, _ := p.tensor()
	return name
}

// packedBytes counts the memory of a weight of the plain tensors of parts.
func packedBytes(l *Loader, parts []part,
	count func([]compute.Source) (int64, error)) (held, read int64, err error) {
	sources, read, release, err := l.sources(parts)
	defer release()
	if err != nil {
		return 0, 0, err
	}
	var stored int64
	var last string
	for i, s := range sources {
		l.scale.given = max(l.scale.given, s.ColHi-s.ColLo)
		if name, shape := parts[i].tensor(); name != last {
			last = name
			n := int64(s.DType.Size())
			for _, dim := range shape {
				n *= int64(dim)
			}
			stored += n
		}
	}
	l.scale.Tensors = max(l.scale.Tensors, stored)
	if held, err = count(sources); err != nil {
		return 0, 0, fmt.Errorf("tensor %q: %w", nameOf(parts[0]), err)
	}
	return held, read, nil
}

// sources are the rectangles of the tensors "weight" that the parts are, until release is called,
// and their bytes.
func (l *Loader) sources(parts []part) (list []compute.Source, bytes int64, release func(),
	err error) {
	var held []checkpoint.Tensor
	release = func() {
		for _, t := range held {
			l.src.Release(t)
		}
	}
	var t checkpoint.Tensor
	var last string
	for _, p := range parts {
		if name, shape := p.tensor(); name != last {
			if t, err = l.open(name, shape...); err != nil {
				return nil, 0, release, err
			}
			last, held = name, append(held, t)
		}
		dtype, err := weightType(t)
		if err != nil {
			return nil, 0, release, err
		}
		list = append(list, p.source(dtype, t.Data))
		bytes += int64(p.rowHi-p.rowLo) * int64(p.colHi-p.colLo) * int64(t.DType.Size())
	}
	return list, bytes, release, nil
}

// weightType is the type of a tensor of weights.
func weightType(t checkpoint.Tensor) (compute.DType, error) {
	switch t.DType {
	case checkpoint.BF16:
		return compute.BFloat16, nil
	case checkpoint.F16:
		return compute.Float16, nil
	case checkpoint.F32:
		return compute.Float32, nil
	}
	return 0, fmt.Errorf("tensor %q: dtype %s cannot be a weight", t.Name, t.DType)
}

// longRow is how many bytes of a row a disk reads alone in about the time in which it reads on to
// the next row.
const longRow = 64 << 10

// prefetch has the system read what a rank holds of a matrix: of long rows nothing else, of short
// ones all that lies between.
func prefetch(s *compute.Source) {
	if s.ColStride > 1 { // columns lie apart
		checkpoint.Prefetch(s.Data)
		return
	}
	prefetchRectangle(s.Data, s.DType.Size(), cmp.Or(s.RowStride, s.Cols), s.RowLo, s.RowHi,
		s.ColLo, s.ColHi)
}

// prefetchRectangle is prefetch for elements of a width, whose rows are stride of them apart.
func prefetchRectangle(data []byte, width, stride, rowLo, rowHi, colLo, colHi int) {
	at := func(row, col int) int { return (row*stride + col) * width }
	step := rowHi - rowLo
	if (colHi-colLo)*width >= longRow && colHi-colLo < stride {
		step = 1
	}
	for row := rowLo; row < rowHi; row += step {
		checkpoint.Prefetch(data[at(row, colLo):at(row+step-1, colHi)])
	}
}
