package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// sound is a machine with which nothing is wrong.
func sound() Machine {
	return Machine{Root: fstest.MapFS{"sys/kernel/mm/transparent_hugepage/enabled": {
		Data: []byte("always [madvise] never\n")}},
		Vectors: true, Cores: 8, Topology: eight(), OpenFiles: 1 << 20,
		Memory: room(64 << 30),
		Plan:   func(context.Context, *config.Config) (*memory.Plan, error) { return nil, nil },
		Free:   func(string) (uint64, error) { return 1 << 40, nil },
		Size:   func(string) (uint64, error) { return 64 << 20, nil },
		Listen: func(string, int) error { return nil },
		Threads: func() (machine.Threads, bool) {
			return machine.Threads{Left: 30000,
				Limit: "a limit"}, true
		},
		Addresses: func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.IPv4(10, 0, 0, 7), Mask: net.CIDRMask(24, 32)}},
				nil
		}}
}

// eight is a topology of eight cores on two nodes.
func eight() (t machine.Topology) {
	for i := range 8 {
		t.Processors = append(t.Processors, machine.Processor{Number: i, Core: i, Node: i / 4})
	}
	return t
}

func room(bytes int64) func() memory.Bounds {
	return func() memory.Bounds {
		return memory.Bounds{{From: "the test's", Limit: bytes,
			Left: bytes}}
	}
}

// planOf plans two caches of a size on a machine of 64 GiB.
func planOf(bytes int64) func(context.Context, *config.Config) (*memory.Plan, error) {
	return func(context.Context, *config.Config) (*memory.Plan, error) {
		h := memory.Host{Name: "here", Bounds: room(64 << 30)(),
			Ranks: []memory.Rank{{Block: bytes}, {Block: bytes}}}
		tokens := func(blocks int64) int64 { return 16 * blocks }
		return memory.Make([]memory.Host{h}, memory.Cache{Blocks: 1, Least: 1, Longest: tokens,
			Tokens: tokens}, 1)
	}
}

// gpusOf is a machine with what eagleray cuda probe prints, for so many ranks.
func gpusOf(ranks int, printed string) func(*Machine, *config.Config) {
	return func(m *Machine, c *config.Config) {
		c.Parallel.Device, c.Parallel.TensorParallelSize = config.CUDA, ranks
		m.GPUs = func(context.Context) (*gpus.Found, error) {
			f := new(gpus.Found)
			return f, json.Unmarshal([]byte(printed), f)
		}
	}
}

