// Package fleetbench measures what one driver does with many ranks that only talk: they take their
// configuration, plans and calls, and answer as ranks do, but have no model. Everything between is
// the real thing: package executor, its verdict, package fanin, rings and links.
//
// Ranks are goroutines of this process, on links over memory that delays bytes as a network does,
// or processes of this host, as mp starts them.
package fleetbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/queuebench"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
)

// Options say what is measured.
type Options struct {
	// Ranks are the sizes of the groups.
	Ranks []int
	// MaxProcesses is the largest group that is measured with processes too, at most MaxProcesses.
	MaxProcesses int
	// Rounds is how often each group is started, and loses a rank; Steps how many steps and calls
	// it then makes in each.
	Rounds, Steps int
	// Running is the number of decoding requests in each step.
	Running int
	// Pause is between two steps, and between a step and a call: time in which links say what they
	// have received, as they have it between steps that compute.
	Pause time.Duration
	// Latency is how long bytes take between the driver and a goroutine; 0 is what this host's
	// loopback takes, measured.
	Latency time.Duration
	// Progress is told what is measured next; nil is not called.
	Progress func(kind string, ranks int)
}

// The limits of Options.
const (
	// MaxRanks is the largest group, MaxProcesses that of processes.
	MaxRanks     = 4096
	MaxProcesses = 64
)

// The kinds of ranks.
const (
	Goroutines = "goroutines"
	Processes  = "processes"
)

// Report is the result of Run.
type Report struct {
	// LatencyUS is how long bytes take to a goroutine, in microseconds.
	LatencyUS float64 `json:"latency_us"`
	Running   int     `json:"running"`
	// Groups are the figures by kind and size, Growth how they grow with it.
	Groups []Group  `json:"groups"`
	Growth []Growth `json:"growth"`
}

// Group is the figures of a group of ranks.
type Group struct {
	Kind  string `json:"kind"`
	Ranks int    `json:"ranks"`
	// Start is from the beginning until every rank is ready.
	Start queuebench.Quantiles `json:"start_us"`
	// Broadcast is from before a plan is encoded until the last rank has it, Step until its result
	// is here, which one rank sends.
	Broadcast queuebench.Quantiles `json:"broadcast_us"`
	Step      queuebench.Quantiles `json:"step_us"`
	// RPC is a collective call, Collect its later part: from when the last rank has the call until
	// the answers of all are here.
	RPC     queuebench.Quantiles `json:"rpc_us"`
	Collect queuebench.Quantiles `json:"collect_us"`
	// Death is from the end of a rank until the driver's owner is told that the group has failed.
	Death queuebench.Quantiles `json:"death_us"`
}

// Figures are the names of what is measured, in the order of a table.
func Figures() []string { return []string{"start", "broadcast", "collect", "rpc", "step", "death"} }

// Figure returns one by its name.
func (g *Group) Figure(name string) queuebench.Quantiles {
	return map[string]queuebench.Quantiles{"start": g.Start, "broadcast": g.Broadcast,
		"collect": g.Collect, "rpc": g.RPC, "step": g.Step, "death": g.Death}[name]
}

// samples are the durations of one group, all rounds together.
type samples struct{ start, broadcast, step, rpc, collect, death []time.Duration }

func (s *samples) group(kind string, ranks int) Group {
	return Group{Kind: kind, Ranks: ranks, Start: queuebench.QuantilesOf(s.start),
		Broadcast: queuebench.QuantilesOf(s.broadcast), Step: queuebench.QuantilesOf(s.step),
		RPC: queuebench.QuantilesOf(s.rpc), Collect: queuebench.QuantilesOf(s.collect),
		Death: queuebench.QuantilesOf(s.death)}
}

