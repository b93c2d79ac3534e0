package replicas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// fakeEngine takes requests and never answers them by itself.
type fakeEngine struct {
	number int
	refuse error // the answer of Submit
	holds  bool  // Submit takes requests although it is not healthy
	failed chan struct{}

	mu      sync.Mutex
	cause   error
	taken   [][]*engine.Request
	stopped int
}

// firstEngine is the number of the first of them: other servers have those before.
const firstEngine = 6

func (e *fakeEngine) Info() *open.Info {
	return &open.Info{Engines: 1, First: firstEngine, BlockSize: 16, CacheTokens: 16 * 1024,
		WeightBytes: 100,
		Ranks:       []queue.Ready{{Threads: e.number + 1}}}
}

func (e *fakeEngine) Submit(_ context.Context, list ...*engine.Request) (engine.Stream, error) {
	if err := e.Healthy(context.Background()); err != nil && !e.holds {
		return nil, err
	}
	if e.refuse != nil {
		return nil, e.refuse
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken = append(e.taken, list)
	return &fakeStream{}, nil
}

func (e *fakeEngine) Healthy(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

func (e *fakeEngine) fail(text string) {
	e.mu.Lock()
	e.cause = fmt.Errorf("%w: %s", engine.ErrFailed, text)
	e.mu.Unlock()
	close(e.failed)
}

func (e *fakeEngine) Totals() engine.Totals {
	return engine.Totals{OutputTokens: 10, Running: e.number, CacheUsage: float64(e.number) / 2}
}
func (e *fakeEngine) Report() []executor.RankStatus {
	return []executor.RankStatus{{Engine: e.number}}
}
func (e *fakeEngine) Links() []metrics.Link       { return []metrics.Link{{Engine: e.number}} }
func (e *fakeEngine) Failed() <-chan struct{}     { return e.failed }
func (e *fakeEngine) Cut() int                    { return 1 }
func (e *fakeEngine) AwaitStored(context.Context) {}

func (e *fakeEngine) Relayout(context.Context, open.Sizes) error { return nil }
func (e *fakeEngine) CatchUp(context.Context) error              { return nil }
func (e *fakeEngine) Stop(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped++
	return nil
}

func (e *fakeEngine) stops() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped
}

// fakeStream ends with the deltas it is given.
type fakeStream struct{ deltas []engine.Delta }

func (s *fakeStream) Next(context.Context) (engine.Delta, error) {
	if len(s.deltas) == 0 {
		return engine.Delta{}, io.EOF
	}
	d := s.deltas[0]
	s.deltas = s.deltas[1:]
	return d, nil
}
func (s *fakeStream) Close() {}

func fakes(t *testing.T, n int) (*Router, []*fakeEngine) {
	t.Helper()
	return fakesOf(t, n, func(*fakeEngine) {})
}

// fakesOf is fakes of engines that were changed before.
func fakesOf(t *testing.T, n int, change func(*fakeEngine)) (*Router, []*fakeEngine) {
	t.Helper()
	list, engines := make([]*fakeEngine, n), make([]Engine, n)
	for i := range list {
		list[i] = &fakeEngine{number: i, failed: make(chan struct{})}
		change(list[i])
		engines[i] = list[i]
	}
	r := New(engines, true, nil)
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r, list
}

// request asks for one token.
func request(prompt []int32) *engine.Request {
	return engine.NewRequest(prompt, sample.Params{MaxTokens: 1,
		PromptLogprobs: sample.NoLogprobs})
}

// submit returns the stream and the number of the engine that has the request.
func submit(t *testing.T, r *Router, list ...*engine.Request) (engine.Stream, int) {
	t.Helper()
	s, err := r.Submit(t.Context(), list...)
	if err != nil {
		t.Fatal(err)
	}
	return s, s.(*stream).engine.number
}

func loads(r *Router) (list []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.members {
		list = append(list, c.load)
	}
	return list
}

func TestSubmitFollowsThePrefix(t *testing.T) {
	r, _ := fakes(t, 3)
	first, home := submit(t, r, request(tokens(200, 200, 0)))
	first.Close()
	for i := range 5 { // in turn they would go to each
		s, at := submit(t, r, request(tokens(200, 160, i+1)))
		if at != home {
			t.Errorf("a prompt that shares 160 of 200 tokens goes to engine %d, not %d", at, home)
		}
		s.Close()
	}
	if s, at := submit(t, r, request(tokens(200, 0, 9))); at == home {
		t.Errorf("a prompt that shares nothing goes to engine %d as well, out of turn", at)
	} else {
		s.Close()
	}
	salted := request(tokens(200, 200, 0))
	salted.Salt = "another"
	whole := request(tokens(200, 200, 0))
	whole.Params.PromptLogprobs = 0 // is computed whole
	for _, q := range []*engine.Request{salted, whole} {
		s, _ := submit(t, r, q)
		if load := s.(*stream).load; load != 201 {
			t.Errorf("a request that finds nothing in the cache counts %d tokens", load)
		}
		s.Close()
	}
	// Waiting for the cache is worth what it saves.
	var at int
	kept := 0
	for at = home; at == home; kept++ {
		_, at = submit(t, r, request(tokens(200, 192, 100+kept)))
	}
	if kept < 10 || kept > 30 { // each counts 9 tokens, the cache saves 192
		t.Errorf("%d requests were kept together", kept)
	}
}

// TestChoicesStayTogether: requests of one call go to one engine, and one prompt is computed once.
func TestChoicesStayTogether(t *testing.T) {
	r, engines := fakes(t, 2)
	prompt := tokens(100, 100, 0)
	three := request(prompt)
	three.Seeds = []uint64{1, 2, 3}
	s, at := submit(t, r, three, request(tokens(50, 0, 4)))
	if len(engines[at].taken) != 1 || len(engines[at].taken[0]) != 2 || s.(*stream).sequences != 4 {
		t.Errorf("engine %d has %v", at, engines[at].taken)
	}
	if load := s.(*stream).load; load != 100+50+4 {
		t.Errorf("they count %d tokens", load)
	}
}

// TestLoadIsGivenBack by the end of a stream, by its being closed, once, and by a refusal.
func TestLoadIsGivenBack(t *testing.T) {
	r, engines := fakes(t, 2)
	s, at := submit(t, r, request(tokens(40, 0, 1)))
	s.(*stream).Stream.(*fakeStream).deltas = []engine.Delta{{Tokens: []int32{1}, OutputTokens: 1,
		Finish: sample.FinishLength}}
	if got := loads(r); got[at] != 41 || got[1-at] != 0 {
		t.Errorf("loads %v", got)
	}
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != io.EOF {
		t.Fatalf("after the last delta: %v", err)
	}
	s.Close()
	s.Close()
	closed, _ := submit(t, r, request(tokens(40, 0, 2)))
	closed.Close()
	engines[0].refuse, engines[1].refuse = engine.ErrOverloaded, engine.ErrOverloaded
	if _, err := r.Submit(t.Context(), request(tokens(40, 0, 3))); !errors.Is(err,
		engine.ErrOverloaded) {
		t.Errorf("a refusal is told as %v", err)
	}
	if got := loads(r); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("loads %v at the end", got)
	}
}

