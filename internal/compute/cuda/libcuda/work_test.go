package libcuda

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// add is the parameter of the library's kernel add: value × scale is added to n bytes.
type add struct {
	dst   driver.Ptr
	n     uint64
	value uint32
	scale float32
}

func launchOfAdd(t *testing.T, c driver.Context, p *add) *driver.Launch {
	t.Helper()
	m := must(c.Load([]byte(".version 7.0\x00")))(t)
	return &driver.Launch{Function: must(c.Function(m, "add"))(t), Grid: [3]uint32{1, 2, 3},
		Block: [3]uint32{4, 5, 6}, Params: unsafe.Pointer(p)}
}

func TestMemory(t *testing.T) {
	fake, c := inContext(t, 0)
	free, total := memInfo(t, c)
	if free != 150754820096 || total != free {
		t.Errorf("%d of %d bytes are free", free, total)
	}
	const large = 5<<32 | 7 // more than 32 bits, and not their lower half alone
	p := must(c.Alloc(large))(t)
	if now, _ := memInfo(t, c); fake.Get("last_bytes") != large || free-now != large {
		t.Errorf("%d bytes were reserved", fake.Get("last_bytes"))
	}
	s := must(c.NewStream())(t)
	for name, call := range map[string]func() error{
		"Fill": func() error { return c.Fill(p, 0xff, large-1, s) },
		"Copy": func() error { return c.Copy(p, p+1, large-1, s) },
		"Upload": func() error {
			return pinned(c, large-1, func(b []byte) error { return c.Upload(p, b, s) })
		},
		"Download": func() error {
			return pinned(c, large-1, func(b []byte) error { return c.Download(b, p, s) })
		},
	} {
		succeed(t, call())
		if n := fake.Get("last_bytes"); n != large-1 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	succeed(t, c.Free(p))
	if err := c.Free(p); err == nil || !strings.Contains(err.Error(), "was released before") {
		t.Errorf("free again: %v", err)
	}
	want := "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): 150754820097 bytes, and 150754820096 " +
		"of the device's 150754820096 are free"
	if _, err := c.Alloc(total + 1); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	if _, err := c.Alloc(0); err == nil {
		t.Error("no bytes were reserved")
	}
}

// pinned calls f with pinned memory, which is released then.
func pinned(c driver.Context, n int, f func([]byte) error) error {
	b, err := c.Pin(n)
	if err != nil {
		return err
	}
	return errors.Join(f(b), c.Unpin(b))
}

func TestPin(t *testing.T) {
	fake, c := inContext(t, 0)
	b := must(c.Pin(100))(t)
	if len(b) != 100 || cap(b) != 100 {
		t.Fatalf("%d of %d bytes", len(b), cap(b))
	}
	copy(b, bytes.Repeat([]byte{7}, 100))
	runtime.GC() // which has no business with it
	for name, wrong := range map[string][]byte{"a part": b[:99], "its end": b[1:], "none": nil,
		"Go's own": make([]byte, 100)} {
		if err := c.Unpin(wrong); err == nil || !strings.Contains(err.Error(), "none of this") {
			t.Errorf("%s: %v", name, err)
		}
	}
	fake.Fail("cuMemFreeHost", 1, 1)
	if err := c.Unpin(b); err == nil {
		t.Error("no error")
	}
	succeed(t, c.Unpin(b))
	for _, n := range []int{0, -1} {
		if _, err := c.Pin(n); err == nil || !strings.HasPrefix(err.Error(), "pinned memory of ") {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	fake.Fail("cuMemHostAlloc", 2, 1)
	want := "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): 8 bytes of the host"
	if _, err := c.Pin(8); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestStep does what a step does, and looks at the bytes.
func TestStep(t *testing.T) {
	fake, c := inContext(t, 0)
	in, out := must(c.Pin(16))(t), must(c.Pin(16))(t)
	a, b := must(c.Alloc(16))(t), must(c.Alloc(16))(t)
	s, e := must(c.NewStream())(t), must(c.NewEvent())(t)
	copy(in, "0123456789abcdef")
	p := &add{dst: b, n: 4, value: 2, scale: 0.5}
	l := launchOfAdd(t, c, p)
	succeed(t, c.Fill(b, 'x', 16, s), c.Upload(a, in, s), c.Copy(b, a, 8, s), c.Launch(l, s),
		c.Record(e, s), c.Download(out, b, s), c.Synchronize(s))
	if got := string(out); got != "12344567xxxxxxxx" {
		t.Errorf("%q", got)
	}
	if n := fake.Get("last_threads"); n != 1+20+300+4000+50000+600000 {
		t.Errorf("dimensions %d", n)
	}
	if got := fake.Params(24); !bytes.Equal(got, unsafe.Slice((*byte)(unsafe.Pointer(p)), 24)) {
		t.Errorf("parameter %x", got)
	}
	if got := must(c.Elapsed(e, e))(t); got != 1500*time.Microsecond {
		t.Errorf("elapsed: %v", got)
	}
	// What the driver writes to stays where it is while the stack grows.
	for depth := range 40 {
		var got time.Duration
		grown := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if err := c.Enter(); err != nil {
				grown <- err
				return
			}
			grown <- deep(depth/8, func() error { return shallow(depth%8*20, c, e, &got) })
		}()
		if err := <-grown; err != nil || got != 1500*time.Microsecond {
			t.Fatalf("elapsed, %d deep: %v, %v", depth, got, err)
		}
	}
	fake.Fail("cuEventElapsedTime", driver.NotReady, 1)
	if _, err := c.Elapsed(e, e); err == nil {
		t.Error("elapsed: no error")
	}
	// Of no bytes no call is made.
	before := fake.Calls("cuMemcpyHtoDAsync_v2") + fake.Calls("cuMemsetD8Async")
	succeed(t, c.Upload(a, nil, s), c.Download(nil, a, s), c.Copy(a, b, 0, s), c.Fill(a, 0, 0, s))
	if fake.Calls("cuMemcpyHtoDAsync_v2")+fake.Calls("cuMemsetD8Async") != before {
		t.Error("called for no bytes")
	}
}

func TestLaunch(t *testing.T) {
	fake, c := inContext(t, 0)
	s := must(c.NewStream())(t)
	l := launchOfAdd(t, c, &add{})
	l.Shared = 64 << 10
	want := "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): kernel add, grid 1×2×3, block 4×5×6, " +
		"65536 bytes of shared memory"
	if err := c.Launch(l, s); err == nil || err.Error() != want {
		t.Errorf("more than was allowed: %v", err)
	}
	succeed(t, c.AllowShared(l.Function, 64<<10), c.Launch(l, s))
	if fake.Get("last_bytes") != 64<<10 {
		t.Errorf("%d bytes of shared memory", fake.Get("last_bytes"))
	}
	want = "cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE (1): kernel add, 300000 bytes of shared " +
		"memory of the 232448 that a block may have"
	if err := c.AllowShared(l.Function, 300000); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	registers, shared, local, err := c.Resources(l.Function)
	if err != nil || registers != 40 || shared != 1024 || local != 16 {
		t.Errorf("%d registers, %d and %d bytes, %v", registers, shared, local, err)
	}
	m := must(c.Load([]byte("\x7fELF")))(t)
	succeed(t, c.Launch(&driver.Launch{Function: must(c.Function(m, "nothing"))(t),
		Grid: [3]uint32{1 << 31, 65535, 65535}, Block: [3]uint32{1, 1, 1}}, s))
	if got := fake.Get("last_threads"); got != 1<<31+655350+6553500+1000+10000+100000 {
		t.Errorf("dimensions %d", got)
	}
	l.Function = 0x1234
	if err := c.Launch(l, s); err == nil || !strings.Contains(err.Error(),
		"CUDA_ERROR_INVALID_HANDLE (400): unknown kernel 0x1234, grid") {
		t.Errorf("%v", err)
	}
	if _, _, _, err := c.Resources(l.Function); err == nil {
		t.Error("resources of no kernel")
	}
}

func TestModules(t *testing.T) {
	_, c := inContext(t, 0)
	for image, want := range map[string]string{
		"":               "the image of a module is empty",
		".version 7.0\n": "PTX of 13 bytes ends with byte 10 and not with a zero byte",
		"\x7fELF!": "cuModuleLoadDataEx: CUDA_ERROR_NO_BINARY_FOR_GPU (209): the image has no " +
			"code for this GPU",
		"bad\x00": "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): ptxas application ptx " +
			"input, line 3; error   : Unknown symbol; ptxas fatal   : Ptx assembly aborted due " +
			"to errors",
		"quiet\x00": "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): info : nothing was made",
		"future\x00": "cuModuleLoadDataEx: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the PTX is " +
			"of a later CUDA than the driver's 12.9: update NVIDIA's driver",
	} {
		if _, err := c.Load([]byte(image)); err == nil || err.Error() != want {
			t.Errorf("%q: %v\ninstead of\n%s", image, err, want)
		}
	}
	must(c.Load([]byte{0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 1}))(t) // several cubins in one
	m := must(c.Load([]byte(".version 7.0\x00")))(t)
	f := must(c.Function(m, "add"))(t)
	if got := c.(*context).kernels.name(f); got != "kernel add" {
		t.Errorf("%s", got)
	}
	want := "cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500): kernel absent"
	if _, err := c.Function(m, "absent"); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"", "add\x00"} {
		if _, err := c.Function(m, name); err == nil {
			t.Errorf("%q has a function", name)
		}
	}
}

func TestGraphs(t *testing.T) {
	fake, c := inContext(t, 0)
	captureAndReplay(t, c)
	s := must(c.NewStream())(t)
	if _, err := c.EndCapture(s); err == nil {
		t.Error("a capture ended that was not begun")
	}
	fake.Fail("cuStreamBeginCapture_v2", 901, 1)
	if err := c.BeginCapture(s); err == nil {
		t.Error("begun")
	}
	before := fake.Live()
	fake.Fail("cuGraphInstantiateWithFlags", 901, 1)
	succeed(t, c.BeginCapture(s))
	if _, err := c.EndCapture(s); err == nil || !strings.HasPrefix(err.Error(),
		"cuGraphInstantiateWithFlags: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901): ") {
		t.Errorf("%v", err)
	}
	if n := fake.Live(); n != before {
		t.Errorf("%d are left of a capture that failed", n-before)
	}
}

// captureAndReplay captures a launch, changes its parameter, and replays it twice.
func captureAndReplay(t *testing.T, c driver.Context) {
	t.Helper()
	p := must(c.Alloc(4))(t)
	out, s := must(c.Pin(4))(t), must(c.NewStream())(t)
	params := &add{dst: p, n: 4, value: 3, scale: 1}
	l := launchOfAdd(t, c, params)
	succeed(t, c.Fill(p, 0, 4, s), c.BeginCapture(s), c.Launch(l, s), c.Download(out, p, s))
	g := must(c.EndCapture(s))(t)
	*params = add{}
	succeed(t, c.Replay(g, s), c.Replay(g, s), c.Synchronize(s))
	if !bytes.Equal(out, []byte{6, 6, 6, 6}) {
		t.Errorf("%v", out)
	}
	succeed(t, c.Destroy(g))
	if err := c.Destroy(g); err == nil {
		t.Error("destroyed twice")
	}
}

// TestNoAllocations counts those of the calls of a step.
func TestNoAllocations(t *testing.T) {
	_, c := inContext(t, 0)
	b, p := must(c.Pin(64))(t), must(c.Alloc(64))(t)
	s, e := must(c.NewStream())(t), must(c.NewEvent())(t)
	l := launchOfAdd(t, c, &add{dst: p, n: 4})
	tensor := &driver.Tensor{Base: p, Columns: 8, Rows: 1, Box: 1, Stride: 16}
	succeed(t, c.BeginCapture(s), c.Fill(p, 1, 4, s))
	g := must(c.EndCapture(s))(t)
	for name, call := range map[string]func() error{
		"Launch":      func() error { return c.Launch(l, s) },
		"Upload":      func() error { return c.Upload(p, b, s) },
		"Download":    func() error { return c.Download(b, p, s) },
		"Copy":        func() error { return c.Copy(p, p+32, 32, s) },
		"Fill":        func() error { return c.Fill(p, 1, 64, s) },
		"Record":      func() error { return c.Record(e, s) },
		"Elapsed":     func() error { _, err := c.Elapsed(e, e); return err },
		"Replay":      func() error { return c.Replay(g, s) },
		"Synchronize": func() error { return c.Synchronize(s) },
		"TensorMap":   func() error { _, err := c.TensorMap(tensor); return err },
	} {
		if n := testing.AllocsPerRun(200, func() { succeed(t, call()) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestThreads launches in several threads at once, whose stacks grow and whose memory is collected
// meanwhile: each launch has its own arguments.
func TestThreads(t *testing.T) {
	const threads, launches = 4, 300
	_, c := inContext(t, 0)
	p := must(c.Alloc(threads))(t)
	l := launchOfAdd(t, c, nil)
	out, s := must(c.Pin(threads))(t), must(c.NewStream())(t)
	succeed(t, c.Fill(p, 0, threads, s))
	var wait sync.WaitGroup
	for i := range threads {
		wait.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if err := c.Enter(); err != nil {
				t.Error(err)
				return
			}
			own := *l
			for n := range launches {
				own.Params = unsafe.Pointer(&add{p + driver.Ptr(i), 1, 1, 1})
				if err := deep(n%40, func() error { return c.Launch(&own, s) }); err != nil {
					t.Error(err)
					return
				}
				if n%50 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wait.Wait()
	succeed(t, c.Download(out, p, s), c.Synchronize(s))
	if want := bytes.Repeat([]byte{launches & 0xff}, threads); !bytes.Equal(out, want) {
		t.Errorf("%v instead of %v", out, want)
	}
}

// deep calls f with a stack of so many KiB.
func deep(levels int, f func() error) error {
	if levels == 0 {
		return f()
	}
	var room [1 << 10]byte
	err := deep(levels-1, f)
	runtime.KeepAlive(&room)
	return err
}

// shallow is Elapsed so many calls deeper.
func shallow(calls int, c driver.Context, e driver.Event, to *time.Duration) (err error) {
	if calls == 0 {
		*to, err = c.Elapsed(e, e)
		return err
	}
	return shallow(calls-1, c, e, to)
}
