package generate

import (
	"context"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// tokenwise is a stream whose deltas do not depend on how fast it is read, nor on which of its
// choices is computed first: one token each, and the choices take turns.
type tokenwise struct {
	engine.Stream
	// waiting are deltas of each choice that have come before their turn.
	waiting [][]engine.Delta
	over    []bool
	open    int
	turn    int
}

func newTokenwise(s engine.Stream, choices int) *tokenwise {
	return &tokenwise{Stream: s, waiting: make([][]engine.Delta, choices),
		over: make([]bool, choices), open: choices}
}

// Next implements engine.Stream.
func (s *tokenwise) Next(ctx context.Context) (engine.Delta, error) {
	for s.open > 0 {
		i := s.turn
		if s.over[i] {
			s.turn = (i + 1) % len(s.over)
			continue
		}
		if w := s.waiting[i]; len(w) > 0 {
			d := w[0]
			s.waiting[i] = slices.Delete(w, 0, 1)
			if d.Finish != sample.Unfinished {
				s.over[i] = true
				s.open--
			}
			s.turn = (i + 1) % len(s.over)
			return d, nil
		}
		d, err := s.Stream.Next(ctx)
		if err != nil {
			return d, err
		}
		if len(s.over) > 1 {
			d = clone(d) // its turn may come after the next delta
		}
		s.waiting[d.Choice] = divide(s.waiting[d.Choice], d)
	}
	return s.Stream.Next(ctx)
}

// clone copies what a stream lends until its next delta.
func clone(d engine.Delta) engine.Delta {
	d.Text, d.Tokens, d.Logprobs = slices.Clone(d.Text), slices.Clone(d.Tokens),
		slices.Clone(d.Logprobs)
	d.TextOffsets, d.RuneOffsets = slices.Clone(d.TextOffsets), slices.Clone(d.RuneOffsets)
	d.TextEnds = slices.Clone(d.TextEnds)
	d.PromptLogprobs = slices.Clone(d.PromptLogprobs)
	return d
}

// divide appends the deltas of the tokens of d, as they are when no two are merged.
func divide(list []engine.Delta, d engine.Delta) []engine.Delta {
	n := len(d.Tokens)
	if n < 2 || len(d.TextEnds) != n {
		return append(list, d) // a beam's output comes as a whole
	}
	from := 0
	for i := range n {
		one := engine.Delta{Choice: d.Choice, Text: d.Text[from:d.TextEnds[i]],
			Tokens:    d.Tokens[i : i+1],
			StopToken: -1, PromptTokens: d.PromptTokens, CachedTokens: d.CachedTokens,
			OutputTokens: d.OutputTokens - (n - 1 - i)}
		from = d.TextEnds[i]
		if len(d.TextOffsets) == n {
			one.TextOffsets, one.RuneOffsets = d.TextOffsets[i:i+1], d.RuneOffsets[i:i+1]
		}
		if len(d.Logprobs) == n {
			one.Logprobs = d.Logprobs[i : i+1]
		}
		if i == 0 {
			one.PromptLogprobs = d.PromptLogprobs
		}
		if i == n-1 {
			one.Text = d.Text[d.TextEnds[max(0, i-1)]:]
			one.Pooled, one.Finish, one.Ticket = d.Pooled, d.Finish, d.Ticket
			one.StopString, one.StopToken = d.StopString, d.StopToken
			one.Times = d.Times
		}
		list = append(list, one)
	}
	return list
}
