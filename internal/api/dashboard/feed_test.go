package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// fakeEngine makes 1000 prompt and 100 output tokens, in 10 steps of 5 ms, in each second.
type fakeEngine struct {
	began   time.Time
	asked   atomic.Int64
	failure error
	// load is what experts have; nil for a model without any.
	load func(context.Context) ([]engine.ExpertLoad, error)
}

func (e *fakeEngine) ExpertLoad(ctx context.Context) ([]engine.ExpertLoad, error) {
	if e.load == nil {
		return nil, engine.ErrNoExpertLoad
	}
	return e.load(ctx)
}

func (e *fakeEngine) Info() *open.Info {
	return &open.Info{Names: []string{"tiny"}, DType: "float32", Blocks: 64, BlockSize: 16,
		Engines: 2,
		Ranks: []queue.Ready{{Rank: 0, ISA: "avx2", Threads: 2}, {Rank: 1, ISA: "avx2"}, {Rank: 0},
			{Rank: 1, Threads: 3}}}
}

func (e *fakeEngine) Totals() engine.Totals {
	e.asked.Add(1)
	s := time.Since(e.began).Seconds()
	return engine.Totals{PromptTokens: uint64(1000 * s), OutputTokens: uint64(100 * s), Running: 3,
		Queues:  []engine.Queue{{Running: 2, CacheUsage: 0.5}, {Running: 1, Waiting: 4}},
		Waiting: 4, CacheUsage: 0.25, BlocksUsed: 16, PrefixQueries: 10, PrefixHits: 5,
		Preemptions: 2, Steps: uint64(10 * s), StepTime: time.Duration(10*s) * 5 * time.Millisecond}
}

func (e *fakeEngine) Report() []executor.RankStatus {
	return []executor.RankStatus{
		{Rank: 0, Node: "a", PID: 10, Phase: "forward, layer 3", Received: 7, Started: 7,
			Finished: 6, Sent: 8, CPUs: 1.5, MemoryBytes: 4096},
		{Rank: 1, Node: "b", PID: 11, Phase: "idle", Received: 8, Started: 7, Finished: 7, Sent: 8,
			StillSeconds: 12.5, Stalled: true},
		{Engine: 1, Rank: 0, Phase: "idle"}, {Engine: 1, Rank: 1, Phase: "sample"}}
}

func (e *fakeEngine) Links() []metrics.Link {
	return []metrics.Link{{Rank: 1, RTT: 1500 * time.Microsecond, SentBytes: 100,
		ReceivedBytes: 50},
		{Engine: 1, Rank: 0, Resumes: 3}}
}

func (e *fakeEngine) Healthy(context.Context) error { return e.failure }

func (e *fakeEngine) Health(context.Context) []error {
	return []error{e.failure, errors.New("engine is recovering")}
}

func newPage(t *testing.T, e *fakeEngine, m *metrics.Metrics) *Page {
	t.Helper()
	p, err := New(Options{Engine: e, Metrics: m, Events: &Events{}, Version: "1", MaxLogprobs: 20})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sink collects what a feed writes.
type sink struct {
	header http.Header
	text   strings.Builder
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return s.text.Write(b) }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}

