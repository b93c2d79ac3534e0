package ray_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// A bridge that is stopped says nothing and is declared gone; a test of ten seconds.
func TestRealBridgeFrozen(t *testing.T) {
	onRay(t, func(t *testing.T, cl *raytest.Cluster, c *ray.Client) {
		var bridge int
		for _, pid := range childrenOf(t, os.Getpid()) {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.Contains(string(args), "/proc/self/fd/") {
				bridge = pid
			}
		}
		if bridge == 0 {
			t.Fatal("no bridge among the children")
		}
		if err := syscall.Kill(bridge, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := awaitGone(t, c); !strings.Contains(err.Error(), "silent for") {
			t.Errorf("gone: %v", err)
		}
	})
}

// A silent host, noticed with fast settings.
func TestRealRayletFrozen(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.StartCluster(t, r, raytest.Options{FastFailure: true,
			Nodes: []raytest.NodeSpec{{CPUs: 1}, {GPUs: 1}}})
		c := start(t, r, cl.Env)
		if _, err := c.Connect(within(t), ray.ConnectOptions{Address: cl.Address,
			NodeIP: cl.Nodes[0].IP}); err != nil {
			t.Fatal(err)
		}
		spawn(t, c, placed(t, c, 1), 1)
		if _, err := c.StartWorkers(within(t), starts([]int{0}, waitingWorker, "-",
			workerMark)); err != nil {
			t.Fatal(err)
		}
		cl.FreezeRaylet(t, cl.Nodes[1])
		if e := raytest.NextExit(t, c); e.Rank != 0 || !strings.HasPrefix(e.Class, "Actor") {
			t.Errorf("exit %+v", e)
		}
	})
}
