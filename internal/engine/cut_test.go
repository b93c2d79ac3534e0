package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// detour is a launcher whose rank 1 reaches the driver through a cable of its own in each group.
type detour struct {
	executor.Launcher
	t     *testing.T
	cable *cable
}

func (d *detour) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	d.cable = newCable(d.t, specs[1].Invitation.Endpoint.TCP)
	specs[1].Invitation.Endpoint.TCP = d.cable.l.Addr().String()
	return d.Launcher.Launch(ctx, specs)
}

// cable forwards TCP connections until it is cut.
type cable struct {
	l       net.Listener
	running sync.WaitGroup
	mu      sync.Mutex
	ends    []io.Closer
}

func newCable(t *testing.T, target string) *cable {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{l: l}
	c.running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.ends = append(c.ends, in, out)
			c.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				c.running.Go(func() {
					// How it ends is of no interest: both ends are closed.
					_, _ = io.Copy(way[0], way[1])
					in.Close()
					out.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		c.cut()
		c.running.Wait()
	})
	return c
}

func (c *cable) cut() {
	c.l.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.ends {
		end.Close()
	}
}

// TestCutKeepsTheCache cuts the connection of a rank for longer than it may be resumed: every rank
// stays, and requests go on from the prefix cache.
func TestCutKeepsTheCache(t *testing.T) {
	var mu sync.Mutex
	var back []status.GroupRecovered
	c := config.Default()
	c.Cache.MemoryBytes, c.Parallel.TensorParallelSize, c.Parallel.Backend = 64<<20, 2, "mp"
	c.Queue.Transport, c.Parallel.CPUThreads = "link", 1
	e, m, err := Open(t.Context(), Options{Config: c, Events: func(event status.Event) {
		if r, ok := event.(status.GroupRecovered); ok {
			mu.Lock()
			back = append(back, r)
			mu.Unlock()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	// The first group is replaced by one that can be cut.
	var d *detour // guarded by mu
	options := e.ranks.Options
	e.ranks.Options = func(ctx context.Context, kept executor.Launcher) (executor.Options, error) {
		mu.Lock()
		if d != nil && kept == d {
			kept = d.Launcher
		}
		mu.Unlock()
		o, err := options(ctx, kept)
		mu.Lock()
		defer mu.Unlock()
		d = &detour{Launcher: o.Launcher, t: t}
		o.Launcher = d
		return o, err
	}
	prompt := make([]int32, 200)
	for i := range prompt {
		prompt[i] = int32(100 + i%50)
	}
	// generate reads a stream; at is called once there are so many tokens.
	generate := func(after int, at func()) (tokens []int32) {
		t.Helper()
		s, err := e.Submit(t.Context(), NewRequest(prompt, sample.Params{TopP: 1,
			RepetitionPenalty: 1,
			Logprobs:          sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs, MaxTokens: 60,
			EOS: -1}))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for {
			delta, err := s.Next(t.Context())
			if errors.Is(err, io.EOF) {
				return tokens
			}
			if err != nil {
				t.Fatal(err)
			}
			if tokens = append(tokens, delta.Tokens...); at != nil && len(tokens) >= after {
				at()
				at = nil
			}
		}
	}
	want := generate(0, nil)
	kill(t, e.ranks.Report()[0].PID)
	if got := generate(0, nil); !slices.Equal(got, want) {
		t.Errorf("after a kill: %v, wanted %v", got, want)
	}
	before, hits := e.ranks.Report(), counter(t, m, "eagleray:prefix_cache_hits_total")
	if got := generate(20, func() {
		mu.Lock()
		cable := d.cable
		mu.Unlock()
		cable.cut()
	}); !slices.Equal(got, want) {
		t.Errorf("after a cut: %v, wanted %v", got, want)
	}
	for rank, r := range e.ranks.Report() {
		if r.PID != before[rank].PID {
			t.Errorf("rank %d is another process", rank)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(back) != 2 || back[0].Reused != 1 || back[0].CacheKept || back[1].Reused != 2 ||
		!back[1].CacheKept {
		t.Errorf("recoveries %+v", back)
	}
	// The blocks of another request that ran before stay too.
	generate(0, nil)
	if more := counter(t, m, "eagleray:prefix_cache_hits_total") - hits; more < 2*192 {
		t.Errorf("%v tokens were found in the prefix cache", more)
	}
}
