package cuda

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// beside is what adapters have beside a weight: a table in the device's memory, which launches find
// what there is of each row's adapter in, so that a graph does for whatever adapters rows have.
type beside struct {
	d      *Device
	places []*compute.LowRank
	table  scratch
	ups    driver.Ptr // those of the table, behind the places
	// width is the most numbers of A·x that an adapter has, 0 where none has any.
	width int
}

// Beside makes room for what adapters have beside a weight.
func (d *Device) Beside() compute.Beside { return &beside{d: d} }

// Set implements compute.Beside. Graphs of the adapters before are void.
func (y *beside) Set(place int, w *compute.LowRank) {
	for len(y.places) <= place {
		y.places = append(y.places, nil)
	}
	y.places[place], y.width = w, 0
	all, ups := make([]kernels.AdapterParams, len(y.places)), []kernels.UpParams(nil)
	for i, w := range y.places {
		if w == nil {
			continue
		}
		y.width = max(y.width, w.Down.Out())
		all[i] = kernels.AdapterParams{A: uint64(w.Down.(*weight).data), Rank: int32(w.Down.Out()),
			First: int32(len(ups)), Count: int32(len(w.Up))}
		for j := range w.Up {
			b := &w.Up[j]
			m := b.Weight.(*weight)
			ups = append(ups, kernels.UpParams{B: uint64(m.data), From: int32(b.From),
				Rank: int32(b.Rank), Padded: int32(m.padded), At: int32(b.At), Out: int32(m.out)})
		}
	}
	y.d.graphs.generation++
	raw := append(bytesOf(all), bytesOf(ups)...)
	to := y.table.grow(y.d, len(raw))
	y.ups = to + driver.Ptr(len(bytesOf(all)))
	if y.d.flush(); y.d.err == nil {
		y.d.check(y.d.upload(to, raw))
	}
}

// bytesOf are the bytes of structs as kernels have them.
func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))),
		len(v)*int(unsafe.Sizeof(*new(T))))
}

// down is A of one of the adapters: all have the same input features and chunks.
func (y *beside) down() *weight {
	for _, w := range y.places {
		if w != nil {
			return w.Down.(*weight)
		}
	}
	return nil
}

// Width implements compute.Beside: rows have room for the largest adapter, those without one too.
func (y *beside) Width() int { return y.d.step.adapted * y.width }

// tiles are the blocks that so many rows are, as many as rowsAtATime in each where there are many:
// which it is changes no bits.
func tiles(rows int) (blocks uint32, many kernels.ID) {
	const few, rowsAtATime = 64, 8
	if rows <= few {
		return uint32(rows), 0
	}
	return uint32((rows + rowsAtATime - 1) / rowsAtATime), 1
}

// A block of lower has so many warps, of a number each; one of raise a thread of each feature.
const (
	lowerWarps  = 4
	raiseBlock  = 128
	warpThreads = 32
)

// Add implements compute.Beside.
func (y *beside) Add(dst compute.View, low compute.Memory, x compute.View) {
	y.Lower(low, 0, x)
	y.Raise(dst, low, 0)
}

// Lower implements compute.Beside: each row has Width/rows numbers.
func (y *beside) Lower(low compute.Memory, at int, x compute.View) {
	d, m, w := y.d, of(low), y.down()
	blocks, many := tiles(x.Rows)
	p := kernels.LowerParams{Adapters: y.table.p, Places: d.step.adapters,
		X:    of(x.Memory).half(false) + driver.Ptr(d.dtype.Size()*x.From),
		Y:    m.values + driver.Ptr(4*at),
		Rows: int32(x.Rows), In: int32(w.in), Chunks: int32(w.chunks), Kpad: int32(w.padded),
		LDX: int32(x.Stride), Width: int32(y.width), Type: d.half()}
	if w.in%(8*w.chunks) == 0 && p.X%16 == 0 && x.Stride%8 == 0 {
		p.Aligned = 1
	}
	launch(d, kernels.Lower1+many*(kernels.Lower8-kernels.Lower1),
		[3]uint32{blocks, uint32((y.width + lowerWarps - 1) / lowerWarps), 1},
		[3]uint32{lowerWarps * warpThreads, 1, 1}, 0, p)
	m.written()
}

// Raise implements compute.Beside.
func (y *beside) Raise(dst compute.View, low compute.Memory, at int) {
	d := y.d
	blocks, many := tiles(dst.Rows)
	launch(d, kernels.Raise1+many*(kernels.Raise8-kernels.Raise1),
		[3]uint32{blocks, uint32((dst.Width + raiseBlock - 1) / raiseBlock), 1},
		[3]uint32{raiseBlock, 1, 1}, 0, kernels.RaiseParams{Adapters: y.table.p, Ups: y.ups,
			Places: d.step.adapters, X: of(low).values + driver.Ptr(4*at), Y: first(dst),
			Rows: int32(dst.Rows), Width: int32(y.width), Out: int32(dst.Width),
			LDY: int32(dst.Stride), Type: d.half()})
	of(dst.Memory).written()
}
