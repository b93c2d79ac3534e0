package layouts

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
)

// outcome is what a client has got of one request.
type outcome struct {
	tokens           []int32
	offsets          []int
	text             string
	logprobs, prompt []step.Logprobs
	finish           sample.Finish
	stopString       string
	stopToken        int32
	outputTokens     int
	cached           int
}

// add takes a delta over, whose memory the stream will use again.
func (o *outcome) add(d *engine.Delta) {
	o.tokens = append(o.tokens, d.Tokens...)
	o.offsets = append(o.offsets, d.TextOffsets...)
	o.text += string(d.Text)
	o.logprobs = appendLogprobs(o.logprobs, d.Logprobs)
	o.prompt = appendLogprobs(o.prompt, d.PromptLogprobs)
	o.finish, o.stopString, o.stopToken = d.Finish, d.StopString, d.StopToken
	o.outputTokens, o.cached = d.OutputTokens, d.CachedTokens
}

func appendLogprobs(to, from []step.Logprobs) []step.Logprobs {
	for _, l := range from {
		l.Slot, l.Top = 0, slices.Clone(l.Top)
		to = append(to, l)
	}
	return to
}

// clone is a copy that shares no memory.
func clone(o *outcome) outcome {
	c := *o
	c.tokens, c.offsets = slices.Clone(o.tokens), slices.Clone(o.offsets)
	c.logprobs, c.prompt = appendLogprobs(nil, o.logprobs), appendLogprobs(nil, o.prompt)
	return c
}

// firstDifference is the first one between the outcomes of a workload and those wanted, "" for
// none.
func firstDifference(got, want [][]outcome) string {
	for i := range got {
		for j := range got[i] {
			if d := got[i][j].difference(&want[i][j]); d != "" {
				return fmt.Sprintf("request %d, choice %d: %s", i, j, d)
			}
		}
	}
	return ""
}

// difference is the first one between what was got and what is wanted, "" for none. Of a request
// that was given up, got is a beginning.
func (o *outcome) difference(want *outcome) string {
	over := o.finish != sample.Unfinished
	for i, t := range o.tokens {
		if i >= len(want.tokens) {
			return fmt.Sprintf("token %d is %d, where the output is over", i, t)
		}
		if t != want.tokens[i] {
			return fmt.Sprintf("token %d is %d, not %d%s", i, t, want.tokens[i],
				at(o.logprobs, want.logprobs, i))
		}
		if o.offsets[i] != want.offsets[i] {
			return fmt.Sprintf("token %d begins at byte %d, not %d", i, o.offsets[i],
				want.offsets[i])
		}
	}
	if d := difference("output", o.logprobs, want.logprobs); d != "" {
		return d
	}
	if d := difference("prompt", o.prompt, want.prompt); d != "" {
		return d
	}
	if !strings.HasPrefix(want.text, o.text) || over && o.text != want.text {
		return fmt.Sprintf("text is %q, not %q", o.text, want.text)
	}
	if !over {
		return ""
	}
	ends := func(o *outcome) string {
		return fmt.Sprintf("%d tokens, %d log-probabilities, %d of the prompt, %v by %q and "+
			"token %d", o.outputTokens, len(o.logprobs), len(o.prompt), o.finish, o.stopString,
			o.stopToken)
	}
	if ends(o) != ends(want) {
		return fmt.Sprintf("it ends with %s, not %s", ends(o), ends(want))
	}
	return ""
}

// at says how the log-probabilities of one position differ.
func at(got, want []step.Logprobs, i int) string {
	if i >= len(got) || i >= len(want) {
		return ""
	}
	return "; " + spell(got[i]) + ", not " + spell(want[i])
}

// difference is the first one of two lists of log-probabilities, of which got may be shorter.
func difference(of string, got, want []step.Logprobs) string {
	if len(got) > len(want) {
		return fmt.Sprintf("%d log-probabilities of the %s, not %d", len(got), of, len(want))
	}
	for i := range got {
		if !same(got[i], want[i]) {
			return fmt.Sprintf("%s position %d: %s, not %s", of, i, spell(got[i]), spell(want[i]))
		}
	}
	return ""
}

func same(a, b step.Logprobs) bool {
	return sameBits(a.Sampled, b.Sampled) && slices.EqualFunc(a.Top, b.Top, sameBits)
}

func sameBits(a, b step.TokenLogprob) bool {
	return a.Token == b.Token && a.Rank == b.Rank &&
		math.Float32bits(a.Logprob) == math.Float32bits(b.Logprob)
}

// spell is a token with its log-probability, to the bit, and the likeliest ones beside it.
func spell(l step.Logprobs) string {
	one := func(t step.TokenLogprob) string {
		return fmt.Sprintf("token %d, rank %d, %v (%08x)", t.Token, t.Rank, t.Logprob,
			math.Float32bits(t.Logprob))
	}
	text := one(l.Sampled)
	for i, t := range l.Top {
		if i == 3 {
			return text + " …"
		}
		text += " / " + one(t)
	}
	return text
}
