package cuda_test

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// device is what the tests call of both devices: the CPU's says what the other one should compute.
type device interface {
	Begin(b *compute.Batch, adapters []int32)
	Resize(t *compute.Tensor, rows, width int)
	Extend(t *compute.Tensor, rows int)
	Vector(v []float32) compute.Memory
	Table(s compute.Source) compute.Table
	Rotary(frequencies []float32, scale func(int) float64, maxPositions int) compute.Rotary
	Pack(chunks int, sources ...compute.Source) (compute.Weight, error)
	Join(weights ...compute.Weight) compute.Weight
	Copy(dst, x compute.View)
	Pick(dst *compute.Tensor, x compute.View, rows []int32)
	Zero(x *compute.Tensor)
	Add(sum, x *compute.Tensor)
	AddBias(x *compute.Tensor, bias compute.Memory)
	Scale(x *compute.Tensor, factor float32)
	ScaleRows(x, factors *compute.Tensor)
	Activate(a compute.Activation, x *compute.Tensor)
	Sigmoid(x *compute.Tensor)
	TanhCap(x *compute.Tensor, limit float32)
	Gate(g compute.Gating, dst, both *compute.Tensor)
	RMSNorm(dst, x *compute.Tensor, weight compute.Memory, eps float32)
	LayerNorm(dst, x *compute.Tensor, weight, bias compute.Memory, eps float32)
	Squares(dst, x compute.View, headDim int)
	NormAcross(x compute.View, weight compute.Memory, squares compute.View, headDim int,
		eps float32)
	Heads(x compute.View, headDim int, weight compute.Memory, eps float32, angles *compute.Tensor)
	NewCache(shape compute.CacheShape) (compute.Cache, error)
	WriteCache(c compute.Cache, layer int, k, v compute.View, scales compute.CacheScales,
		slots []int32)
	Attention(c compute.Cache, layer int, b *compute.Batch, args compute.AttentionArgs,
		dst *compute.Tensor, q compute.View)
	AttentionAmong(b *compute.Batch, args compute.AttentionArgs, dst *compute.Tensor,
		q, k, v compute.View)
	Delta(c compute.Cache, layer int, b *compute.Batch, args *compute.DeltaArgs,
		dst *compute.Tensor, x compute.View)
	SigmoidGate(x *compute.Tensor, gate compute.View)
	Mix(dst, x, scores *compute.Tensor, mix *compute.Mixture)
	Mixed(sum *compute.Tensor, mix *compute.Mixture)
	Err() error
}

// subject is a device at work: random numbers are the same for every one.
type subject struct {
	device
	t      *testing.T
	random *rand.Rand
	// exact says that 16 bits lose nothing: numbers are chosen so.
	exact bool
}

// floats are n numbers, about as large as activations are.
func (s *subject) floats(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(s.random.NormFloat64())
		if s.exact {
			v[i] = half.FromBF16(half.ToBF16(v[i]))
		}
	}
	return v
}

// tensor is a tensor of numbers.
func (s *subject) tensor(rows, width int) *compute.Tensor {
	t := new(compute.Tensor)
	s.Resize(t, rows, width)
	copy(t.Floats(), s.floats(rows*width))
	t.Memory.Filled()
	return t
}

func (s *subject) vector(n int) compute.Memory { return s.Vector(s.floats(n)) }

// source is a matrix of bfloat16 numbers, as large as weights of in features are.
func (s *subject) source(out, in int) compute.Source {
	data := make([]byte, 2*out*in)
	v := unsafe.Slice((*uint16)(unsafe.Pointer(&data[0])), out*in)
	for i := range v {
		v[i] = half.ToBF16(float32(s.random.NormFloat64() / math.Sqrt(float64(in))))
	}
	return compute.Source{DType: compute.BFloat16, Data: data, Rows: out, Cols: in, RowHi: out,
		ColHi: in}
}

