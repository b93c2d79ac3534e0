package cuda

import (
	"errors"
	"iter"
	"runtime"
	"testing"
	"weak"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// TestClosedIsGarbage: a device that is closed leaves nothing behind, though it refers to memory
// that refers to it, and that the device is told of when nothing refers to it any more.
func TestClosedIsGarbage(t *testing.T) {
	closed := func() weak.Pointer[Device] {
		d, err := New(Options{Driver: &double.Driver{}, DType: compute.BFloat16, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		d.Resize(&d.mix.inner, 1, 1)
		d.Close()
		return weak.Make(d)
	}()
	for range 10 {
		runtime.GC()
		if closed.Value() == nil {
			return
		}
	}
	t.Error("a device that was closed is kept")
}

// TestAnglesAreFreed: those of a model that is gone take no memory of the device.
func TestAnglesAreFreed(t *testing.T) {
	d, err := New(Options{Driver: &double.Driver{}, DType: compute.BFloat16, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	y := new(compute.Tensor)
	d.Resize(y, 1, 2)
	left := func() int {
		runtime.GC()
		d.DropSpare()
		n, _ := d.ctx.(*double.Context).Left()
		return n
	}
	before := left()
	d.Rotary([]float32{1}, unscaled, 0).Angles(y, []int32{rotaryPage})
	for range 10 {
		if left() == before {
			return
		}
	}
	t.Errorf("%d allocations are left, not %d", left(), before)
	runtime.KeepAlive(y)
}

func unscaled(int) float64 { return 1 }

// TestNoAngles: a pass may have no rows.
func TestNoAngles(t *testing.T) {
	d, err := New(Options{Driver: &double.Driver{}, DType: compute.BFloat16, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	y := new(compute.Tensor)
	d.Rotary([]float32{1}, unscaled, 0).Angles(y, nil)
	if d.err != nil || y.Rows != 0 {
		t.Errorf("%d rows, %v", y.Rows, d.err)
	}
}

// TestThreads: a device is that of one thread, but for what it copies beside its steps.
func TestThreads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := New(Options{Driver: &double.Driver{Bound: true}, DType: compute.BFloat16, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := d.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{Heads: 1, Dim: 16}},
		Blocks: 1, BlockSize: 16, DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	span := iter.Seq[compute.Span](func(yield func(compute.Span) bool) {
		yield(compute.Span{To: 1})
	})
	elsewhere := func(f func() error) error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			done <- f()
		}()
		return <-done
	}
	if err := elsewhere(func() error {
		return c.Fill(span, func(b []byte) error { clear(b); return nil })
	}); err != nil {
		t.Error(err)
	}
	err = elsewhere(func() error { return d.ctx.Synchronize(d.stream) })
	if e := (*driver.Error)(nil); !errors.As(err, &e) || e.Code != 201 {
		t.Errorf("a call of another thread: %v", err)
	}
	if err := d.Finish(); err != nil {
		t.Error(err)
	}
}

// TestLay: texts that attend to themselves take the blocks that they need, not the longest one's.
func TestLay(t *testing.T) {
	const size = 4
	b := new(compute.Batch)
	for seq, n := range []int{9, 1, 4, 5} {
		for p := range n {
			b.Seq, b.Position = append(b.Seq, int32(seq)), append(b.Position, int32(p))
		}
	}
	var a among
	stride, blocks := a.lay(b, size)
	if stride != 3 || blocks != 3+1+1+2 || len(a.tables) != 4*stride {
		t.Fatalf("%d entries a table, %d blocks, tables %v", stride, blocks, a.tables)
	}
	taken := map[int32]bool{}
	for i, seq := range b.Seq {
		p, slot := int(b.Position[i]), a.slots[i]
		if taken[slot] || slot/size != a.tables[int(seq)*stride+p/size] ||
			int(slot%size) != p%size || int(slot/size) >= blocks {
			t.Errorf("position %d of %d is in slot %d, tables %v", p, seq, slot, a.tables)
		}
		taken[slot] = true
	}
}
