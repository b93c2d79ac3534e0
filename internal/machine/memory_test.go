package machine

import (
	"testing"
	"testing/fstest"
)

func TestAvailableMemory(t *testing.T) {
	const (
		host = "MemTotal:       16000000 kB\nMemFree:          500000 kB\nMemAvailable:    8000000 kB\n"
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
		"no limit": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2, pod + "memory.max": "max\n",
			pod + "memory.current": "7000000\n"}, free, true},
		"what is left of the limit": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "5000000000\n", pod + "memory.current": "3000000000\n"}, 2000000000, true},
		"cached files give way": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "5000000000\n", pod + "memory.current": "3000000000\n",
			pod + "memory.stat": "anon 1000\nfile 900\ninactive_anon 1\ninactive_file 1500000000\n"}, 3500000000, true},
		"limit above what the host has": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "50000000000\n", pod + "memory.current": "1\n"}, free, true},
		"limit of a group above": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "5000000000\n", pod + "memory.current": "1000000000\n",
			all + "memory.max": "6000000000\n", all + "memory.current": "5500000000\n"}, 500000000, true},
		"nothing is left": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": v2,
			pod + "memory.max": "1000\n", pod + "memory.current": "1001\n"}, 0, true},
		"a container's own mount": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "400\n"}, 600, true},
		"version 1": {map[string]string{"proc/self/cgroup": "9:memory:/docker/c1\n4:cpu,cpuacct:/docker/c1\n",
			"sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes": "900\n",
			"sys/fs/cgroup/memory/docker/c1/memory.stat":           "inactive_file 1\ntotal_inactive_file 50\n"}, 150, true},
		"nonsense": {map[string]string{"proc/meminfo": "MemAvailable: much\n", "proc/self/cgroup": v2,
			pod + "memory.max": "10", pod + "memory.current": ""}, 0, false},
	} {
		root := fstest.MapFS{}
		for p, text := range c.files {
			root[p] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, known := availableMemory(root); got != c.want || known != c.known {
			t.Errorf("%s: %d bytes (known: %v), want %d (%v)", name, got, known, c.want, c.known)
		}
	}
}

func TestAvailableMemoryOfThisProcess(t *testing.T) {
	if n, ok := AvailableMemory(); !ok || n <= 0 {
		t.Errorf("%d bytes, known: %v", n, ok)
	}
}
