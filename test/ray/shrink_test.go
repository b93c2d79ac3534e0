package ray_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestShrink takes a node from engines that may shrink, under load, and gives them another one:
// they serve on with fewer ranks, and then with all again. No request is lost, and each has the
// tokens and log-probabilities of one rank in this process.
func TestShrink(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		c := raytest.StartCluster(t, r, raytest.Options{Env: raytest.QuickChecks,
			Nodes: []raytest.NodeSpec{{CPUs: 1, GPUs: 1}, {CPUs: 1, GPUs: 1}}})
		s := &site{Cluster: c, observer: startObserver(t, c)}
		t.Cleanup(s.observer.end)
		s.driverEnv(t)
		second := c.Nodes[1]
		for _, x := range []struct {
			name, small, all string
			change           func(*config.Parallel)
		}{
			{"places", "TP 1 × EP", "DP 2 × EP", func(p *config.Parallel) {
				p.DataParallelSize, p.ExpertParallel = 2, true
			}},
			{"tensor parallel", "TP 1", "TP 2", func(p *config.Parallel) {
				p.TensorParallelSize = 2
			}},
		} {
			t.Run(x.name, func(t *testing.T) {
				wanted := s.mixture("uni")
				alone, err := openAs(t, wanted)
				if err != nil {
					t.Fatal(err)
				}
				want := make([]heard, clients)
				for i := range want {
					if want[i], err = alone.ask(t.Context(), i); err != nil {
						t.Fatal(err)
					}
				}
				alone.end(t)
				cfg := s.mixture("ray")
				cfg.Recovery.OnFailure = "shrink"
				x.change(&cfg.Parallel)
				e, err := openAs(t, cfg)
				if err != nil {
					t.Fatal(err)
				}
				l := e.load(t, want)
				l.more(clients)
				c.KillRaylet(t, second)
				took := eventually(t, "fewer ranks", func() bool {
					return e.log.line("serving with fewer ranks") != ""
				})
				line := e.log.line("serving with fewer ranks")
				t.Logf("after %v: %s", took, line)
				if !strings.Contains(line, fmt.Sprintf("layout=%q ranks=1 wanted=2 "+
					`missing="1 bundle of {GPU: 1}"`, x.small)) {
					t.Errorf("%s", line)
				}
				l.more(2 * clients)
				e.serve(t, 1, 2)
				second = c.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 1})
				took = eventually(t, "all ranks", func() bool {
					return e.log.line("serving with all ranks again") != ""
				})
				line = e.log.line("serving with all ranks again")
				t.Logf("after %v: %s", took, line)
				if !strings.Contains(line, fmt.Sprintf("layout=%q ranks=2 ", x.all)) {
					t.Errorf("%s", line)
				}
				l.more(2 * clients)
				e.serve(t, 2, 2)
				t.Logf("%d answers", l.end())
				if t.Failed() {
					t.Log(e.log)
				}
				e.end(t)
				s.clean(t)
			})
		}
	})
}

// mixture are the settings of one rank that serves a mixture of experts.
func (s *site) mixture(backend string) config.Config {
	c := s.settings(backend, 1, layout.Layout{TP: 1})
	c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/qwen3moe-tiny", true
	return c
}

// clients ask at the same time, each something else.
const clients = 4

// heard is all that a client gets of a request.
type heard struct {
	tokens   []int32
	logprobs []float32
}

// ask is what a client asks: tokens are drawn, so that a lost state of a request shows.
func (a asked) ask(ctx context.Context, client int) (got heard, err error) {
	params, err := a.Info().Resolve(&sample.Overrides{Seed: uint64(client), IgnoreEOS: true,
		Settings: sample.Settings{Temperature: new(0.9)}, Logprobs: new(int32(1))}, 60)
	if err != nil {
		return got, err
	}
	var prompt []int32
	for i := range 40 {
		prompt = append(prompt, int32(5+(7*i+11*client)%1000))
	}
	st, err := a.Submit(ctx, engine.NewRequest(prompt, params))
	if err != nil {
		return got, err
	}
	defer st.Close()
	for {
		d, err := st.Next(ctx)
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got.tokens = append(got.tokens, d.Tokens...)
		for _, l := range d.Logprobs {
			got.logprobs = append(got.logprobs, l.Sampled.Logprob)
		}
	}
}

// asking is clients that ask the same again and again.
type asking struct {
	t        *testing.T
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	answered atomic.Int64
}

// load starts clients, which want the answers that they get.
func (a asked) load(t *testing.T, want []heard) *asking {
	ctx, cancel := context.WithCancel(t.Context())
	l := &asking{t: t, cancel: cancel}
	for client := range want {
		l.clients.Go(func() {
			for ctx.Err() == nil {
				got, err := a.ask(t.Context(), client)
				if err != nil || !reflect.DeepEqual(got, want[client]) {
					t.Errorf("client %d: %v, %v, want %v", client, err, got, want[client])
					return
				}
				l.answered.Add(1)
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

// more waits for more answers.
func (l *asking) more(n int64) {
	l.t.Helper()
	from := l.answered.Load()
	eventually(l.t, "answers", func() bool {
		return l.answered.Load() >= from+n || l.t.Failed()
	})
}

func (l *asking) end() int64 {
	l.cancel()
	l.clients.Wait()
	return l.answered.Load()
}

// serve checks that so many ranks serve, of as many as are wanted, and are healthy.
func (a asked) serve(t *testing.T, ranks, wanted int) {
	t.Helper()
	if err := a.Healthy(t.Context()); err != nil || len(a.Report()) != ranks ||
		len(a.Info().Ranks) != ranks {
		t.Errorf("%v, %d ranks, %d shown, not %d", err, len(a.Report()), len(a.Info().Ranks), ranks)
	}
	rec := httptest.NewRecorder()
	a.metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	text := rec.Body.String()
	for name, want := range map[string]int{"wanted": wanted, "serving": ranks} {
		// Each place is an engine there.
		if n := total(t, text, "eagleray:ranks_"+name, ""); n != want {
			t.Errorf("ranks %s are %d, not %d: %s", name, n, want, text)
		}
	}
}