func (s *subject) pack(chunks, out, in int) compute.Weight {
	w, err := s.Pack(chunks, s.source(out, in))
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

// machine is a CUDA device whose kernels the machine executes, looking for what is undefined.
func machine(t *testing.T, drv *double.Driver) *cuda.Device {
	t.Helper()
	return machineOf(t, drv, compute.BFloat16)
}

// machineOf is one that runs models in a type.
func machineOf(t *testing.T, drv *double.Driver, dtype compute.DType) *cuda.Device {
	t.Helper()
	d, err := cuda.New(cuda.Options{Driver: drv, DType: dtype, Threads: 1, PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// machines look for what is undefined, with schedules of their own. Tests share what they parsed.
var machines = [...]*double.Driver{{Check: true}, {Check: true, Seed: 1}, {Check: true, Seed: 2}}

// agree has both devices run, which returns what it computed, and compares: with a tolerance
// relative to the largest number. seeds are those of the machine's schedules; all have the same
// bits.
func agree(t *testing.T, tolerance float64, run func(s *subject) []float32) {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 1, DType: compute.BFloat16, ISA: "avx2"})
	if err != nil {
		t.Skip(err)
	}
	defer host.Close()
	start := func(d device) *subject {
		return &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2)), exact: true}
	}
	want := run(start(host))
	var before []float32
	for seed, drv := range machines {
		if seed > 1 && testing.Short() {
			break
		}
		d := machine(t, drv)
		got := run(start(d))
		if err := d.Err(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(got) != len(want) {
			t.Fatalf("%d numbers, not %d", len(got), len(want))
		}
		most, worst, at := 0.0, 0.0, 0
		for i, v := range want {
			most = max(most, math.Abs(float64(v)))
			if e := math.Abs(float64(v - got[i])); !(e <= worst) {
				worst, at = e, i
			}
		}
		if !(worst <= tolerance*most) {
			t.Fatalf("seed %d: number %d of %d is %v, not %v (largest %v, tolerance %v)", seed, at,
				len(want), got[at], want[at], most, tolerance)
		}
		for i, v := range before {
			if math.Float32bits(v) != math.Float32bits(got[i]) {
				t.Fatalf("seed %d: number %d is %v, and %v with another schedule", seed, i, got[i],
					v)
			}
		}
		before = got
		if testing.Verbose() {
			used := ""
			for k, n := range d.Launches() {
				if n > 0 {
					used += fmt.Sprintf(" %s %d", kernels.ID(k).Name(), n)
				}
			}
			t.Logf("error %.2g of %.3g;%s", worst, most, used)
		}
	}
}

// rounding is what one operation in float32 may be off by.
const rounding = 2e-6

