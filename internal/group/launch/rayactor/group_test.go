package rayactor

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

type amounts = map[string]float64

func TestGroupSpec(t *testing.T) {
	for _, c := range []struct {
		name       string
		world      int
		key        string
		perWorker  float64
		cpuThreads int
		want       []amounts
	}{
		{"GPUs", 2, "GPU", 1, 8, []amounts{{"GPU": 1}, {"GPU": 1}}},
		{"part of a GPU", 1, "GPU", 0.5, 8, []amounts{{"GPU": 0.5}}},
		{"another accelerator", 1, "TPU", 1, 8, []amounts{{"TPU": 1}}},
		{"CPUs", 2, "CPU", 1, 8, []amounts{{"CPU": 8}, {"CPU": 8}}},
		{"CPUs by default", 1, "CPU", 1, 0, []amounts{{"CPU": 1}}},
		{"nothing", 0, "GPU", 1, 0, []amounts{}},
	} {
		if got := GroupSpec(c.world, c.key, c.perWorker, c.cpuThreads); !reflect.DeepEqual(got,
			c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if bundles := GroupSpec(2, "GPU", 1,
		0); reflect.ValueOf(bundles[0]).Pointer() == reflect.ValueOf(bundles[1]).Pointer() {
		t.Error("bundles share one map")
	}
}

// gpuNode has total GPUs, of which free are free.
func gpuNode(id string, free, total float64) NodeFree {
	return NodeFree{ID: id, IP: "10.0.0." + id, Alive: true, Total: amounts{"GPU": total, "CPU": 8},
		Free: amounts{"GPU": free, "CPU": 8}}
}

func deadNode(id string) NodeFree {
	return NodeFree{ID: id, IP: "10.0.0." + id, Total: amounts{"GPU": 8}, Free: amounts{"GPU": 8}}
}

func TestShortage(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted []amounts
		nodes  []NodeFree
		want   string
	}{
		{"held by others", GroupSpec(4, "GPU", 1, 0), []NodeFree{gpuNode("3", 1, 2), deadNode("1"), gpuNode("2", 0, 2)}, `
wanted: 4 bundles of {GPU: 1}; 1 of 4 fit into what is free now
  node 10.0.0.2 (2): GPU 0 free of 2
  node 10.0.0.3 (3): GPU 1 free of 2
  node 10.0.0.1 (1): dead, not counted
missing: 3 bundles of {GPU: 1}
the cluster is large enough, but others hold what is missing
hint: wait for them or end them (see "ray status"), lower --tensor-parallel-size (-tp), or add nodes`},
		{"too small", GroupSpec(4, "GPU", 1, 0), []NodeFree{gpuNode("2", 1, 2), gpuNode("3", 1, 1)}, `
wanted: 4 bundles of {GPU: 1}; 2 of 4 fit into what is free now
  node 10.0.0.2 (2): GPU 1 free of 2
  node 10.0.0.3 (3): GPU 1 free of 1
missing: 2 bundles of {GPU: 1}
the cluster holds only 3 of 4 even with nothing else running
hint: lower --tensor-parallel-size (-tp), or add nodes`},
		{"nothing but lost nodes", GroupSpec(1, "GPU", 1, 0), []NodeFree{deadNode("1")}, `
wanted: 1 bundle of {GPU: 1}; 0 of 1 fit into what is free now
  no node is alive
  node 10.0.0.1 (1): dead, not counted
missing: 1 bundle of {GPU: 1}
the cluster holds only 0 of 1 even with nothing else running
hint: lower --tensor-parallel-size (-tp), or add nodes`},
		{"CPUs in pieces", GroupSpec(2, "CPU", 1, 6),
			[]NodeFree{gpuNode("1", 0, 0), {ID: "2", IP: "10.0.0.2", Alive: true,
				Total: amounts{"CPU": 8}, Free: amounts{"CPU": 4}}}, `
wanted: 2 bundles of {CPU: 6}; 1 of 2 fit into what is free now
  node 10.0.0.1 (1): CPU 8 free of 8
  node 10.0.0.2 (2): CPU 4 free of 8
missing: 1 bundle of {CPU: 6} (6 CPU left over in all, but no node has {CPU: 6})
the cluster is large enough, but others hold what is missing
hint: wait for them or end them (see "ray status"), lower --tensor-parallel-size (-tp), or add nodes; --cpu-threads lowers the CPUs of a bundle`},
		{"it fits meanwhile", GroupSpec(1, "GPU", 0.5, 0), []NodeFree{gpuNode("1", 0.5, 1)}, `
wanted: 1 bundle of {GPU: 0.5}; 1 of 1 fit into what is free now
  node 10.0.0.1 (1): GPU 0.5 free of 1
missing: nothing; Ray should place the group at any moment`},
		{"the largest are placed first", []amounts{{"CPU": 1}, {"CPU": 8}},
			[]NodeFree{gpuNode("1", 0, 0),
				{ID: "2", IP: "10.0.0.2", Alive: true, Total: amounts{"CPU": 1}, Free: amounts{"CPU": 1}}}, `
wanted: 1 bundle of {CPU: 1} and 1 bundle of {CPU: 8}; 2 of 2 fit into what is free now
  node 10.0.0.1 (1): CPU 8 free of 8
  node 10.0.0.2 (2): CPU 1 free of 1
missing: nothing; Ray should place the group at any moment`},
		{"two kinds", []amounts{{"GPU": 1, "CPU": 2}, {"CPU": 1}}, []NodeFree{gpuNode("1", 0, 1)}, `
wanted: 1 bundle of {CPU: 2, GPU: 1} and 1 bundle of {CPU: 1}; 1 of 2 fit into what is free now
  node 10.0.0.1 (1): CPU 8 free of 8, GPU 0 free of 1
missing: 1 bundle of {CPU: 2, GPU: 1}
the cluster is large enough, but others hold what is missing
hint: wait for them or end them (see "ray status"), lower --tensor-parallel-size (-tp), or add nodes; --cpu-threads lowers the CPUs of a bundle`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := "\n" + Shortage(c.wanted, c.nodes, nil); got != c.want {
				t.Errorf("got:%s\n\nwant:%s", got, c.want)
			}
		})
	}
}

