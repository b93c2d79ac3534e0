package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// sameBits wants two computations to be the same.
func sameBits(t *testing.T, what string, a, b []float32) {
	t.Helper()
	if !slices.EqualFunc(a, b, func(a, b float32) bool {
		return math.Float32bits(a) == math.Float32bits(b)
	}) {
		t.Errorf("other bits of %s", what)
	}
}

// TestProductsByWarpGroups wants warp groups to have the bits of the kernels that they stand for,
// whether blocks compute a tile each or several in turn, and a chunk or all of them.
func TestProductsByWarpGroups(t *testing.T) {
	d := machine(t, &double.Driver{Threads: 2})
	products := func(on bool, multiprocessors int) []float32 {
		d.UseWarpGroups(on)
		d.UseMultiprocessors(multiprocessors)
		s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
		w, x, y := s.pack(8, 150, 256), s.tensor(131, 256), s.tensor(131, 150)
		w.ProductAdded(y.All(), x.All())
		all := append([]float32(nil), y.Floats()...)
		w = s.pack(1, 150, 256)
		w.Product(y.All(), x.All(), nil)
		return append(all, y.Floats()...)
	}
	want := products(false, 132)
	if n := d.Launches()[kernels.GemmGroupsBF16]; n != 0 {
		t.Fatalf("%d launches of warp groups without them", n)
	}
	for _, n := range []int{132, 3} {
		sameBits(t, fmt.Sprintf("products by warp groups, on %d multiprocessors", n),
			products(true, n), want)
	}
	for k, n := range map[kernels.ID]uint64{kernels.GemmGroupsBF16: 2,
		kernels.GemmGroups256BF16: 1, kernels.GemmGroupsTreeBF16: 1} {
		if d.Launches()[k] != n {
			t.Errorf("%d launches of %s, not %d", d.Launches()[k], k.Name(), n)
		}
	}
}

// quantised is rows times a quantised weight, on a device of few multiprocessors.
type quantised struct {
	kind                 compute.CodeType
	values               [16]float32
	group, lead          int
	offsets, order       bool
	rows, out, in, parts int
	few                  int
}

// codes are random ones.
func (q *quantised) codes(s *subject) compute.Codes {
	c := compute.Codes{Type: q.kind, Values: q.values, Rows: q.out, Cols: q.in, Group: q.group,
		Lead: q.lead, Code: make([]byte, q.out*q.in)}
	if q.lead > 0 {
		c.From, c.Of = q.lead, q.lead+q.in
	}
	for i := range c.Code {
		switch c.Code[i] = byte(s.random.Uint32()); {
		case q.kind == compute.Code4:
			c.Code[i] &= 15
		case q.kind == compute.CodeE4M3 && c.Code[i]&0x7f == 0x7f:
			c.Code[i] = 0
		}
	}
	c.Scale = s.floats(q.out * c.Groups())
	if q.offsets {
		c.Offset = s.floats(q.out * c.Groups())
	}
	for i := 0; q.order && i < q.in; i++ {
		c.Order = append(c.Order, int32((i*7+3)%q.in))
	}
	return c
}

// weight packs them.
func (q *quantised) weight(s *subject, d *cuda.Device) compute.Weight {
	s.t.Helper()
	w, err := d.PackCodes(q.parts, q.codes(s))
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

// kernel is that for many rows.
func (q *quantised) kernel(dtype compute.DType) kernels.ID {
	k := kernels.GemmGroupsBF16Codes8
	if q.kind == compute.Code4 {
		k = kernels.GemmGroupsBF16Codes4
	}
	if dtype == compute.Float16 {
		k += kernels.GemmGroupsF16Codes4 - kernels.GemmGroupsBF16Codes4
	}
	return k
}

// onlyWith wants a computation to have the same bits by warp groups, and so many launches of a
// kernel with them alone.
func onlyWith(t *testing.T, d *cuda.Device, k kernels.ID, launches uint64, run func() []float32) {
	t.Helper()
	d.UseWarpGroups(false)
	want := run()
	if n := d.Launches()[k]; n != 0 {
		t.Fatalf("%d launches of warp groups without them", n)
	}
	d.UseWarpGroups(true)
	sameBits(t, k.Name()+", by warp groups", run(), want)
	if n := d.Launches()[k]; n != launches {
		t.Errorf("%d launches of %s, not %d", n, k.Name(), launches)
	}
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestCodesByWarpGroups wants the same of quantised weights: of each form, with offsets, groups
// that end within steps and go on over them, begin before the weight, and of chunks that are added.
func TestCodesByWarpGroups(t *testing.T) {
	const codes4, codes8, e4m3 = compute.Code4, compute.Code8, compute.CodeE4M3
	table := [16]float32{0: 0.25, 3: -1, 7: 2.5, 15: 3}
	var integers, floats [16]float32
	for i := range integers {
		integers[i] = float32(i - 8)
		floats[i] = []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}[i&7] * float32(1-i>>3*2)
	}
	for i, q := range []quantised{
		{codes4, integers, 32, 0, false, false, 131, 150, 160, 1, 3},
		{codes4, integers, 64, 0, true, false, 70, 40, 512, 8, 1},
		{codes4, floats, 32, 0, false, false, 66, 130, 320, 2, 132},
		{codes4, table, 128, 64, false, false, 129, 24, 320, 1, 1},
		{codes4, table, 96, 32, true, true, 66, 33, 640, 4, 1},
		{e4m3, table, 128, 0, false, false, 66, 136, 1024, 8, 2},
		{e4m3, table, 0, 0, false, false, 65, 16, 96, 1, 1},
		{codes8, table, 32, 0, true, false, 140, 30, 192, 1, 132},
		{codes8, table, 0, 0, false, false, 66, 140, 384, 4, 1},
	} {
		for _, dtype := range []compute.DType{compute.BFloat16, compute.Float16} {
			t.Run(fmt.Sprintf("%d %v", i, dtype), func(t *testing.T) {
				d := machineOf(t, &double.Driver{Threads: 2, Check: true, Seed: uint64(i % 3)},
					dtype)
				d.UseMultiprocessors(q.few)
				onlyWith(t, d, q.kernel(dtype), 2, func() []float32 {
					s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, uint64(i)))}
					w := q.weight(s, d)
					x, y := s.tensor(q.rows, q.in), s.tensor(q.rows, q.out)
					w.ProductAdded(y.All(), x.All())
					all := append([]float32(nil), y.Floats()...)
					w.ProductChunks(y, x.All())
					return append(all, y.Floats()...)
				})
			})
		}
	}
}

