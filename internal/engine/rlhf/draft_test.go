package rlhf

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
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

// TestPredictor updates a model whose own layer guesses: by files of another such layer it guesses
// as a server does that started with them, by files without one it keeps its own. Without guesses
// the layer's tensors pass.
func TestPredictor(t *testing.T) {
	const base = "../../../testdata/models/deepseek-v3-tiny"
	tokens := []int32{5, 8, 71} // so that a third is right by chance
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		ok(t, predictortest.Extend(dir, base,
			predictortest.Options{Seed: uint64(i + 1), Copies: true}))
	}
	serve := func(dir, method string) *server {
		s := open(t, func(c *config.Config) {
			c.Model.Path, c.Model.Tokenizer = dir, "../../../testdata/models/go-std-tiny"
			if method != "" {
				c.Speculative = config.Speculative{Method: method, Tokens: 4}
			}
		})
		_, err := s.Init(t.Context(), false)
		ok(t, err)
		return s
	}
	type guesses struct{ drafted, accepted uint64 }
	ask := func(s *server) (answer, guesses) {
		e := s.engines[0]
		p := request(e, "", 64).Params
		p.AllowedTokens, p.EOS = tokens, -1
		r := engine.NewRequest([]int32{5, 6, 7, 8, 9, 10, 5, 6, 7, 8}, p)
		a := read(t, submit(t, e, r), nil)
		n := e.Totals()
		return a, guesses{n.DraftTokens, n.AcceptedTokens}
	}
	want, first := ask(serve(dirs[0], config.MTP))
	_, second := ask(serve(dirs[1], config.MTP))
	if first == second {
		t.Fatalf("both layers guess the same: %v", first)
	}
	for _, c := range []struct {
		what, update string
		want         guesses
	}{{"another layer", dirs[1], second},
		{"no layer", filepath.Join(dirs[0], "model-00001-of-00002.safetensors"), first}} {
		s := serve(dirs[0], config.MTP)
		s.update(t, c.update)
		if got, guessed := ask(s); !reflect.DeepEqual(got, want) || guessed != c.want {
			t.Errorf("after an update by files with %s: %v and guesses %v, want %v and %v", c.what,
				got, guessed, want, c.want)
		}
	}
	s := serve(dirs[0], "")
	s.update(t, dirs[1])
	if got, _ := ask(s); !reflect.DeepEqual(got, want) {
		t.Errorf("without guesses: %v, want %v", got, want)
	}
}
