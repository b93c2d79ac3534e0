package ray_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/ray"
)

// TestRanks starts ranks in groups of our own and in those of another job, looks at them, and at
// what is left of them. Groups of another job have four bundles with a GPU, also for two ranks,
// and one without.
func TestRanks(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		token := int32(-1)
		for _, c := range []struct {
			tp       int
			external bool
			// links carries records and tensors over TCP, as between hosts.
			links bool
			// node is the driver's.
			node int
			// local and visible are what each rank must have; the nodes are those of the cluster
			// with two GPUs each.
			local   []string
			visible []string
		}{
			{tp: 1, node: 1, local: []string{"0"}, visible: []string{"0"}},
			{tp: 2, links: true, node: 2, local: []string{"0", "1"},
				visible: []string{"0,1", "0,1"}},
			{tp: 4, local: []string{"0", "1", "0", "1"},
				visible: []string{"0,1", "0,1", "0,1", "0,1"}},
			{tp: 2, external: true, local: []string{"0", "1"}, visible: []string{"0,1", "0,1"}},
			{tp: 4, external: true, links: true, local: []string{"0", "1", "0", "1"},
				visible: []string{"0,1", "0,1", "0,1", "0,1"}},
		} {
			t.Run(fmt.Sprintf("tp%d,external=%v,links=%v", c.tp, c.external, c.links),
				func(t *testing.T) {
					theirs := ""
					if c.external {
						theirs = s.group(t, "", append([]map[string]float64{{"CPU": 1}},
							bundles(4)...))
					}
					driver := s.Nodes[c.node].IP
					g := s.start(t, c.tp, wish{
						ray: func(o *rayactor.Options) {
							o.PlacementGroup, o.NodeIP = theirs,
								driver
						},
						exec: func(o *executor.Options) { o.LinksOnly = c.links }})
					sameToken(t, &token, g.works(t))
					if len(g.Ranks()) != c.tp {
						t.Errorf("ranks %+v", g.Ranks())
					}
					nodes := g.nodes()
					if slices.Contains(nodes, "") || !c.external && nodes[0] != driver {
						t.Errorf("nodes %v, the driver's is %s", nodes, driver)
					}
					if local := g.localRanks(); !slices.Equal(local, c.local) {
						t.Errorf("local ranks %v, want %v", local, c.local)
					}
					var names []string
					for rank, pid := range g.pids() {
						if got := environ(t, pid)["CUDA_VISIBLE_DEVICES"]; got != c.visible[rank] {
							t.Errorf("rank %d sees devices %q, want %q", rank, got, c.visible[rank])
						}
						name := fmt.Sprintf("eagleray_%s_r%d", g.instance(), rank)
						if c.tp > 1 {
							name += fmt.Sprintf("_TP%d", rank)
						}
						names = append(names, name)
					}
					if got := s.ours(t); !slices.Equal(got, names) {
						t.Errorf("actors %v, want %v", got, names)
					}
					select {
					case f := <-g.failures:
						t.Errorf("failure: %v", f)
					default:
					}
					group := g.groupID()
					g.end(t)
					s.clean(t)
					if _, err := g.Execute(prompt(9, 1)); !errors.Is(err, executor.ErrShutdown) {
						t.Errorf("step after shutdown: %v", err)
					}
					for _, pid := range g.pids() {
						if !gone(pid) {
							t.Errorf("process %d is still there", pid)
						}
					}
					if c.external {
						if state := s.find(t, theirs).State; group != theirs || state != "CREATED" {
							t.Errorf("group %s, adopted %s, which is %s", theirs, group, state)
						}
						return
					}
					s.removed(t, group)
				})
		}
	})
}

// removed asks the dashboard what it knows of a group and of the actors in it.
func (s *site) removed(t testing.TB, group string) {
	t.Helper()
	rest := ray.NewREST(ray.RESTOptions{Dashboard: s.Dashboard, Env: s.Env})
	var known []string
	eventually(t, "the dashboard to see the end of group "+group, func() bool {
		known = nil
		groups, err := rest.PlacementGroups(within(t), "")
		if err != nil {
			t.Fatal(err)
		}
		actors, err := rest.Actors(within(t), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			if g.ID == group {
				known = append(known, g.State)
			}
		}
		for _, a := range actors {
			if a.Group == group && a.State != "DEAD" {
				known = append(known, a.Name+" "+a.State)
			}
		}
		return slices.Equal(known, []string{"REMOVED"})
	})
}
