package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// openTight is an engine on ranks of one thread, with a small cache. The counter is of preemptions.
func openTight(
	t *testing.T, backend string, l layout.Layout, async bool, more ...func(*config.Config),
) (*engine.Engine, *atomic.Int64) {
	t.Helper()
	c := config.Default()
	c.Schedule.Async = async
	c.Recovery.OnFailure = "exit"
	l = l.Sizes()
	c.Parallel.Backend, c.Parallel.CPUThreads = backend, 1
	c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = l.TP, l.PP
	c.Model.MaxModelLen = 128
	c.Cache.MemoryBytes, c.Cache.Blocks = 0, 10
	c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 24, 12
	for _, f := range more {
		f(&c)
	}
	preempted := new(atomic.Int64)
	listen := func(e status.Event) {
		if p, ok := e.(status.Preempted); ok {
			preempted.Add(int64(p.Requests))
		}
	}
	e, _, err := engine.Open(t.Context(), engine.Options{Config: c, Events: listen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e, preempted
}

// mixed are requests that end in every way: at end of sequence, stop tokens, stop strings, and
// lengths; some sampled, some with log-probabilities of output and prompt.
func mixed(e *engine.Engine) []*engine.Request {
	questions := []string{
		question, "What does time.Time.UTC do?", "What is the signature of strings.Index?",
		"What does os.Open do?",
	}
	var all []*engine.Request
	for i := range 16 {
		r := greedy(e, questions[i%len(questions)], 1+int32(7*i%60))
		r.Params.IgnoreEOS = i%4 < 2
		switch i % 4 {
		case 0:
			r.Params.StopTokens = nil
		case 1:
			r.Params.Temperature, r.Params.Seed, r.Params.StopTokens = 0.9, uint64(i), []int32{13,
				198}
			r.Params.FrequencyPenalty = 0.5
		case 2:
			r.Stop = []string{"index", "the"}
			r.Params.MinTokens = min(4, r.Params.MaxTokens-1)
		case 3:
			r.Params.Logprobs, r.Params.PromptLogprobs = 2, 1
		}
		all = append(all, r)
	}
	return all
}

// record spells all that a client gets of a request.
func record(ctx context.Context, s engine.Stream) (string, error) {
	var out, logprobs, text string
	for {
		d, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out + logprobs + text, nil
		}
		if err != nil {
			return out, err
		}
		// What is merged into a delta depends on the reader.
		for i, token := range d.Tokens {
			out += fmt.Sprintf("%d@%d ", token, d.TextOffsets[i])
		}
		for _, l := range append(slices.Clone(d.PromptLogprobs), d.Logprobs...) {
			logprobs += fmt.Sprintf("%d:%x ", l.Sampled.Token, math.Float32bits(l.Sampled.Logprob))
			for _, x := range l.Top {
				logprobs += fmt.Sprintf("/%d:%x ", x.Token, math.Float32bits(x.Logprob))
			}
		}
		text += string(d.Text)
		if d.Finish != sample.Unfinished {
			text += fmt.Sprintf("\n%v by %q %d, %d tokens",
				d.Finish, d.StopString, d.StopToken, d.OutputTokens)
		}
	}
}

// TestOverlappedLoop wants the same of an engine that sends plans before it knows the results of
// those before as of one that does not: with requests side by side in a cache so small that they
// are preempted, cut prompts, and aborts.
func TestOverlappedLoop(t *testing.T) {
	var want []string
	for _, c := range []struct {
		backend string
		layout  layout.Layout
		async   bool
	}{
		{"uni", layout.Layout{}, false}, {"uni", layout.Layout{}, true},
		{"uni", layout.Layout{TP: 2}, true}, {"mp", layout.Layout{TP: 2}, true},
		{"mp", layout.Layout{PP: 2}, false}, {"mp", layout.Layout{PP: 2}, true},
		{"uni", layout.Layout{PP: 4}, true}, {"mp", layout.Layout{TP: 2, PP: 2}, false},
		{"mp", layout.Layout{TP: 2, PP: 4}, true}, {"link", layout.Layout{TP: 2, PP: 2}, true},
	} {
		t.Run(fmt.Sprintf("%s/%v/%v", c.backend, c.layout, c.async), func(t *testing.T) {
			part := c.backend == "mp" && c.layout.World() == 2 && (c.layout.PP < 2 || !c.async)
			if testing.Short() && (c.layout.PP == 4 || part) {
				t.Skip("eight processes and four stages, and a part of others, without -short")
			}
			change := func(cfg *config.Config) {
				if c.backend == "link" {
					cfg.Parallel.Backend, cfg.Queue.Transport = "mp", "link"
				}
			}
			e, preempted := openTight(t, c.backend, c.layout, c.async, change)
			got := runAll(t, e)
			if preempted.Load() == 0 {
				t.Error("no request was preempted")
			}
			if want == nil {
				want = got
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("request %d gives\n%s\nwith one plan in flight it gives\n%s", i,
						got[i], want[i])
				}
			}
		})
	}
}

