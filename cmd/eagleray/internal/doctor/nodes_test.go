package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// soundNodes are three nodes with which nothing is wrong, on Ray.
func soundNodes() *Found {
	f := &Found{Ray: "2.60.0", Python: "3.11.9"}
	for i, name := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		n := Node{Name: name, Trip: time.Millisecond, Contacts: map[int]Contact{},
			Ray: &RayFacts{Ray: "2.60.0", Python: "3.11.4", Devices: 4},
			Facts: Facts{Address: name, Version: "1", Program: "ab", Arch: "amd64", Vectors: true,
				Cores: 8, Memory: 64 << 30, Disk: 1 << 40, Cache: "/cache", Interface: "eth0",
				MTU: 1500,
				Model: Model{Folder: "/m", Bytes: 1 << 30,
					Files: map[string]string{"config.json": "aa", "model.safetensors": "bb"}}}}
		for j := range 3 {
			if j != i {
				n.Contacts[j] = Contact{Trip: time.Millisecond}
			}
		}
		f.Nodes = append(f.Nodes, n)
	}
	return f
}

// TestNodes makes each check of nodes find what it is for, and all of them pass on a sound cluster.
func TestNodes(t *testing.T) {
	broken := errors.New("broken | pipe")
	for _, c := range []struct {
		check string
		state State
		says  string
		spoil func(f *Found, c *config.Config)
	}{
		{"nodes", OK, "3 of 3 answer", func(*Found, *config.Config) {}},
		{"nodes", Fail, "2 of 3 nodes answer; not 10.0.0.2: broken / pipe", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Lost = broken
		}},
		{"versions", Fail, "10.0.0.3 runs Ray 2.35.0, not 2.60.0", func(f *Found,
			_ *config.Config) {
			f.Nodes[2].Ray.Ray = "2.35.0"
		}},
		{"versions", Fail, "10.0.0.3 runs Python 3.12.1, not 3.11.9", func(f *Found,
			_ *config.Config) {
			f.Nodes[2].Ray.Python = "3.12.1"
		}},
		{"versions", Fail, "runs eagleray 2 (cd), not 1 (ab)", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Version, f.Nodes[1].Facts.Program = "2", "cd"
		}},
		{"versions", Fail, "has a processor of arm64, not amd64", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Arch = "arm64"
		}},
		{"versions", Warn, "10.0.0.2 has other instruction sets", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Vectors = false
		}},
		{"node clocks", Warn, "10.0.0.2 by -60.0 s", func(f *Found, _ *config.Config) {
			f.Nodes[1].Skew = -time.Minute
		}},
		{"addresses", Fail, "10.0.0.2 (10.0.0.2) has only lo 127.0.0.1", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Facts.Interface, f.Nodes[1].Facts.Interfaces = "", []string{"lo 127.0.0.1"}
		}},
		{"addresses", Warn, "10.0.0.2 eth0 at 10.0.0.2, MTU 9000", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Facts.MTU = 9000
		}},
		{"network", OK, "6 connections over TLS", func(*Found, *config.Config) {}},
		{"network", Fail, "1 of 6 connections: 10.0.0.2 → 10.0.0.3: refused (the other direction " +
			"works)", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Contacts[2] = Contact{Error: "refused"}
		}},
		{"network", Fail, "10.0.0.3 → 10.0.0.2: refused", func(f *Found, _ *config.Config) {
			f.Nodes[1].Contacts[2], f.Nodes[2].Contacts[1] = Contact{Error: "refused"},
				Contact{Error: "refused"}
		}},
		{"network", Fail, "10.0.0.2 cannot listen: broken / pipe", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Deaf = broken
		}},
		{"model bytes", OK, "2 files, 1024 MB, with one SHA-256", func(*Found, *config.Config) {}},
		{"model bytes", Fail, "10.0.0.2 no such folder", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Model = Model{Error: "no such folder"}
		}},
		{"model bytes", Fail, "10.0.0.2 has another model.safetensors (SHA-256 cc, not bb)",
			func(f *Found, _ *config.Config) {
				f.Nodes[1].Facts.Model.Files = map[string]string{"config.json": "aa",
					"model.safetensors": "cc"}
			}},
		{"model bytes", Fail, "10.0.0.2 has no model.safetensors", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Facts.Model.Files = map[string]string{"config.json": "aa"}
		}},
		{"model bytes", Fail, "10.0.0.2 has a x more", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Model.Files = map[string]string{"config.json": "aa",
				"model.safetensors": "bb", "x": "1"}
		}},
		{"model bytes", Warn, "10.0.0.2 has it not yet", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Model = Model{Later: true}
		}},
		{"model bytes", OK, "built-in", func(f *Found, _ *config.Config) {
			for i := range f.Nodes {
				f.Nodes[i].Facts.Model = Model{}
			}
		}},
		{"devices", OK, "12 CPU on all nodes, 1 ranks take 1 each", func(*Found,
			*config.Config) {
		}},
		{"devices", Warn, "10.0.0.3: Ray has 9, processes may use 8", func(f *Found,
			_ *config.Config) {
			f.Nodes[2].Ray.Devices = 9
		}},
		{"devices", Warn, "10.0.0.1: Ray has 4, /dev 0", func(_ *Found, c *config.Config) {
			c.Parallel.Ray.DeviceKey = "GPU"
		}},
		{"devices", Fail, "12 CPU on all nodes, 8 ranks take 2 each", func(_ *Found,
			c *config.Config) {
			c.Parallel.TensorParallelSize, c.Parallel.CPUThreads = 8, 2
		}},
		{"devices", Warn, "has 8 cores for 3 ranks of 4 threads", func(f *Found, c *config.Config) {
			f.Ray, f.Nodes[1].Ray = "", nil
			c.Parallel.TensorParallelSize, c.Parallel.CPUThreads = 8, 4
		}},
		{"node memory", Fail, "10.0.0.2 has 2048 MB free, 1 ranks of the model want about 5120 MB",
			func(f *Found, c *config.Config) {
				f.Nodes[1].Facts.Memory, c.Cache.MemoryBytes = 2<<30,
					4<<30
			}},
		{"node memory", Warn, "10.0.0.2 has 512 MB free", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.Memory = 512 << 20
			for i := range f.Nodes {
				f.Nodes[i].Facts.Model.Bytes = 1 << 20
			}
		}},
		{"node disks", Warn, "10.0.0.2 has 100 MB free in /cache", func(f *Found,
			_ *config.Config) {
			f.Nodes[1].Facts.Disk = 100 << 20
		}},
		{"node disks", Warn, "10.0.0.2 broken", func(f *Found, _ *config.Config) {
			f.Nodes[1].Facts.DiskError = "broken"
		}},
	} {
		f, cfg := soundNodes(), config.Default()
		c.spoil(f, &cfg)
		found := false
		for _, r := range f.Results(&cfg) {
			switch {
			case r.Check == c.check:
				found = true
				if r.State != c.state || !strings.Contains(r.Found, c.says) {
					t.Errorf("%s, %s: %+v", c.check, c.says, r)
				}
			case r.State != OK && c.state == OK:
				t.Errorf("%s, %s: %s is %+v", c.check, c.says, r.Check, r)
			}
			if r.State != OK && (r.Means == "" || r.Do == "") {
				t.Errorf("%s does not say what to do: %+v", r.Check, r)
			}
		}
		if !found {
			t.Errorf("%s is not checked", c.check)
		}
	}
}
