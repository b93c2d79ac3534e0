package cpu_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

const (
	manyRows = 301 // enough that several threads share an operation
	width    = 96
	chunks   = 4
)

func device(t *testing.T, set isa.ISA, threads int) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: threads, ISA: set.String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func random(n int) []float32 {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// order is a permutation of 0 to n-1, for n that 11 does not divide.
func order(n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(i * 11 % n)
	}
	return p
}

// rowOperations are all row operations, each filling dst ([manyRows][chunks][width]) from x of the
// same size.
func rowOperations(t *testing.T) map[string]func(d *cpu.Device, dst, x []float32) {
	weight, bias := random(width), random(width + 1)[:width]
	const heads, headDim = 2, 32
	type rows = func(d *cpu.Device, dst, x *compute.Tensor)
	of := func(op rows) func(d *cpu.Device, dst, x []float32) {
		return func(d *cpu.Device, dst, x []float32) {
			op(d, cpu.Over(dst, manyRows, width), cpu.Over(x, manyRows, width))
		}
	}
	inPlace := func(op func(d *cpu.Device, x *compute.Tensor)) func(d *cpu.Device, dst,
		x []float32) {
		return of(func(d *cpu.Device, dst, x *compute.Tensor) {
			d.Copy(dst.All(), x.All())
			op(d, dst)
		})
	}
	return map[string]func(d *cpu.Device, dst, x []float32){
		"RMSNorm": of(func(d *cpu.Device, dst, x *compute.Tensor) {
			d.RMSNorm(dst, x, d.Vector(weight), 1e-6)
		}),
		"LayerNorm": of(func(d *cpu.Device, dst, x *compute.Tensor) {
			d.LayerNorm(dst, x, d.Vector(weight), d.Vector(bias), 1e-5)
		}),
		"Add": of(func(d *cpu.Device, dst, x *compute.Tensor) { d.Add(dst, x) }),
		"AddBias": inPlace(func(d *cpu.Device, x *compute.Tensor) {
			d.AddBias(x, d.Vector(bias))
		}),
		"SiluMul": func(d *cpu.Device, dst, x []float32) {
			d.Gate(compute.Gating{Activation: compute.SiLU}, cpu.Over(dst, manyRows, width),
				cpu.Over(x, manyRows, 2*width))
		},
		"ClampedSwiGLU": func(d *cpu.Device, dst, x []float32) {
			d.Gate(compute.Gating{Limit: 1.5}, cpu.Over(dst, manyRows, width),
				cpu.Over(slices.Clone(x), manyRows, 2*width))
		},
		"ReLU":  inPlace(func(d *cpu.Device, x *compute.Tensor) { d.Activate(compute.ReLU, x) }),
		"ReLU2": inPlace(func(d *cpu.Device, x *compute.Tensor) { d.Activate(compute.ReLU2, x) }),
		"XIELU": inPlace(func(d *cpu.Device, x *compute.Tensor) {
			d.XIELU(compute.XIELU{Above: 0.7, Below: 1.2, Beta: 0.5, Eps: -1e-6}, x)
		}),
		"GELU":    inPlace(func(d *cpu.Device, x *compute.Tensor) { d.Activate(compute.GELU, x) }),
		"Sigmoid": inPlace((*cpu.Device).Sigmoid),
		"Pick": of(func(d *cpu.Device, dst, x *compute.Tensor) {
			d.Pick(dst, x.All(), order(manyRows))
		}),
		"Heads": func(d *cpu.Device, dst, x []float32) {
			copy(dst, x)
			d.Heads(cpu.Over(dst, manyRows, width).Columns(0, heads*headDim), headDim,
				d.Vector(weight[:headDim]), 1e-6, cpu.Over(x, manyRows, headDim))
		},
		"NormAcross": inPlace(func(d *cpu.Device, x *compute.Tensor) {
			squares := cpu.Over(make([]float32, manyRows*(heads+1)), manyRows, heads+1)
			q := x.Columns(7, heads*headDim)
			d.Squares(squares.Columns(1, heads), q, headDim)
			d.NormAcross(q, d.Vector(weight[:heads*headDim]), squares.All(), headDim, 1e-6)
		}),
		"AddWeighted": func(d *cpu.Device, dst, x []float32) {
			sums := make([]float64, manyRows*width)
			d.AddWeighted(sums, x, random(manyRows), order(manyRows), chunks, width)
			d.CutFixed(dst, sums, manyRows, width)
			d.JoinFixed(dst, manyRows, width)
		},
		"WriteCache of latents": of(func(d *cpu.Device, dst, x *compute.Tensor) {
			const blockSize = 16
			blocks := manyRows/blockSize + 1
			c, err := d.NewCache(compute.CacheShape{Blocks: blocks, BlockSize: blockSize,
				Layers: []compute.CacheLayer{{Kind: compute.Latent, Heads: 1, Dim: width,
					Values: width - 8}}, DType: compute.Float32})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Free()
			d.WriteCache(c, 0, x.All(), compute.View{}, compute.CacheScales{},
				order(manyRows))
			b := &compute.Batch{Position: []int32{manyRows - 1}, Seq: []int32{0},
				Tables: [][]int32{order(blocks)}}
			d.Attention(c, 0, b, compute.AttentionArgs{Heads: 1, KVHeads: 1, HeadDim: width,
				Scale: 0.2}, dst, x.All())
		}),
		"WriteCache": of(func(d *cpu.Device, dst, x *compute.Tensor) {
			const blockSize = 16
			blocks := manyRows/blockSize + 1
			c, err := d.NewCache(compute.CacheShape{Blocks: blocks, BlockSize: blockSize,
				Layers: []compute.CacheLayer{{Heads: 1, Dim: 8}, {Heads: heads, Dim: headDim}},
				DType:  compute.Float32})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Free()
			k := x.Columns(0, heads*headDim)
			d.WriteCache(c, 1, k, x.Below(1).Columns(0, heads*headDim),
				compute.CacheScales{}, order(manyRows))
			// What was written shows in the attention of a row that sees all of it.
			b := &compute.Batch{Position: []int32{manyRows - 1}, Seq: []int32{0},
				Tables: [][]int32{make([]int32, blocks)}}
			for i := range blocks {
				b.Tables[0][i] = int32(i)
			}
			d.Attention(c, 1, b, compute.AttentionArgs{Heads: heads, KVHeads: heads,
				HeadDim: headDim, Scale: 0.2}, dst, k)
		}),
	}
}

