package replicas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// load asks an engine the same again and again, from several sides, until it is ended: each answer
// must be the same.
type load struct {
	t        *testing.T
	cancel   context.CancelFunc
	asking   sync.WaitGroup
	answered atomic.Int64
}

func startLoad(t *testing.T, r *Router, clients int, outputs int32, want answer) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, cancel: cancel}
	for range clients {
		l.asking.Go(func() {
			for ctx.Err() == nil {
				s, err := r.Submit(t.Context(), ask(r, "What does os.Open do?", outputs))
				if err != nil {
					t.Errorf("a request is lost: %v", err)
					return
				}
				got, err := read(t.Context(), s)
				switch {
				case err != nil:
					t.Errorf("an answer is lost: %v", err)
					return
				case !reflect.DeepEqual(got, want):
					t.Error("an answer is another one")
					return
				}
				l.answered.Add(1)
			}
		})
	}
	return l
}

// more waits for more answers.
func (l *load) more(n int64) {
	l.t.Helper()
	for started, from := time.Now(), l.answered.Load(); l.answered.Load() < from+n; {
		if time.Since(started) > time.Minute || l.t.Failed() {
			l.t.Fatal("no answers")
		}
		time.Sleep(time.Millisecond)
	}
}

func (l *load) end() int64 {
	l.cancel()
	l.asking.Wait()
	return l.answered.Load()
}

// scraped are the metrics as text.
func scraped(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	return rec.Body.String()
}

// reference is the answer that all others must be.
func reference(t *testing.T, r *Router, outputs int32) answer {
	t.Helper()
	s, err := r.Submit(t.Context(), ask(r, "What does os.Open do?", outputs))
	if err != nil {
		t.Fatal(err)
	}
	want, err := read(t.Context(), s)
	if err != nil || len(want.tokens) != int(outputs) {
		t.Fatalf("%v, %v", want, err)
	}
	return want
}

// TestScaleEngines adds and removes engines under load: no request is lost, and each has the same
// bits.
func TestScaleEngines(t *testing.T) {
	rounds := 3
	if !testing.Short() {
		rounds = 50
	}
	for _, backend := range []string{"uni", "mp"} {
		t.Run(backend, func(t *testing.T) {
			r, m, _ := openRouter(t, 1, 1, func(c *config.Config) { c.Parallel.Backend = backend })
			const outputs = 12
			l := startLoad(t, r, 4, outputs, reference(t, r, outputs))
			for i := range rounds {
				n := 1 + (i+1)%3
				if err := r.ScaleEngines(t.Context(), n, time.Minute); err != nil {
					t.Fatalf("%d engines: %v", n, err)
				}
				if got := r.Info(); got.Engines != n || len(got.Ranks) != n ||
					len(r.Report()) != n || len(r.Health(t.Context())) != n {
					t.Fatalf("%d engines: %+v, %+v", n, got, r.Report())
				}
				l.more(4)
				for e := range 4 {
					label := fmt.Sprintf(`engine="%d"`, e)
					if there := strings.Contains(scraped(t, m), label); there != (e < n) {
						t.Errorf("%d engines: series of %s: %v", n, label, there)
					}
				}
			}
			t.Logf("%d answers over %d changes", l.end(), rounds)
		})
	}
}

