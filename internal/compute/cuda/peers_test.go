package cuda_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
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

// together runs ranks with a device each, which exchange over their memory or by the driver's NCCL.
func together(t *testing.T, drv *double.Driver, size int,
	f func(rank int, d *cuda.Device, c *cuda.Comm)) {
	t.Helper()
	var library cuda.NCCL
	if drv.NCCL != nil {
		library.Open = func() (driver.NCCL, error) { return drv.NCCL, nil }
	}
	togetherBy(t, drv, size, func(int) cuda.NCCL { return library }, f)
}

// togetherBy runs ranks with a library each.
func togetherBy(t *testing.T, drv *double.Driver, size int, library func(rank int) cuda.NCCL,
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
			d, err := cuda.New(cuda.Options{Driver: drv, DType: compute.BFloat16, Threads: 1,
				PTX: true, NCCL: library(r)})
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

// ways are drivers by which ranks sum in another way each, and how that begins in words.
func ways() map[string]*double.Driver {
	return map[string]*double.Driver{"over peer memory": {}, "by NCCL 2.27.3: rank 0: ": {
		Apart: true, NCCL: new(double.NCCL)}}
}

// TestPeers holds sums over 2, 4 and 8 ranks, and what one gathers, to the host's: all bits are
// equal, at lengths with tails, of one block and of several launches or pieces.
func TestPeers(t *testing.T) {
	for way, drv := range ways() {
		drv.Check, drv.Seed = true, 5
		t.Run(way, func(t *testing.T) { testPeers(t, way, drv) })
	}
}

func testPeers(t *testing.T, way string, drv *double.Driver) {
	for _, size := range []int{2, 4, 8} {
		lengths := []int{1, 7, 1024, 2048, 70001}
		switch {
		case testing.Short():
		case !drv.Apart:
			lengths = append(lengths, 600_004)
		case size == 8:
			lengths = append(lengths, 1_500_000)
		}
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
				if !strings.HasPrefix(c.Way(), way) {
					t.Errorf("rank %d: %s", rank, c.Way())
					return
				}
				for _, n := range lengths {
					var x, all compute.Tensor
					rows := 1
					if n%4 == 0 {
						rows = 4
					}
					d.Resize(&x, rows, n/rows)
					copy(x.Floats(), parts[n][rank])
					x.Memory.Filled()
					var to *compute.Tensor
					if rank == 0 {
						d.Resize(&all, size*rows, n/rows)
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
						equal(t, fmt.Sprintf("%d of rank %d", n, r), all.Floats()[r*n:],
							parts[n][r])
					}
				}
			})
		})
	}
}

// TestPeersSleep has ranks sleep, which frees their windows, and sum again.
func TestPeersSleep(t *testing.T) {
	for way, drv := range ways() {
		t.Run(way, func(t *testing.T) { testPeersSleep(t, way, drv) })
	}
}

func testPeersSleep(t *testing.T, way string, drv *double.Driver) {
	together(t, drv, 2, func(rank int, d *cuda.Device, c *cuda.Comm) {
		for range 2 {
			if err := c.Sleep(); err != nil || !c.Asleep() {
				t.Error(c.Asleep(), err)
			}
			if enqueued, err := c.Begin(); enqueued || err != nil {
				t.Error(enqueued, err)
			}
			if err := c.Connect(t.Context().Done()); err != nil ||
				!strings.HasPrefix(c.Way(), way) {
				t.Error(c.Way(), err)
				return
			}
			var x compute.Tensor
			d.Resize(&x, 1, 1)
			x.Floats()[0] = float32(1 + rank)
			x.Memory.Filled()
			if err := c.AllReduce(&x); err != nil {
				t.Error(err)
			}
			equal(t, "sum", x.Floats(), []float32{3})
		}
	})
}

// TestPeersRefuse wants ranks to exchange through their hosts where one of them cannot do
// otherwise, and the reason.
func TestPeersRefuse(t *testing.T) {
	for call, want := range map[string]string{
		"cuIpcGetMemHandle":     "rank 0: cuIpcGetMemHandle: CUDA error 801",
		"cuIpcOpenMemHandle_v2": "rank 0: memory of rank 1: cuIpcOpenMemHandle_v2: CUDA error 801",
	} {
		drv := &double.Driver{Fail: func(made string) error {
			if made != call {
				return nil
			}
			return &driver.Error{Call: call, Code: 801}
		}}
		together(t, drv, 2, func(rank int, d *cuda.Device, c *cuda.Comm) {
			if enqueued, err := c.Begin(); enqueued || err != nil ||
				c.Why() != want+"; without NCCL: rank 0: it is left out" {
				t.Errorf("rank %d: %v, %v, %q", rank, enqueued, err, c.Why())
			}
		})
	}
}

// TestPeersEnd has a rank never come: the other one's sums end with the group, and the device sums
// again in the next one.
func TestPeersEnd(t *testing.T) {
	for way, drv := range ways() {
		t.Run(way, func(t *testing.T) { testPeersEnd(t, way, drv) })
	}
}

func testPeersEnd(t *testing.T, way string, drv *double.Driver) {
	ended := make(chan struct{})
	var met sync.WaitGroup
	met.Add(2)
	together(t, drv, 2, func(rank int, d *cuda.Device, c *cuda.Comm) {
		if err := c.Connect(ended); err != nil {
			t.Error(err)
			return
		}
		met.Done()
		met.Wait()
		var x compute.Tensor
		d.Resize(&x, 1, 100)
		if rank == 0 {
			time.AfterFunc(20*time.Millisecond, func() { close(ended) })
			if err := c.AllReduce(&x); err != nil {
				t.Error(err)
			}
			if err := d.Finish(); !errors.Is(err, compute.ErrEnded) {
				t.Errorf("the rank that waits: %v", err)
			}
		}
		<-ended
		c.Leave()
		if err := d.Finish(); err != nil {
			t.Errorf("after it has left: %v", err)
		}
		if err := c.Connect(t.Context().Done()); err != nil || !strings.HasPrefix(c.Way(), way) {
			t.Error(c.Way(), err)
		}
	})
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
