package rayactor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/join"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
	"github.com/eagleray/eagleray/internal/status"
)

// The fake cluster does what Ray does: TestFacts of test/ray proves it. Time is that of a bubble,
// so that every deadline is met without waiting, and a goroutine that is left is a failure.

// moment is when something goes wrong: before or after an operation of the bridge is performed.
type moment struct {
	phase, op string
	after     bool
}

func (m moment) String() string {
	if m.after {
		return m.phase + ", after " + m.op
	}
	return m.phase + ", before " + m.op
}

// moments are all of a start, in their order. Phase order asks Ray nothing.
func moments() (all []moment) {
	for _, m := range []moment{{phase: "connect", op: "connect"}, {phase: "place", op: "nodes"},
		{phase: "place", op: "group_create"}, {phase: "place", op: "group_wait"},
		{phase: "place", op: "group_get"},
		{phase: "spawn", op: "actors_create"}, {phase: "identify", op: "actors_facts"},
		{phase: "ship", op: "actors_install"}, {phase: "init", op: "actors_start"}} {
		all = append(all, m, moment{m.phase, m.op, true})
	}
	return all
}

// trial is one start on a cluster of two nodes with two GPUs each.
type trial struct {
	*fake.Cluster
	t      *testing.T
	world  int
	log    bytes.Buffer
	phases []string
	l      *Launcher
	// crash closes the driver's end of the connection, as its death does.
	crash func()
}

func newTrial(t *testing.T, world int) *trial {
	c := fake.New()
	for i := range 2 {
		ip := fmt.Sprintf("10.0.0.%d", i+1)
		c.AddNode(ray.Node{ID: fmt.Sprintf("node%d", i+1), IP: ip,
			Resources: map[string]float64{"CPU": 4, "GPU": 2}})
	}
	return &trial{Cluster: c, t: t, world: world}
}

// start starts all ranks; what is at fault is in the error. The launcher is not stopped.
func (x *trial) start(ctx context.Context, change func(*Options)) ([]launch.Worker, error) {
	o := Options{World: x.world, TensorParallel: x.world,
		Ray: config.Ray{Address: x.Address(), NodeIP: "10.0.0.1", SkipBundle: -1, DeviceKey: GPU,
			PerWorker: 1},
		Log: slog.New(slog.NewTextHandler(&x.log, nil)),
		Start: func(ctx context.Context, o ray.Options) (*ray.Client, error) {
			o.Conn = x.Dial()
			x.crash = func() { o.Conn.Close() }
			return ray.Start(ctx, o)
		},
		Events: x.listen(func(phase string) { x.phases = append(x.phases, phase) })}
	if change != nil {
		change(&o)
	}
	var err error
	if x.l, err = Connect(ctx, o); err != nil {
		return nil, err
	}
	specs := make([]launch.Spec, x.world)
	for rank := range specs {
		invitation := &join.Invitation{Endpoint: handshake.Endpoint{Instance: "trial"}, Rank: rank,
			World: x.world}
		specs[rank] = launch.Spec{Rank: rank, LocalRank: rank, Invitation: invitation}
	}
	return x.l.Launch(ctx, specs)
}

// listen is a listener that logs, and calls f with the name of each phase that begins.
func (x *trial) listen(f func(phase string)) status.Listener {
	log := status.LogTo(slog.New(slog.NewTextHandler(&x.log, nil)))
	return status.Tee(log, func(e status.Event) {
		if p, ok := e.(status.Progress); ok {
			f(p.Phase)
		}
	})
}

// end stops the launcher and checks that nothing is left on the cluster but adopted groups.
func (x *trial) end(adopted ...string) {
	x.t.Helper()
	begun := time.Now()
	if x.l != nil {
		if err := x.l.Stop(context.Background()); err != nil {
			x.t.Errorf("stop: %v", err)
		}
	}
	if took := time.Since(begun); took > closeTimeout+stopGrace {
		x.t.Errorf("stopping took %v", took)
	}
	x.Wait()
	x.clean(adopted...)
}

