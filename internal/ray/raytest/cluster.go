package raytest

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray/loopback"
)

// The words of a cluster.
type (
	Ray      = loopback.Ray
	Options  = loopback.Options
	NodeSpec = loopback.NodeSpec
	Node     = loopback.Node
	Process  = loopback.Process
)

// PlainEnv is this process's environment without what concerns Ray.
func PlainEnv() []string { return loopback.PlainEnv() }

// Cluster is a cluster whose trouble is a test's.
type Cluster struct{ *loopback.Cluster }

// StartCluster starts a cluster of the test's own and ends it with the test.
func StartCluster(t testing.TB, r *Ray, options Options) *Cluster {
	t.Helper()
	c, err := loopback.Start(r, options)
	if err != nil {
		t.Fatalf("start cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("end cluster: %v", err)
		}
	})
	return &Cluster{c}
}

// AddNode joins one more node.
func (c *Cluster) AddNode(t testing.TB, spec NodeSpec) *Node {
	t.Helper()
	n, err := c.Join(spec)
	if err != nil {
		t.Fatalf("add node: %v", err)
	}
	return n
}

// KillRaylet ends the raylet of a node as a crash would.
func (c *Cluster) KillRaylet(t testing.TB, n *Node) {
	t.Helper()
	c.Remove(n)
	signal(t, n.Raylet, syscall.SIGKILL)
}

// RemoveNode takes a node out of the cluster as "ray stop" would.
func (c *Cluster) RemoveNode(t testing.TB, n *Node) {
	t.Helper()
	c.Remove(n)
	signal(t, n.Raylet, syscall.SIGTERM)
}

// FreezeRaylet stops a node's raylet, which Ray takes for a silent host, until the test ends.
func (c *Cluster) FreezeRaylet(t testing.TB, n *Node) {
	t.Helper()
	signal(t, n.Raylet, syscall.SIGSTOP)
	// It may have been ended meanwhile.
	t.Cleanup(func() { _ = syscall.Kill(n.Raylet, syscall.SIGCONT) })
}

func signal(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("send %v to pid %d: %v", s, pid, err)
	}
}

// NoneLeft checks that within a few seconds no process of the cluster has the text in its
// arguments.
func (c *Cluster) NoneLeft(t testing.TB, text string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		left := slices.DeleteFunc(c.Processes(),
			func(p Process) bool { return !strings.Contains(strings.Join(p.Args, " "), text) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, p := range left {
				t.Errorf("process %d is left: %s", p.PID, strings.Join(p.Args, " "))
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