// TestRowsOnAnyThreads wants the same bits from one thread and from several, on every instruction
// set, and nothing allocated.
func TestRowsOnAnyThreads(t *testing.T) {
	x := random((manyRows + 1) * chunks * width)
	for name, op := range rowOperations(t) {
		t.Run(name, func(t *testing.T) {
			want := make([]float32, len(x))
			op(device(t, isa.Portable, 1), want, x)
			if !slices.ContainsFunc(want, func(v float32) bool { return v != 0 }) {
				t.Fatal("nothing was computed")
			}
			for _, threads := range []int{1, 3} {
				got := make([]float32, len(x))
				op(device(t, isa.Best(), threads), got, x)
				for i := range want {
					// Attention alone differs between instruction sets.
					if name == "WriteCache" && math.Abs(float64(got[i]-want[i])) < 1e-5 {
						continue
					}
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%d threads: element %d is %g, not %g", threads, i, got[i],
							want[i])
					}
				}
			}
		})
	}
}

// TestAddWeighted compares with sums written out.
func TestAddWeighted(t *testing.T) {
	d := device(t, isa.Best(), 2)
	parts, weight, at := random(manyRows*chunks*width), random(manyRows), order(manyRows)
	sums, total := make([]float64, manyRows*width), make([]float32, 2*manyRows*width)
	d.AddWeighted(sums, parts, weight, at, chunks, width)
	d.CutFixed(total, sums, manyRows, width)
	d.JoinFixed(total, manyRows, width)
	for i, row := range at {
		for k := range width {
			var sum float64
			for c := range chunks {
				sum += float64(weight[i]) * float64(parts[(c*manyRows+i)*width+k])
			}
			if got := float64(total[int(row)*width+k]); math.Abs(got-sum) > 1e-5 {
				t.Fatalf("row %d, column %d is %g, not %g", row, k, got, sum)
			}
		}
	}
}
