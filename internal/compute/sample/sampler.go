package sample

import (
	"math"
	"math/bits"
)

// Sampler is the scratch memory of one worker goroutine. The zero value is ready; it grows to the
// size of the vocabulary and is then reused. It holds nothing of a request: that is in Params and
// State.
type Sampler struct {
	heap  [heapK]float32
	count [2048]uint32
	hist  [buckets]float64
	block []float32 // sums of weights, and greatest values, by block
	maxes []float32
	end   [block]float32
	keys  []uint32
	saved []float32
	edge  []Choice
	only  [1]int32
	// Candidates that passed the filters, in order of their ids.
	ids    []int32
	logits []float32
}

// Sample chooses the token at an absolute position from its logits (one per token of the
// vocabulary), which it overwrites. st may be nil for a request that has no output yet and no
// penalties.
//
// The steps are those of vLLM V1: allowed tokens, bad words, min_tokens, logit bias, penalties;
// then, if the temperature is below GreedyTemperature, the most likely token (the lowest id of
// equal ones); else temperature, min-p, top-k, top-p, and a draw. Top-k keeps every token that
// equals the k-th. Top-p keeps a token while the probability of those before it, in order of
// falling logit and rising id, is less than p; so the most likely token always stays.
//
// The draw inverts the cumulative distribution of the kept tokens in order of their ids, in
// float64, at the number that Philox4x32-10 gives for (Seed, position): it depends on these and
// the logits, and on nothing else.
//
// NaN counts as minus infinity, and plus infinity as certain (the lowest such id). When no token
// is left, the result is the first of AllowedTokens that is in the vocabulary, else token 0; it
// is -1 only for an empty row.
func (s *Sampler) Sample(logits []float32, p *Params, st *State, position uint32) int32 {
	s.process(logits, p, st)
	s.survey(logits)
	best := s.best(logits)
	if best < 0 {
		return lastResort(len(logits), p)
	}
	greatest := logits[best]
	if !(p.Temperature >= GreedyTemperature) || math.IsInf(float64(greatest), 1) {
		return int32(best)
	}
	c := newScale(greatest, float64(p.Temperature))
	u := uniform(p.Seed, position)
	if s.restrict(logits, p, greatest) {
		return s.ids[s.draw(s.logits, greatest, c, u)]
	}
	return int32(s.draw(logits, greatest, c, u))
}

// restrict lists the tokens of a row that was surveyed that pass min-p, top-k and top-p; false is
// that all do, and there is no list.
func (s *Sampler) restrict(logits []float32, p *Params, greatest float32) bool {
	low := s.threshold(logits, p, greatest)
	listed := !math.IsInf(float64(low), -1)
	if listed {
		s.collect(logits, low)
	}
	if p.TopP < 1 {
		c := newScale(greatest, float64(p.Temperature))
		s.nucleus(logits, listed, greatest, c, float64(p.TopP))
		listed = true
	}
	return listed
}

// Processed makes of a row of logits, as Sample has left it, those that the token was drawn by:
// divided by the temperature, and minus infinity for what min-p, top-k and top-p have dropped. A
// greedy choice is by the row as it is.
func (s *Sampler) Processed(logits []float32, p *Params) {
	s.survey(logits)
	best := s.best(logits)
	if best < 0 || !(p.Temperature >= GreedyTemperature) {
		return
	}
	greatest := logits[best]
	if math.IsInf(float64(greatest), 1) {
		return
	}
	if s.restrict(logits, p, greatest) {
		for i := range logits {
			logits[i] = negInf
		}
		for i, id := range s.ids {
			logits[id] = s.logits[i]
		}
	}
	for i := range logits {
		logits[i] /= p.Temperature
	}
}

func lastResort(vocab int, p *Params) int32 {
	for _, id := range p.AllowedTokens {
		if within(vocab, id) {
			return id
		}
	}
	if vocab == 0 {
		return -1
	}
	return 0
}

// threshold returns the value that logits must exceed to pass min-p and top-k, minus infinity when
// both are off. As both keep what is above some logit, the higher of the two bounds is the result
// of one after the other.
func (s *Sampler) threshold(logits []float32, p *Params, greatest float32) float32 {
	low := negInf
	if p.MinP > 0 {
		low = below(float64(greatest) + minPShift(p))
	}
	if k := int(p.TopK); k > 0 && k < len(logits) {
		low = max(low, below(float64(s.kth(logits, k))))
	}
	return low
}

// minPShift is the distance, not positive, of a logit whose weight is MinP from the greatest.
func minPShift(p *Params) float64 {
	return float64(math.Log(float64(p.MinP)) * float64(p.Temperature))
}

// collect lists the tokens of a row that was surveyed whose logit is greater than low.
func (s *Sampler) collect(logits []float32, low float32) {
	s.grow(len(logits))
	ids, vals := s.ids[:0], s.logits[:0]
	var words [block / 64]uint64
	for b, top := range s.maxes {
		if !(top > low) {
			continue
		}
		from := b * block
		if !vector || from+block > len(logits) {
			part := logits[:min(from+block, len(logits))]
			for i := nextAbove(part, from, low); i >= 0; i = nextAbove(part, i+1, low) {
				ids, vals = append(ids, int32(i)), append(vals, part[i])
			}
			continue
		}
		aboveAVX2(&words[0], &logits[from], low)
		for k, w := range words {
			for ; w != 0; w &= w - 1 {
				i := from + k*64 + bits.TrailingZeros64(w)
				ids, vals = append(ids, int32(i)), append(vals, logits[i])
			}
		}
	}
	s.ids, s.logits = ids, vals
}

// grow makes room for a vocabulary at once, so that no later row of that size allocates.
func (s *Sampler) grow(vocab int) {
	if cap(s.ids) < vocab {
		s.ids = make([]int32, 0, vocab)
		s.logits = make([]float32, 0, vocab)
	}
}

// draw returns the index in x, whose greatest value is given, at which the cumulative weight
// first exceeds u times the total. Weights are computed twice, once for the sums of blocks and
// once inside the block that is hit, rather than stored.
func (s *Sampler) draw(x []float32, greatest float32, c scale, u float64) int {
	sums, total := s.sums(x, greatest, c)
	// before is the weight ahead of the block hit; when rounding leaves u*total past the end, the
	// last block that weighs anything is the one.
	target, sum, before, hit := u*total, 0.0, 0.0, 0
	for b, w := range sums {
		if w == 0 {
			continue
		}
		hit, before = b, sum
		sum += float64(w)
		if target < sum {
			break
		}
	}
	rest := target - before
	last := -1
	start := hit * block
	for i, v := range x[start:min(start+block, len(x))] {
		w := weightOf(c.exponent(v))
		if w == 0 {
			continue
		}
		last = start + i
		if rest < w {
			break
		}
		rest -= w
	}
	// The same rounding can leave a remainder past the last weight of the block: that token is the
	// one.
	return max(last, 0)
}
