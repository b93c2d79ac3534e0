package nccl

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nccl/nccltest"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
)

// fake is a library of nccltest in this process.
type fake struct {
	*fakelib.Library
	t *testing.T
}

// built builds and loads a library, whose test fails at a wrong argument.
func built(t *testing.T, without ...string) fake {
	t.Helper()
	path := nccltest.Build(t, t.TempDir(), without...)
	return fake{fakelib.Watch(t, path), t}
}

// entered counts how often a device was made current.
type entered struct {
	driver.Context
	times int
}

func (e *entered) Enter() error {
	e.times++
	return nil
}

// joined is the first rank of two.
func (f fake) joined(l *Library) (*communicator, *entered) {
	f.t.Helper()
	id, err := l.ID(true)
	if err != nil {
		f.t.Fatal(err)
	}
	device := new(entered)
	c, err := l.Join(f.t.Context(), device, id, 0, 2, true)
	if err != nil {
		f.t.Fatal(err)
	}
	return c.(*communicator), device
}

// TestGather passes an ID, a configuration and numbers, by calls that are done at once or later.
func TestGather(t *testing.T) {
	f := built(t)
	for _, codes := range []string{"", "ncclCommInitRankConfig=7", "ncclAllGather=7 looks=9",
		"ncclGroupEnd=7 looks=9"} {
		f.Codes(codes)
		l, err := Open(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if l.Path() != f.Path || l.Version() != 22703 {
			t.Errorf("version %d of %s", l.Version(), l.Path())
		}
		c, device := f.joined(l)
		if got := f.Text("test_interfaces"); got != loopback {
			t.Errorf("ranks of one machine listen at %q", got)
		}
		src, dst := []float32{1, 2, 3}, make([]float32, 6)
		gather(t, c, dst, src)
		if want := []float32{1, 2, 3, 2, 3, 4}; !slices.Equal(dst, want) {
			t.Errorf("%q: %v instead of %v", codes, dst, want)
		}
		if err := c.Failed(); err != nil {
			t.Error(err)
		}
		exchange(t, c, 3)
		c.Abort()
		c.Abort()
		gather(t, c, dst, []float32{9, 9, 9})
		if aborted := f.Call("test_aborted"); aborted != 1 || device.times != 1 ||
			dst[0] != 1 || c.Failed() != nil {
			t.Errorf("aborted %d times, by a device that was entered %d times; %v", aborted,
				device.times, dst)
		}
	}
}

// numbers are 1,024 zeros in memory that is not Go's, until the test ends.
func numbers(t *testing.T) []float32 {
	t.Helper()
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(page); err != nil {
			t.Error(err)
		}
	})
	return unsafe.Slice((*float32)(unsafe.Pointer(&page[0])), 1024)
}

// exchange has each rank give each some numbers.
func exchange(t *testing.T, c *communicator, n int) {
	t.Helper()
	v := numbers(t)[:4*n]
	for i := range 2 * n {
		v[i] = float32(i)
	}
	at := func(i int) driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(&v[i]))) }
	if err := c.AllToAll(at(2*n), at(0), n, 77); err != nil {
		t.Error(err)
	}
	for i := range n {
		if v[2*n+i] != float32(i) || v[3*n+i] != float32(i+1) {
			t.Errorf("exchanged: %v", v)
			break
		}
	}
}

// gather gathers numbers that lie in memory that is not Go's.
func gather(t *testing.T, c *communicator, dst, src []float32) {
	t.Helper()
	floats := numbers(t)
	copy(floats, src)
	copy(floats[512:], dst)
	at := func(i int) driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(&floats[i]))) }
	if err := c.AllGather(at(512), at(0), len(src), 77); err != nil {
		t.Error(err)
	}
	copy(dst, floats[512:])
}

