package libcuda

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// TestPeers exports memory and opens it as another process's: all of a handle arrives.
func TestPeers(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, l := opened(t)
	if n := fake.Layout("layout_handle", 1)[0]; n != uint64(unsafe.Sizeof(driver.Handle{})) {
		t.Errorf("a handle has %d bytes", n)
	}
	for _, c := range []struct {
		apart int
		want  bool
	}{{0, true}, {1, false}} {
		fake.Set("apart", c.apart)
		if got := must(l.Reaches(0, 1))(t); got != c.want {
			t.Errorf("reaches: %v", got)
		}
	}
	if _, err := l.Reaches(0, 2); err == nil {
		t.Error("a device that is not there is reached")
	}
	c := must(l.Open(0))(t)
	p := must(c.Alloc(driver.ExportGrain))(t)
	h := must(c.Export(p))(t)
	if _, err := c.Export(p + 256); err == nil {
		t.Error("a part was exported")
	}
	code := func(err error) int {
		e := (*driver.Error)(nil)
		errors.As(err, &e)
		return e.Code
	}
	if _, err := c.Import(h); err == nil || code(err) != 201 {
		t.Errorf("opened by the process itself: %v", err)
	}
	fake.Set("foreign", 1)
	if _, err := c.Import(h); err == nil || code(err) != driver.PeerUnsupported {
		t.Errorf("opened from a device that does not reach it: %v", err)
	}
	fake.Set("apart", 0)
	q := must(c.Import(h))(t)
	s := must(c.NewStream())(t)
	succeed(t, c.Fill(q, 1, driver.ExportGrain, s), c.CloseImport(q))
	if err := c.CloseImport(q); err == nil {
		t.Error("closed twice")
	}
	must(c.Import(h))(t)
	succeed(t, c.Close()) // of what is left, too
}
