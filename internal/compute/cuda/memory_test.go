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
