package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
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
		t.Errorf("other bits by warp groups: %s", what)
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
		sameBits(t, fmt.Sprintf("on %d multiprocessors", n), products(true, n), want)
	}
	for k, n := range map[kernels.ID]uint64{kernels.GemmGroupsBF16: 2,
		kernels.GemmGroups256BF16: 1, kernels.GemmGroupsTreeBF16: 1} {
		if d.Launches()[k] != n {
			t.Errorf("%d launches of %s, not %d", d.Launches()[k], k.Name(), n)
		}
	}
}

// TestAttentionByWarpGroups wants the same of attention.
func TestAttentionByWarpGroups(t *testing.T) {
	for _, blockSize := range []int{16, 48, 128} {
		for _, window := range []int{0, 70} {
			t.Run(fmt.Sprintf("block size %d, window %d", blockSize, window), func(t *testing.T) {
				d := machine(t, &double.Driver{Threads: 2})
				args := compute.AttentionArgs{Heads: 6, KVHeads: 2, HeadDim: 64, Scale: 0.125,
					Window: window}
				attention := func(on bool) []float32 {
					d.UseWarpGroups(on)
					s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
					return attendBlocks(s, blockSize, compute.BFloat16, args, 0,
						sequence{75, 90}, sequence{0, 30}, sequence{200, 1})
				}
				want := attention(false)
				sameBits(t, "attention", attention(true), want)
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