// TestScaleUses gives the engines that were added a part of the requests.
func TestScaleUses(t *testing.T) {
	r, _, _ := openRouter(t, 1, 2, nil)
	if err := r.ScaleEngines(t.Context(), 2, 0); err != nil {
		t.Fatal(err)
	}
	var streams []engine.Stream
	var got []int
	for range 4 {
		s, at := submit(t, r, ask(r, "What does os.Open do?", 64))
		streams, got = append(streams, s), append(got, at)
	}
	if !slices.Contains(got, 0) || !slices.Contains(got, 1) {
		t.Errorf("requests were given to %v", got)
	}
	for _, s := range streams {
		if _, err := read(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
}

// TestScaleDrains waits for the requests of an engine that is removed, and keeps it where that
// takes too long.
func TestScaleDrains(t *testing.T) {
	r, _, _ := openRouter(t, 2, 1, nil)
	var held engine.Stream
	for at := -1; at != 1; {
		s, chosen := submit(t, r, ask(r, "What does os.Open do?", 200))
		if at = chosen; at != 1 {
			defer s.Close()
		}
		held = s
	}
	err := r.ScaleEngines(t.Context(), 1, 10*time.Millisecond)
	if !errors.Is(err, engine.ErrBusy) || r.Info().Engines != 2 || r.Scaling() != "" {
		t.Fatalf("%v, %d engines, %q", err, r.Info().Engines, r.Scaling())
	}
	// It is given requests again.
	for at := -1; at != 1; {
		s, chosen := submit(t, r, ask(r, "What is a slice?", 2))
		if _, err := read(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		at = chosen
	}
	done := make(chan error, 1)
	go func() { done <- r.ScaleEngines(context.Background(), 1, time.Minute) }()
	for r.Scaling() == "" {
		time.Sleep(time.Millisecond)
	}
	if s := r.Scaling(); s != "scaling from 2 to 1 engines" {
		t.Errorf("%q", s)
	}
	if err := r.ScaleEngines(t.Context(), 3, 0); !errors.Is(err, engine.ErrScaling) {
		t.Errorf("a second change: %v", err)
	}
	if _, at := submit(t, r, ask(r, "What is a slice?", 2)); at != 0 {
		t.Errorf("a request is given to engine %d", at)
	}
	if a, err := read(t.Context(), held); err != nil || len(a.tokens) != 200 {
		t.Errorf("the request that was there has %d tokens, %v", len(a.tokens), err)
	}
	if err := <-done; err != nil || r.Info().Engines != 1 {
		t.Errorf("%v, %d engines", err, r.Info().Engines)
	}
}

// TestScaleReplaces puts an engine in the place of one that has failed.
func TestScaleReplaces(t *testing.T) {
	r, _, _ := openRouter(t, 2, 2, func(c *config.Config) { c.Recovery.OnFailure = "exit" })
	if err := syscall.Kill(r.Report()[2].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-r.list()[1].Failed()
	if err := r.ScaleEngines(t.Context(), 2, time.Minute); err != nil {
		t.Fatal(err)
	}
	for i, err := range r.Health(t.Context()) {
		if err != nil {
			t.Errorf("engine %d: %v", i, err)
		}
	}
	want := reference(t, r, 8)
	for range 3 {
		if got := reference(t, r, 8); !reflect.DeepEqual(got, want) {
			t.Error("the engines have other answers")
		}
	}
}

// TestScaleRefused leaves what there is as it was.
func TestScaleRefused(t *testing.T) {
	r, _, _ := openRouter(t, 1, 1, nil)
	refused := func(n int, want string) {
		t.Helper()
		err := r.ScaleEngines(t.Context(), n, 0)
		if no := (*open.Refused)(nil); !errors.As(err, &no) || !strings.Contains(err.Error(),
			want) {
			t.Errorf("%d engines: %v, want %q", n, err, want)
		}
	}
	refused(0, "0 engines: there can be 1 to 1024")
	refused(-1, "-1 engines")
	refused(1025, "1025 engines: there can be 1 to 1024")
	fixed, _ := fakes(t, 2)
	if err := fixed.ScaleEngines(t.Context(), 1, 0); err == nil ||
		!strings.Contains(err.Error(), "is fixed here") {
		t.Errorf("%v", err)
	}
	if len(reference(t, r, 4).tokens) != 4 {
		t.Error("no answer")
	}
	if err := r.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.ScaleEngines(t.Context(), 2, 0); !errors.Is(err, engine.ErrStopped) {
		t.Errorf("after the end: %v", err)
	}
}

// TestScaleEnds gives a change up when the server is stopped.
func TestScaleEnds(t *testing.T) {
	r, _, _ := openRouter(t, 2, 1, nil)
	var streams []engine.Stream
	for range 2 {
		s, _ := submit(t, r, ask(r, "What does os.Open do?", 1000))
		streams = append(streams, s)
	}
	done := make(chan error, 1)
	go func() { done <- r.ScaleEngines(context.Background(), 1, time.Minute) }()
	for r.Scaling() == "" {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Stop(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, engine.ErrStopped) {
		t.Errorf("%v", err)
	}
	for _, s := range streams {
		for d, err := s.Next(t.Context()); err == nil; d, err = s.Next(t.Context()) {
			if d.Finish == sample.FinishLength {
				t.Error("a request went on")
			}
		}
		s.Close()
	}
}

// TestRelayout changes the layout under load, there and back: no request is lost, and each has the
// same bits. A layout that cannot be is refused with the nearest ones, and what there is goes on.
func TestRelayout(t *testing.T) {
	for _, c := range []struct {
		backend string
		dp      int
	}{{"uni", 1}, {"mp", 2}} {
		t.Run(c.backend, func(t *testing.T) {
			r, _, log := openRouter(t, c.dp, 1,
				func(cfg *config.Config) { cfg.Parallel.Backend = c.backend })
			const outputs = 24
			l := startLoad(t, r, 3, outputs, reference(t, r, outputs))
			sizes := []int{2, 4, 1, 2}
			if testing.Short() && c.dp > 1 {
				sizes = []int{2, 1, 2} // with the other engine's, not eight processes
			}
			for _, tp := range sizes {
				l.more(3)
				if err := r.Relayout(t.Context(), open.Sizes{TP: tp}); err != nil {
					t.Fatalf("tensor parallel size %d: %v\n%s", tp, err, log)
				}
				if i := r.Info(); i.Layout.TP != tp || len(i.Ranks) != c.dp*tp ||
					len(r.Report()) != c.dp*tp {
					t.Errorf("tensor parallel size %d: %v, %d ranks", tp, i.Layout, len(i.Ranks))
				}
				l.more(3)
			}
			err := r.Relayout(t.Context(), open.Sizes{TP: 3})
			if no := (*open.Refused)(nil); !errors.As(err, &no) ||
				!strings.Contains(err.Error(), "--tensor-parallel-size 3") {
				t.Errorf("%v", err)
			}
			// An engine that is added has the layout of the others.
			if err := r.ScaleEngines(t.Context(), c.dp+1, time.Minute); err != nil {
				t.Fatal(err)
			}
			if n := len(r.Report()); n != 2*(c.dp+1) {
				t.Errorf("%d ranks", n)
			}
			l.more(6)
			t.Logf("%d answers", l.end())
		})
	}
}

// TestScalePlaces adds and removes places that share the experts of a mixture, under load: no
// request is lost, and each has the same bits.
func TestScalePlaces(t *testing.T) {
	raw, err := os.ReadFile("../../../testdata/models/qwen3moe-tiny/config.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	raw = bytes.Replace(raw, []byte(`"vocab_size": 1024`), []byte(`"vocab_size": 2048`), 1)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r, _, log := openRouter(t, 1, 1, func(c *config.Config) {
		c.Model.Path, c.Model.LoadFormat = dir, "dummy"
		c.Model.Tokenizer = "../../../testdata/models/go-std-tiny"
		c.Parallel.Backend, c.Parallel.ExpertParallel = "mp", true
	})
	const outputs = 24
	l := startLoad(t, r, 5, outputs, reference(t, r, outputs))
	for _, places := range []int{2, 3, 1, 2} {
		l.more(5)
		if err := r.ScaleEngines(t.Context(), places, 0); err != nil {
			t.Fatalf("%d places: %v\n%s", places, err, log)
		}
		if i := r.Info(); i.Layout.DP != places || len(r.Report()) != places {
			t.Errorf("%d places: %v, %d ranks", places, i.Layout, len(i.Ranks))
		}
	}
	l.more(5)
	// Another tensor parallel size goes with the places.
	if err := r.Relayout(t.Context(), open.Sizes{TP: 2}); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Report()); n != 4 {
		t.Errorf("%d ranks", n)
	}
	l.more(5)
	t.Logf("%d answers", l.end())
}

// TestRelayoutFails starts ranks for which there is no room in the queue's memory: those of the old
// layout go on, also with a request that runs.
func TestRelayoutFails(t *testing.T) {
	r, _, log := openRouter(t, 2, 1, func(c *config.Config) {
		c.Parallel.Backend, c.Queue.MemoryBytes = "mp", 128<<10
	})
	const outputs = 100
	l := startLoad(t, r, 2, outputs, reference(t, r, outputs))
	l.more(2)
	err := r.Relayout(t.Context(), open.Sizes{TP: 8})
	if err == nil || !strings.Contains(err.Error(), "TP 8: ") {
		t.Errorf("%v", err)
	}
	if i := r.Info(); i.Layout.TP != 1 || len(r.Report()) != 2 ||
		!strings.Contains(log.String(), "the other layout did not start") {
		t.Errorf("%+v\n%s", r.Report(), log)
	}
	l.more(4)
	l.end()
}
