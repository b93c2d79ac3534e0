package layouts

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestSameBitsOnRay runs two workloads on real Ray: two nodes of two devices, over which the ranks of
// some of the cells, and the engines of another, are placed.
func TestSameBitsOnRay(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		c := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1, GPUs: 2},
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
