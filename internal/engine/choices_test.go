package engine_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// TestChoices: requests submitted together have one stream, which says whose each delta is; each
// has the tokens that it has alone.
func TestChoices(t *testing.T) {
	e := openEngine(t, func(c *config.Config) { c.Schedule.MaxNumSeqs = 3 })
	var list []*engine.Request
	var want [][]int32
	for i, q := range []string{question, "What does strings.Index do?", question, question} {
		r := greedy(e, q, int32(5+7*i))
		want = append(want, mustAsk(t, e, r).tokens)
		list = append(list, r)
	}
	s, err := e.Submit(t.Context(), list...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make([][]int32, len(list))
	for d := range deltas(t, s) {
		got[d.Choice] = append(got[d.Choice], d.Tokens...)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("choice %d: %v, alone %v", i, got[i], want[i])
		}
	}
}

// TestChoicesAreAllOrNone: of requests submitted together none is queued when one is refused, and
// all end when the stream is closed.
func TestChoicesAreAllOrNone(t *testing.T) {
	e := openEngine(t, func(c *config.Config) {
		c.Schedule.MaxNumSeqs, c.Schedule.MaxNumQueuedReqs = 1, 8
	})
	if _, err := e.Submit(t.Context()); err == nil {
		t.Error("no request at all was accepted")
	}
	long := func(n int) []*engine.Request {
		list := make([]*engine.Request, n)
		for i := range list {
			list[i] = greedy(e, question, 1000)
			list[i].Params.IgnoreEOS, list[i].Params.StopTokens = true, nil
		}
		return list
	}
	bad := long(3)
	bad[2].Prompt = nil
	if _, err := e.Submit(t.Context(), bad...); err == nil {
		t.Error("a request without a prompt was accepted")
	}
	first, err := e.Submit(t.Context(), long(20)...) // nothing waits: any number
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Submit(t.Context(), long(1)...); !errors.Is(err, engine.ErrOverloaded) {
		t.Errorf("beside 19 waiting: %v", err)
	}
	first.Close()
	first.Close()
	for e.Totals().Waiting > 0 {
		time.Sleep(time.Millisecond)
	}
	if got := mustAsk(t, e, greedy(e, question, 3)); len(got.tokens) != 3 {
		t.Errorf("after they were given up: %v", got.tokens)
	}
}

// TestBystander: requests that come after one of a thousand choices are answered while the first of
// those still run.
func TestBystander(t *testing.T) {
	e := openEngine(t, func(c *config.Config) { c.Schedule.MaxNumSeqs = 32 })
	wide := make([]*engine.Request, 1000)
	for i := range wide {
		wide[i] = greedy(e, question, 1500)
		wide[i].Params.IgnoreEOS, wide[i].Params.StopTokens = true, nil
	}
	s, err := e.Submit(t.Context(), wide...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got := mustAsk(t, e, greedy(e, question, 5)); len(got.tokens) != 5 {
			t.Errorf("the bystander's answer: %v", got.tokens)
		}
	}
	for range 30 { // all that run, but for the one whose news was read
		d, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d.Finish != sample.Unfinished {
			t.Fatalf("choice %d ended with %d tokens before the bystander", d.Choice,
				d.OutputTokens)
		}
	}
}

// TestChoiceFails: when one of several choices fails, so does their stream, and closing it ends the
// others.
func TestChoiceFails(t *testing.T) {
	e := openEngine(t, nil)
	stuck, long := greedy(e, question, 5), greedy(e, question, 1500)
	stuck.Constraint = constrain.Spec{Kind: constrain.Regex, Text: "[0-9]{3}"}
	stuck.Params.AllowedTokens = e.Info().Tokenizer.Encode("x", false)
	long.Params.IgnoreEOS = true
	s, err := e.Submit(t.Context(), stuck, long)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for err == nil {
		_, err = s.Next(t.Context())
	}
	if !errors.Is(err, engine.ErrStuck) {
		t.Fatal(err)
	}
	s.Close()
	for totals := e.Totals(); totals.Running > 0; totals = e.Totals() {
		if totals.OutputTokens > 1000 {
			t.Fatalf("the other choice goes on: %d tokens", totals.OutputTokens)
		}
		time.Sleep(time.Millisecond)
	}
}
