package rayactor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

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
			started := time.Now()
			_, err := x.start(x.t.Context(), nil)
			if m.phase == "connect" {
				// Python may be silent while it joins: the phase has a deadline.
				x.wants(err, "ray, phase connect: not done after 2m0s")
			} else {
				x.wants(err, "ray, phase "+m.phase+": ", "silent for 1")
				if took := time.Since(started); took > 15*time.Second {
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
