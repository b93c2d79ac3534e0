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

	"github.com/eagleray/eagleray/internal/executor"
	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/executor/launch/rayactor"
)

// deaths are ways in which rank 1 of a running group, or all of it, can be lost.
var deaths = []struct {
	name string
	do   func(t *testing.T, s *site, g *ranks)
	// rank is the one in the failure, -1 for none, -2 for any.
	rank int
	// causes are what the failure may say: one of them is part of it.
	causes []string
	// stderr is part of the worker's last lines.
	stderr string
	// idle leaves the case under load out, which is as another's.
	idle bool
}{
	{name: "child", rank: 1, causes: []string{"signal: SIGKILL"},
		do: func(t *testing.T, _ *site, g *ranks) { kill(t, g.pids()[1], syscall.SIGKILL) }},
	{name: "child with last words", rank: 1, causes: []string{"exit status 2"}, stderr: "rip ", idle: true,
		do: func(t *testing.T, _ *site, g *ranks) { kill(t, g.pids()[1], syscall.SIGQUIT) }},
	{name: "actor", rank: 1, causes: lostActor,
		do: func(t *testing.T, _ *site, g *ranks) { kill(t, parentOf(t, g.pids()[1]), syscall.SIGKILL) }},
	{name: "actor by ray.kill", rank: 1, causes: []string{"killed by `ray.kill`", "connection lost: "}, idle: true,
		do: func(t *testing.T, s *site, g *ranks) {
			s.observer.must(t, "kill", map[string]any{"name": "eagleray_" + g.instance() + "_r1_TP1", "namespace": namespace}, nil)
		}},
	// Ray ends the processes of the group one by one: the worker may go before its actor, or by its leash with it.
	{name: "group", rank: anyRank, causes: []string{"placement group was removed", "signal: SIGTERM", "signal: SIGKILL"},
		do: func(t *testing.T, s *site, g *ranks) {
			s.observer.must(t, "remove", map[string]any{"id": g.groupID()}, nil)
		}},
	{name: "bridge", rank: -1, causes: []string{"the bridge to Ray ended: "},
		do: func(t *testing.T, _ *site, _ *ranks) { kill(t, bridges(os.Getpid())[0], syscall.SIGKILL) }},
}

const anyRank = -2

// lostActor is how Ray tells of an actor that is gone: the second when it does not hear within a second that it has died,
// as on a machine that is busy with something else. Then the end of the worker's connection comes first.
var lostActor = []string{"ActorDiedError: ", "ActorUnavailableError: ", "connection lost: "}

// TestDeath ends parts of a group that waits for work, and of one that works; the failure must say which rank is lost,
// where it was and why, and nothing may be left.
func TestDeath(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		for _, d := range deaths {
			for _, load := range []bool{false, true} {
				if d.idle && load {
					continue
				}
				t.Run(fmt.Sprintf("%s,load=%v", d.name, load), func(t *testing.T) {
					// Under load the driver waits for records of links, as with remote ranks.
					g := s.start(t, 2, wish{exec: func(o *executor.Options) { o.LinksOnly = load }})
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
					d.do(t, s, g)
					f := g.failure(t)
					t.Logf("known after %v: %v", time.Since(begun).Round(100*time.Microsecond), f)
					working.Wait()
					var same *executor.Failure
					if load && (!errors.As(broke, &same) || same != f) {
						t.Errorf("the step failed with %v", broke)
					}
					if d.rank != anyRank && f.Rank != d.rank || !containsAny(f.Cause, d.causes) ||
						f.Rank >= 0 && (f.PID != g.pids()[f.Rank] || f.Node != s.head()) {
						t.Errorf("failure %+v", f)
					}
					if !strings.Contains(strings.Join(f.Stderr, "\n"), d.stderr) {
						t.Errorf("last lines %q, want %q among them", f.Stderr, d.stderr)
					}
					if _, err := g.CollectiveRPC(within(t), "echo", nil, executor.RPCOptions{}); !errors.As(err, &same) || same != f {
						t.Errorf("a call of the failed group: %v", err)
					}
					g.end(t)
					s.clean(t)
					select {
					case f := <-g.failures:
						t.Errorf("a second failure: %v", f)
					default:
					}
				})
			}
		}
		t.Run("callback of the dead", func(t *testing.T) {
			g := s.start(t, 1, wish{silent: true})
			kill(t, g.pids()[0], syscall.SIGKILL)
			eventually(t, "the end of the group", func() bool { return g.Err() != nil })
			var f *executor.Failure
			g.OnFailure(func(x *executor.Failure) { f = x })
			if f == nil || f != g.Err() {
				t.Errorf("told at once: %v, want %v", f, g.Err())
			}
			g.end(t)
			s.clean(t)
		})
	})
}

func containsAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
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

// afterLaunch looks at workers that were just started; none can be ready, because the driver has met none.
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

// TestDeathWhileStarting ends parts of a group in the phases of its start, and gives up in each of them.
func TestDeathWhileStarting(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		for _, c := range []struct {
			what string
			// phases are those in which there is what is to be ended.
			phases []string
			do     func(t *testing.T, w []launch.Worker)
			// want are parts of the error, each one of several.
			want [][]string
		}{
			{"bridge", startPhases, func(t *testing.T, _ []launch.Worker) { kill(t, bridges(os.Getpid())[0], syscall.SIGKILL) },
				[][]string{{"the Ray bridge is gone"}, {"signal: killed"}}},
			{"given up", startPhases, nil, [][]string{{"context canceled"}}},
			{"actor", []string{"spawn", "identify", "ship", "init", meet}, func(t *testing.T, w []launch.Worker) {
				pids := s.actorProcesses()
				if len(w) > 0 {
					pids = []int{parentOf(t, w[1].PID)}
				}
				kill(t, pids[0], syscall.SIGKILL)
			}, [][]string{{"rank "}, lostActor[:2]}},
			{"child", []string{meet}, func(t *testing.T, w []launch.Worker) { kill(t, w[1].PID, syscall.SIGKILL) },
				[][]string{{"rank 1 on "}, {"signal: SIGKILL"}}},
		} {
			for _, phase := range c.phases {
				t.Run(c.what+","+phase, func(t *testing.T) {
					ctx, cancel := context.WithCancel(within(t))
					defer cancel()
					do := c.do
					if do == nil {
						do = func(*testing.T, []launch.Worker) { cancel() }
					}
					s.strike(ctx, t, phase, s.ripe(t, phase, c.what), do, c.want)
				})
			}
		}
	})
}

// ripe makes what a blow in a phase needs, and tells when it is there; nil is from the start of the phase.
func (s *site) ripe(t *testing.T, phase, what string) func() bool {
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

// strike starts two ranks, and does something in one of the phases. The error must have come in a phase in
// which it is seen.
func (s *site) strike(ctx context.Context, t *testing.T, phase string, ripe func() bool, do func(*testing.T, []launch.Worker), want [][]string) {
	t.Helper()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var at time.Time
	struck := make(chan struct{})
	blow := func(w []launch.Worker) {
		at = time.Now()
		do(t, w)
		close(struck)
	}
	w := wish{ctx: ctx, ray: func(o *rayactor.Options) {
		begun := false
		o.Events = onPhase(o.Events, func(name string) {
			switch {
			case begun:
				// On a busy machine the phase may be over before the blow.
				select {
				case <-struck:
				case <-ctx.Done():
				}
			case name != "ray "+phase:
				return
			case ripe == nil:
				blow(nil)
			default:
				waiting.Go(func() {
					for !ripe() {
						if ctx.Err() != nil {
							return
						}
						time.Sleep(2 * time.Millisecond)
					}
					blow(nil)
				})
			}
			begun = true
		})
	}}
	if phase == meet {
		w.exec = func(o *executor.Options) { o.Launcher = neverMet(t, o.Launcher, blow) }
	}
	err := s.refusedAfter(t, 2, &at, w)
	heads := seenAs(phase, ripe != nil)
	if !containsAny(err, heads) {
		t.Errorf("error %q has none of %q", err, heads)
	}
	// What went wrong while it was given up may follow, in lines of its own.
	if strings.Contains(err, "class_name: ") {
		t.Errorf("error %q has lines of Ray's", err)
	}
	for _, part := range want {
		if !containsAny(err, part) {
			t.Errorf("error %q has none of %q", err, part)
		}
	}
}

// seenAs are the beginnings of an error that a blow in a phase may have: of its own phase, or of one that asks Ray when its
// own need not; an actor that was coming up may be missed later still.
func seenAs(phase string, comingUp bool) (heads []string) {
	at := slices.Index(startPhases, phase)
	in := startPhases[at : at+1]
	switch {
	case phase == meet:
		return []string{"waiting for ranks: rank 1 on ", "waiting for ranks: the bridge to Ray ended: ", "waiting for ranks: context canceled"}
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
		// It has its leash before it comes to the driver.
		eventually(t, "the last rank to come", func() bool { return hasSocket(last) })
		kill(t, last, syscall.SIGSTOP)
		time.AfterFunc(50*time.Millisecond, func() { do(w) })
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
