package machine

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// made is a topology of sockets, each a node, of cores of one or two hardware threads, numbered as
// Linux numbers them on x86: the first threads of all cores, then the second ones.
func made(nodes, cores, threads int, without ...int) (t Topology) {
	for n := range nodes * cores * threads {
		core := n % (nodes * cores)
		if !slices.Contains(without, n) {
			t.Processors = append(t.Processors, Processor{n, core, core / cores})
		}
	}
	return t
}

func quota(t Topology, q float64) Topology {
	t.Quota = q
	return t
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		t    Topology
		d    Demand
		want string // threads:processors of each rank
		why  string
	}{
		"one rank, nothing to gain": {made(1, 4, 1), Demand{Ranks: 1}, "4:",
			"the rank has all processors"},
		"one socket, two ranks": {made(1, 4, 1), Demand{Ranks: 2}, "2:0-1 2:2-3",
			"processors of node 0"},
		"fewer threads than cores": {made(1, 8, 1), Demand{Ranks: 2, Threads: 3}, "3:0-3 3:4-7",
			"processors of node 0"},
		"cores that ranks do not divide": {made(1, 5, 1), Demand{Ranks: 2}, "2:0-1 2:2-4",
			"processors of node 0"},
		"siblings are left free": {made(1, 4, 2), Demand{Ranks: 1}, "4:0-3",
			"one hardware thread of each core of node 0"},
		"siblings last": {made(1, 4, 2), Demand{Ranks: 2, Threads: 4}, "4:0-1,4-5 4:2-3,6-7",
			"all hardware threads of node 0"},
		"siblings of all cores": {made(1, 4, 2), Demand{Ranks: 1, Threads: 8}, "8:",
			"the rank has all processors"},
		"siblings that ranks do not divide": {made(1, 5, 2), Demand{Ranks: 3, Threads: 3},
			"3: 3: 3:", "3 × 3 threads do not divide 5 cores"},
		"two nodes, two ranks": {made(2, 4, 2), Demand{Ranks: 2}, "4:0-3 4:4-7",
			"one hardware thread of each core of node 0"},
		"two nodes, four ranks": {made(2, 4, 1), Demand{Ranks: 4}, "2:0-1 2:2-3 2:4-5 2:6-7",
			"processors of node 0"},
		"two nodes, three ranks": {made(2, 4, 1), Demand{Ranks: 3}, "2:0-1 2:2-3 2:4-7",
			"processors of node 0"},
		"one rank on two nodes": {made(2, 4, 2), Demand{Ranks: 1}, "8:0-7",
			"one hardware thread of each core of nodes 0 to 1: no node has enough"},
		"one rank that fits a node": {made(2, 4, 1), Demand{Ranks: 1, Threads: 4}, "4:0-3",
			"processors of node 0"},
		"a thread fewer stays in a node": {made(2, 5, 1, 8, 9), Demand{Ranks: 2},
			"3:0-4 3:5-7", ""},
		"threads that are asked for cross nodes": {made(2, 3, 1), Demand{Ranks: 1, Threads: 4},
			"4:", "the rank has all processors"},
		"quota": {quota(made(1, 4, 1), 1.5), Demand{Ranks: 1}, "1:",
			"a quota of 1.5 processors is time on any of 4, which others use, too"},
		"quota for two": {quota(made(2, 4, 1), 4), Demand{Ranks: 2}, "2: 2:", "a quota of 4"},
		"quota of all":  {quota(made(1, 4, 1), 4), Demand{Ranks: 2}, "2:0-1 2:2-3", ""},
		"holes": {made(2, 4, 2, 0, 1, 5, 8, 9), Demand{Ranks: 2}, "3:2-4 3:6-7,13",
			"one hardware thread of each core of nodes 0 to 1"},
		"a cpuset of siblings": {made(1, 4, 2, 0, 1, 4, 5), Demand{Ranks: 2}, "1:2 1:3", ""},
		"more ranks than cores": {made(1, 2, 1), Demand{Ranks: 4}, "1: 1: 1: 1:",
			"4 × 1 threads are more than the 2 processors"},
		"more threads than processors": {made(1, 4, 1), Demand{Ranks: 2, Threads: 3}, "3: 3:",
			"2 × 3 threads are more than the 4 processors"},
		"none": {made(2, 4, 1), Demand{Ranks: 2, Bind: "none"}, "4: 4:", "as asked"},
		"list": {made(1, 8, 1), Demand{Ranks: 2, Bind: "0-2,7|3"}, "4:0-2,7 1:3", "as listed"},
		"list under a quota": {quota(made(1, 8, 1), 2), Demand{Ranks: 2, Bind: "0-3|4-7"},
			"1:0-3 1:4-7", ""},
		"list, threads": {made(1, 8, 1), Demand{Ranks: 1, Threads: 2, Bind: "4-7"}, "2:4-7", ""},
	} {
		shares, err := c.t.Plan(c.d)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, s := range shares {
			got = append(got, fmt.Sprintf("%d:%s", s.Threads, formatList(s.Processors)))
		}
		all, why := strings.Join(got, " "), shares[0].Why
		if all != c.want || !strings.HasPrefix(why, c.why) {
			t.Errorf("%s: %s (%s), want %s (%s)", name, all, why, c.want, c.why)
		}
	}
}

