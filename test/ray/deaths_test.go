package ray_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// death is a way in which the last rank of a running group, or all of it, can be lost.
type death struct {
	name string
	do   func(t *testing.T, p ground, g *ranks)
	// rank is the one in the failure: last, any or none.
	rank int
	// causes are what the failure may say: one of them is part of it. Ray has several words for
	// some, on the fake cluster the first one counts.
	causes []string
	// stderr is part of the worker's last lines.
	stderr string
	// idle leaves the case under load out, which is as another's.
	idle bool
}

// Ranks of a failure, but for none.
const (
	none      = -1
	anyOfThem = -2
	last      = -3
)

// sizes are the numbers of ranks that die on the fake cluster.
func sizes() []int {
	if testing.Short() {
		return []int{1, 2}
	}
	return []int{1, 2, 4}
}

var deaths = []death{
	{name: "child", rank: last, causes: []string{"signal: SIGKILL"},
		do: func(t *testing.T, _ ground, g *ranks) { kill(t, g.lastPID(), syscall.SIGKILL) }},
	{name: "child that crashes", rank: last, causes: []string{"exit status 2"}, stderr: "rip ",
		idle: true,
		do:   func(t *testing.T, _ ground, g *ranks) { kill(t, g.lastPID(), syscall.SIGQUIT) }},
	{name: "actor", rank: last, causes: lostActor,
		do: func(t *testing.T, p ground, g *ranks) { p.killActor(t, g.lastPID()) }},
	{name: "actor by ray.kill", rank: last, causes: []string{"killed by `ray.kill`",
		"connection lost: "}, idle: true,
		do: func(t *testing.T, p ground, g *ranks) { p.rayKill(t, namespace, g.lastActor()) }},
	// Ray ends the processes of the group one by one: the worker may go before its actor, or with
	// it.
	{name: "group", rank: anyOfThem,
		causes: []string{"placement group was removed", "signal: SIGTERM", "signal: SIGKILL"},
		do:     func(t *testing.T, p ground, g *ranks) { p.removeGroup(t, g.groupID()) }},
	{name: "bridge", rank: none, causes: []string{"the bridge to Ray ended: "},
		do: func(t *testing.T, p ground, _ *ranks) { p.killBridge(t) }},
}

// lostActor is how Ray tells of an actor that is gone: the second when it does not hear within a
// second that it has died, as on a machine that is busy with something else. Then the end of the
// worker's connection comes first.
var lostActor = []string{"ActorDiedError: ", "ActorUnavailableError: ", "connection lost: "}

// TestDeath ends parts of a group that waits for work, and of one that works; the failure must
// say which rank is lost, where it was and why, and nothing may be left.
func TestDeath(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		for _, tp := range sizes() {
			t.Run(fmt.Sprintf("tp%d", tp), func(t *testing.T) {
				c := newFakeCluster(t, "")
				for _, d := range deaths {
					d.causes = d.causes[:1]
					d.on(t, c, tp)
				}
			})
		}
	})
	each(t, func(t *testing.T, s *site) {
		for _, d := range deaths {
			d.on(t, s, 2)
		}
		t.Run("callback of the dead", func(t *testing.T) {
			g := s.start(t, 1, wish{silent: true})
			kill(t, g.lastPID(), syscall.SIGKILL)
			eventually(t, "the end of the group", func() bool { return g.Err() != nil })
			var f *executor.Failure
			g.OnFailure(func(x *executor.Failure) { f = x })
			if f == nil || f != g.Err() {
				t.Errorf("notified at once: %v, want %v", f, g.Err())
			}
			g.end(t)
			s.clean(t)
		})
	})
}

// on runs the case on a cluster, with ranks that are idle and with ranks that work.
func (d death) on(t *testing.T, p ground, tp int) {
	for _, load := range []bool{false, true} {
		// With -short a rank that works alone is left out: two that work lose one.
		if (!d.idle || !load) && (tp > 1 || !load || !testing.Short()) {
			t.Run(fmt.Sprintf("%s,load=%v", d.name, load),
				func(t *testing.T) { d.run(t, p, tp, load) })
		}
	}
}