func (x *trial) clean(adopted ...string) {
	x.t.Helper()
	if left := x.Actors(); len(left) > 0 {
		x.t.Errorf("actors are left: %+v", left)
	}
	for _, g := range x.Groups() {
		if !slices.Contains(adopted, g.ID) {
			x.t.Errorf("a group is left: %+v", g)
		}
	}
}

// on does something at a moment.
func (x *trial) on(m moment, do func()) {
	if m.after {
		x.After(m.op, do)
	} else {
		x.Before(m.op, do)
	}
}

// each runs f in a bubble for 1, 2 and 4 ranks.
func each(t *testing.T, name string, f func(x *trial)) {
	t.Helper()
	for _, world := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%s, %d ranks", name, world), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(newTrial(t, world)) })
		})
	}
}

// wants checks that an error has all parts.
func (x *trial) wants(err error, parts ...string) {
	x.t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			x.t.Errorf("error %v lacks %q", err, part)
		}
	}
}

func TestStart(t *testing.T) {
	each(t, "start", func(x *trial) {
		workers, err := x.start(x.t.Context(), nil)
		if err != nil {
			x.t.Fatal(err)
		}
		want := []string{"ray connect", "ray place", "ray order", "ray spawn", "ray identify",
			"ray ship", "ray init"}
		if !slices.Equal(x.phases, want) {
			x.t.Errorf("phases %q", x.phases)
		}
		for rank, w := range workers {
			if w.Rank != rank || w.LocalRank != rank%2 ||
				w.Node != fmt.Sprintf("10.0.0.%d", 1+rank/2) || w.PID == 0 {
				x.t.Errorf("worker %+v", w)
			}
		}
		actors := x.Actors()
		if len(actors) != x.world {
			x.t.Errorf("actors %+v", actors)
		}
		for rank, a := range actors {
			// Any runtime environment makes Ray start Python twice.
			if a.Rank != rank || a.CPUs != 0 || a.GPUs != 1 || a.RuntimeEnv != nil ||
				!strings.HasPrefix(a.Name, fmt.Sprintf("eagleray_trial_r%d", rank)) {
				x.t.Errorf("actor %+v", a)
			}
		}
		x.end()
	})
}

// TestFaultWhileStarting loses the bridge, or gives the start up, at every moment of it.
func TestFaultWhileStarting(t *testing.T) {
	for _, m := range moments() {
		each(t, "bridge, "+m.String(), func(x *trial) {
			x.on(m, x.Drop)
			_, err := x.start(x.t.Context(), nil)
			x.wants(err, "ray, phase "+m.phase+": ", "the Ray bridge is gone")
			x.end()
		})
		each(t, "silent bridge, "+m.String(), func(x *trial) {
			x.on(m, x.Silence)
			begun := time.Now()
			_, err := x.start(x.t.Context(), nil)
			if m.phase == "connect" {
				// Python may be silent while it joins: the phase has a deadline.
				x.wants(err, "ray, phase connect: not done after 2m0s")
			} else {
				x.wants(err, "ray, phase "+m.phase+": ", "silent for 1")
				if took := time.Since(begun); took > 15*time.Second {
					x.t.Errorf("known after %v", took)
				}
			}
			x.end()
		})
		each(t, "given up, "+m.String(), func(x *trial) {
			ctx, cancel := context.WithCancel(x.t.Context())
			x.on(m, func() {
				cancel()
				synctest.Wait()
			})
			_, err := x.start(ctx, nil)
			x.wants(err, "ray, phase "+m.phase+": ", "context canceled")
			if !errors.Is(err, context.Canceled) {
				x.t.Errorf("error %v", err)
			}
			x.end()
		})
		each(t, "driver, "+m.String(), func(x *trial) {
			x.on(m, func() {
				x.crash()
				synctest.Wait()
			})
			_, err := x.start(x.t.Context(), nil)
			x.wants(err, "ray, phase "+m.phase+": ")
			// Before the launcher has cleaned up: it could not if the driver were gone.
			x.Wait()
			x.clean()
			x.end()
		})
	}
	for name, fault := range map[string]func(x *trial, cancel func()){
		"bridge":   func(x *trial, _ func()) { x.Drop() },
		"given up": func(_ *trial, cancel func()) { cancel() },
	} {
		// It asks Ray nothing, so it may be over before it is known.
		each(t, name+", order", func(x *trial) {
			ctx, cancel := context.WithCancel(x.t.Context())
			_, err := x.start(ctx, func(o *Options) {
				o.Events = x.listen(func(phase string) {
					if phase == "ray order" {
						fault(x, cancel)
						synctest.Wait()
					}
				})
			})
			x.wants(err, "ray, phase spawn: ")
			x.end()
		})
	}
}

