package libcuda

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/libcudatest"
)

func TestOpen(t *testing.T) {
	fake, path := fresh(t)
	l := must(Open(path))(t)
	if l.Version() != 12090 || l.Path() != path || fake.Calls("cuInit") != 1 {
		t.Errorf("version %d of %s, %d calls of cuInit", l.Version(), l.Path(),
			fake.Calls("cuInit"))
	}
	if r := l.Repaired(); len(r) != 0 {
		t.Errorf("repaired: %v", r)
	}
}

// TestSearch wants all places tried in their order, and each named with its reason.
func TestSearch(t *testing.T) {
	_, path := fresh(t)
	dir := t.TempDir()
	broken, absent := filepath.Join(dir, "broken.so"), filepath.Join(dir, "absent.so")
	succeed(t, os.WriteFile(broken, []byte("no library"), 0o600))
	tries := []string{"libcuda-of-no-machine.so.1", absent, broken}
	_, _, err := load(tries)
	if err == nil {
		t.Fatal("found")
	}
	for _, want := range []string{
		"tried libcuda-of-no-machine.so.1 (cannot open shared object file: No such file or ",
		", " + absent + " (no such file), " + broken + " (", "file too short",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: lacks %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("several lines: %v", err)
	}
	if _, place, err := load(append(tries, path, absent)); err != nil || place != path {
		t.Errorf("%s, %v", place, err)
	}
	want := "no CUDA driver was found: install NVIDIA's driver, or start the container with its " +
		"GPUs (docker run --gpus all, or nvidia.com/gpu in a pod's limits); tried " + absent +
		" (no such file)"
	if _, err := Open(absent); err == nil || err.Error() != want {
		t.Errorf("a path that is given: %v", err)
	}
}

func TestPlaces(t *testing.T) {
	list := places("", soname)
	if list[0] != "libcuda.so.1" || list[1] != "/usr/local/nvidia/lib64/libcuda.so.1" ||
		list[len(list)-1] != "/usr/lib/wsl/lib/libcuda.so.1" ||
		!slices.Contains(list, "/usr/lib64/libcuda.so.1") {
		t.Errorf("%q", list)
	}
}

// TestRefused wants of each library that cannot be used what it is, and what to do.
func TestRefused(t *testing.T) {
	type setting = func(*libcudatest.Library)
	fails := func(export string, code int) setting {
		return func(f *libcudatest.Library) { f.Fail(export, code, -1) }
	}
	sets := func(name string, value int) setting {
		return func(f *libcudatest.Library) { f.Set(name, value) }
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	for name, tt := range map[string]struct {
		set  setting
		code int
		want string
	}{
		"stub": {fails("cuInit", 34), driver.StubLibrary, "cuInit: CUDA_ERROR_STUB_LIBRARY (34): " +
			"PATH is a stub library, which programs are linked with, and no driver: remove its " +
			"folder from LD_LIBRARY_PATH, or name NVIDIA's libcuda.so.1"},
		"stub at once": {fails("cuDriverGetVersion", 34), driver.StubLibrary,
			"cuDriverGetVersion: CUDA_ERROR_STUB_LIBRARY (34): PATH is a stub library"},
		"no device": {fails("cuInit", 100), driver.NoDevice, "cuInit: CUDA_ERROR_NO_DEVICE " +
			`(100): no CUDA device: CUDA_VISIBLE_DEVICES is "7"; nvidia-smi -L lists those of ` +
			"the machine; a container has to be started with them"},
		"none of them": {sets("devices", 0), driver.NoDevice, "cuDeviceGetCount: " +
			"CUDA_ERROR_NO_DEVICE (100): no CUDA device: "},
		"old": {sets("version", 10020), 0, "the driver PATH is for CUDA 10.2, and 11.0 is the " +
			"least that is needed: update NVIDIA's driver"},
		"mismatch": {fails("cuInit", 803), 803, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH " +
			"(803): the driver is PATH; the kernel's module and libcuda are of different " +
			"versions: reboot"},
		"no name": {fails("cuInit", 999), driver.Unknown, "cuInit: CUDA error 999: the driver is " +
			"PATH; see the kernel's log"},
	} {
		t.Run(name, func(t *testing.T) {
			fake, path := fresh(t)
			tt.set(fake)
			l, err := Open(path)
			if l != nil || err == nil {
				t.Fatalf("opened: %v", err)
			}
			got := strings.ReplaceAll(err.Error(), path, "PATH")
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s\ninstead of\n%s", got, tt.want)
			}
			if e := (*driver.Error)(nil); errors.As(err, &e) != (tt.code != 0) ||
				e != nil && e.Code != tt.code {
				t.Errorf("%#v", err)
			}
		})
	}
}

