package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// TestConstraints keeps outputs to a regular expression, a choice and JSON, beside others that are
// free: each is within its language and ends there, not before it has as many tokens as its request
// asks for where it can have them; the free ones are what they are alone; and all are the same with
// one plan at a time, with several ranks and stages, and with so few blocks that requests are
// computed again.
func TestConstraints(t *testing.T) {
	numbers := regexp.MustCompile(`^[1-9][0-9]{2,5}(, [1-9][0-9]{2,5}){3}$`)
	words := regexp.MustCompile(`^[a-z]{1,9}( [a-z]{1,9})*$`)
	choices := []string{"yes, it does", "no, never", "perhaps"}
	chosen, err := json.Marshal(choices)
	if err != nil {
		t.Fatal(err)
	}
	var first []received
	for _, c := range []struct {
		name string
		set  func(*config.Config)
	}{
		{"alone", func(*config.Config) {}},
		{"one plan at a time", func(c *config.Config) { c.Schedule.Async = false }},
		{"few blocks", func(c *config.Config) { c.Cache.Blocks, c.Model.MaxModelLen = 10, 144 }},
		{"ranks and stages", func(c *config.Config) {
			c.Parallel.Backend, c.Parallel.CPUThreads = "uni", 1
			c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := openEngine(t, c.set)
			ask := func(i int, spec constrain.Spec) *engine.Request {
				r := greedy(e, fmt.Sprintf("What does strings.%c do?", 'A'+i), 60)
				r.Params.Temperature, r.Params.Seed, r.Params.Logprobs = 1, uint64(i), 2
				r.Constraint = spec
				if spec.Kind != constrain.None {
					r.Params.MinTokens, r.Params.IgnoreEOS = 50, true
				}
				return r
			}
			regex := constrain.Spec{Kind: constrain.Regex, Text: numbers.String()}
			choice := constrain.Spec{Kind: constrain.Choice, Text: string(chosen)}
			object := constrain.Spec{Kind: constrain.JSONObject}
			endless := constrain.Spec{Kind: constrain.Regex, Text: words.String()}
			list := []*engine.Request{ask(0, constrain.Spec{}), ask(1, regex), ask(2, choice),
				ask(3, constrain.Spec{}), ask(4, regex), ask(5, object), ask(6, choice),
				ask(7, endless)}
			list[7].Params.LogitBias = []sample.Bias{{ID: list[7].Params.EOS, Value: 100}}
			free := receiveAll(t, e, []*engine.Request{list[0], list[3]}, func(int) {})
			got := receiveAll(t, e, list, func(int) {})
			same(t, "free", []received{got[0], got[3]}, free)
			for _, i := range []int{1, 4} {
				if !numbers.MatchString(got[i].text) || got[i].finish != sample.FinishStop {
					t.Errorf("%q does not match, it ended by %v, %v", got[i].text, got[i].finish,
						got[i].err)
				}
			}
			for _, i := range []int{2, 6} {
				if !slices.Contains(choices, got[i].text) || got[i].finish != sample.FinishStop {
					t.Errorf("%q is no choice, it ended by %v, %v", got[i].text, got[i].finish,
						got[i].err)
				}
			}
			if n := len(got[7].tokens); n != 51 || got[7].finish != sample.FinishStop ||
				!words.MatchString(got[7].text) {
				t.Errorf("%q, ended by %v after %d tokens, want the end after 50", got[7].text,
					got[7].finish, n)
			}
			object1 := map[string]any{}
			if err := json.Unmarshal([]byte(got[5].text),
				&object1); got[5].finish == sample.FinishStop && err != nil ||
				got[5].finish == sample.FinishError {
				t.Errorf("%q, ended by %v: %v, %v", got[5].text, got[5].finish, err, got[5].err)
			}
			if first == nil {
				first = got
			}
			same(t, c.name, got, first)
		})
	}
}

