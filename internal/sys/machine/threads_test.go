package machine

import (
	"os"
	"testing"
	"testing/fstest"
)

func TestThreadsLeft(t *testing.T) {
	const v2 = "0::/kubepods/pod1\n"
	for name, c := range map[string]struct {
		files map[string]string
		user  int64
		want  Threads
		known bool
	}{
		"nothing": {nil, -1, Threads{}, false},
		"no limit": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/pids.max": "max\n"}, -1, Threads{}, false},
		"group": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/pids.max":     "64\n",
			"sys/fs/cgroup/kubepods/pod1/pids.current": "24\n"}, -1, Threads{40,
			"pids.max 64 of the control group /kubepods/pod1"}, true},
		"group above": {map[string]string{"proc/self/cgroup": v2,
			"sys/fs/cgroup/kubepods/pod1/pids.max":     "64\n",
			"sys/fs/cgroup/kubepods/pod1/pids.current": "24\n",
			"sys/fs/cgroup/kubepods/pids.max":          "100\n",
			"sys/fs/cgroup/kubepods/pids.current":      "101\n"}, -1, Threads{0,
			"pids.max 100 of the control group /kubepods"}, true},
		"version 1": {map[string]string{"proc/self/cgroup": "8:pids:/docker/c\n",
			"sys/fs/cgroup/pids/docker/c/pids.max":     "50\n",
			"sys/fs/cgroup/pids/docker/c/pids.current": "10\n"}, -1, Threads{40,
			"pids.max 50 of the control group /docker/c"}, true},
		"user": {map[string]string{"proc/7/status": "Name: x\nUid:\t12\t12\nThreads:\t5\n",
			"proc/8/status": "Uid:\t13\t13\nThreads:\t9\n",
			"proc/9/status": "Uid:\t12\t12\nThreads:\t2\n"}, 30, Threads{23, "ulimit -u 30"}, true},
		"machine": {map[string]string{"proc/sys/kernel/threads-max": "1000\n",
			"proc/loadavg": "0.1 0.2 0.3 2/400 99\n"}, -1, Threads{600, "kernel.threads-max 1000"},
			true},
	} {
		root := fstest.MapFS{}
		for p, text := range c.files {
			root[p] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, ok := threadsLeft(root, c.user, 12); got != c.want || ok != c.known {
			t.Errorf("%s: %+v, %v, want %+v", name, got, ok, c.want)
		}
	}
	if got, ok := ThreadsLeft(); !ok || got.Left < 1 || got.Limit == "" {
		t.Errorf("here: %+v, %v", got, ok)
	}
}

// TestReserveThreads wants the threads to stay when what they were started for is over. A round may
// begin before those of the last one are free, so that only their number over many rounds tells.
func TestReserveThreads(t *testing.T) {
	const n, rounds = 12, 40
	for range rounds {
		ReserveThreads(n)
	}
	if count, _ := keyed(os.DirFS("/"), "proc/self/status", "Threads:"); count < n ||
		count > n*rounds/2 {
		t.Errorf("%d threads after %d rounds of %d", count, rounds, n)
	}
}
