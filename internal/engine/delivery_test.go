package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestBehindTheLoop runs steps as fast as the loop makes them. A stop string ends its request
// although the loop has gone on by then: what comes after it is dropped, the request is counted
// once, and its slot is free again. A reader that comes when all is over gets all.
func TestBehindTheLoop(t *testing.T) {
	const word, words, stopped = " Time", 3000, 6
	c := config.Default()
	c.Model.MaxModelLen, c.Cache.Blocks = 1<<16, 1<<14
	e, m, err := engine.Open(t.Context(), engine.Options{Config: c, Null: &open.Null{Text: word}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	submit := func(max int32, stop ...string) engine.Stream {
		r := engine.NewRequest([]int32{5, 6, 7}, sample.Params{TopP: 1, RepetitionPenalty: 1,
			MaxTokens: max,
			EOS:       -1, Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs})
		r.Stop = stop
		s, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	began := time.Now()
	late := submit(words)
	defer late.Close()
	for range stopped {
		s := submit(60000, "Time Time Time")
		text, tokens, last := drain(t, s)
		s.Close()
		if text != " " || tokens != 3 || last.Finish != sample.FinishStop ||
			last.StopString != "Time Time Time" || last.OutputTokens != 3 {
			t.Errorf("text %q of %d tokens, ended by %v %q after %d", text, tokens, last.Finish,
				last.StopString, last.OutputTokens)
		}
	}
	for deadline := time.Now().Add(
		time.Minute); e.Totals().Running > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", e.Totals())
		}
	}
	text, tokens, last := drain(t, late)
	if tokens != words || len(text) != words*len(word) || last.Finish != sample.FinishLength {
		t.Errorf("%d tokens, %d bytes, %v", tokens, len(text), last.Finish)
	}
	if d := last.Times; d.Queue < 0 || d.Prefill <= 0 || d.Decode <= d.Prefill ||
		d.Queue+d.Prefill+d.Decode > time.Since(began) {
		t.Errorf("times %+v of %v", d, time.Since(began))
	}
	want := map[string]int{"stop": stopped, "length": 1, "abort": 0, "error": 0, "repetition": 0}
	if got := finishes(t, m); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("finished requests %v, want %v", got, want)
	}
}

// drain reads a stream of one request to its end.
func drain(t *testing.T, s engine.Stream) (text string, tokens int, last engine.Delta) {
	t.Helper()
	for d := range deltas(t, s) {
		for i, at := range d.TextOffsets {
			if want := (tokens + i) * len(" Time"); at != want {
				t.Fatalf("token %d is at %d, want %d", tokens+i, at, want)
			}
		}
		if ended := d.Finish != sample.Unfinished; ended != (d.Times != engine.Times{}) {
			t.Fatalf("times %+v of a delta that is the last: %v", d.Times, ended)
		}
		text += string(d.Text)
		tokens += len(d.Tokens)
		last = d
	}
	return text, tokens, last
}

// TestNamedLogprobs asks for the log-probabilities of some tokens: they are those that a list of
// the whole vocabulary has, the chosen token is the first of them, and nothing else of the answer
// changes.
func TestNamedLogprobs(t *testing.T) {
	e := openEngine(t, nil)
	all, named := greedy(e, question, 6), greedy(e, question, 6)
	all.Params.Logprobs = sample.AllLogprobs
	named.Params.Logprobs, named.Params.LogprobTokens = 0, []int32{40, 7, 40, 0}
	whole := receiveAll(t, e, []*engine.Request{all}, func(int) {})[0]
	some := receiveAll(t, e, []*engine.Request{named}, func(int) {})[0]
	if !slices.Equal(whole.tokens, some.tokens) || len(some.logprobs) != len(some.tokens) {
		t.Fatalf("tokens %v instead of %v, %d log-probabilities", some.tokens, whole.tokens,
			len(some.logprobs))
	}
	for i, l := range some.logprobs {
		want := []step.TokenLogprob{whole.logprobs[i].Sampled}
		for _, id := range []int32{40, 7, 0} {
			at := slices.IndexFunc(whole.logprobs[i].Top, func(x step.TokenLogprob) bool {
				return x.Token == id
			})
			if x := whole.logprobs[i].Top[at]; x.Token != want[0].Token {
				want = append(want, x)
			}
		}
		if !slices.Equal(l.Top, want) || l.Sampled != want[0] {
			t.Errorf("token %d: %v instead of %v", i, l.Top, want)
		}
	}
}

// TestInterval asks for several tokens in each delta: the first one comes by itself, the last delta
// has what is left, and all of them have what those of the same request without it have.
func TestInterval(t *testing.T) {
	e := openEngine(t, nil)
	list := sampled(e, 2)
	want := receiveAll(t, e, list, func(int) {})
	for i, r := range list {
		r.Interval = 3 + i
	}
	s, err := e.Submit(t.Context(), list...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, counts := make([]received, len(list)), make([]int, len(list))
	for d := range deltas(t, s) {
		if n, every := len(d.Tokens), list[d.Choice].Interval; d.Finish == sample.Unfinished &&
			counts[d.Choice] > 0 && n < every {
			t.Errorf("delta %d of request %d has %d tokens", counts[d.Choice], d.Choice, n)
		}
		counts[d.Choice]++
		got[d.Choice].add(d)
	}
	same(t, "with an interval", got, want)
	for i, n := range counts {
		if most := 2 + (len(want[i].tokens)-1)/list[i].Interval; n < 2 || n > most {
			t.Errorf("request %d: %d deltas of %d tokens", i, n, len(want[i].tokens))
		}
	}
}

// TestFinalOnly asks for all of a request at its end: it is one delta, with what all deltas of the
// same request have together. Another request of the stream comes as it is computed, and one that
// its reader gives up ends.
func TestFinalOnly(t *testing.T) {
	e := openEngine(t, nil)
	list := sampled(e, 4)
	want := receiveAll(t, e, list, func(int) {})
	list[3].Stop = []string{want[3].text[len(want[3].text)/2:]}
	want[3] = receiveAll(t, e, list[3:], func(int) {})[0]
	for _, r := range list[1:] {
		r.FinalOnly = true
	}
	s, err := e.Submit(t.Context(), list...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, counts := make([]received, len(list)), make([]int, len(list))
	for d := range deltas(t, s) {
		got[d.Choice].add(d)
		counts[d.Choice]++
	}
	same(t, "final only", got, want)
	if counts[0] < 2 || counts[1] != 1 || counts[2] != 1 || counts[3] != 1 {
		t.Errorf("%d deltas", counts)
	}
	endless := greedy(e, question, 1500)
	endless.Params.IgnoreEOS, endless.Params.StopTokens, endless.FinalOnly = true, nil, true
	if s, err = e.Submit(t.Context(), endless); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if d, err := s.Next(t.Context()); d.Finish != sample.FinishAbort && d.OutputTokens < 1500 {
		t.Errorf("given up, it ends by %v, %v", d.Finish, err)
	}
}