// TestDeadEngine: the others go on, what it still holds is ended, and the last one's death is that
// of all.
func TestDeadEngine(t *testing.T) {
	r, engines := fakes(t, 2)
	engines[0].fail("rank 0 died")
	// Before or after its watcher has run, nothing is refused.
	for i := range 4 {
		if _, at := submit(t, r, request(tokens(40, 0, i))); at != 1 {
			t.Errorf("request %d goes to the dead engine", i)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); engines[0].stops() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the dead engine is not ended")
		}
		time.Sleep(time.Millisecond)
	}
	if err := r.Healthy(t.Context()); err != nil {
		t.Errorf("one lives: %v", err)
	}
	if f := r.Health(t.Context()); !errors.Is(f[0], engine.ErrFailed) || f[1] != nil {
		t.Errorf("health %v", f)
	}
	select {
	case <-r.Failed():
		t.Error("failed while one lives")
	default:
	}
	engines[1].fail("rank 1 died")
	select {
	case <-r.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("all have failed, and nobody is told")
	}
	const want = "engine failed: engine 6: engine failed: rank 0 died; engine 7: engine failed: " +
		"rank 1 died"
	if err := r.Healthy(t.Context()); err == nil || err.Error() != want {
		t.Errorf("healthy: %v", err)
	}
	if _, err := r.Submit(t.Context(), request(tokens(40, 0, 1))); !errors.Is(err,
		engine.ErrFailed) || err.Error() != want {
		t.Errorf("submit: %v", err)
	}
	if engines[1].stops() != 0 {
		t.Error("the last engine is ended before its clients have their answers")
	}
}