// TestChecks makes each check of a machine find what it is for, and all of them pass on a sound
// one.
func TestChecks(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		check string
		state State
		says  string
		spoil func(m *Machine, c *config.Config)
	}{
		{"processor", OK, "kernels are avx512 (as --cpu-isa says)",
			func(_ *Machine, c *config.Config) { c.Parallel.CPUISA = "avx512" }},
		{"processor", Warn, "no AVX2", func(m *Machine, _ *config.Config) { m.Vectors = false }},
		{"cores", Warn, "2 usable", func(m *Machine, c *config.Config) {
			m.Cores, c.Parallel.TensorParallelSize, c.Parallel.DataParallelSize = 2, 2, 2
		}},
		{"cores", Warn, "4 ranks of 3 threads", func(m *Machine, c *config.Config) {
			c.Parallel.TensorParallelSize, c.Parallel.CPUThreads = 4, 3
		}},
		{"cores", OK, "2 usable", func(m *Machine, c *config.Config) {
			m.Cores, c.Parallel.TensorParallelSize, c.Parallel.Backend = 2, 8, "ray"
		}},
		{"cores", Fail, "processor 9 is not one that", func(_ *Machine, c *config.Config) {
			c.Parallel.CPUBind = "9"
		}},
		{"cores", Warn, "1 usable", func(m *Machine, _ *config.Config) { m.Cores = 1 }},
		{"memory", Warn, "unknown", func(m *Machine, _ *config.Config) {
			m.Memory = func() memory.Bounds { return nil }
		}},
		{"memory", Warn, "512 MB", func(m *Machine, _ *config.Config) {
			m.Memory = room(512 << 20)
		}},
		{"memory", Fail, "80.2 GiB of KV cache", func(m *Machine,
			_ *config.Config) {
			m.Plan = planOf(40 << 30)
		}},
		{"memory", OK, "41040 MB planned for", func(m *Machine,
			_ *config.Config) {
			m.Plan = planOf(20 << 30)
		}},
		{"memory", OK, "65536 MB available", func(m *Machine, _ *config.Config) {
			m.Plan = func(context.Context, *config.Config) (*memory.Plan, error) {
				return nil,
					broken
			}
		}},
		{"gpus", OK, "1 of CUDA 13.0, driver 580.65.06 (NVML), NCCL 2.27.3", gpusOf(1, `{
			"driver": "13.0", "release": "580.65.06", "nccl_version": "2.27.3", "devices": [{"ordinal": 0,
			"name": "NVIDIA H200", "arch": "sm_90", "memory_total": 150000000000}]}`)},
		{"gpus", OK, "1 of CUDA 13.0, no figures of them on /metrics: no NVML was found", gpusOf(1,
			`{"driver": "13.0", "unmeasured": "no NVML was found", "devices": [{"ordinal": 0}]}`)},
		{"gpus", Fail, "1 for 2 ranks", gpusOf(2, `{"driver": "13.0", "devices": [{"ordinal": 0,
			"name": "NVIDIA H200", "arch": "sm_90"}, {"ordinal": 1, "name": "Tesla V100",
			"arch": "sm_70", "stop": "older than sm_80"}]}`)},
		{"gpus", Fail, "no CUDA driver", gpusOf(1, `{"devices": [], "error": "no CUDA driver"}`)},
		{"gpus", Fail, "unexpected end", gpusOf(1, "")},
		{"huge pages", Warn, "off", func(m *Machine, _ *config.Config) {
			m.Root = fstest.MapFS{"sys/kernel/mm/transparent_hugepage/enabled": {
				Data: []byte("always madvise [never]\n")}}
		}},
		{"huge pages", OK, "not this kernel's", func(m *Machine,
			_ *config.Config) {
			m.Root = fstest.MapFS{}
		}},
		{"open files", Warn, "1024 at most", func(m *Machine,
			_ *config.Config) {
			m.OpenFiles = 1024
		}},
		{"open files", Fail, "64 at most", func(m *Machine, _ *config.Config) { m.OpenFiles = 64 }},
		{"threads", OK, "no limit is known", func(m *Machine, _ *config.Config) {
			m.Threads = func() (machine.Threads, bool) { return machine.Threads{}, false }
		}},
		{"threads", Warn, "50 more can be started (pids.max 64), about 46 are needed",
			func(m *Machine, _ *config.Config) {
				m.Threads = func() (machine.Threads, bool) {
					return machine.Threads{Left: 50,
						Limit: "pids.max 64"}, true
				}
				m.Cores = 20
			}},
		{"threads", Fail, "3 more can be started (ulimit -u 9)", func(m *Machine,
			_ *config.Config) {
			m.Threads = func() (machine.Threads, bool) {
				return machine.Threads{Left: 3,
					Limit: "ulimit -u 9"}, true
			}
		}},
		{"niceness", Warn, "15", func(m *Machine, _ *config.Config) { m.Niceness = 15 }},
		{"disk", Warn, "5 GB free in /cache", func(m *Machine, _ *config.Config) {
			m.Free = func(string) (uint64, error) { return 5 << 30, nil }
		}},
		{"disk", Fail, "100 MB free", func(m *Machine, _ *config.Config) {
			m.Free = func(string) (uint64, error) { return 100 << 20, nil }
		}},
		{"disk", OK, "not needed, . is here", func(m *Machine, c *config.Config) {
			m.Free, c.Model.Path = func(string) (uint64, error) { return 0, nil }, "."
		}},
		{"disk", Warn, "broken", func(m *Machine, _ *config.Config) {
			m.Free = func(string) (uint64, error) { return 0, broken }
		}},
		{"port", Fail, "--port 8000: broken", func(m *Machine, _ *config.Config) {
			m.Listen = func(string, int) error { return broken }
		}},
		{"port", OK, "any free one", func(m *Machine, c *config.Config) {
			c.Server.Port, m.Listen = 0, func(string, int) error { return broken }
		}},
		{"port", OK, "none is needed by --uds /run/e", func(m *Machine, c *config.Config) {
			c.Server.Transport.UDS = "/run/eagleray.sock"
			m.Listen = func(string, int) error { return broken }
		}},
		{"address", OK, "10.0.0.7 is this machine's", func(_ *Machine, c *config.Config) {
			c.Parallel.Ray.NodeIP = "10.0.0.7"
		}},
		{"address", Fail, "10.0.0.8 is not one of 10.0.0.7", func(_ *Machine, c *config.Config) {
			c.Parallel.Ray.NodeIP = "10.0.0.8"
		}},
		{"address", Warn, "broken", func(m *Machine, c *config.Config) {
			c.Parallel.Ray.NodeIP = "10.0.0.8"
			m.Addresses = func() ([]net.Addr, error) { return nil, broken }
		}},
		{"shared memory", OK, "not needed", func(*Machine, *config.Config) {}},
		{"shared memory", Warn, "has 64 MiB", func(_ *Machine, c *config.Config) {
			c.Cache.Offloading.GiB = 1
		}},
		{"shared memory", OK, "not needed", func(_ *Machine, c *config.Config) {
			c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 1, "/disk"
		}},
		{"shared memory", OK, "for --kv-offloading-size", func(_ *Machine, c *config.Config) {
			c.Cache.Offloading.GiB = 0.05
		}},
	} {
		m, cfg := sound(), config.Default()
		c.spoil(&m, &cfg)
		var lines strings.Builder
		for _, r := range Run(t.Context(), m.Checks(&cfg, "/cache"), &lines) {
			switch {
			case r.Check == c.check && (r.State != c.state || !strings.Contains(r.Found, c.says)):
				t.Errorf("%s, %s: %+v", c.check, c.says, r)
			case r.Check != c.check && r.State != OK && r.State != Skip:
				t.Errorf("%s, %s: %s is %+v", c.check, c.says, r.Check, r)
			case (r.State == Warn || r.State == Fail) && (r.Means == "" || r.Do == ""):
				t.Errorf("%s does not say what to do: %+v", r.Check, r)
			}
		}
		if !strings.Contains(lines.String(), string(c.state)+" ") {
			t.Errorf("%s is not shown as %s:\n%s", c.check, c.state, lines.String())
		}
	}
}