// runAll submits all requests at once, and beside them some that are given up after their first
// token.
func runAll(t *testing.T, e *engine.Engine) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	submit := func(r *engine.Request) engine.Stream {
		s, err := e.Submit(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var streams []engine.Stream
	for i, r := range mixed(e) {
		streams = append(streams, submit(r))
		if i%3 == 0 {
			given := submit(greedy(e, question, 50))
			go func() {
				given.Next(ctx)
				given.Close()
			}()
		}
	}
	var all []string
	for _, s := range streams {
		got, err := record(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got)
		s.Close()
	}
	return all
}

// TestDeathWithPlansInFlight kills a rank of each stage while plans are in flight: the request
// fails with the cause.
func TestDeathWithPlansInFlight(t *testing.T) {
	stages := layout.Layout{TP: 2, PP: 2}
	for _, c := range []struct {
		layout layout.Layout
		rank   int
	}{{layout.Layout{TP: 2}, 1}, {stages, 1}, {stages, 2}, {layout.Layout{PP: 3}, 1}} {
		t.Run(fmt.Sprintf("%v/%d", c.layout, c.rank), func(t *testing.T) {
			e, _ := openTight(t, "mp", c.layout, true, long)
			err := afterToken(t, e, func() error {
				p, err := os.FindProcess(e.Info().Ranks[c.rank].PID)
				if err != nil {
					return err
				}
				return p.Kill()
			})
			if !errors.Is(err, engine.ErrFailed) ||
				!strings.Contains(err.Error(), fmt.Sprintf("rank %d on", c.rank)) ||
				!strings.Contains(err.Error(), "killed") {
				t.Errorf("error %v, want the end of rank %d", err, c.rank)
			}
		})
	}
}

// TestStoppedStage stops the process of a middle stage: those before and after it wait, and it is
// to blame.
func TestStoppedStage(t *testing.T) {
	t.Parallel()
	e, _ := openTight(t, "mp", layout.Layout{PP: 3}, true, long, func(c *config.Config) {
		c.Queue.StepTimeout = 2 * time.Second
	})
	pid := e.Info().Ranks[1].PID
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if place := "--rank\x001\x00--place\x00PP1\x00"; err != nil ||
		!strings.HasSuffix(string(arguments), place) {
		t.Errorf("a rank's arguments are %q, %v", arguments, err)
	}
	err = afterToken(t, e, func() error { return syscall.Kill(pid, syscall.SIGSTOP) })
	if !errors.Is(err, engine.ErrFailed) || !strings.Contains(err.Error(), "rank 1 on") ||
		!strings.Contains(err.Error(), "its process is stopped") {
		t.Errorf("error %v, want rank 1 to be stopped", err)
	}
}

// long leaves room for an output that no test waits for.
func long(c *config.Config) { c.Model.MaxModelLen, c.Cache.Blocks = 2048, 200 }

// afterToken does something to an engine that has sent the first token of a long output, and
// returns the error that the request ends with.
func afterToken(t *testing.T, e *engine.Engine, do func() error) error {
	t.Helper()
	r := greedy(e, question, 1900)
	r.Params.IgnoreEOS, r.Params.StopTokens = true, nil
	s, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Next(t.Context())
	}
	return err
}

// TestTotalsWhileNothingMoves stops the only rank: the request in its step runs, the next one
// waits.
func TestTotalsWhileNothingMoves(t *testing.T) {
	e, _ := openTight(t, "mp", layout.Layout{}, false)
	pid := e.Info().Ranks[0].PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	for i, want := range []engine.Totals{{Running: 1}, {Running: 1, Waiting: 1}} {
		s, err := e.Submit(t.Context(), greedy(e, question, 1))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		deadline := time.Now().Add(10 * time.Second)
		for got := e.Totals(); got.Running != want.Running || got.Waiting != want.Waiting; {
			if time.Now().After(deadline) {
				t.Fatalf("after request %d: %+v", i, got)
			}
			time.Sleep(time.Millisecond)
			got = e.Totals()
		}
	}
}
