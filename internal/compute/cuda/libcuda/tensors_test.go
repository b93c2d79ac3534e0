package libcuda

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/libcudatest"
)

func TestTensorMap(t *testing.T) {
	_, c := inContext(t, 0)
	const base = 7<<32 | 16
	m := must(c.TensorMap(&driver.Tensor{Base: base, Columns: 72, Rows: 5 << 20, Stride: 144,
		Box: 16}))(t)
	want := driver.TensorMap{base, 72, 5 << 20, 144, 64, 16}
	want[15] = 0x70616d
	if m != want {
		t.Errorf("%#x", m)
	}
	m = must(c.TensorMap(&driver.Tensor{Base: base, Columns: 72, Rows: 5, Stride: 144, Box: 16,
		Places: 9, Apart: 48}))(t)
	want = driver.TensorMap{base, 72, 9, 48, 64, 1, 5, 144, 16}
	want[15] = 0x70616d
	if m != want {
		t.Errorf("in places: %#x", m)
	}
	_, err := c.TensorMap(&driver.Tensor{Base: base, Columns: 72, Rows: 9, Stride: 140, Box: 16})
	if err == nil || !strings.HasSuffix(err.Error(), "9 rows of 72 numbers, 140 bytes apart, in "+
		"boxes of 16") {
		t.Errorf("%v", err)
	}
}

// TestNoTensorMaps has a driver from before CUDA 12.0, which is no reason not to open it.
func TestNoTensorMaps(t *testing.T) {
	path := libcudatest.Build(t, t.TempDir(), "WITHOUT_TENSORS")
	watched(t, path)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := must(must(Open(path))(t).Open(0))(t)
	_, err := c.TensorMap(&driver.Tensor{})
	if e := (*driver.Error)(nil); !errors.As(err, &e) || e.Code != driver.NotFound {
		t.Errorf("%v", err)
	}
	succeed(t, c.Close())
}
