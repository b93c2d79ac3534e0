package ray_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// start starts a bridge with a cluster's environment.
func start(t *testing.T, r *raytest.Ray, env []string) *ray.Client {
	t.Helper()
	c, err := ray.Start(within(t), ray.Options{Python: r.Python, Env: env})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(within(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// join starts a bridge and connects it to the cluster, at its second node and in its own namespace.
func join(t *testing.T, cl *raytest.Cluster) *ray.Client {
	t.Helper()
	c := start(t, cl.Ray, cl.Env)
	if _, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address, NodeIP: cl.Nodes[1].IP, Namespace: t.Name()}); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return c
}

// onRay runs f on the shared cluster of each installed version, joined.
func onRay(t *testing.T, f func(t *testing.T, cl *raytest.Cluster, c *ray.Client)) {
	t.Helper()
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		f(t, cl, join(t, cl))
	})
}

// class is the class of the *ray.Error in err.
func class(err error) string {
	var e *ray.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Class
}

func rankClass(t *testing.T, err error, rank int) string {
	t.Helper()
	var errs ray.RankErrors
	if !errors.As(err, &errs) {
		t.Fatalf("not the errors of ranks: %v", err)
	}
	return class(errs[rank])
}

func TestRealNotInstalled(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		// Without site-packages the same interpreter has no Ray.
		python := filepath.Join(t.TempDir(), "python")
		script := "#!/bin/sh\nexec " + r.Python + ` -S "$@"` + "\n"
		if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := ray.Start(within(t), ray.Options{Python: python})
		if !errors.Is(err, ray.ErrNotInstalled) || !strings.Contains(err.Error(), python) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	})
}

func TestNoBridge(t *testing.T) {
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct{ python, want string }{
		"nowhere":      {"/nonexistent/python", "/nonexistent/python"},
		"fails":        {script("echo this is no python >&2; exit 9\n"), "exit status 9; last output: this is no python"},
		"says nothing": {script("exec sleep 1000\n"), "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			if name == "says nothing" {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			}
			if _, err := ray.Start(ctx, ray.Options{Python: test.python}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestRealWrongAddress(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		c := start(t, r, cl.Env)
		_, err := c.Connect(within(t), ray.ConnectOptions{Address: "127.0.0.1:1"})
		if class(err) != "Unreachable" || !strings.Contains(err.Error(), "no Ray cluster at 127.0.0.1:1") || errors.Is(err, ray.ErrAuth) {
			t.Errorf("got %v", err)
		}
		for address, want := range map[string]string{"ray://127.0.0.1:10001": "no GCS address", "http://" + cl.Dashboard: "no GCS address",
			"somehost": "host:6379", "somehost:port": "host:6379", cl.Dashboard: "is a web server"} {
			if _, err := c.Connect(within(t), ray.ConnectOptions{Address: address}); class(err) != "ValueError" || !strings.Contains(err.Error(), want) ||
				strings.Contains(err.Error(), "has Ray") {
				t.Errorf("address %s: %v", address, err)
			}
		}
		if _, err := c.Nodes(within(t)); err == nil {
			t.Error("nodes without a cluster")
		}
	})
}

func TestRealConnect(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		c := start(t, r, append(slices.Clone(cl.Env), "RAY_ADDRESS="+cl.Address))
		if v := c.Hello(); v.Ray != r.Version || !strings.HasPrefix(v.Python, "3.") {
			t.Errorf("hello %+v", v)
		}
		if _, err := c.Nodes(within(t)); class(err) != "RuntimeError" || !strings.Contains(err.Error(), "not connected") {
			t.Errorf("nodes before connect: %v", err)
		}
		got, err := c.Connect(within(t), ray.ConnectOptions{NodeIP: cl.Nodes[2].IP, Namespace: "mine"})
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
		if got.NodeIP != cl.Nodes[2].IP || got.GCSAddress != cl.Address || got.Namespace != "mine" || got.Started ||
			got.DashboardURL != cl.Dashboard || len(got.NodeID) != 56 || got.JobID == "" {
			t.Errorf("got %+v", got)
		}
		if _, err := c.Connect(within(t), ray.ConnectOptions{}); err == nil {
			t.Error("connected twice")
		}
	})
}

