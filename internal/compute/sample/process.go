package sample

import "slices"

// process changes the logits as the request asks, in the order of vLLM V1's sampler: allowed
// tokens, bad words, min_tokens, logit bias, penalties. All of these also apply to a greedy choice.
// Where reasoning has come to its bound, its end is all that is left, whatever the others say.
// Ids outside the row are skipped.
func (s *Sampler) process(logits []float32, p *Params, st *State) {
	if st != nil && st.thinking != nil {
		if only := st.thinking.forced(); in(logits, only) {
			s.only[0] = only
			s.allowOnly(logits, s.only[:])
			return
		}
	}
	if len(p.AllowedTokens) > 0 {
		s.allowOnly(logits, p.AllowedTokens)
	}
	if len(p.BadWords) > 0 {
		maskBadWords(logits, p.BadWords, st)
	}
	if suppressesStop(p, st) {
		mask(logits, p.EOS)
		for _, id := range p.StopTokens {
			mask(logits, id)
		}
		for _, id := range p.Withheld {
			mask(logits, id)
		}
	}
	for _, b := range p.LogitBias {
		if in(logits, b.ID) {
			logits[b.ID] += b.Value
		}
	}
	if st != nil && st.seen != nil {
		penalise(logits, p, st)
	}
}

func in(logits []float32, id int32) bool { return within(len(logits), id) }

// suppressesStop says whether the output is too short to end: vLLM suppresses the model's ends then
// even for a request that ignores them.
func suppressesStop(p *Params, st *State) bool {
	return p.MinTokens > 0 && (st == nil || st.outputs < p.MinTokens)
}

func mask(logits []float32, id int32) {
	if in(logits, id) {
		logits[id] = negInf
	}
}

// allowOnly masks every token but the allowed ones.
func (s *Sampler) allowOnly(logits []float32, allowed []int32) {
	s.saved = slices.Grow(s.saved[:0], len(allowed))[:len(allowed)]
	for i, id := range allowed {
		if in(logits, id) {
			s.saved[i] = logits[id]
		}
	}
	for i := range logits {
		logits[i] = negInf
	}
	for i, id := range allowed {
		if in(logits, id) {
			logits[id] = s.saved[i]
		}
	}
}

// maskBadWords masks the last token of every bad word whose other tokens are the last ones of the
// output.
func maskBadWords(logits []float32, words [][]int32, st *State) {
	for _, w := range words {
		if forbids(w, st) {
			mask(logits, w[len(w)-1])
		}
	}
}

// forbids says whether a bad word's last token may not come next.
func forbids(word []int32, st *State) bool {
	var tail []int32
	if st != nil {
		tail = st.tail
	}
	n := len(word) - 1
	return n >= 0 && n <= len(tail) && slices.Equal(tail[len(tail)-n:], word[:n])
}

// penalise applies the repetition penalty to tokens of prompt and output (Keskar et al. 2019,
// CTRL), then OpenAI's frequency and presence penalties to those of the output.
func penalise(logits []float32, p *Params, st *State) {
	rep, freq, pres := p.RepetitionPenalty, p.FrequencyPenalty, p.PresencePenalty
	for i, id := range st.seen.ids {
		if !in(logits, id) {
			continue
		}
		v := logits[id]
		if rep != 1 {
			if v > 0 {
				v /= rep
			} else {
				v *= rep
			}
		}
		if n := st.seen.counts[i]; n > 0 {
			v -= float32(freq * float32(n))
			v -= pres
		}
		logits[id] = v
	}
}
