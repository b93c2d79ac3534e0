package kvtransfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// device is what ranks write their caches by.
type device interface {
	NewCache(shape compute.CacheShape) (compute.Cache, error)
	Resize(t *compute.Tensor, rows, width int)
	WriteCache(c compute.Cache, layer int, k, v compute.View, scales compute.CacheScales,
		slots []int32)
	Finish() error
	ISA() string
	Close()
}

func onCPU(t *testing.T) device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 1, DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func onCUDA(t *testing.T, drv *double.Driver) device {
	t.Helper()
	d, err := cuda.New(cuda.Options{Driver: drv, DType: compute.BFloat16, Threads: 1,
		PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// deviceBlocks is how many blocks a cache on a device has.
const deviceBlocks = 8

// onDevice is an engine of one rank whose cache is a device's.
type onDevice struct {
	*Agent
	device device
	cache  compute.Cache
	shape  Shape
	random *rand.Rand
}

// listen makes an engine with a cache of the shape, in random blocks.
func listen(t *testing.T, d device, s Shape) *onDevice {
	t.Helper()
	s.ISA = d.ISA()
	cache, err := d.NewCache(compute.CacheShape{Layers: s.Cache, Blocks: deviceBlocks,
		BlockSize: s.BlockSize, DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	a, err := Listen(Options{Shape: s, Memory: cache, Blocks: deviceBlocks, Host: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		if err := cache.Free(); err != nil {
			t.Log(err) // of a device that the test has lost
		}
	})
	a.SetRanks([]Address{a.Address()})
	e := &onDevice{a, d, cache, s, rand.New(rand.NewPCG(1, 2))}
	for b := range uint32(deviceBlocks) {
		e.write(b)
	}
	if err := d.Finish(); err != nil {
		t.Fatal(err)
	}
	return e
}

// write writes numbers to a block, of all layers, as a step does.
func (e *onDevice) write(block uint32) {
	slots := make([]int32, e.shape.BlockSize)
	for i := range slots {
		slots[i] = int32(int(block)*e.shape.BlockSize + i)
	}
	for layer, l := range e.shape.Cache {
		var x compute.Tensor
		width := l.Heads * l.Dim
		e.device.Resize(&x, len(slots), l.Vectors()*width)
		for i := range x.Floats() {
			x.Floats()[i] = e.random.Float32()
		}
		x.Memory.Filled()
		e.device.WriteCache(e.cache, layer, x.Columns(0, width),
			x.Columns((l.Vectors()-1)*width, width), compute.CacheScales{},
			slots)
	}
}

// bytes are those of blocks.
func (e *onDevice) bytes(t *testing.T, blocks []uint32) (all []byte) {
	t.Helper()
	for _, p := range e.shape.Parts(0) {
		if err := e.cache.Read(e.spans(p, blocks), func(b []byte) error {
			all = append(all, b...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// pinned has blocks handed out.
func (e *onDevice) pinned(t *testing.T, blocks []uint32) Pin {
	t.Helper()
	h := Pin{Secret: NewSecret(), Blocks: blocks, Digest: Digest{1}}
	if err := e.Pin(h); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Release(h.Secret) })
	return h
}

// take fetches blocks of an engine, by memory or not.
func (e *onDevice) take(from *onDevice, h Pin, blocks []uint32, memory bool) (Moved, error) {
	at := from.Address()
	if !memory {
		at = remote(at)
	}
	from.SetRanks([]Address{at})
	return e.Fetch(context.Background(), &Fetch{Secret: h.Secret, From: at, Blocks: blocks,
		Digest: h.Digest, Timeout: time.Minute})
}

// deviceShape has blocks of which a few are more than a device copies at a time, in layers that
// keep different things.
func deviceShape() Shape {
	s := shape(1, 1)
	s.Cache = plain(6, 4, 512)
	s.Cache[1] = compute.CacheLayer{Kind: compute.Latent, Heads: 1, Dim: 34, Values: 16}
	s.Cache[4].Heads, s.Cache[4].Dim = 3, 20
	return s
}

// TestDevices moves blocks between caches of CPUs and of CUDA devices, by both ways, with steps
// that write other blocks meanwhile: what comes is what was there. Between a CPU and a device it is
// refused by name, for neither the layout nor the last bits are the other's.
func TestDevices(t *testing.T) {
	entered := map[int]bool{}
	var mu sync.Mutex
	drv := &double.Driver{Check: true, Fail: func(call string) error {
		mu.Lock()
		defer mu.Unlock()
		switch tid := unix.Gettid(); {
		case call == "cuCtxSetCurrent" || call == "cuDevicePrimaryCtxRetain":
			entered[tid] = true
		case strings.HasPrefix(call, "cuMemcpyD") && !entered[tid]:
			t.Errorf("%s in a thread without the context", call)
		}
		return nil
	}}
	for name, c := range map[string]struct {
		from, to func(t *testing.T) device
		refused  bool
	}{
		"cpu":       {onCPU, onCPU, false},
		"cuda":      {locked(drv), locked(drv), false},
		"to cuda":   {onCPU, locked(drv), true},
		"from cuda": {locked(drv), onCPU, true},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := listen(t, c.from(t), deviceShape()), listen(t, c.to(t), deviceShape())
			for _, memory := range []bool{true, false} {
				h := from.pinned(t, []uint32{3, 4, 0, 6})
				blocks := []uint32{1, 5, 6, 7}
				if c.refused {
					_, err := to.take(from, h, blocks, memory)
					wrong := new(IncompatibleError)
					if !errors.As(err, &wrong) || wrong.Theirs != from.device.ISA() ||
						!strings.Contains(wrong.What, "GPU") {
						t.Fatalf("memory %v: %v", memory, err)
					}
					continue
				}
				want, kept := from.bytes(t, h.Blocks), to.bytes(t, []uint32{0, 2, 3})
				if len(want) < 2<<20 {
					t.Fatalf("%d bytes are copied at a time", len(want))
				}
				end := make(chan struct{})
				var step sync.WaitGroup
				var moved Moved
				var err error
				step.Go(func() {
					defer close(end)
					moved, err = to.take(from, h, blocks, memory)
				})
				for done := false; !done; {
					select {
					case <-end:
						done = true
					default:
					}
					from.write(5)
					to.write(4)
					if err := errors.Join(from.device.Finish(), to.device.Finish()); err != nil {
						t.Fatal(err)
					}
				}
				step.Wait()
				if err != nil || (moved.Memory > 0) != memory ||
					moved.Memory+moved.Link != int64(len(want)) {
					t.Fatalf("memory %v: %+v, %v", memory, moved, err)
				}
				if !bytes.Equal(to.bytes(t, blocks), want) {
					t.Errorf("memory %v: other bytes have come", memory)
				}
				if !bytes.Equal(to.bytes(t, []uint32{0, 2, 3}), kept) {
					t.Errorf("memory %v: other blocks have changed", memory)
				}
				if !from.AwaitFetched(context.Background(), h.Secret) {
					t.Errorf("memory %v: the producer does not know", memory)
				}
			}
		})
	}
}

// locked opens devices in the test's thread, in which their steps are.
func locked(drv *double.Driver) func(t *testing.T) device {
	return func(t *testing.T) device {
		runtime.LockOSThread() // until the test's goroutine ends
		return onCUDA(t, drv)
	}
}

// TestDeviceFails loses the device of either side in the middle of a transfer, by both ways. The
// fetch ends with the driver's words, and the producer knows that it has.
func TestDeviceFails(t *testing.T) {
	var mu sync.Mutex
	failing, left := "", 0 // the call, and how many there are until the driver fails; 0 for never
	drv := &double.Driver{Fail: func(call string) error {
		mu.Lock()
		defer mu.Unlock()
		if call == failing && left > 0 {
			if left--; left == 0 {
				return &driver.Error{Call: call, Name: "LOST", Code: driver.IllegalAddress}
			}
		}
		return nil
	}}
	for _, memory := range []bool{true, false} {
		for _, c := range []struct {
			call     string
			producer bool
			want     string
		}{
			{"cuMemcpyDtoHAsync_v2", true, "read from rank 0: the other engine says: copy KV " +
				"blocks from the device: cuMemcpyDtoHAsync_v2: LOST (700)"},
			{"cuMemcpyHtoDAsync_v2", false, "read from rank 0: copy KV blocks to the device: " +
				"cuMemcpyHtoDAsync_v2: LOST (700)"},
		} {
			name := fmt.Sprintf("producer %v, memory %v", c.producer, memory)
			t.Run(name, func(t *testing.T) {
				from := listen(t, onCUDA(t, drv), deviceShape())
				to := listen(t, onCUDA(t, drv), deviceShape())
				mu.Lock()
				failing, left = c.call, 12 // some have come by then
				mu.Unlock()
				h := from.pinned(t, []uint32{3, 4, 0, 6})
				moved, err := to.take(from, h, []uint32{1, 5, 6, 7}, memory)
				if err == nil || err.Error() != c.want || moved == (Moved{}) {
					t.Errorf("%+v, %v, want %q", moved, err, c.want)
				}
				if !from.AwaitFetched(context.Background(), h.Secret) {
					t.Error("the producer does not know")
				}
				lost := to
				if c.producer {
					lost = from
				}
				if lost.write(1); lost.device.Finish() == nil {
					t.Error("the next step goes on")
				}
			})
		}
	}
}

// TestDeviceCancelled cancels fetches between two devices at random times: each returns, nothing
// writes to the blocks afterwards, and the next fetch brings all.
func TestDeviceCancelled(t *testing.T) {
	drv := new(double.Driver)
	from, to := listen(t, onCUDA(t, drv), deviceShape()), listen(t, onCUDA(t, drv), deviceShape())
	source, blocks := []uint32{3, 4, 0, 6}, []uint32{1, 5, 6, 7}
	want := from.bytes(t, source)
	failed := 0
	for i := range uint64(30) {
		h := from.pinned(t, source)
		ended := make(chan error, 1)
		go func() {
			_, err := to.Fetch(context.Background(), &Fetch{ID: i + 1, Secret: h.Secret,
				From: from.Address(), Blocks: blocks, Digest: h.Digest, Timeout: time.Minute})
			ended <- err
		}()
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
		to.Cancel(i + 1)
		if err := <-ended; err != nil {
			failed++
		}
		before := to.bytes(t, blocks)
		from.Release(h.Secret)
		if !bytes.Equal(to.bytes(t, blocks), before) {
			t.Fatal("blocks change after the end")
		}
	}
	if failed == 0 {
		t.Error("no fetch was cancelled")
	}
	h := from.pinned(t, source)
	if _, err := to.take(from, h, blocks, true); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(to.bytes(t, blocks), want) {
		t.Error("other bytes have come")
	}
}