func TestRealNodes(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		spread, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(2), Strategy: "STRICT_SPREAD"})
		if err != nil {
			t.Fatal(err)
		}
		if ready, err := c.WaitGroup(within(t), spread, hang); !ready || err != nil {
			t.Fatal(ready, err)
		}
		g, err := c.Group(within(t), spread)
		if err != nil || g.Strategy != "STRICT_SPREAD" || g.Bundles[0].NodeID == g.Bundles[1].NodeID {
			t.Fatalf("%+v, %v", g, err)
		}
		nodes, err := c.Nodes(within(t))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, n := range nodes {
			if !n.Alive {
				continue
			}
			found[n.IP] = true
			want := 2.0
			if n.ID == g.Bundles[0].NodeID || n.ID == g.Bundles[1].NodeID {
				want = 1
			}
			if n.Resources["GPU"] != 2 || n.Free["GPU"] != want || n.Free["CPU"] != 1 || n.Hostname == "" {
				t.Errorf("%+v, want %g free GPUs", n, want)
			}
		}
		for _, n := range cl.Nodes {
			if !found[n.IP] {
				t.Errorf("no node %s in %+v", n.IP, nodes)
			}
		}
	})
}

func TestRealGroups(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		if _, err := c.CreateGroup(within(t), ray.GroupSpec{}); class(err) != "ValueError" {
			t.Errorf("no bundles: %v", err)
		}
		if _, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(1), Strategy: "TIGHT"}); class(err) != "ValueError" {
			t.Errorf("no strategy: %v", err)
		}
		if _, err := c.Group(within(t), "nonsense"); class(err) != "ValueError" {
			t.Errorf("unknown group: %v", err)
		}
		var infeasible string
		for name, spec := range map[string]ray.GroupSpec{
			"a bundle of three":   {Bundles: []map[string]float64{{"GPU": 3}}},
			"seven of six":        {Bundles: gpus(7)},
			"three on one node":   {Bundles: gpus(3), Strategy: "STRICT_PACK"},
			"nobody has a TPU":    {Bundles: []map[string]float64{{"GPU": 1}, {"TPU": 1}}},
			"four on three nodes": {Bundles: gpus(4), Strategy: "STRICT_SPREAD"},
		} {
			var err error
			if infeasible, err = c.CreateGroup(within(t), spec); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if ready, err := c.WaitGroup(within(t), infeasible, 100*time.Millisecond); ready || err != nil {
				t.Errorf("%s: %v, %v", name, ready, err)
			}
			if waited := time.Since(began); waited < 100*time.Millisecond {
				t.Errorf("waited only %v", waited)
			}
			eventually(t, name+" is infeasible", func() bool {
				g, err := c.Group(within(t), infeasible)
				if err != nil || g.State != ray.GroupPending || g.Bundles[0].NodeID != "" {
					t.Fatalf("%s: %+v, %v", name, g, err)
				}
				return g.SchedulingState == ray.SchedulingInfeasible
			})
			// On 2.35.0 a pending group that cannot be placed may keep later ones from being placed.
			if err := c.RemoveGroup(within(t), infeasible); err != nil {
				t.Errorf("remove: %v", err)
			}
		}
		if err := c.RemoveGroup(within(t), infeasible); class(err) != "ValueError" {
			t.Errorf("remove twice: %v", err)
		}
		holder := placed(t, c, 5)
		waiting, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(2)})
		if err != nil {
			t.Fatal(err)
		}
		if ready, err := c.WaitGroup(within(t), waiting, 100*time.Millisecond); ready || err != nil {
			t.Errorf("two of one: %v, %v", ready, err)
		}
		if g, err := c.Group(within(t), waiting); err != nil || g.SchedulingState == ray.SchedulingInfeasible {
			t.Errorf("two of one: %+v, %v", g, err)
		}
		if err := c.RemoveGroup(within(t), holder); err != nil {
			t.Fatal(err)
		}
		if ready, err := c.WaitGroup(within(t), waiting, hang); !ready || err != nil {
			t.Errorf("after the removal of the other: %v, %v", ready, err)
		}
	})
}

func TestRealWaitDelaysNothing(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 3}}})
		if err != nil {
			t.Fatal(err)
		}
		var ended [8]chan error
		for i := range ended {
			ended[i] = make(chan error, 1)
			go func() {
				_, err := c.WaitGroup(within(t), id, hang)
				ended[i] <- err
			}()
		}
		// Every one of these would take minutes if it had to wait.
		for range 20 {
			if _, err := c.Nodes(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.RemoveGroup(within(t), id); err != nil {
			t.Fatal(err)
		}
		for i := range ended {
			if err := <-ended[i]; class(err) != "PlacementGroupRemoved" {
				t.Errorf("a wait for the removed group: %v", err)
			}
		}
	})
}

// Waiting for a group that has no place costs the bridge next to nothing.
func TestRealWaitIsIdle(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		bridges := childrenOf(t, os.Getpid())
		id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 3}}})
		if err != nil {
			t.Fatal(err)
		}
		before := processorTime(t, bridges)
		began := time.Now()
		if ready, err := c.WaitGroup(within(t), id, 3*time.Second); ready || err != nil {
			t.Fatal(ready, err)
		}
		waited, used := time.Since(began), processorTime(t, bridges)-before
		t.Logf("waited %v, used %v", waited, used)
		if waited < 3*time.Second || used > waited/6 {
			t.Errorf("waited %v for three seconds, used %v of them", waited, used)
		}
		if err := c.RemoveGroup(within(t), id); err != nil {
			t.Fatal(err)
		}
	})
}

