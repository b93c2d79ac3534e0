package cuda

import (
	"runtime"
	"testing"
	"weak"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
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
	d.Rotary([]float32{1}, 1, 0).Angles(y, []int32{rotaryPage})
	for range 10 {
		if left() == before {
			return
		}
	}
	t.Errorf("%d allocations are left, not %d", left(), before)
	runtime.KeepAlive(y)
}
