package sample

import (
	"math"
	"slices"
)

// Row is a row of logits, on a device, from which the device chooses a token as Sampler.Sample
// does, and says how likely it was as Sampler.Logprobs does.
type Row struct {
	// Index is the row's number among the logits.
	Index int
	// Params and State are those of the request, Position is that of the token.
	Params   *Params
	State    *State
	Position uint32
	// Mask, unless it is nil, has the bits of the tokens that a constraint leaves (see Restrict).
	Mask []uint32
	// Given is a token that is only to be described, from a row that is used as it is; -1 has one
	// chosen.
	Given int32
	// Logprobs is how many of the most likely tokens are described beside the chosen or given one,
	// NoLogprobs that none is described at all.
	Logprobs int32

	// Token is set to the one that is chosen, or to Unsound if the logits are no numbers (see
	// Sound).
	Token int32
	// Sampled describes the token, where that was asked for, and Top the most likely ones. The
	// device appends to Top.
	Sampled Choice
	Top     []Choice
}

// Recipe is what Sample does to a row of logits, worked out for a device: the order is that of the
// fields, and the arithmetic is Sample's. Ids outside the vocabulary are left out.
type Recipe struct {
	// Only, unless it is empty, are the tokens that may be chosen; those of Masked, ascending, may
	// not.
	Only, Masked []int32
	// Bias is added, by ascending id; of equal ids in the order of the request.
	Bias []Bias
	// Seen are the tokens that penalties are for, Counts how often the output has them. The
	// repetition penalty is first, then in float32 what frequency and count make, then presence.
	// The slices are those of the State.
	Seen, Counts                    []int32
	Repetition, Frequency, Presence float32
	// Greedy has the most likely token chosen, the lowest id of equal ones. So does a logit of plus
	// infinity.
	Greedy bool
	// Steps is how many exponents' steps of 1/64 octave a logit is: the weight of a token is
	// 2^(y/64), y = logit·Steps - greatest·Steps, and nothing where y is -65·64 or less.
	Steps float64
	// MinP is added to the greatest logit: what is less than that in float64 is dropped. Minus
	// infinity is off.
	MinP float64
	// TopK keeps the tokens as likely as the k-th, 0 all; TopP the fewest whose weights reach that
	// part of all, in order of falling logit and rising id. 1 is off.
	TopK int32
	TopP float64
	// Number, in [0, 1), decides: the first token, by id, at which the sum of weights exceeds
	// Number times the sum of all.
	Number float64
	// Resort is the choice where no token is left.
	Resort int32
}

// Set works out what is done to a row of so many logits, for the token at a position. It reuses the
// recipe's memory, and refers to the state's.
func (r *Recipe) Set(p *Params, st *State, vocab int, position uint32) {
	*r = Recipe{Only: r.Only[:0], Masked: r.Masked[:0], Bias: r.Bias[:0], MinP: math.Inf(-1),
		TopP: 1, Resort: lastResort(vocab, p)}
	r.process(p, st, vocab)
	if r.Greedy = !(p.Temperature >= GreedyTemperature); r.Greedy {
		return
	}
	r.Steps = newScale(0, float64(p.Temperature)).k
	if p.MinP > 0 {
		r.MinP = minPShift(p)
	}
	if int(p.TopK) < vocab {
		r.TopK = max(p.TopK, 0)
	}
	if p.TopP < 1 {
		r.TopP = float64(p.TopP)
	}
	r.Number = uniform(p.Seed, position)
}

// process works out what Sampler.process does.
func (r *Recipe) process(p *Params, st *State, vocab int) {
	if st != nil && st.thinking != nil {
		if only := st.thinking.forced(); within(vocab, only) {
			r.Only = append(r.Only, only)
			return
		}
	}
	r.Only = append(r.Only, p.AllowedTokens...)
	for _, w := range p.BadWords {
		if forbids(w, st) {
			r.Masked = append(r.Masked, w[len(w)-1])
		}
	}
	if suppressesStop(p, st) {
		r.Masked = append(append(r.Masked, p.EOS), p.StopTokens...)
		r.Masked = append(r.Masked, p.Withheld...)
	}
	slices.Sort(r.Masked)
	r.Masked = slices.Compact(r.Masked)
	r.Masked = slices.DeleteFunc(r.Masked, func(id int32) bool { return !within(vocab, id) })
	for _, b := range p.LogitBias {
		if within(vocab, b.ID) {
			r.Bias = append(r.Bias, b)
		}
	}
	slices.SortStableFunc(r.Bias, func(a, b Bias) int { return int(a.ID) - int(b.ID) })
	if st != nil && st.seen != nil {
		r.Seen, r.Counts = st.seen.ids, st.seen.counts
		r.Repetition, r.Frequency, r.Presence = p.RepetitionPenalty, p.FrequencyPenalty,
			p.PresencePenalty
	}
}

// Edits says whether logits are changed, beyond being left out.
func (r *Recipe) Edits() bool { return len(r.Masked)+len(r.Bias)+len(r.Seen) > 0 }

// Filters says whether not all tokens that are possible are drawn from.
func (r *Recipe) Filters() bool {
	return !r.Greedy && (r.MinP > math.Inf(-1) || r.TopK > 0 || r.TopP < 1)
}

func within(vocab int, id int32) bool { return id >= 0 && int(id) < vocab }
