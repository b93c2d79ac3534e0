package ray_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// token is that of the clusters that want one.
const token = "e5b8a3f0d7c6192e4a8b7c5d3f1029384756abcdef0123456789fedcba987654"

// TestNodes has a cluster of its own, of one node at first, to which nodes come and from which
// they go. From 2.60.0 on it wants a token.
func TestNodes(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		o := raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1, GPUs: 2}},
			Env: raytest.QuickChecks}
		if r.Version != "2.35.0" {
			o.Token = token
		}
		c := raytest.StartCluster(t, r, o)
		s := &site{Cluster: c, observer: startObserver(t, c)}
		defer s.observer.end()
		if o.Token != "" {
			t.Run("token", s.tokens)
		}
		t.Run("infeasible", func(t *testing.T) {
			err := s.refused(t, 4, wish{})
			for _, want := range []string{"the cluster can never hold the group",
				"wanted: 4 bundles of {GPU: 1}; 2 of 4 fit",
				"node " + s.head(), "GPU 2 free of 2", "missing: 2 bundles of {GPU: 1}",
				"the cluster holds only 2 of 4 even with nothing else running"} {
				if !strings.Contains(err, want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
		s.comesAndGoes(t, "a raylet ends", func(t *testing.T,
			n *raytest.Node) {
			s.RemoveNode(t, n)
		})
		s.comesAndGoes(t, "a raylet is killed", func(t *testing.T,
			n *raytest.Node) {
			s.KillRaylet(t, n)
		})
		for _, phase := range startPhases[1:] {
			if phase == "order" {
				continue // as spawn: Ray takes as long to see it
			}
			t.Run("a raylet is killed in phase "+phase,
				func(t *testing.T) { s.killedWhileStarting(t, phase) })
		}
		t.Run("no shared memory", s.noSharedMemory)
		t.Run("an adopted group loses a node", s.adoptedGroupLosesNode)
	})
}

// adoptedGroupLosesNode takes a node from a server whose group is not its own. Ray gives the lost
// bundles their place on a node that joins; the server waits for that, and the request that runs
// has the answer that it has undisturbed.
func (s *site) adoptedGroupLosesNode(t *testing.T) {
	const tokens = 1200
	node := s.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 2})
	id := s.group(t, "adopted", bundles(4))
	p := s.serve(t, "", nil, "-tp", "4", "--ray-placement-group", id)
	url := p.url(t)
	want, err := complete(t, url, tokens)
	if err != nil {
		t.Fatal(err)
	}
	asked := running(t, url, tokens)
	s.KillRaylet(t, node)
	spare := s.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 2})
	defer s.RemoveNode(t, spare)
	if a := <-asked; a.err != nil || a.text != want {
		t.Errorf("%v, %q, want %q", a.err, a.text, want)
	}
	if state := s.find(t, id).State; state != "CREATED" {
		t.Errorf("the adopted group is %s", state)
	}
	p.await(t, `msg="restarting the workers"`)
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.clean(t)
}

// comesAndGoes starts four ranks of which two have their place only when a node joins, and takes
// the node away while they work.
func (s *site) comesAndGoes(t *testing.T, name string, end func(*testing.T, *raytest.Node)) {
	t.Run(name, func(t *testing.T) {
		var joining sync.WaitGroup
		var node *raytest.Node
		g, err := s.try(t, 4, wish{ray: func(o *rayactor.Options) {
			o.PlacementTimeout = patience
			o.Events = onPhase(o.Events, func(phase string) {
				if phase == "ray place" {
					joining.Go(func() { node = s.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 2}) })
				}
			})
		}})
		joining.Wait()
		if err != nil {
			t.Fatalf("%s\n%v", g.log, err)
		}
		defer g.end(t)
		g.works(t)
		if want := []string{s.head(), s.head(), node.IP, node.IP}; !slices.Equal(g.nodes(), want) {
			t.Errorf("nodes %v, want %v", g.nodes(), want)
		}
		var working sync.WaitGroup
		working.Go(func() {
			for id := uint64(2); ; id++ {
				if _, err := g.step(id); err != nil {
					return
				}
			}
		})
		begun := time.Now()
		end(t, node)
		f := g.failure(t)
		t.Logf("known after %v: %v", time.Since(begun).Round(time.Millisecond), f)
		working.Wait()
		if f.Rank < 2 || f.Node != node.IP || f.PID != g.pids()[f.Rank] ||
			!containsAny(f.Cause, append([]string{"the raylet of its node", "signal: SIG"},
				lostActor...)) {
			t.Errorf("failure %+v", f)
		}
		g.end(t)
		s.clean(t)
	})
}

