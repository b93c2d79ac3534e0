package ray_test

import (
	"errors"
	"os"
	"path/filepath"
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
		if mode, err := rest.AuthMode(within(t)); err != nil || mode != "disabled" {
			t.Errorf("mode %q, %v", mode, err)
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
					return n.IP == want.IP && n.State == "ALIVE" && n.Resources["GPU"] == 2 && n.Head == (want == cl.Nodes[0])
				})
			})
		})
		eventually(t, "the dashboard knows the group", func() bool {
			groups, err := rest.PlacementGroups(within(t), "CREATED")
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(groups, func(g ray.GroupState) bool {
				return g.ID == group && len(g.Bundles) == 2 && g.Bundles[1].ID.Index == 1 && g.Bundles[1].NodeID == facts[1].NodeID &&
					g.Bundles[1].Resources["GPU"] == 1
			})
		})
		eventually(t, "the dashboard knows the actors", func() bool {
			actors, err := rest.Actors(within(t), "ALIVE")
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(actors, func(a ray.ActorState) bool {
				return a.ID == facts[1].ActorID && a.NodeID == facts[1].NodeID && a.PID == facts[1].PID && a.Group == group && a.Class == "Worker"
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
			return slices.ContainsFunc(actors, func(a ray.ActorState) bool { return a.ID == facts[1].ActorID })
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

func TestRealToken(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		if r.Version == "2.35.0" {
			t.Skip("Ray 2.35.0 has no token authentication")
		}
		const secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		cl := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1, GPUs: 1}}, Token: secret, Dashboard: true})
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		none := without(cl.Env, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
		connect := func(t *testing.T, env []string) (*ray.Client, error) {
			c := start(t, r, env)
			_, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address, NodeIP: cl.Nodes[0].IP})
			return c, err
		}
		for name, env := range map[string][]string{
			"right with the mode": {"RAY_AUTH_TOKEN=" + secret, "RAY_AUTH_MODE=token"},
			"right alone":         {"RAY_AUTH_TOKEN=" + secret},
			"right in a file":     {"RAY_AUTH_TOKEN_PATH=" + file},
		} {
			t.Run(name, func(t *testing.T) {
				c, err := connect(t, append(slices.Clone(none), env...))
				if err != nil {
					t.Fatalf("connect: %v", err)
				}
				spawn(t, c, placed(t, c, 1), 1)
				if _, err := c.StartWorkers(within(t), starts([]int{0}, "/bin/sh", "-c", "env | grep RAY_AUTH_ >&2; exit 5")); err != nil {
					t.Fatal(err)
				}
				if e := nextExit(t, c); e.Code == nil || *e.Code != 5 || len(e.Stderr) != 0 {
					t.Errorf("the worker knows the token: %+v", e)
				}
			})
		}
		t.Run("open cluster", func(t *testing.T) {
			open := raytest.Shared(t, r)
			for _, mode := range []string{"RAY_AUTH_MODE=token", "X=y"} {
				c := start(t, r, append(without(open.Env, "RAY_AUTH_MODE"), "RAY_AUTH_TOKEN="+secret, mode))
				if _, err := c.Connect(within(t), ray.ConnectOptions{Address: open.Address, NodeIP: open.Nodes[0].IP}); err != nil {
					t.Errorf("a token for a cluster that wants none (%s): %v", mode, err)
				}
			}
		})
		t.Run("REST", func(t *testing.T) {
			for name, env := range map[string][]string{"none": none, "wrong": append(slices.Clone(none), "RAY_AUTH_TOKEN=wrong"), "right": cl.Env} {
				rest := ray.NewREST(ray.RESTOptions{Dashboard: cl.Dashboard, Env: env})
				if mode, err := rest.AuthMode(within(t)); err != nil || mode != "token" {
					t.Errorf("%s: mode %q, %v", name, mode, err)
				}
				nodes, err := rest.Nodes(within(t), "")
				if name == "right" && (err != nil || len(nodes) != 1) {
					t.Errorf("%s: %+v, %v", name, nodes, err)
				}
				if name != "right" && (!errors.Is(err, ray.ErrAuth) || !strings.Contains(err.Error(), "set RAY_AUTH_TOKEN")) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		for name, env := range map[string][]string{
			"none":                {},
			"mode without token":  {"RAY_AUTH_MODE=token"},
			"wrong":               {"RAY_AUTH_TOKEN=" + strings.Repeat("ab", 32)},
			"wrong with the mode": {"RAY_AUTH_TOKEN=" + strings.Repeat("ab", 32), "RAY_AUTH_MODE=token"},
			"switched off":        {"RAY_AUTH_TOKEN=" + secret, "RAY_AUTH_MODE=disabled"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel() // Ray takes 20 seconds to tell
				_, err := connect(t, append(slices.Clone(none), env...))
				if !errors.Is(err, ray.ErrAuth) || !strings.Contains(err.Error(), "set RAY_AUTH_TOKEN") || strings.Contains(err.Error(), secret) {
					t.Errorf("got %v", err)
				}
			})
		}
	})
}
