package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// every is the time between two samples of a feed: four a second.
	every = 250 * time.Millisecond
	// maxViewers bounds the feeds at one time.
	maxViewers = 16
	// takeWithin is how long a viewer may take to read a sample before it is cut off.
	takeWithin = 10 * time.Second
)

// ErrViewers says that as many pages are open as are served at one time.
var ErrViewers = fmt.Errorf("the live feed has %d viewers, which is its limit", maxViewers)

// About is what a page is told first: what does not change.
type About struct {
	Version     string   `json:"version"`
	Models      []string `json:"models"`
	Root        string   `json:"root"`
	Chat        bool     `json:"chat"`
	DType       string   `json:"dtype"`
	WeightBytes int64    `json:"weight_bytes"`
	MaxModelLen int      `json:"max_model_len"`
	// Engines is how many engines serve the model, First the number of the first of them.
	Engines int `json:"engines"`
	First   int `json:"first_engine"`
	// Blocks of BlockSize tokens are the KV cache of each rank, CacheBytes its size.
	Blocks     int      `json:"blocks"`
	BlockSize  int      `json:"block_size"`
	CacheBytes int64    `json:"cache_bytes"`
	Devices    []Device `json:"devices"`
	// MaxLogprobs is how many alternatives per token a request may ask for.
	MaxLogprobs int `json:"max_logprobs"`
	// Measures says whether the page can measure the server.
	Measures bool `json:"measures"`
	// EverySeconds is the time between two samples of the feed.
	EverySeconds float64 `json:"every_seconds"`
}

// Device is what a rank computes with.
type Device struct {
	Engine      int    `json:"engine"`
	Rank        int    `json:"rank"`
	Kind        string `json:"kind"`
	Threads     int    `json:"threads"`
	WeightBytes int64  `json:"weight_bytes"`
}

// Sample is the state of the engine at one time.
type Sample struct {
	// Failure says why the engine does not serve; "" when it does.
	Failure string `json:"failure"`

	Point

	PromptTokens uint64 `json:"prompt_tokens"`
	OutputTokens uint64 `json:"output_tokens"`
	BlocksUsed   int    `json:"blocks_used"`
	Preemptions  uint64 `json:"preemptions"`

	// InFlight is how many plans were sent and not finished; Steps counts the finished ones.
	InFlight uint64 `json:"in_flight"`
	Steps    uint64 `json:"steps"`

	// Engines says of every engine why it does not serve, "" for those that do.
	Engines []string `json:"engines"`
	// Queues are those of each engine, or of each place of one that has several.
	Queues []Queue `json:"queues"`
	Ranks  []Rank  `json:"ranks"`
	Events []Event `json:"events"`
	// Guesses are of the requests that have ended since the sample before.
	Guesses []Guesses `json:"guesses,omitempty"`
}

// Queue are the requests of an engine, and the share of its KV blocks in use.
type Queue struct {
	Running    int     `json:"running"`
	Waiting    int     `json:"waiting"`
	CacheUsage float64 `json:"cache_usage"`
}

// Latency is a distribution of times in milliseconds. The mean is exact; percentiles are read from
// buckets, to a sixteenth.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
}

// Rank is what a rank is doing.
type Rank struct {
	Engine int    `json:"engine"`
	Rank   int    `json:"rank"`
	Node   string `json:"node"`
	PID    int    `json:"pid"`
	Phase  string `json:"phase"`
	// Process is what the kernel says of it, "" on another host.
	Process string `json:"process"`
	// Step is the last one it started, Depth how many plans wait for it.
	Step  uint64 `json:"step"`
	Depth uint64 `json:"depth"`
	Call  string `json:"call"`
	// StillSeconds is for how long it has not moved; Stalled says that it should have.
	StillSeconds float64 `json:"still_seconds"`
	Stalled      bool    `json:"stalled"`
	// CPUs is how many processors its process used over the last second, MemoryBytes what is
	// resident of it; 0 where they are not known.
	CPUs        float64 `json:"cpus"`
	MemoryBytes uint64  `json:"memory_bytes"`
	// Link has the figures of the connection to a rank of another host.
	Link *Link `json:"link"`
}

// Link is the connection to a rank of another host.
type Link struct {
	RoundTripMillis float64 `json:"round_trip_ms"`
	SentBytes       uint64  `json:"sent_bytes"`
	ReceivedBytes   uint64  `json:"received_bytes"`
	Resumes         uint64  `json:"resumes"`
}

// About describes the engine.
func (p *Page) About() About {
	i := p.opt.Engine.Info()
	a := About{Version: p.opt.Version, Models: i.Names, Root: i.Root, Chat: i.Template != nil,
		DType: i.DType, WeightBytes: i.WeightBytes, MaxModelLen: i.MaxModelLen,
		Engines: i.Engines, First: i.First, Blocks: i.Blocks,
		BlockSize: i.BlockSize, CacheBytes: i.CacheBytes, MaxLogprobs: p.maxLogprobs(),
		Measures: p.Measures(), EverySeconds: every.Seconds(),
		Devices: make([]Device, len(i.Ranks))}
	for n, r := range i.Ranks {
		a.Devices[n] = Device{Engine: i.First + n*i.Engines/len(i.Ranks), Rank: r.Rank,
			Kind: "cpu " + r.ISA, Threads: r.Threads,
			WeightBytes: r.WeightBytes}
	}
	return a
}