// TestEnds has waits end: that for the other ranks with its context, that of a call by Abort.
func TestEnds(t *testing.T) {
	f := built(t)
	l, err := Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	const forever = "looks=2000000000"
	f.Codes("ncclCommInitRankConfig=7 " + forever)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	id, err := l.ID(true)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Join(ctx, new(entered), id, 1, 2, true)
	if want := "ncclCommInitRankConfig: context deadline exceeded"; err == nil ||
		err.Error() != want {
		t.Errorf("%v instead of %s", err, want)
	}
	if aborted := f.Call("test_aborted"); aborted != 1 {
		t.Errorf("aborted %d times", aborted)
	}
	f.Codes("ncclAllGather=7 " + forever)
	c, _ := f.joined(l)
	late := time.AfterFunc(20*time.Millisecond, c.Abort)
	defer late.Stop()
	gather(t, c, make([]float32, 2), []float32{1})
}

// TestRefused names what is wrong, and the value.
func TestRefused(t *testing.T) {
	f := built(t)
	absent := filepath.Join(t.TempDir(), "absent.so")
	for _, c := range []struct{ path, codes, want string }{
		{absent, "", "no libnccl.so.2 was found (EAGLERAY_NCCL names one): tried " + absent +
			" (no such file)"},
		{"libm.so.6", "", "libm.so.6 lacks ncclGetVersion, ncclGetUniqueId, ncclGetErrorString, " +
			"ncclGetLastError, ncclCommInitRankConfig, ncclCommGetAsyncError, ncclCommAbort, " +
			"ncclAllGather, ncclGroupStart, ncclGroupEnd, ncclSend, ncclRecv"},
		{built(t, "WITHOUT_ABORT").Path, "", "lacks ncclCommAbort"},
		{f.Path, "version=21705", "PATH is NCCL 2.17.5, and 2.18.1 is the oldest that is used"},
		{f.Path, "version=2804", "PATH is NCCL 2.8.4, and 2.18.1 is the oldest that is used"},
		{f.Path, "ncclGetVersion=3", "ncclGetVersion of PATH: other error (3)"},
	} {
		f.Codes(c.codes)
		_, err := Open(c.path)
		if c.path != f.Path && err != nil && strings.HasSuffix(err.Error(), c.want) {
			continue
		}
		f.Failed(c.codes, err, c.want)
	}
	f.Codes("")
	l, err := Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	const system = "unhandled system error (run with NCCL_DEBUG=INFO for details) (2)"
	f.Codes("ncclGetUniqueId=2")
	_, err = l.ID(true)
	f.Failed("an ID", err, "ncclGetUniqueId of PATH: "+system)
	if _, err := l.ID(false); err == nil {
		t.Error("loopback is taken between machines")
	}
	f.Codes("ncclCommInitRankConfig=2 known=1")
	_, err = l.Join(t.Context(), new(entered), driver.CommID{}, 0, 2, true)
	f.Failed("a communicator", err, "ncclCommInitRankConfig of PATH: "+system+
		": socket closed by 10.0.0.2")
	f.Codes("")
	c, _ := f.joined(l)
	f.Codes("state=6")
	f.Failed("a state", c.Failed(),
		"ncclCommGetAsyncError of PATH: remote process exited or there "+
			"was a network error (6)")
	for _, call := range []string{"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"} {
		f.Codes(call + "=2")
		f.Failed(call, c.AllToAll(1<<12, 1<<12, 0, 77), call+" of PATH: "+system)
	}
	f.Codes("ncclAllGather=7 state=6")
	f.Failed("a call that fails later", c.AllGather(1<<12, 1<<12, 0, 77), "ncclAllGather of PATH: "+
		"remote process exited or there was a network error (6)")
}

// TestLayouts compares structs with what C says of them.
func TestLayouts(t *testing.T) {
	f := built(t)
	want := []uint64{uint64(unsafe.Sizeof(config{})), uint64(unsafe.Offsetof(config{}.network)),
		uint64(unsafe.Offsetof(config{}.splitShare)), uint64(unsafe.Sizeof(driver.CommID{}))}
	if got := f.Layout("layout", len(want)); !slices.Equal(got, want) {
		t.Errorf("%v instead of %v", want, got)
	}
}
