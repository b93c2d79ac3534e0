package rlhf

import (
	"reflect"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
)

// TestDraftModel has a draft model guess while the model gets other weights and sleeps: answers are
// those without it, and it guesses again after each.
func TestDraftModel(t *testing.T) {
	weights := folder(t, others(t))
	ask := func(s *server) answer {
		e := s.engines[0]
		return read(t, submit(t, e, request(e, "What does strings.Builder do?", 24)), nil)
	}
	own := ask(open(t, nil))
	other := ask(open(t, func(c *config.Config) { c.Model.Path = weights }))
	s := open(t, func(c *config.Config) {
		c.Speculative = config.Speculative{Method: config.DraftModel, Tokens: 4,
			Model: builtin.Name}
	})
	_, err := s.Init(t.Context(), true)
	ok(t, err)
	guessed := func(what string, want answer) {
		t.Helper()
		before := s.engines[0].Totals().DraftTokens
		if got := ask(s); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		if s.engines[0].Totals().DraftTokens == before {
			t.Errorf("%s: nothing was guessed", what)
		}
	}
	guessed("at first", own)
	ok(t, s.Sleep(t.Context(), 1, state.Abort))
	ok(t, s.Wake(t.Context(), nil))
	guessed("after a sleep", own)
	ok(t, s.Sleep(t.Context(), 1, state.Abort))
	ok(t, s.Wake(t.Context(), []string{"weights"}))
	ok(t, s.Wake(t.Context(), []string{"kv_cache"}))
	guessed("after a sleep that ended in parts", own)
	s.update(t, weights)
	guessed("with other weights", other)
}