// TestRanks judges groups: clocks apart, other instruction sets, nice processes, none at all.
func TestRanks(t *testing.T) {
	rank := func(i int) RankFacts {
		return RankFacts{Rank: i, Node: "n" + string(rune('a'+i)), ISA: "avx512",
			Trip: time.Millisecond}
	}
	for _, c := range []struct {
		name, check, says string
		spoil             func(f []RankFacts)
	}{
		{"sound", "", "", func([]RankFacts) {}},
		{"clock ahead", "clocks", "rank 1 on nb by 60.0 s",
			func(f []RankFacts) { f[1].Skew = time.Minute }},
		{"clock behind", "clocks", "by -60.0 s", func(f []RankFacts) { f[1].Skew = -time.Minute }},
		{"slow call", "", "", func(f []RankFacts) {
			f[1].Skew, f[1].Trip = 6*time.Second,
				12*time.Second
		}},
		{"kernels", "kernels", "2 kinds", func(f []RankFacts) { f[0].ISA = "avx2" }},
		{"nice", "workers", "rank 2 on nc at 15", func(f []RankFacts) { f[2].Niceness = 15 }},
	} {
		facts := []RankFacts{rank(0), rank(1), rank(2)}
		c.spoil(facts)
		for _, r := range Ranks(facts, time.Second) {
			if spoilt := r.Check == c.check; spoilt != (r.State == Warn) ||
				spoilt && !strings.Contains(r.Found, c.says) {
				t.Errorf("%s: %+v", c.name, r)
			}
		}
	}
	r := NotStarted(errors.New("a|b"))
	if failed, _ := Failed([]Result{r}); failed != 1 || r.Found != "a/b" || r.Do == "" {
		t.Errorf("%+v", r)
	}
}
