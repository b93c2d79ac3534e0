package proof

import (
	"math"
	"math/rand/v2"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// subject is a device at work on a case. What is made of numbers comes with the numbers, as the
// reference needs them.
type subject struct {
	*cuda.Device
	dtype   compute.DType
	opt     Options
	random  *rand.Rand
	outputs []output
	err     error // the first that is not the driver's
	weights []compute.Weight
	// tensors stay reachable until the case is over, as those of models do: the device frees the
	// memory of others when it needs some.
	tensors []*compute.Tensor
}

// free frees what the case made.
func (s *subject) free() {
	for _, w := range s.weights {
		w.Free()
	}
	s.weights, s.tensors = nil, nil
}

func (s *subject) check(err error) {
	if err != nil && s.err == nil {
		s.err = err
	}
}

// floats are n numbers, about as large as activations are. 16 bits have room for few of them.
func (s *subject) floats(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(s.random.NormFloat64())
	}
	return v
}

// tensor is a tensor of numbers.
func (s *subject) tensor(rows, width int) (*compute.Tensor, []float32) {
	v := s.floats(rows * width)
	return s.filled(rows, width, v), v
}

func (s *subject) filled(rows, width int, v []float32) *compute.Tensor {
	t := new(compute.Tensor)
	s.tensors = append(s.tensors, t)
	s.Resize(t, rows, width)
	copy(t.Floats(), v)
	t.Memory.Filled()
	return t
}

// poisoned is a tensor in which what a kernel does not write is not a number.
func (s *subject) poisoned(rows, width int) *compute.Tensor {
	v := make([]float32, rows*width)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return s.filled(rows, width, v)
}

// vector is a vector of numbers.
func (s *subject) vector(n int) (compute.Memory, []float32) {
	v := s.floats(n)
	m := s.Vector(v)
	s.tensors = append(s.tensors, &compute.Tensor{Memory: m, Rows: 1, Width: n})
	return m, v
}

// rounded is a number in the type that models run in.
func (s *subject) rounded(v float32) float64 { return roundedTo(v, s.dtype) }

// roundedTo is a number as a type has it.
func roundedTo(v float32, dtype compute.DType) float64 {
	switch dtype {
	case compute.BFloat16:
		return float64(half.FromBF16(half.ToBF16(v)))
	case compute.Float16:
		return float64(half.FromF16(half.ToF16(v)))
	}
	return float64(v)
}

// stored is what a cache has of vectors of so many numbers: rounded, of codes by a scale for each.
func stored(v []float32, dim int, dtype compute.DType) []float64 {
	out := make([]float64, 0, len(v))
	if !dtype.Scaled() {
		for _, x := range v {
			out = append(out, roundedTo(x, dtype))
		}
		return out
	}
	codes, numbers := codesOf(dtype), [256]float32{}
	for code := range numbers {
		numbers[code] = codes.Number(byte(code))
	}
	for at := 0; at < len(v); at += dim {
		largest := float32(0)
		for _, x := range v[at : at+dim] {
			largest = max(largest, max(x, -x))
		}
		scale := largest / codes.Number(127)
		if dtype == compute.E4M3 {
			scale = largest / codes.Number(126)
		}
		by := 1 / scale // as kernels do: a quotient may be next to another code
		for _, x := range v[at : at+dim] {
			out = append(out, float64(nearest(&numbers, x*by))*float64(scale))
		}
	}
	return out
}

// codesOf are the codes that a cache has.
func codesOf(dtype compute.DType) *compute.Codes {
	if dtype == compute.Int8 {
		return &compute.Codes{Type: compute.Code8}
	}
	return &compute.Codes{Type: compute.CodeE4M3}
}

// nearest is that of the numbers of codes which is next to another, of two that of the even code.
func nearest(numbers *[256]float32, x float32) (best float32) {
	off := math.Inf(1)
	for code, n := range numbers {
		if d := math.Abs(float64(n) - float64(x)); d < off || d == off && code%2 == 0 {
			best, off = n, d
		}
	}
	return best
}

func (s *subject) roundedAll(v []float32) []float64 {
	w := make([]float64, len(v))
	for i := range v {
		w[i] = s.rounded(v[i])
	}
	return w
}

// source is a matrix of bfloat16 numbers, as large as weights of in features are.
func (s *subject) source(out, in int) compute.Source {
	v := make([]uint16, out*in)
	seed, scale := s.random.Uint64(), math.Sqrt(float64(in))
	each(out, func(row int) {
		random := rand.New(rand.NewPCG(seed, uint64(row)))
		for i := range in {
			v[row*in+i] = half.ToBF16(float32(random.NormFloat64() / scale))
		}
	})
	return matrix(v, out, in)
}

func matrix(v []uint16, out, in int) compute.Source {
	return compute.Source{DType: compute.BFloat16, Data: bytesOf(v), Rows: out, Cols: in,
		RowHi: out, ColHi: in}
}

func bytesOf[T uint16 | float32](v []T) []byte {
	n := len(v) * int(unsafe.Sizeof(v[0]))
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), n)
}

// weight is a weight of random numbers, and those as products have them.
func (s *subject) weight(chunks, out, in int) (compute.Weight, []float64) {
	src := s.source(out, in)
	v := make([]float32, out*in)
	half.DecodeBF16(v, src.Data)
	return s.pack(chunks, src), s.roundedAll(v)
}

func (s *subject) pack(chunks int, src compute.Source) compute.Weight {
	w, err := s.Pack(chunks, src)
	if err != nil {
		s.check(err)
		return none{out: src.Rows, in: src.Cols}
	}
	s.weights = append(s.weights, w)
	return w
}

// none stands in for a weight that could not be made: the case goes on to its end, for nothing.
type none struct{ out, in int }

func (n none) Out() int                                          { return n.out }
func (n none) In() int                                           { return n.in }
func (n none) Bytes() int                                        { return 0 }
func (n none) Free()                                             {}
func (n none) Product(_, _ compute.View, _ compute.Memory)       {}
func (n none) ProductAdded(_, _ compute.View)                    {}
func (n none) ProductChunks(dst *compute.Tensor, _ compute.View) {}

// report adds what was computed, and what it should be.
func (s *subject) report(name string, got []float32, want []float64, tolerance float64) {
	s.outputs = append(s.outputs, output{name: name, got: append([]float32(nil), got...),
		want: want, tolerance: tolerance})
}

// halves reports a tensor's copy in 16 bits, which products read: an identity shows it. It is the
// tensor's numbers, rounded once.
func (s *subject) halves(name string, t *compute.Tensor) {
	n := t.Width
	one := make([]uint16, n*n)
	for i := range n {
		one[i*n+i] = half.ToBF16(1)
	}
	w, y := s.pack(1, matrix(one, n, n)), s.poisoned(t.Rows, n)
	w.Product(y.All(), t.All(), nil)
	s.report(name+" in 16 bits", y.Floats(), s.roundedAll(t.Floats()), 0)
}

// doubles are numbers as they are.
func doubles(v []float32) []float64 {
	w := make([]float64, len(v))
	for i := range v {
		w[i] = float64(v[i])
	}
	return w
}

// columns are some columns of rows of numbers.
func columns[T any](v []T, width, from, n int) (part []T) {
	for r := 0; r < len(v); r += width {
		part = append(part, v[r+from:r+from+n]...)
	}
	return part
}
