// Package stepbench measures what everything but the model costs: an engine whose ranks answer
// plans at once with given tokens, without HTTP and through it.
package stepbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/queuebench"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// Options say what is measured.
type Options struct {
	// Config is that of the engine. What depends on Running is set.
	Config config.Config
	// Running is how many requests decode side by side.
	Running int
	// Steps is how many steps are measured.
	Steps int
	// StepTime is how long each keeps the ranks busy.
	StepTime time.Duration
}

// Report is what Run finds.
type Report struct {
	Running int `json:"running"`
	Steps   int `json:"steps"`
	// HostUS is how long a step keeps the step loop busy: it looks into the inbox, schedules,
	// encodes and sends; and once the result is there decodes and applies it, and hands the tokens
	// to the goroutine that turns them into text. Waiting is not in it.
	HostUS queuebench.Quantiles `json:"host_us"`
	// StepUS is from the result of one step to that of the next, with everything that the processes
	// did for it.
	StepUS queuebench.Quantiles `json:"step_us"`
	// GapUS is how long the output rank is not busy between two steps: from its tokens to the
	// beginning of the next plan, with the result's way out and the plan's way in.
	GapUS queuebench.Quantiles `json:"gap_us"`
	// FloorUS is the median round trip of bare futexes around the run; 0 when it was not measured.
	FloorUS float64 `json:"floor_us,omitempty"`
	// AllocsPerToken and CPUUSPerToken are those of the driver's process: loop, text, and one
	// goroutine per request that reads it.
	AllocsPerToken float64 `json:"allocs_per_token"`
	CPUUSPerToken  float64 `json:"cpu_us_per_token"`
	TokensPerS     float64 `json:"tokens_per_s"`

	// Driver and Ranks are the times of the measured steps, for a trace; Output is the rank that
	// answers.
	Output int                 `json:"-"`
	Driver []engine.StepTimes  `json:"-"`
	Ranks  [][]calls.StepTimes `json:"-"`
	// Layout is how the ranks are divided among stages, StepTime the least that a plan keeps one
	// busy.
	Layout   layout.Layout `json:"-"`
	StepTime time.Duration `json:"-"`
}

// computed are the times of every rank with Started when it began to compute: not before the stage
// before it was done with the plan.
func (r *Report) computed() [][]calls.StepTimes {
	handed := make([]map[uint64]int64, len(r.Ranks))
	all := make([][]calls.StepTimes, len(r.Ranks))
	for rank, list := range r.Ranks {
		all[rank], handed[rank] = slices.Clone(list), map[uint64]int64{}
		place := r.Layout.Place(rank)
		for i := range list {
			x := &all[rank][i]
			handed[rank][x.Plan] = x.Executed
			if place.PP > 0 {
				before := place
				before.PP--
				// The one before is back from sending later than what it sent is there.
				at := min(handed[r.Layout.Rank(before)][x.Plan],
					x.Executed-r.StepTime.Nanoseconds())
				x.Started = max(x.Started, at)
			}
		}
	}
	return all
}

const (
	promptLen = 24
	// warmup steps are not measured: memory is still growing then.
	warmup = 1000
)

// Run measures one engine. Errors name the flag at fault.
func Run(ctx context.Context, o Options) (*Report, error) {
	cfg := prepare(o)
	w := &window{steps: o.Steps, running: o.Running, full: make(chan struct{}),
		driver: make([]engine.StepTimes, 0, o.Steps)}
	e, _, err := engine.Open(ctx, engine.Options{Config: cfg, OnStep: w.step,
		Null: &open.Null{Text: Words, StepTime: o.StepTime}})
	if err != nil {
		return nil, err
	}
	r, err := measure(ctx, e, o, w)
	return r, errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
}

// prepare is the configuration for so many requests that run to the end.
func prepare(o Options) config.Config {
	c := o.Config
	c.Schedule.MaxNumSeqs = o.Running
	c.Schedule.MaxNumBatchedTokens = max(c.Schedule.MaxNumBatchedTokens, o.Running)
	c.Model.MaxModelLen = promptLen + warmup + 2*o.Steps
	if c.Cache.Blocks == 0 {
		c.Cache.Blocks = o.Running * (c.Model.MaxModelLen/c.Cache.BlockSize + 1)
	}
	return c
}

// Words is what ranks that compute nothing answer with.
const Words = " the of and to in is that for"

