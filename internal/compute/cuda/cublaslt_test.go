package cuda_test

import (
	"errors"
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
)

// withLibrary is a device that may use a library, nil for none.
func withLibrary(t *testing.T, l *double.CUBLASLt, dtype compute.DType, fast bool) *cuda.Device {
	t.Helper()
	o := cuda.Options{Driver: &double.Driver{Threads: 2}, DType: dtype, Threads: 1,
		PTX: true, CUBLASLt: cuda.CUBLASLt{Fast: fast}}
	if l != nil {
		o.CUBLASLt.Open = func() (driver.CUBLASLt, error) { return l, nil }
	}
	d, err := cuda.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// manyProducts are products of many rows and of some: of one chunk and of eight, added and not, to
// all columns of a tensor and to some, and of a matrix that all ranks have.
func manyProducts(t *testing.T, d *cuda.Device) []float32 {
	t.Helper()
	s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
	const out, in, routers = 520, 128, 16
	var all []float32
	whole, cut, router := s.pack(1, out, in), s.pack(8, out, in), s.pack(1, routers, in)
	for _, rows := range []int{70, 64} {
		x, y := s.tensor(rows, in), s.tensor(rows, out+8)
		whole.Product(y.Columns(4, out), x.All(), nil)
		whole.ProductAdded(y.Columns(4, out), x.All())
		all = append(all, y.Floats()...)
		y = s.tensor(rows, out)
		cut.ProductAdded(y.All(), x.All())
		all = append(all, y.Floats()...)
		y = s.tensor(rows, routers)
		router.Product(y.All(), x.All(), nil)
		all = append(all, y.Floats()...)
		chunks := new(compute.Tensor)
		cut.ProductChunks(chunks, x.All())
		all = append(all, chunks.Floats()...)
	}
	if err := d.Finish(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestProductsByCUBLASLt wants the library's products to have the bits of the kernels that they
// stand for, by those of its algorithms that have, or any where the device is to be fast: not of
// matrices that all ranks have then, and all chunks at once.
func TestProductsByCUBLASLt(t *testing.T) {
	for _, dtype := range []compute.DType{compute.BFloat16, compute.Float16} {
		want := manyProducts(t, withLibrary(t, nil, dtype, false))
		for _, c := range []struct {
			name      string
			own, fast bool
			// seen are the library's products of 70 rows: their output features and chunks.
			seen []string
			says string
		}{
			{"same bits", false, false, []string{"520/1", "520/1+", "520/8", "16/1", "520/8"},
				"; 3 of 3 shapes by cuBLASLt 13.1.0, to the same bits"},
			{"other bits", true, false, nil,
				"; 0 of 3 shapes by cuBLASLt 13.1.0, to the same bits"},
			{"fast", true, true, []string{"520/1", "520/1+", "520/1"},
				"; 2 of 2 shapes by cuBLASLt 13.1.0, in orders of its own (--cuda-fast)"},
		} {
			t.Run(fmt.Sprintf("%v/%s", dtype, c.name), func(t *testing.T) {
				if dtype == compute.Float16 && c.name != "same bits" {
					t.Skip("skipped: what bfloat16 has shown")
				}
				var seen []string
				d := withLibrary(t, &double.CUBLASLt{Own: c.own, Observe: func(p *driver.Product) {
					if p.Rows != 70 {
						return
					}
					as := fmt.Sprintf("%d/%d", p.Out, p.Chunks)
					if p.Add {
						as += "+"
					}
					seen = append(seen, as)
				}}, dtype, c.fast)
				got := manyProducts(t, d)
				if !slices.Equal(seen, c.seen) {
					t.Errorf("the library has seen %v", seen)
				}
				if says := d.ManyRows(); !strings.HasSuffix(says, c.says) {
					t.Errorf("the device says %q", says)
				}
				if !c.fast {
					sameBits(t, "products by the library", got, want)
					return
				}
				differ := 0
				for i := range want {
					if got[i] != want[i] {
						differ++
					}
					if e := math.Abs(float64(got[i] - want[i])); !(e < 1e-5) {
						t.Fatalf("%v instead of %v", got[i], want[i])
					}
				}
				if differ == 0 {
					t.Error("no other bits")
				}
			})
		}
	}
}

// TestCUBLASLtFails wants a library that cannot be used to be left out, by name, and one that fails
// later to end the device.
func TestCUBLASLtFails(t *testing.T) {
	failure := errors.New("CUBLAS_STATUS_NOT_INITIALIZED (1)")
	failing := func(call string) *double.CUBLASLt {
		return &double.CUBLASLt{Fail: func(c string) error {
			if c == call {
				return fmt.Errorf("%s: %w", call, failure)
			}
			return nil
		}}
	}
	if got := withLibrary(t, failing("cublasLtCreate"), compute.BFloat16, false).ManyRows(); got !=
		"wgmma" {
		t.Errorf("without the library the device says %q", got)
	}
	const want = "wgmma; --cuda-fast changes nothing without cuBLASLt: cublasLtCreate: " +
		"CUBLAS_STATUS_NOT_INITIALIZED (1)"
	d := withLibrary(t, failing("cublasLtCreate"), compute.BFloat16, true)
	if got := d.ManyRows(); got != want {
		t.Errorf("without the library the device says %q", got)
	}
	for _, call := range []string{"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"} {
		d := withLibrary(t, failing(call), compute.BFloat16, false)
		s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
		if _, err := d.Pack(1, s.source(64, 64)); !errors.Is(err, failure) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// TestCUBLASLtWithoutNumbers wants weights of zeros to decide nothing for others of their shape.
func TestCUBLASLtWithoutNumbers(t *testing.T) {
	d := withLibrary(t, &double.CUBLASLt{Own: true}, compute.BFloat16, false)
	s := &subject{device: d, t: t, random: rand.New(rand.NewPCG(1, 2))}
	zeros := s.source(64, 64)
	clear(zeros.Data)
	if _, err := d.Pack(1, zeros); err != nil {
		t.Fatal(err)
	}
	if got := d.ManyRows(); !strings.Contains(got, "0 of 0 shapes") {
		t.Errorf("after weights of zeros the device says %q", got)
	}
	s.pack(1, 64, 64)
	if got := d.ManyRows(); !strings.Contains(got, "0 of 1 shapes") {
		t.Errorf("after weights the device says %q", got)
	}
}