// TestConstraintInText: no answer ends within free text that something has to follow.
func TestConstraintInText(t *testing.T) {
	e := openEngine(t, nil)
	var list []*engine.Request
	for i := range 8 {
		r := greedy(e, "What does strings.Index do?", 60)
		r.Params.Temperature, r.Params.Seed, r.Params.IgnoreEOS = 1, uint64(i), i%2 == 0
		r.Constraint = constrain.Spec{Kind: constrain.StructuralTag, Text: `{"type":` +
			`"structural_tag","format":{"type":"tag","begin":"<think>","content":{"type":` +
			`"any_text"},"end":"</think>"}}`}
		list = append(list, r)
	}
	for i, got := range receiveAll(t, e, list, func(int) {}) {
		if got.finish == sample.FinishStop && !strings.HasSuffix(got.text, "</think>") ||
			got.err != nil {
			t.Errorf("answer %d is %q, ended by %v, %v", i, got.text, got.finish, got.err)
		}
	}
}

// TestConstraintRefused: what cannot be enforced is refused before anything is computed, what
// contradicts the rest of its request ends with an error, and both cost no other request anything.
func TestConstraintRefused(t *testing.T) {
	e := openEngine(t, nil)
	for _, spec := range []constrain.Spec{
		{Kind: constrain.Regex, Text: "a("},
		{Kind: constrain.Choice, Text: `[1]`},
	} {
		r := greedy(e, "What?", 5)
		r.Constraint = spec
		var refused *constrain.Error
		if _, err := e.Submit(t.Context(), r); !errors.As(err, &refused) {
			t.Errorf("%v: %v", spec, err)
		}
	}
	r := greedy(e, "What?", 5)
	r.Constraint = constrain.Spec{Kind: constrain.Regex, Text: "[0-9]{3}"}
	r.Params.AllowedTokens = e.Info().Tokenizer.Encode("x", false)
	got := receiveAll(t, e, []*engine.Request{r, greedy(e, "What?", 5)}, func(int) {})
	if !errors.Is(got[0].err, engine.ErrStuck) || len(got[0].tokens) > 0 {
		t.Errorf("the contradiction ended by %v, %v, after %v", got[0].finish, got[0].err,
			got[0].tokens)
	}
	if got[1].err != nil || len(got[1].tokens) != 5 {
		t.Errorf("its neighbour ended by %v after %v", got[1].err, got[1].tokens)
	}
	skipped := openEngine(t, func(c *config.Config) { c.Model.SkipTokenizerInit = true })
	q := engine.NewRequest([]int32{1, 2}, sample.Params{TopP: 1, RepetitionPenalty: 1, MaxTokens: 3,
		EOS:      0,
		Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs})
	q.Constraint = constrain.Spec{Kind: constrain.JSONObject}
	var refused *constrain.Error
	if _, err := skipped.Submit(t.Context(), q); !errors.As(err, &refused) {
		t.Errorf("without a tokenizer: %v", err)
	}
}

// TestConstraintSpent: a grammar that can be read in ever more ways ends its own answer when that
// has taken all that an answer may, by an error that says so; its neighbours have theirs, on every
// layout.
func TestConstraintSpent(t *testing.T) {
	var doubling strings.Builder
	doubling.WriteString("root ::= r0\n")
	for i := range 60 {
		fmt.Fprintf(&doubling, "r%d ::= r%d r%d | [a-z] r0 | [a-z ]\n", i, i+1, i+1)
	}
	doubling.WriteString("r60 ::= [a-z]")
	for _, backend := range []string{"", "uni"} {
		e := openEngine(t, func(c *config.Config) {
			if backend != "" {
				c.Parallel.Backend, c.Parallel.CPUThreads = backend, 1
				c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
			}
		})
		free := receiveAll(t, e, []*engine.Request{greedy(e, "What?", 20)}, func(int) {})
		r := greedy(e, "What?", 100)
		r.Constraint = constrain.Spec{Kind: constrain.Grammar, Text: doubling.String()}
		r.Params.IgnoreEOS = true
		got := receiveAll(t, e, []*engine.Request{r, greedy(e, "What?", 20)}, func(int) {})
		if !errors.Is(got[0].err, engine.ErrSpent) {
			t.Errorf("the doubling ended by %v, %v, after %d tokens", got[0].finish, got[0].err,
				len(got[0].tokens))
		}
		same(t, "the neighbour", got[1:], free)
	}
}
