package ray_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/link/layout"
)

// ground is a cluster on which ranks are started and lost: the fake one, or a site.
type ground interface {
	// options fills in where the cluster is.
	options(o *rayactor.Options)
	// killActor ends the actor of a worker by SIGKILL, rayKill one by its name, from another job.
	killActor(t *testing.T, worker int)
	rayKill(t *testing.T, namespace, name string)
	removeGroup(t *testing.T, id string)
	killBridge(t *testing.T)
	// clean waits until nothing of any engine is left.
	clean(t testing.TB)
}

func (s *site) options(o *rayactor.Options) {
	o.Environ = s.Env
	o.Python, o.Address, o.NodeIP = s.Ray.Python, s.Address, s.head()
}

func (s *site) killActor(t *testing.T, worker int) {
	t.Helper()
	kill(t, parentOf(t, worker), syscall.SIGKILL)
}

func (s *site) rayKill(t *testing.T, namespace, name string) {
	t.Helper()
	s.observer.must(t, "kill", map[string]any{"name": name, "namespace": namespace}, nil)
}

func (s *site) removeGroup(t *testing.T, id string) {
	t.Helper()
	s.observer.must(t, "remove", map[string]any{"id": id}, nil)
}

func (s *site) killBridge(t *testing.T) {
	t.Helper()
	kill(t, bridges(os.Getpid())[0], syscall.SIGKILL)
}

func (c *fakeCluster) options(o *rayactor.Options) {
	o.Start = c.Start
	o.Address, o.NodeIP = c.Address(), c.nodes()[0]
}

func (c *fakeCluster) killActor(t *testing.T, worker int) {
	t.Helper()
	if !c.SignalActorOf(worker, unix.SIGKILL) {
		t.Errorf("no actor has the worker %d", worker)
	}
}

func (c *fakeCluster) removeGroup(_ *testing.T, id string) { c.RemoveGroup(id) }

func (c *fakeCluster) clean(t testing.TB) {
	t.Helper()
	var left []string
	eventually(t, "the end of all that is the engine's", func() bool {
		left = nil
		for _, a := range c.Actors() {
			left = append(left, "actor "+a.Name)
		}
		for _, g := range c.Groups() {
			left = append(left, "group "+g.Name)
		}
		for _, pid := range children(os.Getpid()) {
			if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
				strings.Contains(string(args), launch.ActorFlag) {
				left = append(left, fmt.Sprintf("process %d", pid))
			}
		}
		return len(left) == 0
	})
}

// lastPID is the process of the last rank.
func (g *ranks) lastPID() int {
	pids := g.pids()
	return pids[len(pids)-1]
}

// lastActor is the name of the last rank's actor.
func (g *ranks) lastActor() string {
	rank := len(g.pids()) - 1
	name, err := rayactor.ActorName(g.instance(), rank, layout.Layout{TP: rank + 1})
	if err != nil {
		panic(err)
	}
	return name
}