// TestOtherLibraries are libraries that are no driver, or lack a part of one.
func TestOtherLibraries(t *testing.T) {
	if _, err := Open("libm.so.6"); err == nil ||
		err.Error() != "libm.so.6 lacks cuInit: it is no CUDA driver" {
		t.Errorf("the library of mathematics: %v", err)
	}
	path := libcudatest.Build(t, t.TempDir(), "WITHOUT_FILL")
	watched(t, path)
	want := " lacks cuMemsetD8Async: it is no CUDA driver, or one that this program does not " +
		"know; install NVIDIA's driver for CUDA 11.0 or later"
	if _, err := Open(path); err == nil || err.Error() != path+want {
		t.Errorf("a library without one export: %v", err)
	}
}

func TestMissing(t *testing.T) {
	var all []string
	for e := range exportCount {
		if e.String() == "" {
			t.Errorf("export %d has no name", e)
		}
		switch e {
		case cuDeviceGetUuidV2, cuGraphInstantiateWithFlags, cuTensorMapEncodeTiled:
		default:
			all = append(all, e.String())
		}
	}
	got := (&addresses{}).missing()
	slices.Sort(all)
	slices.Sort(got)
	if !slices.Equal(got, all) {
		t.Errorf("%q", got)
	}
}

func TestDevices(t *testing.T) {
	fake, l := opened(t)
	fake.Set("devices", 4)
	want := []driver.Info{
		{Name: "NVIDIA H200", UUID: "GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebecedeeef", PCI: "0000:3b:00.0",
			Major: 9, Minor: 0, Multiprocessors: 132, Shared: 232448, L2: 60 << 20,
			Memory: 150754820096},
		{Name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", UUID: "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f",
			PCI: "0000:5e:00.0", Major: 8, Minor: 0, Multiprocessors: 14, Shared: 166912,
			L2: 5 << 20, Memory: 5100273664},
		{Name: "Tesla T4", UUID: "GPU-e2e3e4e5-e6e7-e8e9-eaeb-ecedeeeff0f1", PCI: "0000:af:00.0",
			Major: 7, Minor: 5, Multiprocessors: 40, Shared: 65536, L2: 4 << 20,
			Memory: 15843721216},
		{Name: "NVIDIA H100", UUID: "MIG-30313233-3435-3637-3839-3a3b3c3d3e3f", PCI: "0001:0a:00.0",
			Major: 9, Minor: 0, Multiprocessors: 16, Shared: 232448, L2: 6 << 20,
			Memory: 10368319488},
	}
	got := must(l.Devices())(t)
	if !slices.Equal(got, want) {
		t.Errorf("%+v\ninstead of\n%+v", got, want)
	}
	for _, export := range []string{"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
		"cuDeviceGetPCIBusId", "cuDeviceGetUuid", "cuDeviceGetUuid_v2", "cuDeviceGetAttribute",
		"cuDeviceTotalMem_v2"} {
		fake.Fail(export, 101, 1)
		e := (*driver.Error)(nil)
		if _, err := l.Devices(); !errors.As(err, &e) || e.Call != export || e.Code != 101 {
			t.Errorf("%s fails: %v", export, err)
		}
	}
}

// TestOneOfEach wants drivers that have the older or the newer of two exports to do as well.
func TestOneOfEach(t *testing.T) {
	for without, uuid := range map[string]string{
		"WITHOUT_NEW": "MIG-e1e2e3e4-e5e6-e7e8-e9ea-ebecedeeeff0",
		"WITHOUT_OLD": "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f",
	} {
		t.Run(without, func(t *testing.T) {
			runtime.LockOSThread() // which has the context
			defer runtime.UnlockOSThread()
			path := libcudatest.Build(t, t.TempDir(), without)
			watched(t, path)
			l := must(Open(path))(t)
			if got := must(l.Devices())(t); got[1].UUID != uuid {
				t.Errorf("%s instead of %s", got[1].UUID, uuid)
			}
			captureAndReplay(t, contextOf(t, l, 0))
		})
	}
}