// killedWhileStarting takes the raylet of two of four ranks away in a phase of their start. They
// may all have come up when it is known: then it is as with those that run.
func (s *site) killedWhileStarting(t *testing.T, phase string) {
	node := s.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 2})
	var at time.Time
	inject := func() {
		at = time.Now()
		s.KillRaylet(t, node)
	}
	g, err := s.try(t, 4, wish{
		ray: func(o *rayactor.Options) {
			o.PlacementTimeout = placing
			o.Events = onPhase(o.Events, func(name string) {
				if name == "ray "+phase {
					inject()
				}
			})
		},
		exec: func(o *executor.Options) {
			if phase == meet {
				o.Launcher = neverMet(t, o.Launcher, func([]launch.Worker) { inject() })
			}
		}})
	if err == nil {
		err = g.failure(t)
		g.end(t)
	}
	t.Logf("known after %v: %v", time.Since(at).Round(time.Millisecond), err)
	s.clean(t)
	if took := time.Since(at); took > patience/2 {
		t.Errorf("known and clean only after %v", took)
	}
	// Ray may not know yet that the node is lost, and place no rank or rank 0 there.
	if !containsAny(err.Error(), []string{"no place", "rank ", "ranks "}) {
		t.Errorf("error %q", err)
	}
}

// placing is how long a group may wait for a place that it does not get.
const placing = 5 * time.Second

// tokens wants errors about tokens to say what to do, and the token to be used wherever it is.
func (s *site) tokens(t *testing.T) {
	plain := slices.DeleteFunc(slices.Clone(s.Env),
		func(kv string) bool { return strings.HasPrefix(kv, "RAY_AUTH_") })
	// Both at once, because Ray tries for a while.
	servers := map[string]*server{
		"none": s.serve(t, "", plain),
		"wrong": s.serve(t, "", append(slices.Clone(plain),
			"RAY_AUTH_TOKEN="+strings.Repeat("0", 64))),
	}
	for name, p := range servers {
		if code := p.exit(t); code != 1 {
			t.Errorf("token %s: exit code %d", name, code)
		}
		// Ray's own words fill several lines.
		for _, want := range []string{"eagleray: ray, phase connect: ", "AuthenticationError",
			"set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"} {
			if !strings.Contains(p.log.String(), want) {
				t.Errorf("%s\ntoken %s: %q is not in it", p.log, name, want)
			}
		}
	}
	s.clean(t)
	// Ray itself would not use it with an explicit address.
	t.Run("right", func(t *testing.T) {
		g := s.start(t, 1,
			wish{ray: func(o *rayactor.Options) {
				o.Environ = append(slices.Clone(plain),
					"RAY_AUTH_TOKEN="+token)
			}})
		g.works(t)
		for name, value := range environ(t, g.pids()[0]) {
			if strings.Contains(value, token) {
				t.Errorf("the worker has the token in %s", name)
			}
		}
		g.end(t)
		s.clean(t)
	})
}

// noSharedMemory adds a node that has no /dev/shm to write to, and starts driver and ranks there.
// Ray is told to keep its own memory elsewhere.
func (s *site) noSharedMemory(t *testing.T) {
	head := s.head()
	ip := head[:strings.LastIndexByte(head, '.')] + ".77"
	const hide = `mount -t tmpfs -o ro,size=4k tmpfs /dev/shm && exec "$@"`
	hidden := []string{"/usr/bin/unshare", "-m", "/bin/sh", "-c", hide, "sh"}
	if err := s.Run(append(slices.Clone(hidden), "/bin/true")); err != nil {
		t.Skipf("a mount namespace needs root: %v", err)
	}
	args := []string{"--address=" + s.Address, "--node-ip-address=" + ip, "--num-cpus=1",
		"--num-gpus=2",
		"--object-store-memory=80000000", "--plasma-directory=" + s.Dir,
		"--dashboard-agent-listen-port=0", "--min-worker-port=0",
		"--max-worker-port=0", "--disable-usage-stats"}
	if err := s.Run(slices.Concat(hidden, []string{s.Ray.Python,
		filepath.Join(filepath.Dir(s.Ray.Python), "ray"), "start"}, args)); err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(t.TempDir(), "eagleray")
	script := "#!/bin/sh\nexec /usr/bin/unshare -m /bin/sh -c '" + hide + "' sh " + program(t) +
		` "$@"` + "\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := s.serve(t, wrapper, nil, "-tp", "2", "--node-ip", ip)
	url := p.url(t)
	for _, pid := range append(p.workers(t), p.cmd.Process.Pid) {
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
		if err != nil {
			t.Fatal(err)
		}
		of := ""
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); f[1] == "/dev/shm" {
				of = f[3]
			}
		}
		if !strings.HasPrefix(of, "ro,") {
			t.Errorf("process %d has /dev/shm mounted %q", pid, of)
		}
	}
	if text, err := complete(t, url, 16); err != nil || text == "" {
		t.Errorf("answer %q, %v", text, err)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.clean(t)
}