// processorTime is what the bridges among the processes have used so far.
func processorTime(t *testing.T, pids []int) time.Duration {
	t.Helper()
	var ticks int
	for _, pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(name), "/proc/self/fd/") {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		// After the name in parentheses: state, and utime and stime as the 12th and 13th.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
	}
	if ticks == 0 {
		t.Fatalf("no bridge among %v", pids)
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// A resource that an actor without a group holds is missing on the whole cluster, though on no node.
func TestRealOutsideGroups(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 0, Resources: map[string]float64{"NPU": 1}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Facts(within(t), []int{0}, ray.FactsRequest{}); err != nil {
			t.Fatal(err)
		}
		// Ray hears of it a moment later.
		eventually(t, "one of two NPUs is free", func() bool {
			_, available, err := c.Resources(within(t))
			return err == nil && available["NPU"] == 1
		})
	})
}

func TestRealAdopt(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, owner *ray.Client) {
		id, err := owner.CreateGroup(within(t), ray.GroupSpec{Name: "ext", Bundles: gpus(2)})
		if err != nil {
			t.Fatal(err)
		}
		if ready, err := owner.WaitGroup(within(t), id, hang); !ready || err != nil {
			t.Fatal(ready, err)
		}
		// In the owner's namespace, by id and by name; in another, by id.
		for namespace, names := range map[string][]string{t.Name(): {id, "ext"}, "another": {id}} {
			c := start(t, cl.Ray, cl.Env)
			if _, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address, NodeIP: cl.Nodes[0].IP, Namespace: namespace}); err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				g, err := c.AdoptGroup(within(t), name)
				if err != nil || g.ID != id || g.Name != "ext" || g.State != ray.GroupCreated || len(g.Bundles) != 2 ||
					g.Bundles[1].NodeID == "" || g.Bundles[1].Resources["GPU"] != 1 {
					t.Fatalf("adopt %s: %+v, %v", name, g, err)
				}
			}
			if ready, err := c.WaitGroup(within(t), id, hang); !ready || err != nil {
				t.Errorf("wait: %v, %v", ready, err)
			}
			if namespace == "another" {
				if _, err := c.AdoptGroup(within(t), "ext"); class(err) != "ValueError" {
					t.Errorf("by name from another namespace: %v", err)
				}
			}
			if _, err := c.AdoptGroup(within(t), strings.Repeat("ab", 18)); class(err) != "PlacementGroupRemoved" {
				t.Errorf("an id that nobody has: %v", err)
			}
			if err := c.RemoveGroup(within(t), id); class(err) != "ValueError" {
				t.Errorf("an adopted group was removed: %v", err)
			}
			if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 0, Group: id, Bundle: 1, GPUs: 1}}); err != nil {
				t.Errorf("actor: %v", err)
			}
			if facts, err := c.Facts(within(t), []int{0}, ray.FactsRequest{DeviceKey: "GPU"}); err != nil || len(facts[0].DeviceIDs) != 1 {
				t.Errorf("facts: %+v, %v", facts, err)
			}
			if err := c.Close(within(t)); err != nil {
				t.Errorf("close: %v", err)
			}
			if g, err := owner.Group(within(t), id); err != nil || g.State != ray.GroupCreated {
				t.Errorf("after the adopter's end: %+v, %v", g, err)
			}
		}
	})
}

