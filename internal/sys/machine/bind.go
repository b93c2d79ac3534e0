package machine

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// How ranks are bound to processors, beside a list of a set for each.
const (
	BindAuto = "auto"
	BindNone = "none"
)

// Demand is what the ranks of one machine want of its processors.
type Demand struct {
	// Ranks is how many there are, of all engines, at least 1.
	Ranks int
	// Threads is how many each computes on; 0 divides the cores.
	Threads int
	// Bind is BindAuto, BindNone, or a set of processors for each rank: "0-3|4-7". "" is BindAuto.
	Bind string
}

// Place is a rank's among those of its machine: Index of Of, which is 0 for one that does not know
// which others there are.
type Place struct {
	Index int `json:"index"`
	Of    int `json:"of"`
}

// Share is what one rank has of its machine's processors.
type Share struct {
	// Threads is how many it computes on.
	Threads int
	// Processors are those that its threads are bound to, by ascending numbers; nil is unbound.
	// There may be more of them than threads.
	Processors []int
	// Why is the reason for the binding or for none.
	Why string
}

// String is the binding in words, such as "0-3 (a node of its own)".
func (s Share) String() string {
	if s.Processors == nil {
		return "none (" + s.Why + ")"
	}
	return formatList(s.Processors) + " (" + s.Why + ")"
}