// TestExpertsByWarpGroups wants the same of mixtures of experts that have many rows, or none: of
// plain weights and of codes, which lie in any order.
func TestExpertsByWarpGroups(t *testing.T) {
	const hidden, inner, rows, experts = 96, 256, 150, 5
	for _, group := range []int{0, 64} {
		t.Run(fmt.Sprintf("groups of %d", group), func(t *testing.T) {
			d := machineOf(t, &double.Driver{Threads: 2, Check: true, Seed: 1}, compute.BFloat16)
			d.UseMultiprocessors(7)
			kernel := kernels.GemmGroupsBF16
			if group != 0 {
				kernel = kernels.GemmGroupsBF16Codes8
			}
			onlyWith(t, d, kernel, 2, func() []float32 {
				s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
				weight := func(chunks, out, in int) compute.Weight {
					if group == 0 {
						return s.pack(chunks, out, in)
					}
					q := quantised{kind: compute.Code8, group: group, out: out, in: in,
						parts: chunks}
					return q.weight(s, d)
				}
				mix := &compute.Mixture{Routing: compute.Routing{PerToken: 3}, Chunks: 8,
					Gating:  compute.Gating{Activation: compute.SiLU},
					Experts: make([]compute.Expert, experts)}
				for _, e := range []int{3, 0, 4, 1, 2} {
					mix.Experts[e] = compute.Expert{GateUp: weight(1, 2*inner, hidden),
						Down: weight(8, hidden, inner), GateUpBias: s.vector(2 * inner)}
				}
				x, scores, y := s.tensor(rows, hidden), s.tensor(rows, experts), new(compute.Tensor)
				for r := range rows {
					scores.Row(r)[2] = -100
				}
				scores.Memory.Filled()
				d.Mix(y, x, scores, mix)
				return append([]float32(nil), y.Floats()...)
			})
		})
	}
}

// TestAttentionByWarpGroups wants the same of attention.
func TestAttentionByWarpGroups(t *testing.T) {
	for _, blockSize := range []int{16, 48, 128} {
		for _, window := range []int{0, 70} {
			t.Run(fmt.Sprintf("block size %d, window %d", blockSize, window), func(t *testing.T) {
				d := machine(t, &double.Driver{Threads: 2, Check: blockSize == 128})
				args := compute.AttentionArgs{Heads: 6, KVHeads: 2, HeadDim: 64, Scale: 0.125,
					Window: window}
				attention := func(on bool) []float32 {
					d.UseWarpGroups(on)
					s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
					return attendBlocks(s, blockSize, compute.BFloat16, args, 0,
						sequence{190, 70}, sequence{0, 30}, sequence{200, 1})
				}
				want := attention(false)
				sameBits(t, "attention by warp groups", attention(true), want)
				if n := d.Launches()[kernels.AttendGroups64BF16]; n != 1 {
					t.Errorf("%d launches", n)
				}
			})
		}
	}
}

// TestWarpGroupsApart wants a device to do without warp groups that it does not have, or that do
// not add as mma does, and to say why.
func TestWarpGroupsApart(t *testing.T) {
	subtracting := func(text []byte) []byte {
		return []byte(strings.ReplaceAll(string(text), "one, 1, 1, 0, 0", "one, 1, -1, 0, 0"))
	}
	for name, c := range map[string]struct {
		drv  *double.Driver
		want string
	}{
		"Hopper": {&double.Driver{}, "wgmma"},
		"Ampere": {&double.Driver{Info: driver.Info{Name: "A100", Major: 8, Multiprocessors: 4,
			Shared: 163 << 10}}, "mma: sm_80 has none"},
		"no tensor maps": {&double.Driver{Fail: func(call string) error {
			if call == "cuTensorMapEncodeTiled" {
				return &driver.Error{Call: call, Code: driver.NotFound, Detail: "none"}
			}
			return nil
		}}, "mma: cuTensorMapEncodeTiled: CUDA error 500: none"},
		"other bits": {&double.Driver{Replace: subtracting},
			"mma: wgmma and mma have other bits in "},
	} {
		t.Run(name, func(t *testing.T) {
			d := machine(t, c.drv)
			if got := d.ManyRows(); !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
			y := s.tensor(70, 16)
			s.pack(1, 16, 16).Product(y.All(), s.tensor(70, 16).All(), nil)
			if n := d.Launches()[kernels.GemmGroupsBF16]; (n > 0) != (c.want == "wgmma") {
				t.Errorf("%d launches of warp groups", n)
			}
			if err := d.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
