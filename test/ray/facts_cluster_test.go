package ray_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/raytest"
	"golang.org/x/sys/unix"
)

// fakeCluster is the fake with workers that are processes.
type fakeCluster struct {
	*fake.Cluster
	count int
}

// newFakeCluster is a fake cluster with the nodes of the shared real ones; token "" wants none.
// It has ended, with all processes, when the test has.
func newFakeCluster(t *testing.T, token string) *fakeCluster {
	t.Helper()
	c := &fakeCluster{Cluster: fake.New()}
	for _, spec := range raytest.SharedNodes {
		resources := map[string]float64{"CPU": spec.CPUs, "GPU": spec.GPUs}
		for key, amount := range spec.Resources {
			resources[key] = amount
		}
		c.add(resources)
	}
	c.Token, c.Worker, c.Dir = token, fake.Process, t.TempDir()
	t.Cleanup(c.Wait)
	return c
}

func (c *fakeCluster) add(resources map[string]float64) (ip string) {
	c.count++
	n := string(rune('0' + c.count))
	ip = "127.0.0." + n
	id := strings.Repeat(n, 56)
	c.AddNode(ray.Node{ID: id, IP: ip, Hostname: "host" + n, Resources: resources})
	c.SetNodeEnv(id, map[string]string{nodeVariable: nodeValue})
	return ip
}

func (c *fakeCluster) version() string { return c.Ray }
func (c *fakeCluster) address() string { return c.Address() }

func (c *fakeCluster) nodes() (ips []string) {
	for _, n := range c.Nodes() {
		ips = append(ips, n.IP)
	}
	return ips
}

func (c *fakeCluster) bridge(t *testing.T, env ...string) *ray.Client {
	t.Helper()
	// The least environment, in which no token is.
	client, err := c.Start(within(t), ray.Options{Env: slices.Concat([]string{"HOME=/nonexistent"},
		env)})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return client
}

func (c *fakeCluster) killBridge(*testing.T) { c.Drop() }

func (c *fakeCluster) signalActor(_ *testing.T, f ray.Facts, s unix.Signal) {
	c.SignalActor(f.ActorID, s)
}

func (c *fakeCluster) rayKill(_ *testing.T, namespace, name string) { c.KillNamed(namespace, name) }

func (c *fakeCluster) addNode(*testing.T) string {
	return c.add(map[string]float64{"CPU": 1, "extra": 1})
}

func (c *fakeCluster) killNode(t *testing.T, ip string) {
	for _, n := range c.Nodes() {
		if n.IP == ip {
			c.KillNode(n.ID)
		}
	}
}

func (c *fakeCluster) withToken(t *testing.T, token string) cluster {
	return newFakeCluster(t,
		token)
}

func (c *fakeCluster) noneLeft(t *testing.T, text string) {
	t.Helper()
	eventually(t, "the end of all with "+text, func() bool {
		return !slices.ContainsFunc(children(os.Getpid()), func(pid int) bool {
			args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
			return err == nil && strings.Contains(string(args), text)
		})
	})
}

func (c *fakeCluster) cacheDir() string { return c.Dir }

// realCluster is one of Ray.
type realCluster struct {
	*site
	// latest is the pid of the latest bridge.
	latest int
}

func (c *realCluster) version() string { return c.Ray.Version }
func (c *realCluster) address() string { return c.Address }

func (c *realCluster) nodes() (ips []string) {
	for _, n := range c.Nodes {
		ips = append(ips, n.IP)
	}
	return ips
}

func (c *realCluster) bridge(t *testing.T, env ...string) *ray.Client {
	t.Helper()
	before := bridges(os.Getpid())
	client, err := ray.Start(within(t), ray.Options{Python: c.Ray.Python,
		Env: slices.Concat(c.Env, env)})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	for _, pid := range bridges(os.Getpid()) {
		if !slices.Contains(before, pid) {
			c.latest = pid
		}
	}
	return client
}

func (c *realCluster) killBridge(t *testing.T) {
	t.Helper()
	kill(t, c.latest, unix.SIGKILL)
}

func (c *realCluster) signalActor(t *testing.T, f ray.Facts, s unix.Signal) {
	t.Helper()
	kill(t, f.PID, s)
}

func (c *realCluster) addNode(t *testing.T) string {
	t.Helper()
	return c.AddNode(t, raytest.NodeSpec{CPUs: 1, Resources: map[string]float64{"extra": 1}}).IP
}

func (c *realCluster) killNode(t *testing.T, ip string) {
	t.Helper()
	for _, n := range c.Nodes {
		if n.IP == ip {
			c.KillRaylet(t, n)
			return
		}
	}
}

func (c *realCluster) withToken(t *testing.T, token string) cluster {
	t.Helper()
	if c.Ray.Version == "2.35.0" {
		t.Skip("Ray 2.35.0 has no token authentication")
	}
	o := raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1, GPUs: 1}}, Token: token}
	other := raytest.StartCluster(t, c.Ray, o)
	other.Env = slices.DeleteFunc(slices.Clone(other.Env), func(kv string) bool {
		return strings.HasPrefix(kv, "RAY_AUTH_")
	})
	return &realCluster{site: &site{Cluster: other}}
}

func (c *realCluster) noneLeft(t *testing.T, text string) {
	t.Helper()
	c.NoneLeft(t, text)
}

func (c *realCluster) cacheDir() string { return filepath.Join(c.Dir, "home/.cache/eagleray/bin") }
