package ray_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

func TestRealREST(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		rest := ray.NewREST(ray.RESTOptions{Dashboard: cl.Dashboard, Env: cl.Env})
		version, err := rest.Version(within(t))
		if err != nil || version.Ray != cl.Ray.Version || version.Session == "" {
			t.Errorf("version %+v, %v", version, err)
		}
		group := placed(t, c, 2)
		_, facts := spawn(t, c, group, 2)
		eventually(t, "the dashboard knows the nodes", func() bool {
			nodes, err := rest.Nodes(within(t), "ALIVE")
			if err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(cl.Nodes, func(want *raytest.Node) bool {
				return !slices.ContainsFunc(nodes, func(n ray.NodeState) bool {
					return n.IP == want.IP && n.State == "ALIVE" && n.Resources["GPU"] == 2 &&
						n.Head == (want == cl.Nodes[0])
				})
			})
		})
		eventually(t, "the dashboard knows the group", func() bool {
			groups, err := rest.PlacementGroups(within(t), "CREATED")
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(groups, func(g ray.GroupState) bool {
				return g.ID == group && len(g.Bundles) == 2 && g.Bundles[1].ID.Index == 1 &&
					g.Bundles[1].NodeID == facts[1].NodeID &&
					g.Bundles[1].Resources["GPU"] == 1
			})
		})
		eventually(t, "the dashboard knows the actors", func() bool {
			actors, err := rest.Actors(within(t), "ALIVE")
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(actors, func(a ray.ActorState) bool {
				return a.ID == facts[1].ActorID && a.NodeID == facts[1].NodeID &&
					a.PID == facts[1].PID && a.Group == group && a.Class == "Worker"
			})
		})
		if err := c.KillActors(within(t), []int{0, 1}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the dashboard knows the dead", func() bool {
			actors, err := rest.Actors(within(t), "DEAD")
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(actors,
				func(a ray.ActorState) bool { return a.ID == facts[1].ActorID })
		})
	})
}

// without is env without the names.
func without(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

func TestRealRESTToken(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		if r.Version == "2.35.0" {
			t.Skip("Ray 2.35.0 has no token authentication")
		}
		const secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		cl := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1,
			GPUs: 1}}, Token: secret, Dashboard: true})
		none := without(cl.Env, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
		for name, env := range map[string][]string{"none": none,
			"wrong": append(slices.Clone(none), "RAY_AUTH_TOKEN=wrong"), "right": cl.Env} {
			rest := ray.NewREST(ray.RESTOptions{Dashboard: cl.Dashboard, Env: env})
			nodes, err := rest.Nodes(within(t), "")
			if name == "right" && (err != nil || len(nodes) != 1) {
				t.Errorf("%s: %+v, %v", name, nodes, err)
			}
			if name != "right" && (!errors.Is(err, ray.ErrAuth) ||
				!strings.Contains(err.Error(), "set RAY_AUTH_TOKEN")) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