func (d death) run(t *testing.T, p ground, tp int, load bool) {
	// Under load the driver waits for records of links, as with remote ranks.
	g := start(t, p, tp, wish{exec: func(o *executor.Options) { o.LinksOnly = load }})
	var working sync.WaitGroup
	var broke error
	if load {
		running := make(chan struct{})
		working.Go(func() {
			for id := uint64(1); broke == nil; id++ {
				_, broke = g.step(id)
				if id == 3 {
					close(running)
				}
			}
		})
		<-running
	}
	begun := time.Now()
	d.do(t, p, g)
	f := g.failure(t)
	t.Logf("known after %v: %v", time.Since(begun).Round(100*time.Microsecond), f)
	working.Wait()
	var same *executor.Failure
	if load && (!errors.As(broke, &same) || same != f) {
		t.Errorf("the step failed with %v", broke)
	}
	rank := d.rank
	if rank == last {
		rank = tp - 1
	}
	if rank != anyOfThem && f.Rank != rank || !containsAny(f.Cause, d.causes) ||
		f.Rank >= 0 && (f.PID != g.pids()[f.Rank] || f.Node != g.nodes()[f.Rank]) {
		t.Errorf("failure %+v", f)
	}
	if !strings.Contains(strings.Join(f.Stderr, "\n"), d.stderr) {
		t.Errorf("last lines %q, want %q among them", f.Stderr, d.stderr)
	}
	_, err := g.CollectiveRPC(within(t), calls.Echo.Name, nil, executor.RPCOptions{})
	if !errors.As(err, &same) || same != f {
		t.Errorf("a call of the failed group: %v", err)
	}
	g.end(t)
	p.clean(t)
	select {
	case f := <-g.failures:
		t.Errorf("a second failure: %v", f)
	default:
	}
}

func containsAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool {
		return strings.Contains(text,
			part)
	})
}

// failure waits for the group's.
func (g *ranks) failure(t testing.TB) *executor.Failure {
	t.Helper()
	select {
	case f := <-g.failures:
		return f
	case <-time.After(patience):
		t.Fatalf("%s\nno failure", g.log)
	}
	return nil
}

// afterLaunch looks at workers that were just started; none can be ready, because the driver has
// met none.
type afterLaunch struct {
	executor.Launcher
	do func([]launch.Worker)
}

// Launch starts the ranks and then calls do.
func (l afterLaunch) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	workers, err := l.Launcher.Launch(ctx, specs)
	if err == nil {
		l.do(workers)
	}
	return workers, err
}

// meet is the phase that follows those of Ray: the workers come to the driver.
const meet = "meet"

// startPhases are the phases of a start, in their order.
var startPhases = []string{"connect", "place", "order", "spawn", "identify", "ship", "init", meet}

// startFault is something that goes wrong while ranks start.
type startFault struct {
	name string
	// phases are those in which there is what is to be ended.
	phases []string
	// do is nil for giving up.
	do func(t *testing.T, p ground, w []launch.Worker)
	// want are parts of the error, each one of several; on the fake cluster the first one counts.
	want [][]string
}

var startFaults = []startFault{
	{"bridge", startPhases, func(t *testing.T, p ground, _ []launch.Worker) { p.killBridge(t) },
		[][]string{{"the Ray bridge is gone"}}},
	{"given up", startPhases, nil, [][]string{{"context canceled"}}},
	{"actor", []string{"spawn", "identify", "ship", "init", meet},
		func(t *testing.T, p ground, w []launch.Worker) {
			if len(w) > 0 {
				p.killActor(t, w[len(w)-1].PID)
			} else {
				kill(t, p.(*site).actorProcesses()[0], syscall.SIGKILL)
			}
		}, [][]string{{"rank "}, lostActor[:2]}},
	{"child", []string{meet}, func(t *testing.T, _ ground, w []launch.Worker) {
		kill(t, w[len(w)-1].PID, syscall.SIGKILL)
	}, [][]string{{" on 127."}, {"signal: SIGKILL"}}},
}

// TestDeathWhileStarting ends parts of a group in the phases of its start, and gives up in each
// of them. On the fake cluster only the phase of the executor is left for this test: rayactor has
// the others (TestFaultWhileStarting).
func TestDeathWhileStarting(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		for _, tp := range sizes() {
			c := newFakeCluster(t, "")
			for _, f := range startFaults {
				t.Run(fmt.Sprintf("%s,%s,tp%d", f.name, meet, tp), func(t *testing.T) {
					for i := range f.want {
						f.want[i] = f.want[i][:1]
					}
					f.inject(t, c, tp, meet, nil)
				})
			}
		}
	})
	each(t, func(t *testing.T, s *site) {
		for _, f := range startFaults {
			for _, phase := range f.phases {
				t.Run(f.name+","+phase, func(t *testing.T) {
					f.inject(t, s, 2, phase,
						s.due(t, phase, f.name))
				})
			}
		}
	})
}

