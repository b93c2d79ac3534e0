package machine

import (
	"testing"
	"testing/fstest"

	"github.com/eagleray/eagleray/internal/sys/memory"
)

// TestMemory reads the bounds of hosts and control groups of both versions.
func TestMemory(t *testing.T) {
	const (
		host = "MemTotal:       16000000 kB\nMemFree:          500000 kB\nMemAvailable:    " +
			"8000000 kB\n"
		free = 8000000 << 10
		v2   = "0::/kubepods/pod1\n"
		pod  = "sys/fs/cgroup/kubepods/pod1/"
		all  = "sys/fs/cgroup/kubepods/"
	)
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		known bool
	}{
		"nothing is known": {nil, 0, false},
		"host alone":       {map[string]string{"proc/meminfo": host}, free, true},
		"no limit": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2, pod +
			"memory.max": "max\n", pod + "memory.current": "7000000\n"}, free, true},
		"what is left of the limit": {map[string]string{"proc/meminfo": host,
			"proc/self/cgroup": v2, pod + "memory.max": "5000000000\n",
			pod + "memory.current": "3000000000\n"}, 2000000000, true},
		"cached files give way": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "5000000000\n", pod + "memory.current": "3000000000\n",
			pod + "memory.stat": "anon 1000\nfile 900\ninactive_anon 1\n" +
				"inactive_file 1500000000\n"}, 3500000000, true},
		"files that are in use give way, too": {map[string]string{"proc/meminfo": host,
			"proc/self/cgroup": v2, pod + "memory.max": "5000000000\n",
			pod + "memory.current": "4000000000\n",
			pod + "memory.stat":    "active_file 2000000000\ninactive_file 1500000000\n"},
			4500000000, true},
		"memory.high is a limit": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "5000000000\n", pod + "memory.high": "4000000000\n",
			pod + "memory.current": "3000000000\n"}, 1000000000, true},
		"memory.high alone": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "max\n", pod + "memory.high": "4000000000\n",
			pod + "memory.current": "3000000000\n"}, 1000000000, true},
		"memory.high of a group above": {map[string]string{"proc/meminfo": host,
			"proc/self/cgroup": v2, pod + "memory.max": "5000000000\n",
			pod + "memory.current": "100\n", all + "memory.max": "max\n",
			all + "memory.high": "3000\n", all + "memory.current": "100\n"}, 2900, true},
		"limit above what the host has": {map[string]string{"proc/meminfo": host,
			"proc/self/cgroup": v2, pod + "memory.max": "50000000000\n",
			pod + "memory.current": "1\n"}, free, true},
		"limit of a group above": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "5000000000\n", pod + "memory.current": "1000000000\n",
			all + "memory.max": "6000000000\n", all + "memory.current": "5500000000\n"}, 500000000,
			true},
		"nothing is left": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "1000\n", pod + "memory.current": "1001\n"}, 0, true},
		"a container's own mount": {map[string]string{"proc/meminfo": host,
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n",
			"sys/fs/cgroup/memory.current": "400\n"}, 600, true},
		"version 1": {map[string]string{
			"proc/self/cgroup": "9:memory:/docker/c1\n4:cpu,cpuacct:/docker/c1\n",
			"sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes": "900\n",
			"sys/fs/cgroup/memory/docker/c1/memory.stat": "inactive_file " +
				"1\ntotal_inactive_file 50\ntotal_active_file 5\n"}, 155, true},
		"version 1 without a limit": {map[string]string{"proc/self/cgroup": "9:memory:/docker/c1\n",
			"proc/meminfo": host,
			"sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes": "900\n"}, free, true},
		"version 1, a group above": {map[string]string{"proc/self/cgroup": "9:memory:/docker/c1\n",
			"proc/meminfo": host,
			"sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes": "900\n",
			"sys/fs/cgroup/memory/docker/memory.limit_in_bytes":    "5000\n",
			"sys/fs/cgroup/memory/docker/memory.usage_in_bytes":    "900\n"}, 4100, true},
		"nonsense": {map[string]string{"proc/meminfo": "MemAvailable: much\n",
			"proc/self/cgroup": v2, pod + "memory.max": "10", pod + "memory.current": ""}, 0,
			false},
	} {
		root := fstest.MapFS{}
		for p, text := range c.files {
			root[p] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, known := bounds(root).Left(); got != c.want || known != c.known {
			t.Errorf("%s: %d bytes (known: %v), want %d (%v)", name, got, known, c.want, c.known)
		}
	}
}

// TestBoundsSayWhere holds that the tightest bound is named.
func TestBoundsSayWhere(t *testing.T) {
	root := fstest.MapFS{
		"proc/meminfo": {Data: []byte("MemTotal: 1000 kB\nMemAvailable: " +
			"900 kB\n")},
		"proc/self/cgroup":                      {Data: []byte("0::/a/b\n")},
		"sys/fs/cgroup/a/memory.high":           {Data: []byte("500000\n")},
		"sys/fs/cgroup/a/memory.current":        {Data: []byte("100000\n")},
		"sys/fs/cgroup/a/b/memory.max":          {Data: []byte("800000\n")},
		"sys/fs/cgroup/a/b/memory.current":      {Data: []byte("100000\n")},
		"sys/fs/cgroup/a/b/memory.swap.current": {Data: []byte("0\n")},
	}
	room, by, known := bounds(root).Room(0.5)
	if want := (memory.Bound{From: "/sys/fs/cgroup/a/memory.high", Limit: 500000,
		Left: 400000}); !known || by != want || room != 250000 {
		t.Errorf("%d by %+v, known: %v", room, by, known)
	}
}

func TestMemoryOfThisProcess(t *testing.T) {
	if n, ok := Memory().Left(); !ok || n <= 0 {
		t.Errorf("%d bytes, known: %v", n, ok)
	}
}