// TestRankLostWhileStarting loses the last rank at every moment at which there is one: the error,
// or the exit that is delivered when all had started, names the rank.
func TestRankLostWhileStarting(t *testing.T) {
	lost := frame.Fault{Class: "ActorDiedError",
		Message: "The actor died unexpectedly.\npid: 17\nfor a test"}
	last := func(x *trial) int { return x.world - 1 }
	for name, fault := range map[string]struct {
		do   func(x *trial)
		want string
	}{
		"actor": {func(x *trial) { x.LoseActor(last(x), lost) }, "ActorDiedError: "},
		"worker": {func(x *trial) { x.EndWorker(last(x), ray.Exit{Signal: "SIGKILL"}) },
			"signal: SIGKILL"},
		"node": {func(x *trial) { x.KillNode(fmt.Sprintf("node%d", 1+last(x)/2)) },
			"ActorDiedError: "},
		"group": {func(x *trial) { x.RemoveGroup(x.Groups()[0].ID) }, "placement group "},
	} {
		for _, m := range moments() {
			at := slices.Index([]string{"connect", "place", "spawn", "identify", "ship", "init"},
				m.phase)
			started := m == moment{"init", "actors_start", true}
			if at < 2 || name == "worker" && !started || name != "group" &&
				m == (moment{"spawn", "actors_create", false}) ||
				name == "node" && at < 4 {
				continue // there is no such rank yet
			}
			each(t, name+", "+m.String(), func(x *trial) {
				x.on(m, func() { fault.do(x) })
				_, err := x.start(x.t.Context(), nil)
				// A node takes all of its ranks along, a group all there are.
				first := map[string]int{"node": last(x) / 2 * 2, "group": 0}
				ranks := []int{last(x)}
				for rank := range x.world {
					if from, several := first[name]; several && rank >= from {
						ranks = append(ranks, rank)
					}
				}
				switch {
				case err == nil && started:
					e := <-x.l.Exited()
					if text := e.End.String(); !strings.Contains(text, fault.want) ||
						!slices.Contains(ranks, e.Rank) {
						x.t.Errorf("exit %+v: %s", e, text)
					}
				case err == nil:
					x.t.Error("it started")
				default:
					x.wants(err, "ray, phase ", fault.want)
					if !slices.ContainsFunc(ranks, func(rank int) bool {
						return regexp.MustCompile(fmt.Sprintf(`ranks? ([0-9, ]+, )?%d\b`,
							rank)).MatchString(err.Error())
					}) {
						x.t.Errorf("error %v names none of the ranks %v", err, ranks)
					}
				}
				if err != nil && strings.Contains(err.Error(), "pid: 17") {
					x.t.Errorf("error %v has lines of Ray's that say what is known", err)
				}
				x.end()
			})
		}
	}
}

