package machine

import (
	"runtime"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestCores(t *testing.T) {
	const v2 = "0::/kubepods/pod1/c1\n"
	for name, c := range map[string]struct {
		files   map[string]string
		allowed int
		want    int
	}{
		"no control groups": {nil, 8, 8},
		"no quota": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "max 100000\n"}, 8, 8},
		"quota": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "200000 100000\n"}, 8, 2},
		"quota of a group above": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "max 100000\n",
			"sys/fs/cgroup/kubepods/pod1/cpu.max":    "300000 100000\n"}, 8, 3},
		"the smallest counts": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "200000 100000\n",
			"sys/fs/cgroup/kubepods/cpu.max":         "100000 100000\n"}, 8, 1},
		"a fraction is left out": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "250000 100000"}, 8, 2},
		"less than one": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "50000 100000"}, 8, 1},
		"quota beyond the mask": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/c1/cpu.max": "900000 100000"}, 4, 4},
		"a container's own mount": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/cpu.max": "200000 100000"}, 8, 2},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/c1\n",
			"sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_quota_us":  "150000\n",
			"sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_period_us": "50000\n"}, 8, 3},
		"version 1 without quota": {map[string]string{"proc/self/cgroup": "4:cpu,cpuacct:/\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":  "-1\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 8, 8},
		"nonsense": {map[string]string{"proc/self/cgroup": "x\n" + v2,
			"sys/fs/cgroup/cpu.max": "a b c"}, 8, 8},
		"no affinity": {nil, 0, 1},
	} {
		root := fstest.MapFS{}
		for p, text := range c.files {
			root[p] = &fstest.MapFile{Data: []byte(text)}
		}
		top := readTopology(root, make([]int, c.allowed))
		if got := top.limit(len(top.Processors)); got != c.want {
			t.Errorf("%s: %d cores, want %d", name, got, c.want)
		}
	}
}

// TestCoresOfThisProcess holds that the mask counts, and that GOMAXPROCS does not.
func TestCoresOfThisProcess(t *testing.T) {
	before := Cores()
	if n := runtime.NumCPU(); before < 1 || before > n {
		t.Errorf("%d cores of %d", before, n)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(before + 3))
	if n := Cores(); n != before {
		t.Errorf("%d cores with a higher GOMAXPROCS, %d before", n, before)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	one := unix.CPUSet{}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Skipf("cannot set the affinity of a thread: %v", err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	if n := Cores(); n != 1 {
		t.Errorf("%d cores on one processor", n)
	}
}