func TestRealFacts(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 2}, {"GPU": 1}, {"NPU": 1}}})
		if err != nil {
			t.Fatal(err)
		}
		// Actors may be submitted before their group has its place.
		if err := c.CreateActors(within(t), []ray.ActorSpec{
			{Rank: 0, Group: id, Bundle: 0, GPUs: 2, Name: "eagleray_x_r0"},
			{Rank: 1, Group: id, Bundle: 1, GPUs: 0.5},
			{Rank: 2, Group: id, Bundle: 2, Resources: map[string]float64{"NPU": 1}}}); err != nil {
			t.Fatal(err)
		}
		path := os.Getenv("PATH")
		request := ray.FactsRequest{DeviceKey: "GPU", EnvDigests: map[string]string{"PATH": ray.EnvDigest(path),
			"HOME": ray.EnvDigest("elsewhere"), "EAGLERAY_NOT_SET": ray.EnvDigest("x")}}
		facts, err := c.Facts(within(t), []int{0, 1, 2}, request)
		if err != nil || len(facts) != 3 {
			t.Fatalf("%+v, %v", facts, err)
		}
		g, err := c.Group(within(t), id)
		if err != nil {
			t.Fatal(err)
		}
		ips := map[string]bool{}
		for _, n := range cl.Nodes {
			ips[n.IP] = true
		}
		for i, f := range facts {
			if f.Rank != i || f.NodeID != g.Bundles[i].NodeID || !ips[f.NodeIP] || f.PID == 0 || f.ActorID == "" || f.Hostname == "" ||
				f.CPUs < 1 || f.Niceness != 0 || f.Arch == "" || f.Ray != cl.Ray.Version || f.Python != c.Hello().Python || f.HasBinary != "" {
				t.Errorf("%+v", f)
			}
			if !slices.Equal(f.Differs, []string{"HOME"}) {
				t.Errorf("rank %d differs in %v", i, f.Differs)
			}
		}
		if !slices.Equal(facts[0].DeviceIDs, []string{"0", "1"}) || len(facts[1].DeviceIDs) != 1 || len(facts[2].DeviceIDs) != 0 {
			t.Errorf("devices %v, %v, %v", facts[0].DeviceIDs, facts[1].DeviceIDs, facts[2].DeviceIDs)
		}
		facts, err = c.Facts(within(t), []int{2}, ray.FactsRequest{DeviceKey: "NPU"})
		if err != nil || len(facts[0].DeviceIDs) != 1 {
			t.Errorf("NPUs: %+v, %v", facts, err)
		}
	})
}

func TestRealRankErrors(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		group := placed(t, c, 3)
		err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 0, Group: group, GPUs: 1, Name: "taken"},
			{Rank: 1, Group: group, Bundle: 7, GPUs: 1}, {Rank: 2, Group: group, Bundle: 1, GPUs: 1, Name: "taken"},
			{Rank: 3, Group: group, Bundle: 1, GPUs: 2}, {Rank: 4, Group: "nonsense"}})
		for rank := 1; rank <= 4; rank++ {
			// Newer versions have a class for a name that is taken.
			if got := rankClass(t, err, rank); got != "ValueError" && (rank != 2 || got != "ActorAlreadyExistsError") {
				t.Errorf("rank %d: %s in %v", rank, got, err)
			}
		}
		if err.(ray.RankErrors)[0] != nil {
			t.Errorf("rank 0: %v", err)
		}
		// The second actor of a bundle waits for the first; the package of the third is nowhere.
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 1, Group: group, Bundle: 0, GPUs: 1},
			{Rank: 2, Group: group, Bundle: 2, GPUs: 1, RuntimeEnv: []byte(`{"working_dir": "gcs://_ray_pkg_0000000000000000.zip"}`)}}); err != nil {
			t.Fatal(err)
		}
		facts, err := c.Facts(within(t), []int{0, 1, 2, 9}, ray.FactsRequest{})
		if got := rankClass(t, err, 9); got != "ValueError" {
			t.Errorf("no such rank: %v", err)
		}
		for len(facts) == 0 {
			// Rank 9 failed at once, and the others had two seconds.
			facts, err = c.Facts(within(t), []int{0}, ray.FactsRequest{})
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err = c.Facts(within(t), []int{2}, ray.FactsRequest{}); rankClass(t, err, 2) != "RuntimeEnvSetupError" {
			t.Errorf("no such package: %v", err)
		}
		ctx, cancel := context.WithTimeout(within(t), 3*time.Second)
		defer cancel()
		if _, err = c.Facts(ctx, []int{1}, ray.FactsRequest{}); rankClass(t, err, 1) != "Pending" || !strings.Contains(err.Error(), "GPU: 1 in bundle 0") {
			t.Errorf("a bundle that is taken: %v", err)
		}
		// A rank that was killed is free, and so is what it had.
		if err := c.KillActors(within(t), []int{0, 1}); err != nil {
			t.Fatal(err)
		}
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 0, Group: group, GPUs: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Facts(within(t), []int{0}, ray.FactsRequest{}); err != nil {
			t.Errorf("the rank again: %v", err)
		}
		var dead ray.ActorSpec
		dead.Rank = 5
		if err := c.CreateActors(within(t), []ray.ActorSpec{dead}); err != nil {
			t.Fatal(err)
		}
		facts, err = c.Facts(within(t), []int{5}, ray.FactsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(facts[0].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err = c.Facts(within(t), []int{5}, ray.FactsRequest{}); !strings.HasPrefix(rankClass(t, err, 5), "Actor") {
			t.Errorf("a dead actor: %v", err)
		}
		if _, err := c.StartWorkers(within(t), starts([]int{5}, "/bin/true")); !strings.HasPrefix(rankClass(t, err, 5), "Actor") {
			t.Errorf("a worker under a dead actor: %v", err)
		}
	})
}