// TestLostRank loses each rank of a group that runs; the exit says which, where and how, and only
// once.
func TestLostRank(t *testing.T) {
	two := 2
	for name, fault := range map[string]struct {
		do   func(x *trial, rank int)
		want string
	}{
		"worker killed": {func(x *trial, rank int) {
			x.EndWorker(rank,
				ray.Exit{Signal: "SIGKILL"})
		}, "signal: SIGKILL"},
		"worker exited": {func(x *trial, rank int) {
			x.EndWorker(rank, ray.Exit{Code: &two, Stderr: []string{"rip"}})
		}, "exit status 2"},
		"actor": {func(x *trial, rank int) {
			x.LoseActor(rank, frame.Fault{Class: "ActorUnavailableError",
				Message: "temporarily unavailable"})
		}, "ActorUnavailableError: temporarily unavailable"},
		"ray.kill": {func(x *trial, rank int) { x.KillNamed("ours", x.Actors()[rank].Name) },
			"killed by `ray.kill`"},
	} {
		each(t, name, func(x *trial) {
			workers, err := x.start(x.t.Context(), func(o *Options) { o.Namespace = "ours" })
			if err != nil {
				x.t.Fatal(err)
			}
			rank := x.world / 2
			fault.do(x, rank)
			e := <-x.l.Exited()
			if e.Rank != rank || e.Node != workers[rank].Node || e.PID != workers[rank].PID ||
				!strings.Contains(e.End.String(), fault.want) {
				x.t.Errorf("exit %+v: %s", e, e.End)
			}
			if name == "worker exited" && !slices.Equal(e.Stderr, []string{"rip"}) {
				x.t.Errorf("last lines %q", e.Stderr)
			}
			x.quiet()
			x.end()
		})
	}
	each(t, "bridge", func(x *trial) {
		if _, err := x.start(x.t.Context(), nil); err != nil {
			x.t.Fatal(err)
		}
		x.Drop()
		if e := <-x.l.Exited(); e.Rank != -1 || !strings.Contains(e.End.String(),
			"the bridge to Ray ended: ") {
			x.t.Errorf("exit %+v: %s", e, e.End)
		}
		x.quiet()
		x.end()
	})
	each(t, "group removed", func(x *trial) {
		if _, err := x.start(x.t.Context(), nil); err != nil {
			x.t.Fatal(err)
		}
		x.RemoveGroup(x.Groups()[0].ID)
		seen := map[int]bool{}
		for range x.world {
			e := <-x.l.Exited()
			seen[e.Rank] = true
			if !strings.Contains(e.End.String(), "placement group was removed") {
				x.t.Errorf("exit %+v: %s", e, e.End)
			}
		}
		if len(seen) != x.world {
			x.t.Errorf("exits of ranks %v", seen)
		}
		x.end()
	})
	each(t, "stop", func(x *trial) {
		if _, err := x.start(x.t.Context(), nil); err != nil {
			x.t.Fatal(err)
		}
		x.end()
		x.quiet()
	})
}

// quiet wants no further exit.
func (x *trial) quiet() {
	x.t.Helper()
	synctest.Wait()
	select {
	case e := <-x.l.Exited():
		x.t.Errorf("another exit: %+v", e)
	default:
	}
}

// TestNoAnswer has an actor that Ray never starts: the deadline of the phase ends the wait, and
// says whose fault it is.
func TestNoAnswer(t *testing.T) {
	each(t, "pending", func(x *trial) {
		x.HoldActor(x.world-1, true)
		begun := time.Now()
		_, err := x.start(x.t.Context(), nil)
		x.wants(err, "ray, phase identify: ", fmt.Sprintf("rank %d: ", x.world-1),
			"Pending: no answer", "GPU: 1 in bundle")
		if took := time.Since(begun); took < identifyTimeout-2*time.Second ||
			took > identifyTimeout+time.Second {
			x.t.Errorf("known after %v", took)
		}
		if line := fmt.Sprintf("%d     %d       -     0    failed: ", x.world-1,
			x.world-1); !strings.Contains(x.log.String(), line) {
			x.t.Errorf("%s\nno line of the rank in the table", &x.log)
		}
		x.end()
	})
}

