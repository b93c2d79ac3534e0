package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// answer is all that a client gets of a request, but for names and times.
type answer struct {
	text     string
	tokens   []int
	logprobs []float64
	finish   string
}

func (a *answer) equal(b *answer) bool {
	return a.text == b.text && a.finish == b.finish && slices.Equal(a.tokens, b.tokens) &&
		slices.Equal(a.logprobs, b.logprobs)
}

// load are the clients: each streams one request after the other and compares what comes with the
// undisturbed answer.
type load struct {
	o        Options
	s        *server
	requests []map[string]any
	want     []answer
	tokens   atomic.Int64
	started  time.Time

	mu       sync.Mutex
	asked    int
	answered int
	lost     int
	twice    int
	refused  int
	differ   int
	trouble  []string
	timeline []int
	marks    []fault
	events   []Event // of the first client
}

// fault is one that was injected, the longest pause of a stream since, and the answers since that
// were wrong.
type fault struct {
	name            string
	at              time.Time
	pause           time.Duration
	lost, different int
}

func newLoad(o Options, s *server) *load {
	l := &load{o: o, s: s}
	rng := rand.New(rand.NewPCG(o.Seed, 3<<32))
	for i := range o.Prompts {
		prompt := make([]int, 1+rng.IntN(60))
		for j := range prompt {
			prompt[j] = 5 + rng.IntN(500)
		}
		l.requests = append(l.requests, map[string]any{
			"prompt": prompt, "max_tokens": o.Tokens, "ignore_eos": true, "stream": true,
			"temperature": 0.9, "seed": int(o.Seed) + i, "logprobs": 1, "return_token_ids": true,
			"frequency_penalty": float64(i%3) * 0.3,
		})
	}
	return l
}

// reference asks each request once, undisturbed.
func (l *load) reference(ctx context.Context) error {
	for _, r := range l.requests {
		a, err := l.ask(ctx, l.s.now(), r, func(int) {})
		if err != nil {
			return err
		}
		l.want = append(l.want, *a)
	}
	return nil
}

func (l *load) begin() { l.started = time.Now() }

// client asks until ctx ends; what it has asked by then it reads to the end.
func (l *load) client(ctx context.Context, number int, rng *rand.Rand) {
	for request := 0; ctx.Err() == nil; request++ {
		i := rng.IntN(len(l.requests))
		last, total := time.Now(), 0
		p := l.s.now()
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		a, err := l.ask(reading, p, l.requests[i], func(tokens int) {
			now := time.Now()
			l.arrived(last, now, tokens)
			last, total = now, total+tokens
			if number == 0 && tokens > 0 {
				l.events = append(l.events, Event{now.Sub(l.started).Seconds(), request, tokens,
					total})
			}
		})
		cancel()
		if errors.Is(err, errRefused) {
			l.mu.Lock()
			l.refused++
			l.mu.Unlock()
			l.s.next(ctx, p)
			continue
		}
		l.compare(fmt.Sprintf("request %d", i), &l.want[i], a, err)
	}
}

// errRefused is the end of a request that a server did not take because it ends.
var errRefused = errors.New("refused by a server that ends")

// arrived takes note of tokens that arrived after a pause.
func (l *load) arrived(last, now time.Time, tokens int) {
	l.tokens.Add(int64(tokens))
	l.mu.Lock()
	defer l.mu.Unlock()
	slot := int(now.Sub(l.started) / (100 * time.Millisecond))
	for len(l.timeline) <= slot {
		l.timeline = append(l.timeline, 0)
	}
	l.timeline[slot] += tokens
	if len(l.marks) == 0 {
		return
	}
	f := &l.marks[len(l.marks)-1]
	if last.Before(f.at) {
		last = f.at
	}
	if now.After(f.at) {
		f.pause = max(f.pause, now.Sub(last))
	}
}

func (l *load) mark(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks = append(l.marks, fault{name: name, at: time.Now()})
}

// now says that the fault that was marked last happens only now.
func (l *load) now() {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &l.marks[len(l.marks)-1]
	f.at, f.pause = time.Now(), 0
}

