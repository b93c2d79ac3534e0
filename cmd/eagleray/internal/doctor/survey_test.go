package doctor

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// modelFolder is one with two files.
func modelFolder(t *testing.T, weights string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": "{}", "model.safetensors": weights,
		"README.md": "not read"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// result is the one of a check.
func result(t *testing.T, f *Found, c *config.Config, check string) Result {
	t.Helper()
	for _, r := range f.Results(c) {
		if r.Check == check {
			return r
		}
	}
	t.Fatalf("%s was not checked", check)
	return Result{}
}

// surveyOf surveys agents: the first one here, the others at the end of connections.
func surveyOf(t *testing.T, q Question, agents ...*agent) *Found {
	t.Helper()
	token := handshake.NewToken()
	s := newGathering(agents[0], len(agents))
	for i, a := range agents {
		a.node, a.token, a.version = i, token, "1"
		s.nodes[i].Name = fmt.Sprintf("node %d", i)
		if i == 0 {
			continue
		}
		here, there := net.Pipe()
		s.conns = append(s.conns, here)
		s.askers[i], s.nodes[i].Lost = &remote{here}, nil
		served := make(chan error, 1)
		go func() {
			_, err := a.serve(context.Background(), there)
			served <- err
		}()
		defer func() {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
	}
	defer agents[0].end()
	defer s.end(false)
	survey(t.Context(), s.nodes, s.askers, q, [2]int{})
	return &Found{Nodes: s.nodes}
}

// TestSurvey asks three nodes over TLS on loopback: their clocks, the model's bytes, and a
// connection in each direction of each pair. What is wrong with one is found.
func TestSurvey(t *testing.T) {
	same, other := modelFolder(t, "weights"), modelFolder(t, "otherwise")
	cfg := config.Default()
	for name, x := range map[string]struct {
		spoil func(a *agent)
		check string
		want  Result
	}{
		"sound": {func(*agent) {}, "network", Result{State: OK, Found: "6 connections over TLS"}},
		"bytes": {func(*agent) {}, "model bytes", Result{State: OK,
			Found: "2 files, 0 MB, with one"}},
		"other model": {func(a *agent) {
			a.machine.Model = func(ctx context.Context, q Question) Model {
				q.Model = other
				return model(ctx, q)
			}
		}, "model bytes", Result{State: Fail,
			Found: "node 2 has another model.safetensors (SHA-256 "}},
		"no model": {func(a *agent) {
			a.machine.Model = func(ctx context.Context, q Question) Model {
				q.Model = "/no/such/folder"
				return model(ctx, q)
			}
		}, "model bytes", Result{State: Fail,
			Found: `node 2 model "/no/such/folder": no such file`}},
		"no address of its own": {func(a *agent) { a.address = "192.0.2.1" }, "network",
			Result{State: Fail, Found: "1 of 4 connections: node 2 cannot listen"}},
		"strange address": {func(a *agent) { a.address = "192.0.2.1" }, "addresses",
			Result{State: Fail, Found: "node 2 (192.0.2.1) has only lo 127.0.0.1"}},
		"closed port": {func(a *agent) {
			gone, err := handshake.Listen(handshake.Options{Instance: surveyed,
				Token: handshake.NewToken(),
				World: 3, TCP: a.address})
			if err != nil {
				t.Fatal(err)
			}
			gone.Close()
			a.listener, a.quit = gone, func() {}
		}, "network", Result{State: Fail, Found: "2 of 6 connections: node 0 → node 2: "}},
	} {
		agents := make([]*agent, 3)
		for i := range agents {
			agents[i] = &agent{address: fmt.Sprintf("127.0.0.%d", 1+i), machine: ThisMachine()}
		}
		x.spoil(agents[2])
		f := surveyOf(t, Question{Model: same}, agents...)
		r := result(t, f, &cfg, x.check)
		if r.State != x.want.State || !strings.HasPrefix(r.Found, x.want.Found) {
			t.Errorf("%s: %+v", name, r)
		}
		if off := f.Nodes[1].Skew.Abs(); off > f.Nodes[1].Trip+time.Millisecond {
			t.Errorf("%s: a clock is %v ahead of itself, %v away", name, off, f.Nodes[1].Trip)
		}
	}
}

// TestLostNode: a node that goes is named, and the others are surveyed.
func TestLostNode(t *testing.T) {
	own := &agent{address: "127.0.0.1", token: handshake.NewToken(), machine: ThisMachine()}
	defer own.end()
	s := newGathering(own, 2)
	here, there := net.Pipe()
	s.askers[1], s.nodes[1].Lost = &remote{here}, nil
	there.Close()
	survey(t.Context(), s.nodes, s.askers, Question{}, [2]int{})
	cfg := config.Default()
	f := &Found{Nodes: s.nodes}
	if r := result(t, f, &cfg, "nodes"); r.State != Fail || f.Nodes[0].Lost != nil {
		t.Errorf("%+v", r)
	}
}

// TestOverRay surveys a cluster whose actors start this program, as they would on Ray; then some of
// them cannot, or end with a last word.
func TestOverRay(t *testing.T) {
	cpu := map[string]float64{"CPU": 4}
	node := func(i int, r map[string]float64) ray.Node {
		ip := fmt.Sprintf("127.0.0.%d", 1+i)
		all := map[string]float64{"node:" + ip: 1}
		maps.Copy(all, r)
		return ray.Node{ID: fmt.Sprintf("%056d", i), IP: ip, Alive: true, Resources: all}
	}
	for name, x := range map[string]struct {
		spoil func(c *fake.Cluster)
		start fake.StartFunc
		state State
		says  string
	}{
		"sound": {nil, inActor(t, 0, ""), OK,
			"3 of 3 answer: 127.0.0.1 (here); 127.0.0.2; 127.0.0.3"},
		"an actor that does not start": {func(c *fake.Cluster) {
			c.RefuseActor(1, frame.Fault{Class: "RuntimeEnvSetupError", Message: "no room"})
		}, inActor(t, 0, ""), Fail, "2 of 3 nodes answer; not 127.0.0.2: "},
		"a process that ends": {nil, inActor(t, 2, "127.0.0.3 → 127.0.0.1:1: refused"), Fail,
			"2 of 3 nodes answer; not 127.0.0.3: 127.0.0.3 → 127.0.0.1:1: refused"},
	} {
		// The last node has nothing that ranks take.
		c := fake.New(node(0, cpu), node(1, cpu), node(2, cpu), node(3, nil))
		c.Worker = x.start
		if x.spoil != nil {
			x.spoil(c)
		}
		cfg := config.Default()
		cfg.Parallel.Backend, cfg.Parallel.Ray.Address = "ray", c.Address()
		f, err := OverRay(t.Context(), &cfg, "1", nil, c.Start)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := result(t, f, &cfg, "nodes")
		if r.State != x.state || !strings.HasPrefix(r.Found, x.says) {
			t.Errorf("%s: %+v", name, r)
		}
		if n := result(t, f, &cfg, "network"); n.State != OK {
			t.Errorf("%s: %+v", name, n)
		}
		c.Wait()
		if left := c.Actors(); len(left) > 0 {
			t.Errorf("%s: actors are left: %+v", name, left)
		}
	}
	c := fake.New(node(0, cpu))
	c.HelloError = &frame.Fault{Class: "ModuleNotFoundError", Message: "No module named 'ray'"}
	cfg := config.Default()
	if _, err := OverRay(t.Context(), &cfg, "1", nil, c.Start); err == nil {
		t.Error("a cluster without Ray is surveyed")
	}
}

// inActor is this program in an actor; that of one rank ends with a last word.
func inActor(t *testing.T, ends int, word string) fake.StartFunc {
	return func(spec ray.StartSpec, _ map[string]string) (*fake.Worker, error) {
		if spec.Rank == ends {
			return &fake.Worker{Signal: func(unix.Signal) {}, Wait: func() ray.Exit {
				code := 1
				return ray.Exit{Code: &code, Stderr: []string{word, ""}}
			}}, nil
		}
		if len(spec.Args) != 2 || spec.Args[0] != "doctor" || spec.Args[1] != ActorFlag {
			t.Errorf("arguments %q", spec.Args)
		}
		in, out := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- InActor(context.Background(), in) }()
		go func() { _, _ = out.Write(spec.Stdin) }()
		return &fake.Worker{Signal: func(unix.Signal) { out.Close() }, Wait: func() ray.Exit {
			code := 0
			if err := <-ended; err != nil {
				code = 1
			}
			return ray.Exit{Code: &code}
		}}, nil
	}
}
