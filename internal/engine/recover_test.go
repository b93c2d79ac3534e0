package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// received is all that a client gets of a request.
type received struct {
	text     string
	tokens   []int32
	logprobs []step.Logprobs
	finish   sample.Finish
	err      error
}

func (a *received) add(d engine.Delta) {
	a.text += string(d.Text)
	a.tokens = append(a.tokens, d.Tokens...)
	for _, l := range d.Logprobs {
		l.Slot, l.Top = 0, slices.Clone(l.Top) // the slot is whichever was free
		a.logprobs = append(a.logprobs, l)
	}
	a.finish = d.Finish
}

// deltas are those of a stream to its end.
func deltas(t testing.TB, s engine.Stream) iter.Seq[engine.Delta] {
	return func(yield func(engine.Delta) bool) {
		for {
			d, err := s.Next(t.Context())
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !yield(d) {
				return
			}
		}
	}
}

// collect reads a stream to its end; seen is told of each delta.
func collect(t *testing.T, s engine.Stream, seen func(tokens int)) (a received) {
	defer s.Close()
	for {
		d, err := s.Next(t.Context())
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.err = err
			}
			return a
		}
		a.add(d)
		seen(len(a.tokens))
	}
}

// sampled are requests with all that a rank keeps of one: seeds, penalties, log-probabilities,
// constraints.
func sampled(e *engine.Engine, n int) []*engine.Request {
	var list []*engine.Request
	for i := range n {
		r := greedy(e, fmt.Sprintf("What does strings.%c do?", 'A'+i), 40)
		r.Params.Temperature, r.Params.Seed = 0.9, uint64(1000+i)
		r.Params.MinTokens = 30
		if i%2 == 0 {
			r.Params.Logprobs = 3
			r.Params.FrequencyPenalty, r.Params.RepetitionPenalty = 0.4, 1.2
		}
		if i%3 == 1 {
			r.Constraint = constrain.Spec{Kind: constrain.Regex,
				Text: "(yes|no)( or (yes|no)){7,9}"}
		}
		list = append(list, r)
	}
	return list
}

// receiveAll submits the requests one by one and reads all streams to their ends.
func receiveAll(t *testing.T, e *engine.Engine, list []*engine.Request,
	seen func(tokens int)) []received {
	t.Helper()
	all := make([]received, len(list))
	var reading sync.WaitGroup
	for i, r := range list {
		s, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() { all[i] = collect(t, s, seen) })
	}
	reading.Wait()
	return all
}

func same(t *testing.T, what string, got, want []received) {
	t.Helper()
	for i := range want {
		if got[i].err != nil {
			t.Errorf("%s, request %d: %v", what, i, got[i].err)
		} else if fmt.Sprint(got[i]) != fmt.Sprint(want[i]) {
			t.Errorf("%s, request %d:\n%v\nwanted\n%v", what, i, got[i], want[i])
		}
	}
}

// TestRecovery kills, stops and breaks ranks under requests that sample: each stream goes on with
// the very tokens, text and log-probabilities that it would have had.
func TestRecovery(t *testing.T) {
	var want []received // of any layout
	for _, c := range []struct {
		name string
		tp   int
		set  func(*config.Config)
	}{
		{"tp 1", 1, func(c *config.Config) {}},
		{"tp 2, few blocks", 2, func(c *config.Config) {
			c.Cache.Blocks, c.Model.MaxModelLen = 24,
				128
		}},
		{"tp 2, one plan at a time", 2, func(c *config.Config) { c.Schedule.Async = false }},
		{"tp 2, two stages, a draft model", 2, func(c *config.Config) {
			c.Parallel.PipelineParallelSize = 2
			c.Speculative = config.Speculative{Method: config.DraftModel, Tokens: 6,
				Model: builtin.Name}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := openEngine(t, func(o *config.Config) {
				p := &o.Parallel
				p.Backend, p.TensorParallelSize, p.CPUThreads = "mp", c.tp, 1
				c.set(o)
			})
			list := sampled(e, 6)
			if want == nil {
				want = receiveAll(t, e, list, func(int) {})
			}
			rng := rand.New(rand.NewPCG(uint64(c.tp), 5))
			rounds := 4
			if testing.Short() {
				rounds = 2
			}
			for round := range rounds {
				at := 1 + rng.IntN(25)
				var once sync.Once
				got := receiveAll(t, e, list, func(tokens int) {
					if tokens < at {
						return
					}
					once.Do(func() {
						report := e.Report()
						p, err := os.FindProcess(report[rng.IntN(len(report))].PID)
						if err == nil {
							err = p.Kill()
						}
						if err != nil {
							t.Error(err)
						}
					})
				})
				same(t, fmt.Sprintf("round %d, killed after %d tokens", round, at), got, want)
			}
			if err := e.Healthy(t.Context()); err != nil {
				t.Error(err)
			}
			if n := e.Totals(); n.DraftTokens > 0 && n.AcceptedTokens == 0 {
				t.Errorf("none of %d guesses was right", n.DraftTokens)
			}
		})
	}
}

// TestRestartsRunOut ends the engine with all causes when more ranks die than are allowed, and at
// the first when none may.
func TestRestartsRunOut(t *testing.T) {
	for allowed := range 3 {
		e := openEngine(t, func(o *config.Config) {
			o.Parallel.Backend = "mp"
			o.Recovery.MaxRestarts = allowed
		})
		for range allowed + 1 {
			receiveAll(t, e, sampled(e, 1), func(int) {}) // the group has finished a step
			p, err := os.FindProcess(e.Report()[0].PID)
			if err == nil {
				err = p.Kill()
			}
			if err != nil {
				t.Fatal(err)
			}
			for e.Healthy(t.Context()) == nil {
				time.Sleep(time.Millisecond)
			}
			for errors.Is(e.Healthy(t.Context()), engine.ErrRecovering) {
				time.Sleep(time.Millisecond)
			}
		}
		<-e.Failed()
		err := e.Healthy(t.Context())
		if n := strings.Count(fmt.Sprint(err), "signal: killed"); n != allowed+1 {
			t.Errorf("%d restarts allowed: %d causes in %v", allowed, n, err)
		}
	}
}

// TestStopWhileRecovering ends an engine whose ranks cannot be started again, without waiting for
// them.
func TestStopWhileRecovering(t *testing.T) {
	e := openEngine(t, func(o *config.Config) { o.Parallel.Backend = "mp" })
	s, err := e.Submit(t.Context(), sampled(e, 1)...)
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(e.Report()[0].PID)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = e.Stop(ctx)
	if a := collect(t, s, func(int) {}); a.err == nil && a.finish == sample.Unfinished {
		t.Errorf("the request ended with %+v", a)
	}
}
