package ray_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

var factsOfConnect = []fact{
	{"versions", "a bridge says the versions of its Ray and Python before it joins a cluster",
		func(t *testing.T, w *world) {
			w.fresh = w.bridge(t)
			if v := w.fresh.Hello(); v.Ray != w.version() || !strings.HasPrefix(v.Python, "3.") {
				t.Errorf("hello %+v", v)
			}
		}},
	{"not connected", "what needs a cluster is refused before one is joined",
		func(t *testing.T, w *world) {
			_, err := w.fresh.Nodes(within(t))
			refused(t, "nodes", err, "RuntimeError", "not connected")
		}},
	{"no GCS address",
		"an address of Ray Client, of jobs or without a port is refused with the right form",
		func(t *testing.T, w *world) {
			for _, address := range []string{"ray://127.0.0.1:10001", "http://127.0.0.1:8265",
				"somehost", "somehost:port"} {
				_, err := w.fresh.Connect(within(t), ray.ConnectOptions{Address: address})
				refused(t, address, err, "ValueError", "no GCS address: give host:6379")
			}
		}},
	{"unreachable", "where nothing listens is told apart from a cluster that refuses",
		func(t *testing.T, w *world) {
			_, err := w.fresh.Connect(within(t), ray.ConnectOptions{Address: "127.0.0.1:1"})
			refused(t, "connect", err, "Unreachable", "no Ray cluster at 127.0.0.1:1")
			if errors.Is(err, ray.ErrAuth) {
				t.Errorf("taken for a refused token: %v", err)
			}
		}},
	{"connect", "a driver joins at the node of its address, and is told where it is",
		func(t *testing.T, w *world) {
			last := w.nodes()[2]
			o := ray.ConnectOptions{Address: w.address(), NodeIP: last, Namespace: "mine"}
			got, err := w.fresh.Connect(within(t), o)
			if err != nil {
				t.Fatalf("connect: %v", err)
			}
			if got.NodeIP != last || got.GCSAddress != w.address() || got.Namespace != "mine" ||
				got.Started ||
				len(got.NodeID) != 56 || got.JobID == "" {
				t.Errorf("got %+v", got)
			}
		}},
	{"connect twice", "one bridge joins one cluster",
		func(t *testing.T, w *world) {
			if _, err := w.fresh.Connect(within(t),
				ray.ConnectOptions{Address: w.address()}); err == nil {
				t.Error("connected twice")
			}
		}},
}

var factsOfNodes = []fact{
	{"node resource",
		"a node has one of the resource that stands for it, which pins a bundle to it",
		func(t *testing.T, w *world) {
			nodes, err := w.client(t).Nodes(within(t))
			if err != nil {
				t.Fatal(err)
			}
			ips := map[string]bool{}
			for _, n := range nodes {
				if !n.Alive {
					continue
				}
				ips[n.IP] = true
				if key := "node:" + n.IP; n.Resources[key] != 1 || n.Free[key] != 1 || n.ID == "" ||
					n.Hostname == "" {
					t.Errorf("%+v", n)
				}
				if n.Resources["GPU"] != 2 || n.Resources["CPU"] != 1 {
					t.Errorf("%+v", n)
				}
			}
			if !slices.Equal(slices.Sorted(maps.Keys(ips)),
				slices.Sorted(slices.Values(w.nodes()))) {
				t.Errorf("nodes %v, want %v", ips, w.nodes())
			}
		}},
	{"free on a node", "of a node is free what the bundles of placed groups leave",
		func(t *testing.T, w *world) {
			c := w.client(t)
			id := w.group(t, c, ray.GroupSpec{Bundles: bundles(2), Strategy: "STRICT_SPREAD"})
			g, err := c.Group(within(t), id)
			if err != nil || g.Strategy != "STRICT_SPREAD" ||
				g.Bundles[0].NodeID == g.Bundles[1].NodeID {
				t.Fatalf("%+v, %v", g, err)
			}
			nodes, err := c.Nodes(within(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				want := 2.0
				if n.ID == g.Bundles[0].NodeID || n.ID == g.Bundles[1].NodeID {
					want = 1
				}
				if n.Alive && (n.Free["GPU"] != want || n.Free["CPU"] != 1) {
					t.Errorf("%+v, want %g free GPUs", n, want)
				}
			}
		}},
	{"held outside groups", "what actors without a group hold is missing on the whole cluster only",
		func(t *testing.T, w *world) {
			c := w.client(t)
			spawned(t, c, []ray.ActorSpec{{Rank: 20, Resources: map[string]float64{"NPU": 1}}})
			defer killActors(t, c, 20)
			// Ray hears of it a moment later.
			eventually(t, "one of two NPUs is free", func() bool {
				nodes, available, err := c.Resources(within(t))
				if err != nil || available["NPU"] != 1 {
					return false
				}
				for _, n := range nodes {
					// The node's own part is bounded by what the cluster has.
					if n.Resources["NPU"] == 2 && n.Free["NPU"] != 1 {
						t.Errorf("free on the node: %v", n.Free)
					}
				}
				return true
			})
		}},
}

// factToken is the token of clusters that want one.
const factToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var factsOfTokens = []fact{
	{"token", "the right token is found wherever the user has put it; a worker does not get it",
		func(t *testing.T, w *world) {
			c := w.withToken(t, factToken)
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(factToken+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			for name, env := range map[string][]string{
				"right with the mode": {"RAY_AUTH_TOKEN=" + factToken, "RAY_AUTH_MODE=token"},
				"right alone":         {"RAY_AUTH_TOKEN=" + factToken},
				"right in a file":     {"RAY_AUTH_TOKEN_PATH=" + file},
				"none":                {},
				"mode without token":  {"RAY_AUTH_MODE=token"},
				"wrong":               {"RAY_AUTH_TOKEN=" + strings.Repeat("ab", 32)},
				"switched off":        {"RAY_AUTH_TOKEN=" + factToken, "RAY_AUTH_MODE=disabled"},
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel() // Ray asks again for a while before it tells
					b := c.bridge(t, env...)
					defer closeClient(t, b)
					_, err := b.Connect(within(t),
						ray.ConnectOptions{Address: c.address(), NodeIP: c.nodes()[0]})
					if !strings.HasPrefix(name, "right") {
						if !errors.Is(err, ray.ErrAuth) ||
							!strings.Contains(err.Error(), "set RAY_AUTH_TOKEN") ||
							strings.Contains(err.Error(), factToken) {
							t.Errorf("got %v", err)
						}
						return
					}
					if err != nil {
						t.Fatalf("connect: %v", err)
					}
					if name == "right alone" {
						spawned(t, b, []ray.ActorSpec{{}})
						runScript(t, b, 0, "env | grep RAY_AUTH_ >&2; exit 5")
						if e := raytest.NextExit(t, b); e.Code == nil || *e.Code != 5 ||
							len(e.Stderr) != 0 {
							t.Errorf("the worker knows the token: %+v", e)
						}
					}
				})
			}
		}},
	{"token not wanted", "a token does no harm at a cluster that wants none",
		func(t *testing.T, w *world) {
			c := w.bridge(t, "RAY_AUTH_TOKEN="+factToken, "RAY_AUTH_MODE=token")
			defer closeClient(t, c)
			w.connect(t, c, "")
		}},
}