// TestShortageOutsideGroups has an actor without a group hold what the nodes seem to have.
func TestShortageOutsideGroups(t *testing.T) {
	got := Shortage(GroupSpec(4, "GPU", 1, 0), []NodeFree{gpuNode("1", 2, 2), gpuNode("2", 2, 2)},
		amounts{"CPU": 8, "GPU": 2})
	want := "missing: actors and tasks outside placement groups hold the rest: on the whole " +
		"cluster are free 2 GPU of 4 wanted\n"
	if !strings.Contains(got, want) || !strings.Contains(got, "4 of 4 fit") {
		t.Errorf("got:\n%s", got)
	}
	if got := Shortage(GroupSpec(1, "GPU", 1, 0), []NodeFree{gpuNode("1", 2, 2)},
		amounts{"CPU": 8}); !strings.Contains(got, "free 0 GPU of 1 wanted") {
		t.Errorf("got:\n%s", got)
	}
}

func TestShortageOfLargeCluster(t *testing.T) {
	var nodes []NodeFree
	for i := range 100 {
		nodes = append(nodes, gpuNode(fmt.Sprint(i), 0, 8))
	}
	got := Shortage(GroupSpec(4, "GPU", 1, 0), nodes, nil)
	if lines := strings.Count(got, "\n"); lines > 25 {
		t.Errorf("%d lines:\n%s", lines, got)
	}
	if want := "and 84 more nodes: GPU 0 free of 672"; !strings.Contains(got, want) {
		t.Errorf("want %q in:\n%s", want, got)
	}
}