// Feed sends server-sent events until the viewer goes or the page is closed: first "about" and
// "past", the points of the last minutes, then "sample" four times a second, and "experts" at most
// once a second. All of its work is done by the caller's goroutine, and by one that asks for the
// load of experts, which a long step keeps waiting: without viewers only what is past is recorded.
func (p *Page) Feed(w http.ResponseWriter, r *http.Request) error {
	if p.viewers.Add(1) > maxViewers {
		p.viewers.Add(-1)
		return ErrViewers
	}
	defer p.viewers.Add(-1)
	points, recent := p.past.seen()
	v := &viewer{p: p, stream: beginStream(w), recent: recent}
	if err := v.send("about", p.About()); err != nil {
		return nil // it has gone
	}
	if err := v.send("past", points); err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	experts := make(chan []Experts, 1)
	asking.Go(func() { p.askExperts(ctx, experts) })
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := v.send("sample", v.sample(r.Context(), time.Now())); err != nil {
			return nil
		}
		select {
		case list := <-experts:
			if err := v.send("experts", list); err != nil {
				return nil
			}
		default:
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return nil
		case <-p.closed:
			return nil
		}
	}
}

// viewer is one open feed, with what its rates are taken from.
type viewer struct {
	stream
	p *Page
	// seen is the last event sent, guessed the last request whose guesses were.
	seen, guessed uint64
	// recent is what the next rates are taken from.
	recent []counts
}

// stream is an answer of server-sent events.
type stream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func beginStream(w http.ResponseWriter) stream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold the events back
	w.WriteHeader(http.StatusOK)
	return stream{w, http.NewResponseController(w)}
}

// send writes one event within takeWithin.
func (s *stream) send(event string, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if err := s.rc.SetWriteDeadline(time.Now().Add(takeWithin)); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", event, raw); err != nil {
		return err
	}
	return s.rc.Flush()
}

// sample reads the state of the engine at a time.
func (v *viewer) sample(ctx context.Context, now time.Time) Sample {
	e := v.p.opt.Engine
	t := e.Totals()
	s := Sample{Point: pointOf(t, now), PromptTokens: t.PromptTokens, OutputTokens: t.OutputTokens,
		BlocksUsed: t.BlocksUsed, Preemptions: t.Preemptions, Steps: t.Steps}
	if err := e.Healthy(ctx); err != nil {
		s.Failure = err.Error()
	}
	for _, err := range e.Health(ctx) {
		why := ""
		if err != nil {
			why = err.Error()
		}
		s.Engines = append(s.Engines, why)
	}
	for _, q := range t.Queues {
		s.Queues = append(s.Queues, Queue(q))
	}
	v.recent = rates(&s.Point, v.recent, countsOf(t, now))
	s.TTFT, s.TPOT = v.p.past.minute()
	s.Ranks, s.InFlight = v.ranks()
	s.Events, v.seen = v.p.opt.Events.Since(v.seen)
	s.Guesses, v.guessed = v.p.opt.Events.GuessesSince(v.guessed)
	return s
}

// ranks says what each rank is doing, and how many plans the slowest has not finished.
func (v *viewer) ranks() (ranks []Rank, inFlight uint64) {
	report := v.p.opt.Engine.Report()
	ranks = make([]Rank, len(report))
	for i, r := range report {
		// The fields are read one by one: a plan may have moved on in between.
		ranks[i] = Rank{Engine: r.Engine, Rank: r.Rank, Node: r.Node, PID: r.PID, Phase: r.Phase,
			Process: r.Process,
			Step:    r.Started, Depth: r.Sent - min(r.Received, r.Sent), Call: r.Call,
			StillSeconds: r.StillSeconds, Stalled: r.Stalled, CPUs: r.CPUs,
			MemoryBytes: r.MemoryBytes}
		inFlight = max(inFlight, r.Sent-min(r.Finished, r.Sent))
	}
	for _, l := range v.p.opt.Engine.Links() {
		at := slices.IndexFunc(ranks, func(r Rank) bool {
			return r.Engine == l.Engine && r.Rank == l.Rank
		})
		if at >= 0 {
			ranks[at].Link = &Link{RoundTripMillis: l.RTT.Seconds() * 1000,
				SentBytes: l.SentBytes, ReceivedBytes: l.ReceivedBytes, Resumes: l.Resumes}
		}
	}
	return ranks, inFlight
}

// maxLogprobs is how many alternatives a request may ask for; -1 allows the whole vocabulary.
func (p *Page) maxLogprobs() int {
	if p.opt.MaxLogprobs < 0 {
		return p.opt.Engine.Info().VocabSize
	}
	return p.opt.MaxLogprobs
}