// TestRows holds what is done to rows to the CPU's.
func TestRows(t *testing.T) {
	clone := func(x *compute.Tensor) []float32 { return append([]float32(nil), x.Floats()...) }
	for name, run := range map[string]func(s *subject) []float32{
		"copy": func(s *subject) []float32 {
			x, y := s.tensor(5, 24), s.tensor(5, 40)
			s.Copy(y.Columns(8, 16), x.Columns(3, 16))
			return clone(y)
		},
		"pick": func(s *subject) []float32 {
			x, y := s.tensor(7, 19), new(compute.Tensor)
			s.Pick(y, x.Columns(2, 11), []int32{6, 0, 0, 3})
			return clone(y)
		},
		"extend": func(s *subject) []float32 {
			x := s.tensor(3, 7)
			s.Extend(x, 200)
			return clone(x)[:21]
		},
		"zero": func(s *subject) []float32 {
			x := s.tensor(3, 7)
			s.Zero(x)
			return clone(x)
		},
		"add": func(s *subject) []float32 {
			x := s.tensor(3, 300)
			s.Add(x, s.tensor(3, 300))
			s.AddBias(x, s.vector(300))
			return clone(x)
		},
		"scale": func(s *subject) []float32 {
			x := s.tensor(3, 300)
			s.Scale(x, 0.3)
			s.ScaleRows(x, s.tensor(3, 1))
			return clone(x)
		},
		"activate": func(s *subject) (all []float32) {
			for _, a := range []compute.Activation{compute.ReLU, compute.GELU, compute.GELUTanh,
				compute.ReLU2} {
				x := s.tensor(2, 50)
				s.Activate(a, x)
				all = append(all, clone(x)...)
			}
			x := s.tensor(2, 50)
			s.Sigmoid(x)
			s.TanhCap(x, 0.7)
			return append(all, clone(x)...)
		},
		"gate": func(s *subject) (all []float32) {
			for _, g := range []compute.Gating{{Activation: compute.SiLU},
				{Activation: compute.GELU}, {Activation: compute.GELUTanh}, {Limit: 1.5}} {
				y := new(compute.Tensor)
				s.Gate(g, y, s.tensor(3, 46))
				all = append(all, clone(y)...)
			}
			x := s.tensor(3, 23)
			s.SigmoidGate(x, s.tensor(3, 40).Columns(9, 23))
			return append(all, clone(x)...)
		},
		"norms": func(s *subject) []float32 {
			y, x := new(compute.Tensor), s.tensor(3, 300)
			s.RMSNorm(y, x, s.vector(300), 1e-5)
			s.LayerNorm(x, x, s.vector(300), s.vector(300), 1e-5)
			s.Add(y, x)
			return clone(y)
		},
		"heads": func(s *subject) []float32 {
			x, angles := s.tensor(5, 200), new(compute.Tensor)
			rising := func(position int) float64 { return 1.25 + float64(position)/1000 }
			s.Rotary([]float32{1, 0.1, 0.01, 0.001, 0.5, 0.05}, rising, 4000).Angles(angles,
				[]int32{0, 1, 7, 100, 3999})
			s.Heads(x.Columns(8, 96), 16, s.vector(16), 1e-6, angles)
			s.Heads(x.Columns(104, 48), 16, nil, 0, angles)
			s.Heads(x.Columns(152, 48), 48, s.vector(48), 1e-6, nil)
			return clone(x)
		},
		"squares": func(s *subject) []float32 {
			x, y := s.tensor(5, 100), s.tensor(5, 9)
			s.Squares(y.Columns(2, 4), x.Columns(10, 80), 20)
			s.NormAcross(x.Columns(10, 80), s.vector(80), y.Columns(2, 4), 20, 1e-6)
			return append(clone(x), clone(y)...)
		},
		"lookup": func(s *subject) (all []float32) {
			w := s.source(9, 33)
			whole := make([]float32, 9*33)
			half.DecodeBF16(whole, w.Data)
			single := compute.Source{DType: compute.Float32, Data: bytesOf(whole), Rows: 9,
				Cols: 33, RowHi: 9, ColHi: 33}
			for _, src := range []compute.Source{w, single} {
				y := new(compute.Tensor)
				s.Table(src).Lookup(y, []int32{0, 7, 3, 3}, 1)
				all = append(all, clone(y)...)
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) { agree(t, rounding, run) })
	}
}

func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v))
}

// TestProducts holds products of all sizes to the CPU's: for few and many rows, of widths that fill
// no tile, in chunks, of columns that begin anywhere. x is exact in 16 bits.
func TestProducts(t *testing.T) {
	for _, c := range []struct{ rows, out, in, chunks, from int }{
		{1, 64, 64, 1, 0}, {1, 5, 16, 1, 0}, {3, 70, 100, 1, 3}, {8, 130, 48, 8, 0},
		{9, 40, 88, 8, 0}, {33, 66, 320, 2, 8}, {65, 130, 129, 1, 1}, {130, 24, 72, 4, 0},
		{200, 136, 200, 8, 0},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			agree(t, 4e-6, func(s *subject) []float32 {
				w := s.pack(c.chunks, c.out, c.in)
				x := s.tensor(c.rows, c.in+c.from+8).Columns(c.from, c.in)
				y := s.tensor(c.rows, c.out+3)
				w.Product(y.Columns(2, c.out), x, s.vector(c.out))
				w.ProductAdded(y.Columns(2, c.out), x)
				all := append([]float32(nil), y.Floats()...)
				parts := new(compute.Tensor)
				w.ProductChunks(parts, x)
				return append(all, parts.Floats()...)
			})
		})
	}
}

// TestExecuted wants what a driver is given to be the PTX that the binary has, all of it.
func TestExecuted(t *testing.T) {
	loaded := map[string]bool{}
	machine(t, &double.Driver{Replace: func(text []byte) []byte {
		loaded[fmt.Sprintf("%x", sha256.Sum256(text))] = true
		return text
	}})
	files := kernels.Files(9, 0)
	for _, file := range files {
		image, err := kernels.PTX(file)
		if err != nil {
			t.Fatal(err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(image[:len(image)-1])); !loaded[sum] {
			t.Errorf("%s, SHA-256 %s, was not loaded", file, sum)
		}
	}
	if len(loaded) != len(files) {
		t.Errorf("%d modules of %d files", len(loaded), len(files))
	}
}
