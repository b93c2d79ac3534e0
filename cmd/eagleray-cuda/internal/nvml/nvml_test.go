package nvml

import (
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nvml/nvmltest"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
	"github.com/eagleray/eagleray/internal/link/status"
)

const (
	whole = "GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebecedeeef"
	part  = "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f"
)

// fake is a library of nvmltest in this process.
type fake struct {
	*fakelib.Library
	t *testing.T
}

// built builds and loads a library, whose test fails at a wrong argument.
func built(t *testing.T, without ...string) fake {
	t.Helper()
	path := nvmltest.Build(t, t.TempDir(), without...)
	return fake{fakelib.Watch(t, path), t}
}

// measured are the figures of a GPU that are known.
func measured(t *testing.T, l *Library, uuid string) map[status.Figure]uint64 {
	t.Helper()
	m, err := l.Meter(uuid)
	if err != nil {
		t.Fatal(err)
	}
	var g status.GPU
	g.Know(status.GPUPower, 1) // of an earlier look
	m(&g)
	known := map[status.Figure]uint64{}
	for f := range status.Figures {
		if v, ok := g.Get(f); ok {
			known[f] = v
		}
	}
	if n := testing.AllocsPerRun(20, func() { m(&g) }); n != 0 {
		t.Errorf("a look allocates %g times", n)
	}
	return known
}

func equal(a, b map[status.Figure]uint64) bool {
	for f := range status.Figures {
		v, known := a[f]
		if w, also := b[f]; v != w || known != also {
			return false
		}
	}
	return true
}

// TestMeasure measures a whole GPU, a part of one, and GPUs of drivers that have less.
func TestMeasure(t *testing.T) {
	all := map[status.Figure]uint64{status.GPUMemoryUsed: 50000000000,
		status.GPUMemoryTotal: 150754820096, status.GPUBusy: 97, status.GPUMemoryBusy: 41,
		status.GPUClock: 1980, status.GPUMemoryClock: 3201, status.GPUPower: 687500,
		status.GPUTemperature: 64, status.GPUThrottled: 0x24, status.GPUCorrected: 5000000000,
		status.GPUUncorrected: 2}
	without := func(figures ...status.Figure) map[status.Figure]uint64 {
		rest := map[status.Figure]uint64{}
		for f, v := range all {
			if !slices.Contains(figures, f) {
				rest[f] = v
			}
		}
		return rest
	}
	f := built(t)
	l, err := Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	if l.Path() != f.Path || l.Driver() != "570.86.15" {
		t.Errorf("driver %s of %s", l.Driver(), l.Path())
	}
	if got := measured(t, l, whole); !equal(got, all) {
		t.Errorf("%v instead of %v", got, all)
	}
	memory := map[status.Figure]uint64{status.GPUMemoryUsed: 50000000000,
		status.GPUMemoryTotal: 150754820096}
	if got := measured(t, l, part); !equal(got, memory) {
		t.Errorf("a part: %v", got)
	}
	for code, none := range map[string][]status.Figure{
		"nvmlDeviceGetMemoryInfo=3":       {status.GPUMemoryUsed, status.GPUMemoryTotal},
		"nvmlDeviceGetUtilizationRates=3": {status.GPUBusy, status.GPUMemoryBusy},
		"nvmlDeviceGetClockInfo=3":        {status.GPUClock, status.GPUMemoryClock},
		"nvmlDeviceGetPowerUsage=15":      {status.GPUPower},
		"nvmlDeviceGetTemperature=999":    {status.GPUTemperature},
		"nvmlDeviceGetTotalEccErrors=3":   {status.GPUCorrected, status.GPUUncorrected},
	} {
		f.Codes(code)
		l, err := Open(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if got := measured(t, l, whole); !equal(got, without(none...)) {
			t.Errorf("%s: %v", code, got)
		}
	}
	old, err := Open(built(t, "WITHOUT_REASONS").Path)
	if err != nil {
		t.Fatal(err)
	}
	if got := measured(t, old, whole); !equal(got, without(status.GPUThrottled)) {
		t.Errorf("without an export: %v", got)
	}
}

// TestRefused names what is wrong, and the value.
func TestRefused(t *testing.T) {
	f := built(t)
	absent := filepath.Join(t.TempDir(), "absent.so")
	for _, c := range []struct{ path, codes, want string }{
		{absent, "", "no NVML was found: tried " + absent + " (no such file)"},
		{"libm.so.6", "", "libm.so.6 lacks nvmlInit_v2"},
		{f.Path, "nvmlInit_v2=9", "nvmlInit_v2 of PATH: Driver Not Loaded (9)"},
		{f.Path, "nvmlSystemGetDriverVersion=999",
			"nvmlSystemGetDriverVersion of PATH: Unknown Error (999)"},
	} {
		f.Codes(c.codes)
		_, err := Open(c.path)
		f.Failed(c.codes, err, c.want)
	}
	f.Codes("")
	l, err := Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	for uuid, want := range map[string]string{
		"GPU-0":      "GPU GPU-0: nvmlDeviceGetHandleByUUID of PATH: Not Found (6)",
		"GPU-\x00-1": `UUID "GPU-\x00-1": invalid argument`,
	} {
		_, err := l.Meter(uuid)
		f.Failed(uuid, err, want)
	}
}

// TestLayouts compares structs with what C says of them.
func TestLayouts(t *testing.T) {
	f := built(t)
	want := []uint64{uint64(unsafe.Sizeof(memory{})), uint64(unsafe.Offsetof(memory{}.free)),
		uint64(unsafe.Offsetof(memory{}.used)), uint64(unsafe.Sizeof(utilization{})),
		uint64(unsafe.Offsetof(utilization{}.memory))}
	if got := f.Layout("layout", len(want)); !slices.Equal(got, want) {
		t.Errorf("%v instead of %v", want, got)
	}
}