// watch lets a viewer look for a time, and returns what it was sent.
func watch(t *testing.T, p *Page, d time.Duration) (about About, past []Point, samples []Sample) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	s := &sink{header: http.Header{}}
	if err := p.Feed(s, httptest.NewRequestWithContext(ctx, "GET", LivePath, nil)); err != nil {
		t.Fatal(err)
	}
	if kind := s.header.Get("Content-Type"); kind != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", kind)
	}
	for i, e := range strings.Split(strings.TrimSuffix(s.text.String(), "\n\n"), "\n\n") {
		head, data, _ := strings.Cut(e, "\ndata: ")
		var err error
		if i == 0 && head == "event: about" {
			err = json.Unmarshal([]byte(data), &about)
		} else if i == 1 && head == "event: past" {
			err = json.Unmarshal([]byte(data), &past)
		} else if head == "event: sample" {
			samples = append(samples, Sample{})
			err = json.Unmarshal([]byte(data), &samples[len(samples)-1])
		} else {
			t.Fatalf("event %d is %q", i, e)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return about, past, samples
}

// TestFeed reads the feed of an engine with known rates, on a clock of its own.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{began: time.Now()}
		m := metrics.New(metrics.Options{ModelName: "tiny", MaxModelLen: 64})
		m.Engine(0).FirstToken(90 * time.Second) // before it was recorded: not of the last minute
		p := newPage(t, e, m)
		defer p.Close()
		go p.Record()
		synctest.Wait()
		p.opt.Events.Listen(status.GroupReady{Epoch: 1, Backend: "mp", Ranks: 2})
		go func() {
			for range 10 {
				time.Sleep(200 * time.Millisecond)
				m.Engine(0).FirstToken(30 * time.Millisecond)
				m.Engine(0).NextToken(5 * time.Millisecond)
			}
			p.opt.Events.Listen(status.RankStalled{Rank: 1, Node: "b", PID: 11})
		}()
		about, _, samples := watch(t, p, 5100*time.Millisecond)
		if about.Models[0] != "tiny" || len(about.Devices) != 4 ||
			about.Engines != 2 || about.Devices[3].Engine != 1 || about.Devices[3].Threads != 3 ||
			about.Devices[0].Kind != "cpu avx2" || about.Blocks != 64 ||
			about.MaxLogprobs != 20 || about.Chat {
			t.Errorf("about is %+v", about)
		}
		if len(samples) != 21 { // one at once, then four a second
			t.Errorf("%d samples in 5.1 seconds", len(samples))
		}
		first, last := samples[0], samples[len(samples)-1]
		if first.PromptRate != 0 || first.TTFT != nil || len(first.Events) != 1 ||
			first.Events[0].Message != "group is ready" || first.Events[0].Level != "DEBUG" {
			t.Errorf("the first sample is %+v", first)
		}
		if last.PromptRate != 1000 || last.OutputRate != 100 || last.StepRate != 10 ||
			last.StepMillis != 5 || last.InFlight != 2 {
			t.Errorf("rates %+v", last)
		}
		if last.Running != 3 || last.Waiting != 4 || last.BlocksUsed != 16 ||
			last.CacheUsage != 0.25 || last.PrefixQueries != 10 ||
			last.PrefixHits != 5 || last.Preemptions != 2 {
			t.Errorf("state %+v", last)
		}
		if l := last.TTFT; l == nil || l.Count != 10 || l.Mean < 29.99 || l.Mean > 30.01 ||
			l.P50 < 28 || l.P50 > 32 {
			t.Errorf("time to first token %+v", l)
		}
		l := last.TPOT
		if l == nil || l.Mean < 4.99 || l.Mean > 5.01 || l.P99 < 4.7 || l.P99 > 5.3 {
			t.Errorf("time per token %+v", l)
		}
		r := last.Ranks
		if e := last.Engines; len(e) != 2 || e[0] != "" || e[1] != "engine is recovering" {
			t.Errorf("engines %q", e)
		}
		if q := last.Queues; len(q) != 2 || q[0].CacheUsage != 0.5 || q[1].Waiting != 4 {
			t.Errorf("queues %+v", q)
		}
		if len(r) != 4 || r[3].Engine != 1 || r[3].Phase != "sample" || r[3].Link != nil ||
			r[2].Link == nil || r[2].Link.Resumes != 3 || r[0].Phase != "forward, layer 3" ||
			r[0].CPUs != 1.5 || r[0].MemoryBytes != 4096 || r[0].Step != 7 ||
			r[0].Depth != 1 || r[0].Link != nil || !r[1].Stalled ||
			r[1].StillSeconds != 12.5 || r[1].Link == nil || r[1].Link.RoundTripMillis != 1.5 {
			t.Errorf("ranks %+v", r)
		}
		stalls := 0
		for _, s := range samples {
			for _, e := range s.Events {
				if e.Message == "rank is stalled" && e.Level == "WARN" &&
					strings.Contains(e.Detail, "rank=1 node=b") {
					stalls++
				}
			}
		}
		if stalls != 1 {
			t.Errorf("the stall was told %d times", stalls)
		}
		e.failure = errors.New("rank 1 is gone")
		_, _, samples = watch(t, p, time.Millisecond)
		if s := samples[0]; s.Failure != "rank 1 is gone" || len(s.Events) != 2 {
			t.Errorf("after the failure %+v", s)
		}
	})
}

// TestPast: who opens the page is shown the last five minutes, and no more of them is kept.
func TestPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{began: time.Now()}
		m := metrics.New(metrics.Options{ModelName: "tiny", MaxModelLen: 64})
		p := newPage(t, e, m)
		go p.Record()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		m.Engine(0).FirstToken(30 * time.Millisecond)
		time.Sleep(9 * time.Second)
		_, past, samples := watch(t, p, time.Millisecond)
		if len(past) != 20 || past[0].PromptRate != 0 || past[10].TTFT != nil ||
			past[11].TTFT == nil || past[11].TTFT.Count != 1 {
			t.Fatalf("of 20 seconds there are %d points, %+v", len(past), past)
		}
		for _, x := range past[2:] {
			if x.PromptRate != 1000 || x.OutputRate != 100 || x.StepMillis != 5 || x.Running != 3 {
				t.Fatalf("a point is %+v", x)
			}
		}
		// What is seen first goes on where the past ends.
		if s := samples[0]; s.OutputRate < 95 || s.OutputRate > 105 || s.TTFT == nil {
			t.Errorf("the first sample is %+v", s)
		}
		time.Sleep(10 * time.Minute)
		_, past, samples = watch(t, p, time.Millisecond)
		if n := len(past); n != pastPoints || past[n-1].At-past[0].At != 299_000 {
			t.Errorf("of ten minutes there are %d points", n)
		}
		if samples[0].TTFT != nil || past[0].TTFT != nil {
			t.Error("the latency of ten minutes ago is one of the last minute")
		}
		p.Close()
		synctest.Wait()
		asked := e.asked.Load()
		time.Sleep(time.Minute)
		if n := e.asked.Load(); n != asked {
			t.Errorf("recorded %d times after its end", n-asked)
		}
	})
}