// TestHeldEngine: while an engine is not healthy others are given its requests; if all are, they
// wait. What is given to one that has lost its cache is not chosen by what it had.
func TestHeldEngine(t *testing.T) {
	r, engines := fakes(t, 2)
	say := func(i int, err error) {
		engines[i].mu.Lock()
		defer engines[i].mu.Unlock()
		engines[i].cause = err
	}
	first, home := submit(t, r, request(tokens(200, 200, 0)))
	first.Close()
	engines[home].holds = true
	say(home, engine.ErrRecovering)
	for range 3 {
		s, at := submit(t, r, request(tokens(200, 200, 0)))
		if at == home {
			t.Error("a request is given to an engine that recovers")
		}
		s.Close()
	}
	engines[1-home].holds = true
	say(1-home, engine.ErrStalled)
	s, _ := submit(t, r, request(tokens(200, 200, 0)))
	s.Close()
	if err := r.Healthy(t.Context()); err == nil || errors.Is(err, engine.ErrFailed) {
		t.Errorf("none serves, none has failed: %v", err)
	}
	say(home, nil)
	say(1-home, nil)
	r.clearPrefixes(firstEngine)
	r.clearPrefixes(firstEngine + 1)
	s, _ = submit(t, r, request(tokens(200, 200, 0)))
	if load := s.(*stream).load; load != 201 {
		t.Errorf("a request whose beginning was lost counts %d tokens", load)
	}
	s.Close()
}

func TestOneView(t *testing.T) {
	r, _ := fakes(t, 3)
	if i := r.Info(); i.Engines != 3 || i.WeightBytes != 300 || len(i.Ranks) != 3 ||
		i.Ranks[2].Threads != 3 {
		t.Errorf("info %+v", i)
	}
	if s := r.Totals(); s.OutputTokens != 30 || s.Running != 3 || s.CacheUsage != 0.5 {
		t.Errorf("totals %+v", s)
	}
	if list := r.Report(); len(list) != 3 || list[2].Engine != 2 {
		t.Errorf("report %+v", list)
	}
	if list := r.Links(); len(list) != 3 || list[1].Engine != 1 {
		t.Errorf("links %+v", list)
	}
	if n := r.Cut(); n != 3 {
		t.Errorf("%d cut", n)
	}
}

// BenchmarkRoute is what choosing an engine costs a request.
func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{32, 500, 2000} {
		for _, engines := range []int{2, 8} {
			b.Run(fmt.Sprintf("prompt=%d/engines=%d", n, engines), func(b *testing.B) {
				list := make([]Engine, engines)
				for i := range list {
					list[i] = &fakeEngine{number: i, failed: make(chan struct{})}
				}
				r := New(list, true, nil)
				defer r.Stop(context.Background())
				prompts := make([]*engine.Request, 64)
				for i := range prompts {
					prompts[i] = request(tokens(n, n*3/4, i))
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					var room [64]beginning
					w := r.weigh(room[:0], prompts[i%64:i%64+1], true)
					at, load := r.reserve(b.Context(), &w)
					r.release(at, load, 1, 1)
				}
			})
		}
	}
}

// TestFailedBefore makes a router of engines of which the first has failed already, and which are
// so many that this can be noticed before all are there: the others go on.
func TestFailedBefore(t *testing.T) {
	r, list := fakesOf(t, 4000, func(e *fakeEngine) {
		if e.number == 0 {
			e.fail("too early")
		}
	})
	for list[0].stops() == 0 {
		select {
		case <-r.Failed():
			t.Fatal("all engines have failed, of which one has")
		case <-time.After(time.Millisecond):
		}
	}
}
