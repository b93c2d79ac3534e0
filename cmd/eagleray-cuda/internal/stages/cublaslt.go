package stages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// matrix is one of a layer.
type matrix struct {
	name            string
	out, in, chunks int
}

// matrices are those of a layer of the shape, as ranks have them.
func (s *Shape) matrices() []matrix {
	queries := s.Heads * s.HeadDim
	return []matrix{
		{"qkv", queries + 2*s.KVHeads*s.HeadDim, s.Hidden, 1},
		{"o", s.Hidden, queries, layers.Chunks},
		{"gate_up", 2 * s.Inner, s.Hidden, 1},
		{"down", s.Hidden, s.Inner, layers.Chunks},
	}
}

// cublaslt has the library's algorithms multiply by matrices of models, and says which of them have
// the bits of own kernels, and how long both take.
func (r *run) cublaslt(ctx context.Context) (err error) {
	library, err := r.CUBLASLt()
	if err != nil {
		r.report(Row{Name: "cuBLASLt", Note: "skipped: " + err.Error(), Listed: true})
		r.summary = "skipped: " + err.Error()
		return nil
	}
	shapes := measured()[:2]
	if r.tiny() {
		shapes = []Shape{tinyShape(64)}
	}
	d, err := cuda.New(cuda.Options{Driver: r.Driver, Ordinal: r.Ordinal, Threads: 1,
		DType: compute.BFloat16, PTX: r.tiny(), CUBLASLt: cuda.CUBLASLt{
			Open: func() (driver.CUBLASLt, error) { return library, nil }}})
	if err != nil {
		return err
	}
	defer d.Close()
	if why := d.CUBLASLt(); why != "" {
		return fmt.Errorf("cuBLASLt: %s", why)
	}
	random := rand.New(rand.NewPCG(r.Seed, 1))
	algorithms, same := 0, 0
	for i := range shapes {
		for _, m := range shapes[i].matrices() {
			if err := ctx.Err(); err != nil {
				return err
			}
			seen := len(d.LibraryTrials())
			w, err := d.Pack(m.chunks, randomMatrix(random, m.out, m.in))
			if err != nil {
				return err
			}
			w.Free()
			for _, t := range d.LibraryTrials()[seen:] {
				r.report(r.libraryRow(shapes[i].Name+" "+m.name, t))
				algorithms, same = algorithms+t.Algorithms, same+t.Same
			}
		}
	}
	r.summary = fmt.Sprintf("cuBLASLt %s: %d of %d algorithms have the bits of kernels",
		driver.CUBLASLtVersion(library.Version()), same, algorithms)
	return d.Finish()
}

// libraryRow is a trial of a matrix: the kernels' time beside the library's.
func (r *run) libraryRow(name string, t cuda.LibraryTrial) Row {
	row := Row{Name: fmt.Sprintf("%s, %d rows", name, t.Rows), Unit: "ms", Listed: true,
		Note:   fmt.Sprintf("%d of %d algorithms have the kernels' bits", t.Same, t.Algorithms),
		Detail: t}
	ms := func(d time.Duration) *float64 { return figure(float64(d.Nanoseconds()) / 1e6) }
	if !r.tiny() {
		if row.Ours = ms(t.Own); t.Library > 0 {
			row.Peer = ms(t.Library)
		}
	}
	return row
}

// randomMatrix has numbers as large as weights are.
func randomMatrix(random *rand.Rand, out, in int) compute.Source {
	data := make([]byte, 2*out*in)
	numbers := unsafe.Slice((*uint16)(unsafe.Pointer(&data[0])), out*in)
	for i := range numbers {
		numbers[i] = half.ToBF16(float32(random.NormFloat64()) / 64)
	}
	return compute.Source{DType: compute.BFloat16, Data: data, Rows: out, Cols: in, RowHi: out,
		ColHi: in}
}
