package gpu

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/worker"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// TestMemory measures GPUs, and not the machine that stands for them.
func TestMemory(t *testing.T) {
	t.Setenv(queue.CUDADriverVariable, "")
	opened := 0
	fake := &double.Driver{Threads: 1}
	fake.Info.Memory, fake.Info.Name, fake.Info.UUID = 1<<30, "H", "GPU-1"
	g := Devices(Libraries{Driver: func() (driver.Driver, error) {
		opened++
		return fake, nil
	}})
	for range 2 {
		b := g.Memory(0)
		if len(b) != 1 || b[0].Limit != 1<<30 || b[0].Left > 1<<30 || b[0].Left < 1<<29 ||
			b[0].From != "GPU 0 (H, GPU-1)" {
			t.Errorf("%+v", b)
		}
	}
	if b := g.Memory(100); b != nil || opened != 1 {
		t.Errorf("%+v, opened %d times", b, opened)
	}
	lost := Devices(Libraries{Driver: func() (driver.Driver, error) {
		return nil, errors.New("lost")
	}})
	if b := lost.Memory(0); b != nil {
		t.Errorf("%+v", b)
	}
	t.Setenv(queue.CUDADriverVariable, "machine,memory=1000")
	if b, want := lost.Memory(0), machine.Memory(); len(b) != len(want) || b[0].Limit !=
		want[0].Limit {
		t.Errorf("%+v instead of %+v", b, want)
	}
}

// TestMeter asks for a GPU by its UUID, and for none of the machine.
func TestMeter(t *testing.T) {
	t.Setenv(queue.CUDADriverVariable, "")
	fake := &double.Driver{Threads: 1}
	fake.Info.Name, fake.Info.UUID = "H", "GPU-1"
	have := Libraries{Driver: func() (driver.Driver, error) { return fake, nil },
		Meter: func(uuid string) func(*status.GPU) {
			return func(g *status.GPU) { g.Know(status.GPUPower, uint64(len(uuid))) }
		}}
	g := Devices(have)
	var s status.GPU
	if m := g.Meter(0); m == nil {
		t.Error("no meter")
	} else if m(&s); s[status.GPUPower] != 6 {
		t.Errorf("%v", s)
	}
	if g.Meter(100) != nil {
		t.Error("a GPU that is not there is measured")
	}
	t.Setenv(queue.CUDADriverVariable, "machine")
	for _, none := range []worker.GPUs{Devices(Libraries{}), Devices(have)} {
		if none.Meter(0) != nil {
			t.Error("the machine is measured")
		}
	}
}

// TestNew makes devices, or says why not.
func TestNew(t *testing.T) {
	runtime.LockOSThread() // a context is of one thread
	defer runtime.UnlockOSThread()
	o := worker.GPU{Ordinal: 5, DType: compute.BFloat16, Threads: 1}
	lost := func() (driver.Driver, error) { return nil, errors.New("the driver is lost") }
	for _, c := range []struct {
		open     func() (driver.Driver, error)
		variable string
		says     string
	}{
		{nil, "", "this program has no CUDA driver"},
		{lost, "", "the driver is lost"},
		{lost, "other", `EAGLERAY_CUDA_DRIVER="other" does not begin with "machine"`},
		{lost, "machine,x", `"x" is none of`},
		{lost, "machine", ""},
		{nil, "machine,seed=1", ""},
	} {
		t.Setenv(queue.CUDADriverVariable, c.variable)
		d, err := Devices(Libraries{Driver: c.open}).New(o)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v", c.variable, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.variable, err)
			continue
		}
		d.Close()
	}
}
