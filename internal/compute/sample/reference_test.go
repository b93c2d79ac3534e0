package sample

import (
	"math"
	"slices"
)

// reference is the sampler written for reading: float64, full sorts, maps, one step after the
// other, in the order of vLLM V1. It returns the token, and the tokens that could have been drawn
// with their probabilities.
func reference(row []float32, p *Params, prompt, output []int32, position uint32) (token int32,
	kept map[int32]float64) {
	x := make([]float64, len(row))
	for i, v := range row {
		x[i] = float64(v)
	}
	masked := math.Inf(-1)

	if len(p.AllowedTokens) > 0 {
		allowed := map[int32]bool{}
		for _, id := range p.AllowedTokens {
			allowed[id] = true
		}
		for i := range x {
			if !allowed[int32(i)] {
				x[i] = masked
			}
		}
	}
	for _, w := range p.BadWords {
		n := len(w) - 1
		if len(output) >= n && slices.Equal(output[len(output)-n:], w[:n]) {
			x[w[n]] = masked
		}
	}
	if len(output) < int(p.MinTokens) {
		for _, id := range slices.Concat([]int32{p.EOS}, p.StopTokens, p.Withheld) {
			if id >= 0 {
				x[id] = masked
			}
		}
	}
	for _, b := range p.LogitBias {
		x[b.ID] = float64(float32(x[b.ID]) + b.Value)
	}
	inPrompt, counts := map[int32]bool{}, map[int32]int{}
	for _, id := range prompt {
		inPrompt[id] = true
	}
	for _, id := range output {
		counts[id]++
	}
	for i := range x {
		id, v := int32(i), float32(x[i])
		if inPrompt[id] || counts[id] > 0 {
			if v > 0 {
				v /= p.RepetitionPenalty
			} else {
				v *= p.RepetitionPenalty
			}
		}
		v -= float32(p.FrequencyPenalty * float32(counts[id]))
		if counts[id] > 0 {
			v -= p.PresencePenalty
		}
		x[i] = float64(v)
	}

	order := make([]int32, len(x))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		switch {
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return 0
	})
	best := order[0]
	if p.Temperature < GreedyTemperature {
		return best, map[int32]float64{best: 1}
	}
	probs := make([]float64, len(x)) // not normalised: the most likely is 1
	for i, v := range x {
		probs[i] = math.Exp((v - x[best]) / float64(p.Temperature))
	}
	if p.MinP > 0 {
		for i := range probs {
			if probs[i] < float64(p.MinP)*(1-1e-12) {
				probs[i] = 0
			}
		}
	}
	if k := int(p.TopK); k > 0 && k < len(x) {
		least := x[order[k-1]]
		for i := range probs {
			if x[i] < least {
				probs[i] = 0
			}
		}
	}
	if p.TopP < 1 {
		total := 0.0
		for _, q := range probs {
			total += q
		}
		above := 0.0
		for _, id := range order {
			q := probs[id]
			if above >= float64(p.TopP)*total {
				probs[id] = 0
			}
			above += q
		}
	}
	total := 0.0
	for _, q := range probs {
		total += q
	}
	kept = map[int32]float64{}
	for i, q := range probs {
		if q > 0 {
			kept[int32(i)] = q / total
		}
	}
	u := uniform(p.Seed, position) * total
	token = -1
	for i, q := range probs {
		if q == 0 {
			continue
		}
		token = int32(i)
		if u < q {
			break
		}
		u -= q
	}
	return token, kept
}