// ParseBind reads a list of sets; an error says what is wrong with it. For BindAuto and BindNone
// it returns nil.
func ParseBind(bind string) (sets [][]int, err error) {
	if bind == BindAuto || bind == BindNone || bind == "" {
		return nil, nil
	}
	seen := map[int]bool{}
	for list := range strings.SplitSeq(bind, "|") {
		set, err := parseList(list)
		if err != nil {
			return nil, err
		}
		for _, n := range set {
			if seen[n] {
				return nil, fmt.Errorf("processor %d is in two sets", n)
			}
			seen[n] = true
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// Plan divides the processors among the ranks. Ranks never share one but where there are fewer
// than ranks. By itself it counts a physical core as one, and binds each rank to the first hardware
// threads of its cores, all of one NUMA node if one has enough; it binds nothing where that would
// gain nothing, or where others compete for the same processors. An error names what is wrong with
// a list of sets.
func (t Topology) Plan(d Demand) ([]Share, error) {
	sets, err := ParseBind(d.Bind)
	if err != nil {
		return nil, err
	}
	if sets != nil {
		return t.listed(d, sets)
	}
	cores := t.cores()
	each := max(1, t.limit(len(cores))/d.Ranks)
	if d.Threads > 0 {
		each = d.Threads
	}
	unbound := func(why string, args ...any) ([]Share, error) {
		return slices.Repeat([]Share{{Threads: each, Why: fmt.Sprintf(why, args...)}}, d.Ranks), nil
	}
	all := len(t.Processors)
	switch {
	case d.Bind == BindNone:
		return unbound("as asked")
	case t.Quota > 0 && t.Quota < float64(all):
		return unbound("a quota of %v processors is time on any of %d, which others use, too",
			t.Quota, all)
	case d.Ranks*each > all || d.Ranks > len(cores):
		return unbound("%d × %d threads are more than the %d processors", d.Ranks, each, all)
	}
	spans := divide(cores, d.Ranks, each)
	if spans == nil && d.Threads == 0 && each > 1 {
		// A thread fewer is worth less than memory of another node.
		for n := each - 1; n*4 >= each*3 && spans == nil; n-- {
			if spans = divide(cores, d.Ranks, n); spans != nil {
				each = n
			}
		}
	}
	for i, crossing := 0, spans == nil; crossing && i < d.Ranks; i++ {
		spans = append(spans, cores[i*len(cores)/d.Ranks:(i+1)*len(cores)/d.Ranks])
	}
	shares := make([]Share, d.Ranks)
	for i, span := range spans {
		s := Share{Threads: each, Processors: bound(span, each), Why: reason(span, each)}
		switch n := len(s.Processors); {
		case n < each:
			return unbound("%d × %d threads do not divide %d cores", d.Ranks, each, len(cores))
		case n == all:
			return unbound("the rank has all processors")
		}
		shares[i] = s
	}
	return shares, nil
}

// divide gives each rank cores of one node, at least each; nil when the nodes have no room for
// that. Where all cores are fewer than all threads, siblings count, too.
func divide(cores [][]Processor, ranks, each int) (spans [][][]Processor) {
	var nodes [][][]Processor
	for i, c := range cores {
		if i == 0 || cores[i-1][0].Node != c[0].Node {
			nodes = append(nodes, nil)
		}
		nodes[len(nodes)-1] = append(nodes[len(nodes)-1], c)
	}
	// room is how many ranks fit a node: as many as its cores, or its processors, are divided into.
	room := func(node [][]Processor) int {
		if ranks*each <= len(cores) {
			return len(node) / each
		}
		return len(slices.Concat(node...)) / each
	}
	given := make([]int, len(nodes))
	for range ranks {
		// The next rank goes to the node where each then has most cores.
		best := -1
		for i, node := range nodes {
			if given[i] < room(node) &&
				(best < 0 || len(node)*(given[best]+1) > len(nodes[best])*(given[i]+1)) {
				best = i
			}
		}
		if best < 0 {
			return nil
		}
		given[best]++
	}
	for i, node := range nodes {
		for k := range given[i] {
			spans = append(spans, node[k*len(node)/given[i]:(k+1)*len(node)/given[i]])
		}
	}
	return spans
}

// bound are the processors of a rank's cores that so many threads run on: the first of each core,
// and all where they are too few.
func bound(span [][]Processor, threads int) (numbers []int) {
	for _, core := range span {
		if threads <= len(span) {
			core = core[:1]
		}
		for _, p := range core {
			numbers = append(numbers, p.Number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// reason says what a rank's processors are.
func reason(span [][]Processor, threads int) string {
	what := "processors"
	if slices.ContainsFunc(span, func(core []Processor) bool { return len(core) > 1 }) {
		what = "one hardware thread of each core"
		if threads > len(span) {
			what = "all hardware threads"
		}
	}
	first, last := span[0][0].Node, span[len(span)-1][0].Node
	if first == last {
		return fmt.Sprintf("%s of node %d", what, first)
	}
	return fmt.Sprintf("%s of nodes %d to %d: no node has enough", what, first, last)
}

// listed gives each rank its set of a list.
func (t Topology) listed(d Demand, sets [][]int) ([]Share, error) {
	if len(sets) != d.Ranks {
		return nil, fmt.Errorf("%d sets for the %d ranks of this machine", len(sets), d.Ranks)
	}
	shares := make([]Share, d.Ranks)
	for i, set := range sets {
		for _, n := range set {
			if !slices.ContainsFunc(t.Processors, func(p Processor) bool { return p.Number == n }) {
				return nil, fmt.Errorf("processor %d is not one that this process may run on: %s",
					n, formatList(t.Numbers()))
			}
		}
		if d.Threads > len(set) {
			return nil, fmt.Errorf("%d threads (--cpu-threads) do not fit the %d processors of %s",
				d.Threads, len(set), formatList(set))
		}
		threads := d.Threads
		if threads == 0 {
			threads = min(len(set), max(1, t.limit(len(t.Processors))/d.Ranks))
		}
		shares[i] = Share{Threads: threads, Processors: set, Why: "as listed"}
	}
	return shares, nil
}

// Numbers are those of the processors.
func (t Topology) Numbers() (numbers []int) {
	for _, p := range t.Processors {
		numbers = append(numbers, p.Number)
	}
	return numbers
}

// BindThread lets the calling thread, which must be locked to its goroutine, run on processors
// only.
func BindThread(processors []int) error { return bindThread(0, processors) }

// BindProcess lets all threads of this process, and those that they start, run on processors only.
// Memory that is first written from then on comes from their nodes.
func BindProcess(processors []int) error {
	// A thread that starts meanwhile has its parent's mask, which may be the old one: a second look
	// sees it.
	done := map[int]bool{}
	for more := true; more; {
		more = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, e := range tasks {
			id, err := strconv.Atoi(e.Name())
			if err != nil || done[id] {
				continue
			}
			done[id], more = true, true
			if err := bindThread(id, processors); err != nil && err != unix.ESRCH {
				return err
			}
		}
	}
	return nil
}

func bindThread(id int, processors []int) error {
	var set unix.CPUSet
	for _, p := range processors {
		set.Set(p)
	}
	return unix.SchedSetaffinity(id, &set)
}
