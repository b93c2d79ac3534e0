package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
)

// noHost fails a test whose ranks exchange tensors through their hosts.
type noHost struct{ t testing.TB }

func (h noHost) AllReduce(*compute.Tensor) error {
	h.t.Error("a sum through the host")
	return nil
}

func (h noHost) Gather(_, _ *compute.Tensor, _ int) error {
	h.t.Error("numbers gathered through the host")
	return nil
}

// together runs ranks with a device each, which exchange over their memory.
func together(t *testing.T, drv *double.Driver, size int,
	f func(rank int, d *cuda.Device, c *cuda.Comm)) {
	t.Helper()
	const segment = 64 << 10
	region, err := shm.Create(size, segment)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	var ranks sync.WaitGroup
	for r := range size {
		g, err := shm.Join(region, r, size, segment)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		ranks.Go(func() {
			d, err := cuda.New(cuda.Options{Driver: drv, DType: compute.BFloat16, Threads: 1})
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			c := d.NewComm(r, size, noHost{t}, g)
			if err := c.Connect(t.Context().Done()); err != nil {
				t.Error(err)
				return
			}
			f(r, d, c)
			if err := d.Finish(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ranks.Wait()
}

// TestPeers holds sums over 2, 4 and 8 ranks, and what one gathers, to the host's: all bits are
// equal, at lengths with tails, of one block and of several launches.
func TestPeers(t *testing.T) {
	drv := &double.Driver{Check: true, Seed: 5}
	lengths := []int{1, 7, 1024, 2048, 70001}
	if !testing.Short() {
		lengths = append(lengths, 600_004)
	}
	for _, size := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			parts := map[int][][]float32{}
			for _, n := range lengths {
				for r := range size {
					random := rand.New(rand.NewPCG(uint64(n), uint64(r)))
					v := make([]float32, n)
					for i := range v {
						v[i] = float32(random.NormFloat64())
					}
					parts[n] = append(parts[n], v)
				}
			}
			together(t, drv, size, func(rank int, d *cuda.Device, c *cuda.Comm) {
				if c.Why() != "" {
					t.Errorf("rank %d: %s", rank, c.Why())
					return
				}
				for _, n := range lengths {
					var x, all compute.Tensor
					d.Resize(&x, 1, n)
					copy(x.Floats(), parts[n][rank])
					x.Memory.Filled()
					var to *compute.Tensor
					if rank == 0 {
						d.Resize(&all, size, n)
						to = &all
					}
					if enqueued, err := c.Begin(); err != nil || !enqueued {
						t.Errorf("rank %d: %v, %v", rank, enqueued, err)
						return
					}
					if err := c.Gather(to, &x, 0); err != nil {
						t.Error(err)
					}
					if err := c.AllReduce(&x); err != nil {
						t.Error(err)
					}
					want := make([]float32, n)
					collective.SumTree(want, parts[n])
					equal(t, fmt.Sprintf("sum of %d on rank %d", n, rank), x.Floats(), want)
					for r := 0; r < size && to != nil; r++ {
						equal(t, fmt.Sprintf("%d of rank %d", n, r), all.Row(r), parts[n][r])
					}
				}
			})
		})
	}
}

func equal(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Errorf("%s: element %d is %g instead of %g", what, i, got[i], want[i])
			return
		}
	}
}