// TestNobodyLooks holds that ranks are sampled for viewers only, and that a viewer that has
// gone leaves nothing behind.
func TestNobodyLooks(t *testing.T) {
	e := &fakeEngine{began: time.Now()}
	p := newPage(t, e, nil)
	ended := make(chan error, 2)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ended <- p.Feed(rw, r)
	}))
	defer server.Close()
	if n := e.asked.Load(); n != 0 {
		t.Errorf("sampled %d times without a viewer", n)
	}
	before := runtime.NumGoroutine()
	ctx, leave := context.WithCancel(t.Context())
	look := func(ctx context.Context) *http.Response {
		r, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	gone := look(ctx)
	if p.Viewers() != 1 {
		t.Errorf("%d viewers", p.Viewers())
	}
	leave()
	gone.Body.Close()
	wait := func() {
		t.Helper()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the feed goes on without its viewer")
		}
	}
	wait()
	if p.Viewers() != 0 {
		t.Errorf("%d viewers after the last has gone", p.Viewers())
	}
	asked := e.asked.Load()
	http.DefaultClient.CloseIdleConnections()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
	if n := e.asked.Load(); n != asked {
		t.Errorf("sampled %d times more after the viewer had gone", n-asked)
	}
	// The end of the server ends the feed.
	defer look(t.Context()).Body.Close()
	p.Close()
	p.Close()
	wait()
}

func TestTooManyViewers(t *testing.T) {
	p := newPage(t, &fakeEngine{}, nil)
	p.viewers.Store(maxViewers)
	rec := httptest.NewRecorder()
	err := p.Feed(rec, httptest.NewRequest("GET", LivePath, nil))
	if !errors.Is(err, ErrViewers) || p.Viewers() != maxViewers {
		t.Errorf("answered %v, %d viewers", err, p.Viewers())
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Events{}
		if found, last := l.Since(0); len(found) != 0 || last != 0 {
			t.Errorf("of nothing %v, %d", found, last)
		}
		l.Listen(status.Progress{Rank: 1, Phase: "load", Done: 1})
		l.Listen(status.GroupReady{Epoch: 1})
		for range 1000 {
			l.Listen(status.Preempted{Requests: 2, Running: 1})
		}
		found, seen := l.Since(0)
		if len(found) != 2 || found[1].ID != 2 || !strings.Contains(found[1].Detail,
			"requests=2000") {
			t.Fatalf("events %+v", found)
		}
		if found, _ := l.Since(seen); len(found) != 0 {
			t.Errorf("told twice: %+v", found)
		}
		// Another one within the second is told again under the same name.
		l.Listen(status.Preempted{Requests: 1})
		found, seen = l.Since(seen)
		if len(found) != 1 || found[0].ID != 2 ||
			!strings.Contains(found[0].Detail, "requests=2001") {
			t.Errorf("events %+v", found)
		}
		time.Sleep(time.Second)
		l.Listen(status.Preempted{Requests: 1})
		if found, _ = l.Since(seen); len(found) != 1 || found[0].ID == 2 {
			t.Errorf("events %+v", found)
		}
		for range 2 * keptEvents {
			l.Listen(status.Stopping{})
		}
		if found, _ := l.Since(0); len(found) != keptEvents ||
			found[0].ID >= found[keptEvents-1].ID {
			t.Errorf("%d events are kept", len(found))
		}
	})
}

func TestGuesses(t *testing.T) {
	l := &Events{}
	for n := range 2*keptGuesses + 1 {
		l.Listen(status.Speculated{Steps: []status.Guess{{Drafts: 3, Tokens: 2}}, Tokens: n})
	}
	if list, _ := l.Since(0); len(list) > 0 {
		t.Errorf("they are events, too: %+v", list)
	}
	list, last := l.GuessesSince(0)
	if len(list) != keptGuesses || last != 2*keptGuesses+1 || list[keptGuesses-1].ID != last ||
		list[0].Tokens != keptGuesses+1 || !bytes.Equal(list[0].Steps, []byte{3, 2}) {
		t.Errorf("%d of %d are kept: %+v", len(list), last, list)
	}
	if list, _ := l.GuessesSince(last - 1); len(list) != 1 || list[0].ID != last {
		t.Errorf("the last one is %+v", list)
	}
	if list, _ := l.GuessesSince(last); list != nil {
		t.Errorf("told twice: %+v", list)
	}
}
