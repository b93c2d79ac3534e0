package sample

import (
	"slices"
	"testing"
)

// TestThinkingBudget draws from a model that would reason for ever, or ends by itself: reasoning
// has at most its budget of tokens and then its end, and nothing else is touched.
func TestThinkingBudget(t *testing.T) {
	const vocab, open, shut, close2 = 10, 7, 8, 9
	for _, c := range []struct {
		name   string
		start  []int32
		budget int32
		model  []int32 // what it would say, again and again
		want   []int32
	}{
		{"for ever", nil, 3, []int32{1}, []int32{1, 1, 1, shut, close2, 1, 1, 1}},
		{"none", nil, 0, []int32{1}, []int32{shut, close2, 1, 1, 1, 1, 1, 1}},
		{"ends in time", nil, 5, []int32{1, shut, close2, 2, 3, 4, 5, 6}, []int32{1, shut, close2,
			2, 3, 4, 5, 6}},
		{"half of the end", nil, 2, []int32{1, shut, 1, 1, 1, 1, 1, 1}, []int32{1, shut, close2, 1,
			1, 1, 1, 1}},
		{"begins by itself", []int32{open}, 2, []int32{3, open, 1, 1, 1, 1, 1, 1},
			[]int32{3, open, 1, 1, shut, close2, 1, 1}},
		{"twice", []int32{open}, 1, []int32{open, 1, 1, 1, open, 2, 2, 2},
			[]int32{open, 1, shut, close2, open, 2, shut, close2}},
		{"never begins", []int32{open}, 1, []int32{1, 2, 3, 4, 5, 6, 1, 2}, []int32{1, 2, 3, 4, 5,
			6, 1, 2}},
	} {
		p := Params{TopP: 1, RepetitionPenalty: 1, ThinkingBudget: c.budget, ThinkingStart: c.start,
			ThinkingEnd: []int32{shut, close2}, BadWords: [][]int32{{shut}}, EOS: -1}
		if c.name == "ends in time" || c.name == "half of the end" {
			p.BadWords = nil
		}
		var s Sampler
		var got []int32
		for i := range c.want {
			st := NewState(&p, []int32{1, shut}, got) // as after a preemption
			logits := make([]float32, vocab)
			logits[c.model[i%len(c.model)]] = 5
			got = append(got, s.Sample(logits, &p, st, uint32(i)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