// TestPlanHolds checks what holds for every plan: ranks have processors of their own, as many as
// threads or more, and threads never exceed what there is by themselves.
func TestPlanHolds(t *testing.T) {
	for nodes := 1; nodes <= 3; nodes++ {
		for cores := 1; cores <= 6; cores++ {
			for threads := 1; threads <= 2; threads++ {
				for ranks := 1; ranks <= 9; ranks++ {
					for ask := range 5 {
						top, d := made(nodes, cores, threads, 1), Demand{Ranks: ranks, Threads: ask}
						if len(top.Processors) == 0 {
							continue
						}
						shares, err := top.Plan(d)
						if err != nil || len(shares) != ranks {
							t.Fatalf("%+v: %d shares, %v", d, len(shares), err)
						}
						seen, sum := map[int]bool{}, 0
						for _, s := range shares {
							sum += s.Threads
							if s.Processors != nil && len(s.Processors) < s.Threads {
								t.Errorf("%+v of %d × %d × %d: %+v", d, nodes, cores, threads, s)
							}
							for _, p := range s.Processors {
								if seen[p] || !slices.Contains(top.Numbers(), p) {
									t.Errorf("%+v of %d × %d × %d: %+v", d, nodes, cores, threads,
										shares)
								}
								seen[p] = true
							}
						}
						if most := max(ranks, len(top.cores())); ask == 0 && sum > most {
							t.Errorf("%+v of %d × %d × %d: %d threads", d, nodes, cores,
								threads, sum)
						}
					}
				}
			}
		}
	}
}

func TestBadLists(t *testing.T) {
	for bind, want := range map[string]string{
		"0-3":       "1 sets for the 2 ranks of this machine",
		"0|1|2":     "3 sets for the 2 ranks",
		"0-2|2-3":   "processor 2 is in two sets",
		"0|":        `"" is no list of processors`,
		"all":       `"all" is no list of processors`,
		"3-1|4":     `"3-1" is no list`,
		"-1|2":      `"-1" is no list`,
		"0-1|8-9":   "processor 8 is not one that this process may run on: 0-3,5-7",
		"4|0":       "processor 4 is not one",
		"0|99999":   "processor 99999 is beyond 1023",
		"0-1|2":     "2 threads (--cpu-threads) do not fit the 1 processors of 2",
		"0-1 | 2-3": `"0-1 " is no list`,
	} {
		_, err := made(1, 8, 1, 4).Plan(Demand{Ranks: 2, Threads: 2, Bind: bind})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", bind, err, want)
		}
	}
}

func TestReadTopology(t *testing.T) {
	root := fstest.MapFS{
		"sys/devices/system/node/node0/cpulist": {Data: []byte("0,2\n")},
		"sys/devices/system/node/node1/cpulist": {Data: []byte("1,3\n")},
		"sys/devices/system/node/online":        {Data: []byte("0-1\n")},
		"proc/self/cgroup":                      {Data: []byte("0::/\n")},
		"sys/fs/cgroup/cpu.max":                 {Data: []byte("150000 100000\n")},
	}
	for n, siblings := range []string{"0,2", "1,3", "0,2", "1,3"} {
		root[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", n)] =
			&fstest.MapFile{Data: []byte(siblings + "\n")}
	}
	got := readTopology(root, []int{1, 2, 3})
	want := []Processor{{1, 1, 1}, {2, 0, 0}, {3, 1, 1}}
	if !slices.Equal(got.Processors, want) || got.Quota != 1.5 {
		t.Errorf("%+v", got)
	}
	if bare := readTopology(fstest.MapFS{}, []int{4, 6}); !slices.Equal(bare.Processors,
		[]Processor{{4, 4, 0}, {6, 6, 0}}) {
		t.Errorf("without /sys: %+v", bare)
	}
}

// TestBindThread binds a thread, and wants its old mask back.
func TestBindThread(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	all := ReadTopology()
	last := all.Processors[len(all.Processors)-1].Number
	if err := BindThread([]int{last}); err != nil {
		t.Skip(err)
	}
	if now := ReadTopology(); len(now.Processors) != 1 || now.Processors[0].Number != last {
		t.Errorf("bound to %d: %+v", last, now)
	}
	if err := unix.SchedSetaffinity(0, &before); err != nil {
		t.Error(err)
	}
}

// TestBindProcess binds all threads of this process to all processors: whatever they had before,
// they have these then.
func TestBindProcess(t *testing.T) {
	all := ReadTopology()
	if err := BindProcess(all.Numbers()); err != nil {
		t.Skip(err)
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, e := range tasks {
		raw, err := os.ReadFile("/proc/self/task/" + e.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		_, list, _ := strings.Cut(string(raw), "Cpus_allowed_list:")
		list, _, _ = strings.Cut(list, "\n")
		if strings.TrimSpace(list) != formatList(all.Numbers()) {
			t.Errorf("thread %s runs on %q", e.Name(), list)
		}
	}
}
