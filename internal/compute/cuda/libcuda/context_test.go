package libcuda

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// TestOpenContext fails each step of the opening of a device, which then leaves nothing behind.
func TestOpenContext(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for export, ok := range map[string]bool{"cuDeviceGet": false,
		"cuDevicePrimaryCtxSetFlags_v2": false, "cuDevicePrimaryCtxRetain": false,
		"cuCtxSetCurrent": false, "cuCtxSynchronize": true} {
		fake, l := opened(t)
		fake.Fail(export, deviceUnavailable, 1)
		c, err := l.Open(0)
		if (err == nil) != ok {
			t.Errorf("%s fails: %v", export, err)
		}
		if ok {
			c.Close() // fails for that reason
			continue
		}
		want := export + ": CUDA_ERROR_DEVICE_UNAVAILABLE (46): "
		if !strings.HasPrefix(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "nvidia-smi shows both") {
			t.Errorf("%v", err)
		}
		if n := fake.Live(); n != 0 {
			t.Errorf("%s fails: %d are left", export, n)
		}
	}
	_, l := opened(t)
	if _, err := l.Open(2); err == nil ||
		err.Error() != "cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101): device 2" {
		t.Errorf("a device that is not there: %v", err)
	}
}

// TestActiveContext has another library own the context, whose flags cannot be changed any more.
func TestActiveContext(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, l := opened(t)
	fake.Set("context_active", 1)
	c := must(l.Open(1))(t)
	if _, total := memInfo(t, c); total != 5100273664 {
		t.Errorf("%d bytes: another device", total)
	}
	succeed(t, c.Close())
}

func memInfo(t *testing.T, c driver.Context) (free, total uint64) {
	t.Helper()
	free, total, err := c.MemInfo()
	succeed(t, err)
	return free, total
}

// TestEnter has a second thread use the context.
func TestEnter(t *testing.T) {
	_, c := inContext(t, 0)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_, _, before := c.MemInfo()
		if e := (*driver.Error)(nil); !errors.As(before, &e) || e.Code != 201 {
			done <- errors.Join(errors.New("a thread without a context"), before)
			return
		}
		err := c.Enter()
		_, _, after := c.MemInfo()
		done <- errors.Join(err, after)
	}()
	succeed(t, <-done)
}

// TestClose leaves all that there is to Close, which releases it before what it uses.
func TestClose(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, l := opened(t)
	c := must(l.Open(0))(t)
	everything(t, c)
	succeed(t, c.Close())
	const order = "graph exec event stream module pinned memory context "
	if got := fake.Released(); got != order {
		t.Errorf("released: %s", got)
	}
	succeed(t, c.Close())
	if _, err := c.Alloc(1); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
	if n := fake.Calls("cuDevicePrimaryCtxRelease_v2"); n != 1 {
		t.Errorf("released %d times", n)
	}
}

// everything makes one of each kind.
func everything(t *testing.T, c driver.Context) (driver.Stream, driver.Ptr) {
	t.Helper()
	p := must(c.Alloc(256))(t)
	must(c.Pin(4096))(t)
	m := must(c.Load([]byte(".version 7.0\x00")))(t)
	must(c.Function(m, "add"))(t)
	s := must(c.NewStream())(t)
	must(c.NewEvent())(t)
	succeed(t, c.BeginCapture(s), c.Fill(p, 1, 256, s))
	must(c.EndCapture(s))(t)
	return s, p
}

// TestCloseGoesOn has releases fail: the others come all the same, and the first error is returned.
func TestCloseGoesOn(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fake, l := opened(t)
	c := must(l.Open(0))(t)
	everything(t, c)
	fake.Fail("cuEventDestroy_v2", 400, 1)
	fake.Fail("cuMemFreeHost", 1, 1)
	err := c.Close()
	if err == nil || err.Error() != "cuEventDestroy_v2: CUDA_ERROR_INVALID_HANDLE (400)" {
		t.Errorf("%v", err)
	}
	if got := fake.Released(); got != "graph exec stream module memory context " {
		t.Errorf("released: %s", got)
	}
	fake.Reset() // what it refused to release
}

// TestLost has calls fail so that the context is lost: no later call is made, each has the first
// error, and Close releases what it can.
func TestLost(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, code := range []int{driver.IllegalAddress, driver.LaunchTimeout, driver.LaunchFailed,
		driver.UncorrectableECC, driver.NVLinkUncorrectable, 709, 710, 714, 718, driver.Unknown} {
		fake, l := opened(t)
		c := must(l.Open(0))(t)
		s, p := everything(t, c)
		fake.Fail("cuStreamSynchronize", code, 1)
		first := c.Synchronize(s)
		e := (*driver.Error)(nil)
		if !errors.As(first, &e) || !e.Sticky() || e.Code != code {
			t.Errorf("%d: %v", code, first)
		}
		before := fake.Calls("cuMemsetD8Async")
		for name, err := range map[string]error{"Fill": c.Fill(p, 0, 1, s), "Enter": c.Enter(),
			"Synchronize": c.Synchronize(s), "Free": c.Free(p), "Record": c.Record(0, s)} {
			if err != first {
				t.Errorf("%d: %s: %v", code, name, err)
			}
		}
		if fake.Calls("cuMemsetD8Async") != before {
			t.Errorf("%d: called again", code)
		}
		if err := c.Close(); err != first {
			t.Errorf("%d: close: %v", code, err)
		}
		if fake.Calls("cuMemFree_v2") != 1 || fake.Calls("cuDevicePrimaryCtxRelease_v2") != 1 {
			t.Errorf("%d: close did not try", code)
		}
		fake.Reset() // what a lost context cannot release
	}
}