func TestImpossible(t *testing.T) {
	cpu := func(free, total float64) NodeFree {
		return NodeFree{Alive: true, Total: amounts{"CPU": total}, Free: amounts{"CPU": free}}
	}
	for _, c := range []struct {
		name   string
		wanted []amounts
		nodes  []NodeFree
		want   bool
	}{
		{"nothing wanted", nil, nil, false},
		{"no nodes", GroupSpec(1, "GPU", 1, 0), nil, true},
		{"all held by others", GroupSpec(4, "GPU", 1, 0),
			[]NodeFree{gpuNode("1", 0, 2), gpuNode("2", 0, 2)}, false},
		{"one too few", GroupSpec(5, "GPU", 1, 0),
			[]NodeFree{gpuNode("1", 2, 2), gpuNode("2", 2, 2)}, true},
		{"dead nodes hold nothing", GroupSpec(1, "GPU", 1, 0), []NodeFree{deadNode("1")}, true},
		{"resource of no node", GroupSpec(1, "TPU", 1, 0), []NodeFree{gpuNode("1", 2, 2)}, true},
		{"CPUs in pieces", GroupSpec(2, "CPU", 1, 6), []NodeFree{cpu(8, 8), cpu(4, 4)}, true},
		{"thirds", GroupSpec(3, "GPU", 0.3333, 0), []NodeFree{gpuNode("1", 0, 1)}, false},
		{"tenths, which binary fractions cannot add up", GroupSpec(10, "GPU", 0.1, 0),
			[]NodeFree{gpuNode("1", 0, 1)}, false},
		{"eleven tenths", GroupSpec(11, "GPU", 0.1, 0), []NodeFree{gpuNode("1", 0, 1)}, true},
		{"two kinds, one too large", []amounts{{"CPU": 16}, {"CPU": 1}},
			[]NodeFree{cpu(8, 8), cpu(8, 8)}, true},
		{"two kinds, sums too large", []amounts{{"CPU": 6}, {"CPU": 4}}, []NodeFree{cpu(8, 8)},
			true},
		{"two kinds that fit", []amounts{{"CPU": 2}, {"CPU": 6}, {"CPU": 4}},
			[]NodeFree{cpu(0, 6), cpu(0, 6)}, false},
		// No split of these fills 12 and 12, but only a search shows that, so it is not claimed.
		{"not certain", []amounts{{"CPU": 6}, {"CPU": 5}, {"CPU": 5}, {"CPU": 4}, {"CPU": 4}},
			[]NodeFree{cpu(12, 12), cpu(12, 12)}, false},
	} {
		if got := Impossible(c.wanted, c.nodes); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// Impossible is compared with trying all ways to place the bundles: what it claims must be so,
// and for bundles of one kind, all that Eagle Ray asks for itself, it must claim all that is so.
func TestImpossibleAgainstSearch(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		nodes := make([]NodeFree, r.IntN(4))
		for i := range nodes {
			nodes[i] = NodeFree{Alive: r.IntN(5) > 0,
				Total: amounts{"CPU": float64(r.IntN(9)), "GPU": float64(r.IntN(3))}}
		}
		kinds := 1 + r.IntN(2)
		var wanted []amounts
		for k := range kinds {
			bundle := amounts{"CPU": float64(1 + r.IntN(5))}
			if r.IntN(2) == 0 {
				bundle["GPU"] = float64(r.IntN(2)) / float64(1+k)
			}
			for range r.IntN(4) {
				wanted = append(wanted, bundle)
			}
		}
		possible := canPlace(wanted, nodes)
		got := Impossible(wanted, nodes)
		if got && possible {
			t.Fatalf("seed %d: %v on %v is possible", seed, wanted, nodes)
		}
		if !got && !possible && len(kindsOf(wanted)) == 1 {
			t.Fatalf("seed %d: %v on %v is impossible", seed, wanted, nodes)
		}
	}
}

func canPlace(wanted []amounts, nodes []NodeFree) bool {
	if len(wanted) == 0 {
		return true
	}
	for i, n := range nodes {
		room := amounts{}
		ok := n.Alive
		for key, v := range n.Total {
			room[key] = v - wanted[0][key]
			ok = ok && room[key] >= 0
		}
		if !ok {
			continue
		}
		rest := append([]NodeFree(nil), nodes...)
		rest[i].Total = room
		if canPlace(wanted[1:], rest) {
			return true
		}
	}
	return false
}
