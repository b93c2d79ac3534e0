package cuda_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// opens is a library that was found.
func opens(n driver.NCCL) cuda.NCCL {
	return cuda.NCCL{Open: func() (driver.NCCL, error) { return n, nil }}
}

// failing is a library of which a call fails, from its n-th time on.
func failing(call string, n int) cuda.NCCL {
	var mu sync.Mutex
	return opens(&double.NCCL{Fail: func(made string) error {
		mu.Lock()
		defer mu.Unlock()
		if made != call {
			return nil
		}
		if n--; n > 0 {
			return nil
		}
		return errors.New(call + ": of a test")
	}})
}

// TestNCCLRefused wants all ranks to exchange through their hosts where one of them cannot do so by
// NCCL, and the reason.
func TestNCCLRefused(t *testing.T) {
	good := opens(new(double.NCCL))
	for want, libraries := range map[string][2]cuda.NCCL{
		"rank 1: it is left out": {good, {}},
		"rank 1: no libnccl.so.2": {good, {Open: func() (driver.NCCL, error) {
			return nil, errors.New("no libnccl.so.2")
		}}},
		"rank 0: rank 0 has version 2.27.3, rank 1 2.18.1": {good,
			opens(&double.NCCL{Release: 21801})},
		"rank 0: ncclGetUniqueId: of a test":        {failing("ncclGetUniqueId", 1), good},
		"rank 1: ncclCommInitRankConfig: of a test": {good, failing("ncclCommInitRankConfig", 1)},
		"ended: ncclAllGather: of a test":           {failing("ncclAllGather", 2), good},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && (strings.Contains(want, "ncclCommInitRankConfig") ||
				strings.Contains(want, "ncclAllGather")) {
				t.Skip("a rank waits for the other one for half a minute")
			}
			drv := &double.Driver{Apart: true}
			library := func(rank int) cuda.NCCL { return libraries[rank] }
			togetherBy(t, drv, 2, library, func(rank int, d *cuda.Device, c *cuda.Comm) {
				if enqueued, err := c.Begin(); enqueued || err != nil {
					t.Errorf("rank %d: %v, %v", rank, enqueued, err)
				}
				way := c.Way()
				if !strings.HasPrefix(way, "through the host: rank 0: memory of rank 1: ") ||
					!strings.Contains(way, "; without NCCL: ") || !strings.HasSuffix(way, want) {
					t.Errorf("rank %d: %q instead of %q", rank, way, want)
				}
			})
		})
	}
}

// TestNCCLFails has the library of one rank fail, at a call and between two, while the other rank
// waits for it: both say that the group has ended.
func TestNCCLFails(t *testing.T) {
	for call, n := range map[string]int{"ncclAllGather": 7, "ncclCommGetAsyncError": 1} {
		t.Run(call, func(t *testing.T) {
			libraries := [2]cuda.NCCL{failing(call, n), opens(new(double.NCCL))}
			ended := make(chan struct{})
			drv := &double.Driver{Apart: true}
			library := func(rank int) cuda.NCCL { return libraries[rank] }
			togetherBy(t, drv, 2, library, func(rank int, d *cuda.Device, c *cuda.Comm) {
				if err := c.Connect(ended); err != nil {
					t.Error(err)
					return
				}
				if rank == 0 {
					fails(t, call, d, c)
					close(ended) // as a driver does that was told
				} else {
					var x compute.Tensor
					d.Resize(&x, 1, 100)
					_ = c.AllReduce(&x) // which may have ended before
					if err := d.Finish(); !errors.Is(err, compute.ErrEnded) {
						t.Errorf("the rank that waits: %v", err)
					}
				}
				c.Leave()
				if err := d.Finish(); err != nil {
					t.Errorf("after it has left: %v", err)
				}
			})
		})
	}
}

// fails sums until the library has failed.
func fails(t *testing.T, call string, d *cuda.Device, c *cuda.Comm) {
	for began := time.Now(); d.Err() == nil; time.Sleep(time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatal("the library has not failed")
		}
		if call == "ncclAllGather" {
			var x compute.Tensor
			d.Resize(&x, 1, 100)
			_ = c.AllReduce(&x) // Err says as much
		}
	}
	if err := d.Err(); !errors.Is(err, compute.ErrEnded) ||
		!strings.Contains(err.Error(), call+": of a test") {
		t.Errorf("the rank whose library fails: %v", err)
	}
}
