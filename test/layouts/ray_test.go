package layouts

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestSameBitsOnRay runs two workloads on real Ray: two nodes of two devices, over which the ranks
// of some of the cells, and the engines of another, are placed.
func TestSameBitsOnRay(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		c := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1,
			GPUs: 2},
			{CPUs: 1, GPUs: 2}}})
		for _, kv := range c.Env {
			if name, value, _ := strings.Cut(kv, "="); os.Getenv(name) != value {
				t.Setenv(name, value)
			}
		}
		n := count{layouts: map[string]int{}, backends: map[string]int{}}
		for seed := uint64(1); seed <= 2; seed++ {
			w := drawOn(seed, tiny())
			want := reference(t, w)
			w.ray = config.Default().Parallel.Ray
			w.ray.Address, w.ray.Python, w.ray.NodeIP, w.ray.DeviceKey = c.Address, r.Python,
				c.Nodes[0].IP, "GPU"
			rng := rand.New(rand.NewPCG(seed, 3))
			for _, sizes := range []string{"tp=4", "pp=2,pcp=2", "tp=2,dp=2"} {
				on, err := parseCell("backend=ray," + sizes)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, w, on.vary(rng), want, &n)
			}
		}
		t.Log(&n)
	})
}

// TestSplitOnRay computes prompts on ranks that are children of actors, and goes on from them on
// others, divided in other ways, over the nodes of a cluster; then again while ranks of both sides
// are killed, and after a node has gone with some.
func TestSplitOnRay(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		c := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1,
			GPUs: 2},
			{CPUs: 1, GPUs: 2}, {CPUs: 1, GPUs: 2}}})
		for _, kv := range c.Env {
			if name, value, _ := strings.Cut(kv, "="); os.Getenv(name) != value {
				t.Setenv(name, value)
			}
		}
		split := func(seed uint64, from, to string, during func(*splitEngines, int)) {
			t.Helper()
			w := drawOn(seed, tiny())
			want := reference(t, w)
			w.ray = config.Default().Parallel.Ray
			w.ray.Address, w.ray.Python, w.ray.NodeIP, w.ray.DeviceKey = c.Address, r.Python,
				c.Nodes[0].IP, "GPU"
			producer, consumer := cellOf(t, "backend=ray,"+from), cellOf(t, "backend=ray,"+to)
			producer.Batch, consumer.Batch = "mixed", "mixed"
			got, err := runSplit(t.Context(), w, producer, consumer, during)
			if err == nil {
				if d := firstDifference(got, want); d != "" {
					err = errors.New(d)
				}
			}
			if err != nil {
				t.Errorf("from %s to %s: %v", from, to, err)
				return
			}
			received := 0
			for _, list := range got {
				for _, o := range list {
					if o.cached > 0 {
						received++
					}
				}
			}
			t.Logf("from %s to %s: the same; %d outputs went on from blocks of the other engine",
				from, to, received)
			if during == nil && received == 0 {
				t.Errorf("from %s to %s: no blocks came", from, to)
			}
		}
		split(201, "tp=2", "tp=1", nil)
		split(202, "pp=2,pcp=2", "tp=2", nil)
		split(203, "tp=1,dp=2", "pp=2,dp=2", nil)
		split(204, "tp=2", "pp=2", func(s *splitEngines, i int) {
			if i >= 4 {
				return
			}
			if err := killRank([]*replicas.Router{s.producer, s.consumer}[i%2], i/2); err != nil {
				t.Error(err)
			}
		})
		split(205, "tp=2", "tp=2", func(s *splitEngines, i int) {
			if i != 2 {
				return
			}
			// The first node has the producer, which comes first.
			at := s.consumer.Report()[0].Node
			for _, n := range c.Nodes[1:] {
				if strings.Contains(at, n.IP) {
					c.RemoveNode(t, n)
					return
				}
			}
			t.Errorf("the consumer is on %q", at)
		})
		c.NoneLeft(t, "worker --actor") // what the actors have started
	})
}
