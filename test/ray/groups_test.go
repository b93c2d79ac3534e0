package ray_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
)

// TestBundleIndices gives ranks the bundles of a group exactly as asked.
func TestBundleIndices(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		id := s.group(t, "indices", bundles(4))
		byNode := map[string]string{}
		s.observer.must(t, "nodes", nil, &byNode)
		where := s.find(t, id).Nodes
		for _, c := range []struct {
			indices, group string
			want           []int
		}{{"2,3", id, []int{2, 3}}, {"3,2", "indices", []int{3, 2}}} {
			t.Run(c.indices, func(t *testing.T) {
				g := s.start(t, 2, wish{ray: func(o *rayactor.Options) {
					o.PlacementGroup,
						o.BundleIndices = c.group, c.indices
				}})
				g.works(t)
				nodes := g.nodes()
				if g.bundleOrder() != c.indices || g.groupID() != id {
					t.Errorf("bundles %q of group %q, want %s of %s", g.bundleOrder(), g.groupID(),
						c.indices, id)
				}
				for rank, bundle := range c.want {
					if want := byNode[where[bundle]]; nodes[rank] != want {
						t.Errorf("rank %d is on %s, bundle %d on %s", rank, nodes[rank], bundle,
							want)
					}
				}
				g.end(t)
				s.clean(t)
			})
		}
		if state := s.find(t, id).State; state != "CREATED" {
			t.Errorf("the adopted group is %s", state)
		}
	})
}

// TestRefusedGroups wants a precise error for every wish that cannot be met, and nothing left
// behind.
func TestRefusedGroups(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		four := s.group(t, "four", bundles(4))
		double := s.group(t, "double", []map[string]float64{{"GPU": 2}})
		for _, c := range []struct {
			name string
			tp   int
			ray  func(*rayactor.Options)
			want []string
		}{
			{"duplicate index", 2, func(o *rayactor.Options) {
				o.PlacementGroup,
					o.BundleIndices = four, "1,1"
			},
				[]string{"--bundle-indices 1,1: cannot have duplicate values, 1 is there twice"}},
			{"too many indices", 2, func(o *rayactor.Options) {
				o.PlacementGroup,
					o.BundleIndices = four, "0,1,2"
			},
				[]string{"--bundle-indices 0,1,2: must have the same size as the world (2), " +
					"got 3"}},
			{"too few indices", 4, func(o *rayactor.Options) {
				o.PlacementGroup,
					o.BundleIndices = four, "0,1"
			},
				[]string{"--bundle-indices 0,1: must have the same size as the world (4), got 2"}},
			{"index out of range", 2, func(o *rayactor.Options) {
				o.PlacementGroup,
					o.BundleIndices = four, "0,9"
			},
				[]string{"--bundle-indices 0,9: bundle 9 is out of range",
					"bundles that have one: 0,1,2,3"}},
			{"no index", 2, func(o *rayactor.Options) {
				o.PlacementGroup, o.BundleIndices = four,
					"0,one"
			},
				[]string{`--bundle-indices "0,one": "one" is not a bundle index`}},
			{"small group", 8, func(o *rayactor.Options) { o.PlacementGroup = four },
				[]string{"the placement group has 4 bundles with a device, the world has 8 " +
					"ranks: 4 missing"}},
			{"small group, one bundle skipped", 4,
				func(o *rayactor.Options) { o.PlacementGroup, o.SkipBundle = four, 2 },
				[]string{"has 3 bundles with a device, the world has 4 ranks: 1 missing",
					"not counting bundle 2"}},
			{"two devices in a bundle", 1, func(o *rayactor.Options) { o.PlacementGroup = double },
				[]string{"bundle 0 of the placement group has 2 GPU: a bundle cannot have more " +
					"than 1"}},
			{"unknown name", 2, func(o *rayactor.Options) { o.PlacementGroup = "missing" },
				[]string{"--ray-placement-group missing: ",
					"Failed to look up placement group with name: missing"}},
			{"name of another namespace", 2, func(o *rayactor.Options) {
				o.PlacementGroup,
					o.Namespace = "four", "elsewhere"
			},
				[]string{"--ray-placement-group four: ",
					"Failed to look up placement group with name: four"}},
			{"unknown id", 2, func(o *rayactor.Options) {
				o.PlacementGroup = strings.Repeat("ab",
					18)
			},
				[]string{"--ray-placement-group abab", "the cluster has no placement group"}},
			// Of the device there are two on one node and none elsewhere.
			{"infeasible", 4, func(o *rayactor.Options) { o.DeviceKey = "NPU" },
				[]string{"the cluster can never hold the group", "wanted: 4 bundles of {NPU: 1}",
					"NPU 2 free of 2", "missing: 2 bundles of {NPU: 1}", "-tp",
					"--ray-placement-timeout"}},
			// All others are taken by the two groups above: 4 + 2.
			{"no room in time", 2,
				func(o *rayactor.Options) { o.PlacementTimeout = 3 * time.Second },
				[]string{"no place after 3s (--ray-placement-timeout)",
					"wanted: 2 bundles of {GPU: 1}; 0 of 2 fit", "others hold what is missing",
					"GPU 0 free of 2"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				err := s.refused(t, c.tp, wish{ray: c.ray})
				for _, want := range c.want {
					if !strings.Contains(err, want) {
						t.Errorf("error %q lacks %q", err, want)
					}
				}
			})
		}
		for _, id := range []string{four, double} {
			if state := s.find(t, id).State; state != "CREATED" {
				t.Errorf("adopted group %s is %s", id, state)
			}
		}
	})
}

// TestDevices asks for another resource than GPUs, and for a part of a GPU.
func TestDevices(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		t.Run("custom resource", func(t *testing.T) {
			g := s.start(t, 2, wish{ray: func(o *rayactor.Options) { o.DeviceKey = "NPU" }})
			g.works(t)
			// Only the last node has the resource, and the driver is on the first.
			if last := s.Nodes[2].IP; !slices.Equal(g.nodes(), []string{last, last}) {
				t.Errorf("nodes %v, want %s twice", g.nodes(), last)
			}
			g.end(t)
			s.clean(t)
		})
		t.Run("half a GPU", func(t *testing.T) {
			g := s.start(t, 2, wish{ray: func(o *rayactor.Options) { o.PerWorker = 0.5 }})
			g.works(t)
			for rank, pid := range g.pids() {
				if got := environ(t, pid)["CUDA_VISIBLE_DEVICES"]; got != "0" {
					t.Errorf("rank %d sees devices %q", rank, got)
				}
			}
			if !slices.Equal(g.nodes(), []string{s.head(), s.head()}) ||
				!slices.Equal(g.localRanks(), []string{"0", "1"}) {
				t.Errorf("nodes %v, local ranks %v", g.nodes(), g.localRanks())
			}
			g.end(t)
			s.clean(t)
		})
	})
}
