package open

import (
	"context"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// onGPUs is the built-in model on a machine with so many GPUs of so much memory.
func onGPUs(t *testing.T, count int, free int64, change func(c *config.Config)) (*Spec, error) {
	return onMachine(t, count, free, gpus.Found{}, change)
}

// onMachine is onGPUs where something else is found, too.
func onMachine(t *testing.T, count int, free int64, found gpus.Found,
	change func(c *config.Config)) (*Spec, error) {
	t.Helper()
	cfg := config.Default()
	cfg.Parallel.Device = config.CUDA
	if change != nil {
		change(&cfg)
	}
	r := newResolver(t.Context(), &Options{Config: &cfg})
	r.probe = func(context.Context) (*gpus.Found, error) {
		f := &found
		f.Driver, f.Error, f.NCCL = "13.0", "there is none", "2.27.3"
		for i := range count {
			f.Devices = append(f.Devices, gpus.GPU{Ordinal: i, Name: "NVIDIA H200", Arch: "sm_90",
				MemoryTotal: 141 << 30, MemoryFree: &free})
		}
		return f, nil
	}
	for _, f := range []func() error{r.resolve, r.readModel, r.divide} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	return r.Spec, r.plan()
}

// TestPlanOfGPUs sizes caches by the memory of the GPUs, each of which has a rank, and not by the
// host's.
func TestPlanOfGPUs(t *testing.T) {
	s, err := onGPUs(t, 2, 141<<30, func(c *config.Config) { c.Schedule.MaxNumSeqs = 1 << 15 })
	if err != nil {
		t.Fatal(err)
	}
	if gib := s.Info.CacheBytes >> 30; gib < 100 || gib > 127 {
		t.Errorf("%d GiB of KV cache on a GPU of 141 GiB", gib)
	}
	if n := len(s.Planned.Hosts); n != 1 {
		t.Errorf("%d GPUs for a rank", n)
	}
	// Those of other machines are not looked at.
	for _, change := range []func(c *config.Config){
		func(c *config.Config) { c.Parallel.Backend, c.Parallel.TensorParallelSize = "ray", 2 },
		func(c *config.Config) { c.Parallel.Nodes.Count, c.Parallel.DataParallelSize = 2, 2 },
	} {
		s, err := onGPUs(t, 1, 141<<30, change)
		if err != nil || len(s.Planned.Hosts) > 1 || s.Info.Blocks == 0 {
			t.Errorf("%+v, %v", s.Planned, err)
		}
	}
	// Ranks that sum by NCCL have less left, and those that have cuBLASLt.
	two := func(c *config.Config) {
		c.Parallel.TensorParallelSize, c.Schedule.MaxNumSeqs = 2, 1<<15
	}
	left := func(found gpus.Found) int64 {
		s, err := onMachine(t, 2, 20<<30, found, two)
		if err != nil {
			t.Fatal(err)
		}
		return s.Info.CacheBytes
	}
	all := left(gpus.Found{})
	for what, c := range map[string]struct {
		found gpus.Found
		takes int64
	}{
		"NCCL":     {gpus.Found{Apart: true}, driver.NCCLBytes},
		"cuBLASLt": {gpus.Found{CUBLASLt: "13.1.0"}, driver.CUBLASLtBytes},
	} {
		if less := all - left(c.found); less < c.takes*9/10 || less > c.takes {
			t.Errorf("%s takes %d bytes of %d, not %d", what, less, all, c.takes)
		}
	}
	for says, c := range map[string]struct {
		count  int
		free   int64
		change func(c *config.Config)
	}{
		"3 ranks on this machine have a GPU each: it has 2": {2, 141 << 30,
			func(c *config.Config) { c.Parallel.DataParallelSize = 3 }},
		"3 ranks on this machine have a GPU each: it has 1": {1, 141 << 30,
			func(c *config.Config) {
				c.Parallel.DataParallelSize, c.Parallel.Nodes.Count = 6, 2
			}},
		"GPU 0 (NVIDIA H200)":          {1, 1 << 20, nil},
		"--device cuda: there is none": {0, 0, nil},
	} {
		if _, err := onGPUs(t, c.count, c.free, c.change); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// TestChunksOnGPUs serves a model that attends in chunks on GPUs as far as one of them reaches.
func TestChunksOnGPUs(t *testing.T) {
	for length, want := range map[int]string{16: "", 17: "attends in chunks of 16 positions"} {
		cfg := config.Default()
		cfg.Parallel.Device = config.CUDA
		cfg.Model.Path, cfg.Model.MaxModelLen = "../../../testdata/variants/llama4", length
		r := newResolver(t.Context(), &Options{Config: &cfg})
		err := r.resolve()
		if err == nil {
			err = r.readModel()
		}
		if err == nil && want != "" || err != nil && (want == "" ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%d positions: %v", length, err)
		}
	}
}