// TestPlace waits for resources that others hold.
func TestPlace(t *testing.T) {
	hold := func(x *trial) string {
		return x.AddGroup("", ray.Group{Name: "theirs", Bundles: []ray.Bundle{
			{NodeID: "node1", Resources: map[string]float64{"GPU": 2}},
			{NodeID: "node2", Resources: map[string]float64{"GPU": 2}}}})
	}
	each(t, "deadline", func(x *trial) {
		theirs := hold(x)
		begun := time.Now()
		_, err := x.start(x.t.Context(),
			func(o *Options) { o.PlacementTimeout = 100 * time.Second })
		x.wants(err, "ray, phase place: no place after 1m40s (--ray-placement-timeout):",
			fmt.Sprintf("wanted: %s of {GPU: 1}; 0 of %d fit", count(x.world, "bundle"), x.world),
			"GPU 0 free of 2",
			"others hold what is missing")
		if took := time.Since(begun); took < 100*time.Second || took > 102*time.Second {
			x.t.Errorf("given up after %v", took)
		}
		for _, seconds := range []string{"seconds=10 ", "seconds=20 ", "seconds=40 ",
			"seconds=80 "} {
			if strings.Count(x.log.String(), seconds) != 1 {
				x.t.Errorf("%s\nnot one report with %s", &x.log, seconds)
			}
		}
		x.end(theirs)
	})
	each(t, "others end", func(x *trial) {
		// As with Ray, what they held is back only a second later.
		x.Settle = time.Second
		theirs := hold(x)
		time.AfterFunc(time.Minute, func() { x.RemoveGroup(theirs) })
		begun := time.Now()
		if _, err := x.start(x.t.Context(), nil); err != nil {
			x.t.Fatal(err)
		}
		if took := time.Since(begun); took < 61*time.Second || took > 62*time.Second {
			x.t.Errorf("placed after %v", took)
		}
		x.end()
	})
	each(t, "a node joins", func(x *trial) {
		theirs := hold(x)
		time.AfterFunc(5*time.Second, func() {
			x.AddNode(ray.Node{ID: "node3", IP: "10.0.0.3",
				Resources: map[string]float64{"GPU": 4}})
		})
		workers, err := x.start(x.t.Context(), nil)
		if err != nil || workers[0].Node != "10.0.0.3" {
			x.t.Errorf("workers %+v, %v", workers, err)
		}
		x.end(theirs)
	})
	each(t, "never", func(x *trial) {
		begun := time.Now()
		_, err := x.start(x.t.Context(), func(o *Options) { o.DeviceKey = "TPU" })
		x.wants(err, "the cluster can never hold the group",
			"missing: "+count(x.world, "bundle")+" of {TPU: 1}",
			"--ray-placement-timeout")
		if took := time.Since(begun); took > 3*time.Second {
			x.t.Errorf("known after %v", took)
		}
		x.end()
	})
	each(t, "resources of an older start", func(x *trial) {
		x.Settle = time.Second
		for range 2 {
			if _, err := x.start(x.t.Context(), nil); err != nil {
				x.t.Fatal(err)
			}
			if err := x.l.Stop(context.Background()); err != nil {
				x.t.Error(err)
			}
		}
		if strings.Contains(x.log.String(), "waiting for the placement group") {
			x.t.Errorf("%s\na shortage was reported that is none", &x.log)
		}
		x.end()
	})
	each(t, "adopted", func(x *trial) {
		var of []ray.Bundle
		for rank := range x.world {
			of = append(of, ray.Bundle{NodeID: fmt.Sprintf("node%d", 1+rank/2),
				Resources: map[string]float64{"GPU": 1}})
		}
		theirs := x.AddGroup("", ray.Group{Bundles: of})
		workers, err := x.start(x.t.Context(), func(o *Options) { o.PlacementGroup = theirs })
		if err != nil || len(workers) != x.world || len(x.Groups()) != 1 {
			x.t.Errorf("workers %+v, groups %+v, %v", workers, x.Groups(), err)
		}
		x.end(theirs)
		if len(x.Groups()) != 1 {
			x.t.Error("the adopted group was removed")
		}
	})
}