// TestNotLost has calls fail in ways that a context survives.
func TestNotLost(t *testing.T) {
	fake, c := inContext(t, 0)
	s, p := everything(t, c)
	for _, code := range []int{1, driver.OutOfMemory, driver.StubLibrary, driver.NoDevice,
		driver.InvalidImage, driver.NoBinaryForGPU, driver.InvalidPTX,
		driver.UnsupportedPTXVersion, driver.NotFound, driver.NotReady, 900, 901} {
		fake.Fail("cuMemsetD8Async", code, 1)
		e := (*driver.Error)(nil)
		if err := c.Fill(p, 0, 1, s); !errors.As(err, &e) || e.Sticky() || e.Code != code ||
			e.Call != "cuMemsetD8Async" {
			t.Errorf("%d: %v", code, err)
		}
		succeed(t, c.Fill(p, 0, 1, s))
	}
}

// TestErrors wants of each error what it says to a user.
func TestErrors(t *testing.T) {
	fake, c := inContext(t, 0)
	for code, want := range map[int]string{
		2: "cuCtxSetCurrent: CUDA_ERROR_OUT_OF_MEMORY (2)",
		209: "cuCtxSetCurrent: CUDA_ERROR_NO_BINARY_FOR_GPU (209): the image has no code for " +
			"this GPU",
		221: "cuCtxSetCurrent: CUDA error 221: libnvidia-ptxjitcompiler.so.1 is missing, which " +
			"belongs to the driver: a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility",
		222: "cuCtxSetCurrent: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the PTX is of a later " +
			"CUDA than the driver's 12.9: update NVIDIA's driver",
		304: "cuCtxSetCurrent: CUDA error 304: see the kernel's log (dmesg, lines with NVRM or " +
			"Xid) and whether nvidia-smi works",
		701: "cuCtxSetCurrent: CUDA error 701: more registers or threads than the device has",
		802: "cuCtxSetCurrent: CUDA error 802: NVIDIA's fabric manager does not run: " +
			"nvidia-fabricmanager.service",
		804: "cuCtxSetCurrent: CUDA error 804: CUDA's compatibility package does not support " +
			"this GPU: remove its folder (/usr/local/cuda/compat) from LD_LIBRARY_PATH",
		901: "cuCtxSetCurrent: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901): a call that cannot " +
			"be captured in a graph",
	} {
		fake.Fail("cuCtxSetCurrent", code, 1)
		if err := c.Enter(); err == nil || err.Error() != want {
			t.Errorf("%v\ninstead of\n%s", err, want)
		}
	}
}

// TestLastErrors are those of a lost context.
func TestLastErrors(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for code, want := range map[int]string{
		214: "cuMemGetInfo_v2: CUDA_ERROR_ECC_UNCORRECTABLE (214): a fault of the hardware: the " +
			"GPU has to be reset (nvidia-smi -q shows its errors)",
		700: "cuMemGetInfo_v2: CUDA_ERROR_ILLEGAL_ADDRESS (700): a kernel failed and the " +
			"device's memory is lost: the process has to end (CUDA_LAUNCH_BLOCKING=1 has the " +
			"launch itself fail, which names the kernel)",
		719: "cuMemGetInfo_v2: CUDA_ERROR_LAUNCH_FAILED (719): a kernel failed and the device's " +
			"memory is lost: the process has to end (CUDA_LAUNCH_BLOCKING=1 has the launch " +
			"itself fail, which names the kernel)",
	} {
		fake, l := opened(t)
		c := must(l.Open(0))(t)
		fake.Fail("cuMemGetInfo_v2", code, 1)
		if _, _, err := c.MemInfo(); err == nil || err.Error() != want {
			t.Errorf("%v\ninstead of\n%s", err, want)
		}
		c.Close() // returns it again
		fake.Reset()
	}
	fake, l := opened(t)
	c := must(l.Open(0))(t)
	launch := launchOfAdd(t, c, &add{})
	fake.Fail("cuLaunchKernel", driver.IllegalAddress, 1)
	want := "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700): at or before the launch of kernel " +
		"add, grid 1×2×3, block 4×5×6, 0 bytes of shared memory; a kernel failed"
	if err := c.Launch(launch, 1); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v\ninstead of\n%s", err, want)
	}
	c.Close()
	fake.Reset()
}
