package machine

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processor is a hardware thread that this process may run on.
type Processor struct {
	// Number is the system's.
	Number int
	// Core is the lowest number among the hardware threads of its physical core, which names it.
	Core int
	// Node is the NUMA node.
	Node int
}

// Topology is what this process may compute on.
type Topology struct {
	// Processors are those of its affinity mask, which a cpuset bounds, by ascending numbers.
	Processors []Processor
	// Quota is how many processors' time its control groups allow, 0 for no limit.
	Quota float64
}

// ReadTopology reads that of this thread. Where /sys does not say otherwise, every processor is a
// core of its own and all are of one node.
func ReadTopology() Topology {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return Topology{Processors: []Processor{{}}}
	}
	var numbers []int
	for i := range len(set) * wordBits {
		if set.IsSet(i) {
			numbers = append(numbers, i)
		}
	}
	return readTopology(os.DirFS("/"), numbers)
}

const wordBits = strconv.IntSize

func readTopology(root fs.FS, numbers []int) Topology {
	var t Topology
	t.Quota, _ = cpuQuota(root)
	nodes := map[int]int{}
	entries, _ := fs.ReadDir(root, "sys/devices/system/node")
	for _, e := range entries {
		number, isNode := strings.CutPrefix(e.Name(), "node")
		node, err := strconv.Atoi(number)
		if !isNode || err != nil {
			continue
		}
		for _, p := range processors(root, path.Join("sys/devices/system/node", e.Name(),
			"cpulist")) {
			nodes[p] = node
		}
	}
	for _, n := range numbers {
		p := Processor{Number: n, Core: n, Node: nodes[n]}
		siblings := processors(root, fmt.Sprintf(
			"sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", n))
		if len(siblings) > 0 {
			p.Core = slices.Min(siblings)
		}
		t.Processors = append(t.Processors, p)
	}
	return t
}

// processors reads a file with a list of processors; nil where there is none.
func processors(root fs.FS, name string) []int {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return nil
	}
	list, _ := parseList(strings.TrimSpace(string(raw)))
	return list
}

// mostProcessors bounds the numbers of processors: those that an affinity mask has room for.
const mostProcessors = len(unix.CPUSet{}) * wordBits

// parseList reads a list of processors as the kernel writes it: "0-3,8".
func parseList(list string) (numbers []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, errFrom := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		switch {
		case errFrom != nil || errTo != nil || from < 0 || to < from:
			return nil, fmt.Errorf("%q is no list of processors such as 0-3,8", list)
		case to >= mostProcessors:
			return nil, fmt.Errorf("processor %d is beyond %d", to, mostProcessors-1)
		}
		for n := from; n <= to; n++ {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// formatList writes ascending numbers as the kernel does: "0-3,8".
func formatList(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(numbers[i]))
		if j > i {
			fmt.Fprintf(&b, "-%d", numbers[j])
		}
		i = j + 1
	}
	return b.String()
}

// cores are the physical cores, node by node: each a list of its processors.
func (t *Topology) cores() (cores [][]Processor) {
	sorted := slices.Clone(t.Processors)
	sort.Slice(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		return cmp.Or(a.Node-b.Node, a.Core-b.Core, a.Number-b.Number) < 0
	})
	for i, p := range sorted {
		if i == 0 || sorted[i-1].Core != p.Core {
			cores = append(cores, nil)
		}
		cores[len(cores)-1] = append(cores[len(cores)-1], p)
	}
	return cores
}

// limit is how many threads a quota lets run at a time, of so many. A fraction of a processor is
// left out, because threads that compute in step would all wait for the one that is throttled.
func (t *Topology) limit(n int) int {
	if t.Quota > 0 {
		n = min(n, int(t.Quota))
	}
	return max(n, 1)
}
