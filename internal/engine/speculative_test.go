package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// TestFewerSteps has answers that a constraint leaves little choice, that repeat themselves, and
// that another request was given before: they are what they are without guesses, to the bits of
// each log-probability, and take less than half the steps.
func TestFewerSteps(t *testing.T) {
	forced := constrain.Spec{Kind: constrain.Regex, Text: "Index returns the index of the first " +
		`instance of substr in s, or -1 if substr is not present in s\. [0-9]`}
	var told []status.Speculated
	run := func(method string, spec constrain.Spec, times int, dummy bool) (got []received,
		steps uint64) {
		told = nil
		e, _ := openWith(t, func(c *config.Config) {
			c.Schedule.Async = false
			if dummy { // which repeats itself
				c.Model.LoadFormat = "dummy"
			}
			if method == "" {
				return
			}
			model := ""
			if method == config.DraftModel { // the model itself
				model = `"model":"` + builtin.Name + `",`
			}
			if err := c.Speculative.Set(fmt.Sprintf(
				`{%s"method":%q,"num_speculative_tokens":12}`, model, method)); err != nil {
				t.Fatal(err)
			}
		}, func(e status.Event) {
			if e, ok := e.(status.Speculated); ok {
				told = append(told, e)
			}
		})
		for range times {
			r := greedy(e, "What does strings.Index do?", 160)
			r.Constraint, r.Params.Logprobs = spec, 3
			got = append(got, receiveAll(t, e, []*engine.Request{r}, func(int) {})...)
		}
		return got, e.Totals().Steps
	}
	for _, c := range []struct {
		name   string
		method string
		spec   constrain.Spec
		times  int
		dummy  bool
	}{
		{"forced", config.Ngram, forced, 1, false},
		{"repeated", config.Ngram, constrain.Spec{}, 1, true},
		{"by a model", config.DraftModel, constrain.Spec{}, 2, false},
		{"of others", config.Suffix, constrain.Spec{}, 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, plain := run("", c.spec, c.times, c.dummy)
			got, steps := run(c.method, c.spec, c.times, c.dummy)
			same(t, c.method, got, want)
			t.Logf("%q in %d steps, %d without guesses", got[0].text, steps, plain)
			if slices.ContainsFunc(got, func(r received) bool { return r.err != nil }) {
				t.Error(got[0].err)
			}
			made := 0
			for _, s := range told[len(told)-1].Steps {
				made += int(s.Tokens)
			}
			if last := told[len(told)-1]; made < last.Tokens/2 || made > last.Tokens+1 ||
				2*len(last.Steps) > made {
				t.Errorf("it is said to be %+v", last)
			}
			if 2*steps > plain {
				t.Errorf("%d steps, %d without guesses", steps, plain)
			}
		})
	}
}