// measure runs the requests until the window is full.
func measure(ctx context.Context, e *engine.Engine, o Options, w *window) (*Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := e.RankTimes(ctx, 4*(warmup+o.Steps)); err != nil {
		return nil, err
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	rng := rand.New(rand.NewPCG(1, 2))
	for range o.Running {
		s, err := e.Submit(ctx, request(e.Info(), rng))
		if err != nil {
			cancel()
			return nil, err
		}
		readers.Go(func() {
			defer s.Close()
			for {
				if _, err := s.Next(ctx); err != nil {
					return
				}
			}
		})
	}
	select {
	case <-w.full:
	case <-e.Failed():
		return nil, e.Healthy(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ranks, err := e.RankTimes(ctx, 0)
	if err != nil {
		return nil, err
	}
	cancel()
	return w.report(o, ranks), nil
}

// request is one that decodes until it is given up.
func request(info *open.Info, rng *rand.Rand) *engine.Request {
	prompt := make([]int32, promptLen)
	for i := range prompt {
		prompt[i] = int32(rng.IntN(info.VocabSize))
	}
	return engine.NewRequest(prompt, sample.Params{TopP: 1, RepetitionPenalty: 1,
		MaxTokens: int32(info.MaxModelLen), IgnoreEOS: true, EOS: -1,
		Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs})
}

// window collects the steps after the first ones, when all requests decode. Its methods are called
// by the step loop.
type window struct {
	steps, running int
	seen, tokens   int
	driver         []engine.StepTimes
	before, after  usage
	full           chan struct{}
}

// usage is what this process has used so far.
type usage struct {
	at      time.Time
	cpu     time.Duration
	mallocs uint64
}

func used() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it cannot fail for this process
	return usage{time.Now(), time.Duration(r.Utime.Nano() + r.Stime.Nano()), m.Mallocs}
}

func (w *window) step(t engine.StepTimes) {
	w.seen++
	switch {
	case w.seen == warmup:
		w.before = used()
	case w.seen > warmup && len(w.driver) < w.steps:
		w.driver = append(w.driver, t)
		w.tokens += t.Sampled
		if len(w.driver) == w.steps {
			w.after = used()
			close(w.full)
		}
	}
}

func (w *window) report(o Options, ranks [][]calls.StepTimes) *Report {
	r := &Report{Running: w.running, Steps: len(w.driver), Driver: w.driver, Ranks: ranks,
		StepTime: o.StepTime, Layout: o.Config.Parallel.Layout(),
		Output: o.Config.Parallel.Layout().Output()}
	var host, between, gaps []time.Duration
	for i := range w.driver {
		host = append(host, w.driver[i].Host())
		if i > 0 {
			between = append(between, w.driver[i].Arrived.Sub(w.driver[i-1].Arrived))
		}
	}
	first, last := w.driver[0].Plan, w.driver[len(w.driver)-1].Plan
	rank := ranks[r.Output]
	for i := 1; i < len(rank); i++ {
		if t := &rank[i]; t.Plan > first && t.Plan <= last {
			gaps = append(gaps, time.Duration(t.Started-rank[i-1].Executed))
		}
	}
	r.HostUS, r.StepUS, r.GapUS = queuebench.QuantilesOf(host), queuebench.QuantilesOf(between),
		queuebench.QuantilesOf(gaps)
	tokens := float64(w.tokens)
	r.AllocsPerToken = float64(w.after.mallocs-w.before.mallocs) / tokens
	r.CPUUSPerToken = float64((w.after.cpu - w.before.cpu).Nanoseconds()) / 1e3 / tokens
	r.TokensPerS = tokens / w.after.at.Sub(w.before.at).Seconds()
	return r
}

// String is a line of a table with Header.
func (r *Report) String() string {
	return fmt.Sprintf("%8d %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %7.1f %10.4f %9.2f %11.0f",
		r.Running, r.HostUS.P50, r.HostUS.P99, r.StepUS.P50, r.StepUS.P99, r.GapUS.P50, r.GapUS.P99,
		r.FloorUS, r.AllocsPerToken, r.CPUUSPerToken, r.TokensPerS)
}

// Header are the names of the columns.
var Header = fmt.Sprintf("%8s %9s %9s %9s %9s %9s %9s %7s %10s %9s %11s", "running",
	"host p50", "p99", "step p50", "p99", "gap p50", "p99", "floor", "allocs/tok",
	"CPU us/tok", "tokens/s")