// due makes what a fault in a phase needs, and tells when it is there; nil is from the start of
// the phase.
func (s *site) due(t *testing.T, phase, what string) func() bool {
	switch {
	case phase == "connect":
		return func() bool { return len(bridges(os.Getpid())) > 0 }
	case phase == "place":
		// The wait is on when the observer sees the group.
		s.group(t, "", bundles(6))
		return func() bool { return s.pending(t) }
	case what == "actor" && (phase == "spawn" || phase == "identify"):
		return func() bool { return len(s.actorProcesses()) > 0 }
	}
	return nil
}

// inject starts ranks, and lets the fault happen in one of the phases. The error must have come
// in a phase in which it is seen.
func (f startFault) inject(t *testing.T, p ground, tp int, phase string, due func() bool) {
	t.Helper()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	giveUp, cancelStart := context.WithCancel(ctx)
	defer cancelStart()
	var at time.Time
	injected := make(chan struct{})
	do := func(w []launch.Worker) {
		at = time.Now()
		if f.do == nil {
			cancelStart()
		} else {
			f.do(t, p, w)
		}
		close(injected)
	}
	w := wish{ctx: giveUp, ray: func(o *rayactor.Options) {
		begun := false
		o.Events = onPhase(o.Events, func(name string) {
			switch {
			case begun:
				// On a busy machine the phase may be over before the fault.
				select {
				case <-injected:
				case <-ctx.Done():
				}
			case name != "ray "+phase:
				return
			case due == nil:
				do(nil)
			default:
				waiting.Go(func() {
					for !due() {
						if ctx.Err() != nil {
							return
						}
						time.Sleep(2 * time.Millisecond)
					}
					do(nil)
				})
			}
			begun = true
		})
	}}
	if phase == meet {
		w.exec = func(o *executor.Options) { o.Launcher = neverMet(t, o.Launcher, do) }
	}
	err := refusedAfter(t, p, tp, &at, w)
	heads := seenAs(phase, tp, due != nil)
	if !containsAny(err, heads) {
		t.Errorf("error %q has none of %q", err, heads)
	}
	// What went wrong while it was given up may follow, in lines of its own.
	if strings.Contains(err, "class_name: ") {
		t.Errorf("error %q has lines of Ray's", err)
	}
	for _, part := range f.want {
		if !containsAny(err, part) {
			t.Errorf("error %q has none of %q", err, part)
		}
	}
}

// seenAs are the beginnings of an error that a fault in a phase may have: of its own phase, or of
// one that asks Ray when its own need not; an actor that was coming up may be missed later still.
func seenAs(phase string, tp int, comingUp bool) (heads []string) {
	at := slices.Index(startPhases, phase)
	in := startPhases[at : at+1]
	switch {
	case phase == meet:
		return []string{fmt.Sprintf("waiting for ranks: rank %d on ", tp-1),
			"waiting for ranks: the bridge to Ray ended: ",
			"waiting for ranks: context canceled"}
	case phase == "order":
		in = []string{phase, "spawn"}
	case phase == "ship":
		in = []string{phase, "init"}
	case comingUp && (phase == "spawn" || phase == "identify"):
		in = startPhases[at:slices.Index(startPhases, meet)]
	}
	for _, name := range in {
		heads = append(heads, "ray, phase "+name+": ")
	}
	return heads
}

// neverMet stops the last rank before the driver has met it, and does something then.
func neverMet(t *testing.T, l executor.Launcher, do func([]launch.Worker)) executor.Launcher {
	return afterLaunch{l, func(w []launch.Worker) {
		last := w[len(w)-1].PID
		// It watches its parent before it comes to the driver.
		eventually(t, "the last rank to come", func() bool { return hasSocket(last) })
		kill(t, last, syscall.SIGSTOP)
		eventually(t, "the last rank to stop", func() bool {
			state, _, ok := stat(last)
			return !ok || state == "T"
		})
		// The start goes on to wait for the ranks meanwhile, or does so after the fault.
		go do(w)
	}}
}

// hasSocket tells whether a process has one.
func hasSocket(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	fds, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		target, err := os.Readlink(dir + fd.Name())
		return err == nil && strings.HasPrefix(target, "socket:")
	})
}

// pending tells whether a group of ours waits for its place.
func (s *site) pending(t testing.TB) bool {
	var all []groupState
	if err := s.observer.do("groups", nil, &all); err != nil {
		t.Error(err)
		return true
	}
	return slices.ContainsFunc(all, func(g groupState) bool {
		return g.State == "PENDING" && strings.HasPrefix(g.Name, "eagleray_")
	})
}

// actorProcesses are the processes of engines' actors.
func (s *site) actorProcesses() (pids []int) {
	for _, p := range s.Processes() {
		if strings.HasPrefix(p.Args[0], "ray::Worker") {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