// compare counts an answer to what is named.
func (l *load) compare(what string, want, a *answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	last := &fault{}
	if n := len(l.marks); n > 0 {
		last = &l.marks[n-1]
	}
	switch {
	case err != nil:
		l.lost++
		last.lost++
	case a.equal(want):
		l.answered++
		return
	case len(a.tokens) > len(want.tokens):
		l.twice++
		last.different++
		err = fmt.Errorf("%d tokens instead of %d", len(a.tokens), len(want.tokens))
	case len(a.tokens) < len(want.tokens):
		l.lost++
		last.lost++
		err = fmt.Errorf("%d tokens instead of %d", len(a.tokens), len(want.tokens))
	default:
		l.differ++
		last.different++
		err = errors.New("other tokens, text or log-probabilities")
	}
	if len(l.trouble) < 20 {
		l.trouble = append(l.trouble, fmt.Sprintf("%s, %s: %v", what, l.since(), err))
	}
}

// when says which fault was the last one.
func (l *load) when() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since()
}

func (l *load) since() string {
	n := len(l.marks)
	if n == 0 {
		return "before the first fault"
	}
	f := l.marks[n-1]
	return fmt.Sprintf("%.3f s after fault %d (%s)", time.Since(f.at).Seconds(), n, f.name)
}

// ask streams one request; seen is told of the tokens of each event. The error wraps errRefused
// when the server was asked to end before it had the request, and has not taken it.
func (l *load) ask(ctx context.Context, p *process, request any, seen func(tokens int)) (*answer,
	error) {
	started := time.Now()
	resp, err := l.s.post(ctx, p, request)
	if err != nil && p.mayRefuse(started) {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable && p.mayRefuse(started) {
		return nil, errRefused
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	var a answer
	events := bufio.NewScanner(resp.Body)
	events.Buffer(nil, 1<<20)
	for events.Scan() {
		data, ok := strings.CutPrefix(events.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return &a, nil
		}
		n, err := a.add(data)
		if err != nil {
			return nil, err
		}
		seen(n)
	}
	if err := events.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("the stream ends without [DONE]")
}

// add takes an event and returns how many tokens it brought.
func (a *answer) add(data string) (int, error) {
	var event struct {
		Error   json.RawMessage
		Choices []struct {
			Text     string
			TokenIDs []int  `json:"token_ids"`
			Finish   string `json:"finish_reason"`
			Logprobs struct {
				Values []float64 `json:"token_logprobs"`
			}
		}
	}
	if err := json.Unmarshal([]byte(data), &event); err != nil {
		return 0, err
	}
	if event.Error != nil {
		return 0, fmt.Errorf("error event %s", event.Error)
	}
	n := 0
	for _, c := range event.Choices {
		a.text += c.Text
		a.tokens = append(a.tokens, c.TokenIDs...)
		a.logprobs = append(a.logprobs, c.Logprobs.Values...)
		if c.Finish != "" {
			a.finish = c.Finish
		}
		n += len(c.Logprobs.Values)
	}
	return n, nil
}

func (l *load) report(recoveries []recovery) *Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &Report{Seconds: time.Since(l.started).Seconds(), Asked: l.asked, Answered: l.answered,
		Lost: l.lost, Duplicated: l.twice, Different: l.differ, Refused: l.refused,
		Tokens:  int(l.tokens.Load()),
		Trouble: l.trouble, Timeline: l.timeline, Client: l.events}
	var all []time.Duration
	pauses, took, kinds := map[string][]time.Duration{}, map[string][]time.Duration{},
		map[string]Kind{}
	for i, f := range l.marks {
		r.Marks = append(r.Marks, Mark{f.at.Sub(l.started).Seconds(), f.name})
		pauses[f.name] = append(pauses[f.name], f.pause)
		k := kinds[f.name]
		k.Injected, k.Lost, k.Different = k.Injected+1, k.Lost+f.lost, k.Different+f.different
		kinds[f.name] = k
		for _, b := range recoveries {
			if b.at.After(f.at) && (i+1 == len(l.marks) || b.at.Before(l.marks[i+1].at)) {
				took[f.name], all = append(took[f.name], b.took), append(all, b.took)
			}
		}
	}
	r.RecoveryMS = percentiles(all)
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		k.Name, k.PauseMS, k.RecoveryMS = name, percentiles(pauses[name]), percentiles(took[name])
		r.Kinds = append(r.Kinds, k)
	}
	return r
}