// Run measures every group.
func Run(ctx context.Context, o Options) (Report, error) {
	r := Report{Running: o.Running}
	if o.Latency == 0 {
		var err error
		if o.Latency, err = loopback(); err != nil {
			return r, fmt.Errorf("latency of the loopback: %w", err)
		}
	}
	r.LatencyUS = float64(o.Latency.Nanoseconds()) / 1e3
	for _, kind := range []string{Goroutines, Processes} {
		for _, n := range slices.Sorted(slices.Values(o.Ranks)) {
			if kind == Processes && n > o.MaxProcesses {
				continue
			}
			if o.Progress != nil {
				o.Progress(kind, n)
			}
			var s samples
			for round := range o.Rounds {
				if err := s.round(ctx, o, kind, n, round); err != nil {
					return r, fmt.Errorf("%d %s: %w", n, kind, err)
				}
			}
			r.Groups = append(r.Groups, s.group(kind, n))
		}
	}
	r.Growth = growth(r.Groups)
	return r, nil
}

// fleet is a launcher that can end a rank without a word.
type fleet interface {
	executor.Launcher
	kill(rank int) error
}

// round starts a group, uses it, takes a rank from it, and ends it.
func (s *samples) round(ctx context.Context, o Options, kind string, n, round int) (err error) {
	var f fleet = newGoroutines(o.Latency)
	if kind == Processes {
		f = newProcesses()
	}
	began := now()
	e, err := executor.Start(ctx, executor.Options{Launcher: f, InProcess: kind == Goroutines,
		Init: queue.Init{Layout: shape(n)}})
	if err != nil {
		return err
	}
	s.start = append(s.start, now()-began)
	defer func() {
		if e := e.Shutdown(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	if err := s.use(ctx, e, o); err != nil {
		return err
	}
	failed := make(chan time.Duration, 1)
	e.OnFailure(func(*executor.Failure) { failed <- now() })
	killed := now()
	if err := f.kill((round*7 + n/2) % n); err != nil {
		return err
	}
	select {
	case at := <-failed:
		s.death = append(s.death, at-killed)
	case <-time.After(deathTimeout):
		return errors.New("the end of a rank goes unnoticed")
	}
	return nil
}

// deathTimeout bounds the notice of a death, which takes milliseconds.
const deathTimeout = 30 * time.Second

// shape is a layout of n ranks: stages of eight that divide each layer, if it comes out even. Ranks
// that are processes meet those of their stage, and those of their place in the others.
func shape(n int) layout.Layout {
	const stage = 8
	if n%stage == 0 {
		return layout.Layout{TP: stage, PP: n / stage}
	}
	return layout.Layout{PP: n}
}

// warmup is how many steps and calls a group makes before those that count.
const warmup = 5

// use makes steps, and after each a call that asks when the ranks had it.
func (s *samples) use(ctx context.Context, e *executor.Executor, o Options) error {
	plan := queuebench.SteadyPlan(o.Running)
	for i := range warmup + o.Steps {
		plan.ID = uint64(i + 1)
		began := now()
		future, err := e.Execute(&plan)
		if err != nil {
			return err
		}
		if _, err := future.Wait(); err != nil {
			return err
		}
		answered := now()
		time.Sleep(o.Pause)
		called := now()
		replies, err := e.CollectiveRPC(ctx, whenMethod, nil, executor.RPCOptions{})
		if err != nil {
			return err
		}
		collected := now()
		time.Sleep(o.Pause)
		last, err := latest(replies)
		if err != nil {
			return err
		}
		if i < warmup {
			continue
		}
		s.broadcast = append(s.broadcast, last.plan-began)
		s.step = append(s.step, answered-began)
		s.rpc = append(s.rpc, collected-called)
		s.collect = append(s.collect, collected-last.call)
	}
	return nil
}

// latest is when the last rank had the plan, and when the last one had the call.
func latest(replies [][]byte) (t times, err error) {
	for _, b := range replies {
		one, err := parseTimes(b)
		if err != nil {
			return t, err
		}
		t.plan, t.call = max(t.plan, one.plan), max(t.call, one.call)
	}
	return t, nil
}
