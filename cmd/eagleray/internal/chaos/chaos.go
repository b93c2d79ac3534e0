// Package chaos runs a server under load, injects faults into its processes, and counts what its
// clients notice: requests that were lost or answered with something else than undisturbed, pauses,
// and moments in which the health route did not tell the truth.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Options describe a run.
type Options struct {
	// Program and Args start the server; flags that the run needs are added.
	Program string
	Args    []string
	// RayPython is the Python of a Ray installation: the server's ranks are on a cluster of up to
	// four nodes that is started with it. "" is no such cluster.
	RayPython string
	// Faults are the kinds to inject, by turns; see Kinds.
	Faults []string
	// The injection ends after Duration, or after Count faults if that is positive.
	Duration time.Duration
	Count    int
	// Streams is how many clients ask at the same time, Prompts how many different requests there
	// are, Tokens the length of each output.
	Streams, Prompts, Tokens int
	// Pause is the longest time between the recovery from a fault and the next one.
	Pause time.Duration
	// Seed drives prompts, faults and moments.
	Seed uint64
	// Output receives the server's log; nil is nowhere. Progress is called after each fault.
	Output   io.Writer
	Progress func(done int)
}

// Report is what came of a run.
type Report struct {
	Seconds float64 `json:"seconds"`
	Seed    uint64  `json:"seed"`
	// Asked counts requests: each was answered with what an undisturbed server answers, or is Lost
	// (an error, or an end too early), Duplicated (tokens twice) or Different.
	Asked      int `json:"asked"`
	Answered   int `json:"answered"`
	Lost       int `json:"lost"`
	Duplicated int `json:"duplicated"`
	Different  int `json:"different"`
	// Refused counts requests that a server which ended did not take: they were asked again, of the
	// next.
	Refused int `json:"refused"`
	// Tokens is the number of tokens of all answers.
	Tokens int    `json:"tokens"`
	Kinds  []Kind `json:"kinds"`
	Health Health `json:"health"`
	// RecoveryMS are the times from the server's knowledge of a failure to its new workers.
	RecoveryMS Percentiles `json:"recovery_ms"`
	// Trouble are the first causes of what was lost or different.
	Trouble []string `json:"trouble,omitempty"`
	// Timeline counts the tokens of each tenth of a second; Marks are the faults.
	Timeline []int  `json:"timeline"`
	Marks    []Mark `json:"marks"`
	// Client is what the first client received.
	Client []Event `json:"client"`
}

// Kind is the faults of one kind.
type Kind struct {
	Name     string `json:"name"`
	Injected int    `json:"injected"`
	// Lost and Different count the answers that went wrong after such a fault and before the next
	// one; duplicated tokens are different ones.
	Lost      int `json:"lost"`
	Different int `json:"different"`
	// RecoveryMS are the times from the server's knowledge of a failure to its new workers.
	RecoveryMS Percentiles `json:"recovery_ms"`
	// PauseMS are the longest pauses of a client's stream after each fault.
	PauseMS Percentiles `json:"pause_ms"`
}

// Mark is a fault on the time line.
type Mark struct {
	Seconds float64 `json:"seconds"`
	Name    string  `json:"name"`
}

// Health counts how often the health route and a request for one token were asked together, and
// how often they disagreed.
type Health struct {
	Asked        int      `json:"asked"`
	Unhealthy    int      `json:"unhealthy"`
	Disagreed    int      `json:"disagreed"`
	Disagreement []string `json:"disagreement,omitempty"`
}

// Percentiles of a number of values.
type Percentiles struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func percentiles(values []time.Duration) Percentiles {
	if len(values) == 0 {
		return Percentiles{}
	}
	slices.Sort(values)
	at := func(q float64) float64 {
		i := min(len(values)-1, int(q*float64(len(values))))
		return float64(values[i].Microseconds()) / 1000
	}
	return Percentiles{N: len(values), P50: at(0.5), P99: at(0.99), Max: at(1)}
}

// Run starts a server, asks every request once, and then disturbs it.
func Run(ctx context.Context, o Options) (*Report, error) {
	for _, name := range o.Faults {
		if faults[name].do == nil {
			return nil, fmt.Errorf("no fault %q (there are %v)", name, Kinds())
		}
		if how := Missing(name, o); how != "" {
			return nil, fmt.Errorf("%s needs %s", name, how)
		}
	}
	f, err := newFolder(&o)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(&o)
	if err != nil {
		return nil, errors.Join(err, f.remove())
	}
	s := newServer(o, c, f)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, c.stop(), f.remove())
	}
	r, err := run(ctx, o, s)
	return r, errors.Join(err, s.stop(), c.stop(), f.remove())
}

func run(ctx context.Context, o Options, s *server) (*Report, error) {
	l := newLoad(o, s)
	if err := l.reference(ctx); err != nil {
		return nil, fmt.Errorf("undisturbed: %w", err)
	}
	loaded, unload := context.WithCancel(ctx)
	defer unload()
	l.begin()
	var clients sync.WaitGroup
	for i := range o.Streams {
		clients.Go(func() { l.client(loaded, i, rand.New(rand.NewPCG(o.Seed, uint64(i)))) })
	}
	asked := &oracle{s: s, l: l, rng: rand.New(rand.NewPCG(o.Seed, 1<<32))}
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	clients.Go(func() { asked.run(watching) })
	err := inject(ctx, o, &victim{s: s, l: l, asked: asked})
	unwatch()
	unload() // clients finish what they have asked
	clients.Wait()
	if err != nil {
		return nil, err
	}
	report := l.report(s.recoveries())
	report.Seed, report.Health = o.Seed, asked.h
	return report, nil
}

// inject injects the faults, each when the server has recovered from the one before.
func inject(ctx context.Context, o Options, v *victim) error {
	rng := rand.New(rand.NewPCG(o.Seed, 2<<32))
	v.ctx, v.rng = ctx, rng
	for n := 0; ctx.Err() == nil; n++ {
		if o.Count > 0 && n == o.Count || o.Count == 0 && time.Since(v.l.started) > o.Duration {
			return nil
		}
		if err := v.s.calm(ctx, v.l); err != nil {
			return err
		}
		time.Sleep(time.Duration(rng.Int64N(int64(o.Pause) + 1)))
		name := o.Faults[n%len(o.Faults)]
		v.l.mark(name)
		if err := faults[name].do(v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if o.Progress != nil {
			o.Progress(n + 1)
		}
	}
	return ctx.Err()
}
