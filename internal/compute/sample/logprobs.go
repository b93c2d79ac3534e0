package sample

import (
	"math"
	"slices"
)

// Choice is one token with its log-probability (natural logarithm), or its logit, and its rank, 1
// being the most likely.
type Choice struct {
	Token   int32
	Logprob float32
	Rank    int32
}

// Logprobs describes the choice of token from a row of logits: the token itself and the k most
// likely ones (AllLogprobs: the whole vocabulary; NoLogprobs and 0: none), most likely first, equal
// ones by lowest id, appended to top.
//
// The values are those of vLLM's default logprobs_mode raw_logprobs: the log-softmax of the model's
// logits before any processor or temperature, so it has to be called before Sample; called after
// Processed they are those of processed_logprobs. The rank of the token is the number of tokens at
// least as likely as it, itself included (vLLM counts logprobs >= its own); those of top are 1, 2,
// 3 …. NaN counts as minus infinity; logits of plus infinity share all of the probability. The row
// is not changed. A token outside the row has the log-probability minus infinity.
//
// As logits the values are the row's own: vLLM's raw_logits and processed_logits.
func (s *Sampler) Logprobs(logits []float32, token int32, k int32, asLogits bool,
	top []Choice) (sampled Choice, topOut []Choice) {
	s.survey(logits)
	norm := s.normaliser(logits, asLogits)
	sampled = norm.choice(logits, token)

	n := len(logits)
	switch {
	case k == AllLogprobs || int(k) >= n:
	case k <= 0:
		return sampled, top
	default:
		n = int(k)
	}
	start := len(top)
	top = s.mostLikely(logits, n, top)
	for i := range top[start:] {
		e := &top[start+i]
		e.Logprob = norm.Logprob(e.Logprob)
		e.Rank = int32(i + 1)
	}
	return sampled, top
}

// LogprobsOf describes the choice of token as Logprobs does, and beside it tokens that are named:
// the chosen one first, then the others in their order, each once, appended to top, with their
// ranks in the whole vocabulary.
func (s *Sampler) LogprobsOf(logits []float32, token int32, named []int32, asLogits bool,
	top []Choice) (sampled Choice, topOut []Choice) {
	s.survey(logits)
	norm := s.normaliser(logits, asLogits)
	sampled = norm.choice(logits, token)
	top = append(top, sampled)
	for i, id := range named {
		if id != token && !slices.Contains(named[:i], id) {
			top = append(top, norm.choice(logits, id))
		}
	}
	return sampled, top
}

// choice is a token of a row; one outside of it is as unlikely as can be.
func (n Normaliser) choice(logits []float32, token int32) Choice {
	value := negInf
	if in(logits, token) {
		value = logits[token]
	}
	return Choice{Token: token, Logprob: n.Logprob(value), Rank: rank(logits, value)}
}

// mostLikely appends the n most likely tokens of a row that was surveyed, with their logits.
func (s *Sampler) mostLikely(logits []float32, n int, top []Choice) []Choice {
	if n == 0 {
		return top
	}
	start := len(top)
	low, last := negInf, negInf
	if n < len(logits) {
		last = s.kth(logits, n)
		low = below(float64(last))
	}
	// Of many that are as likely as the last one no more are kept than can count.
	ties := 0
	for i := s.above(logits, 0, low); i >= 0; i = s.above(logits, i+1, low) {
		if logits[i] == last {
			if ties++; ties > n {
				continue
			}
		}
		top = append(top, Choice{Token: int32(i), Logprob: logits[i]})
	}
	slices.SortFunc(top[start:], mostLikelyFirst)
	if len(top)-start > n {
		top = top[:start+n]
	}
	// Fewer tokens than asked for are possible at all: the impossible ones follow, by lowest id.
	for i := 0; i < len(logits) && len(top)-start < n; i++ {
		if !(logits[i] > negInf) {
			top = append(top, Choice{Token: int32(i), Logprob: negInf})
		}
	}
	return top
}

// rank counts the tokens whose logit is at least value.
func rank(logits []float32, value float32) int32 {
	if !(value > negInf) {
		return int32(len(logits))
	}
	return count(logits, value)
}

// Normaliser turns logits into log-probabilities: logit - greatest - log(sum of weights). Its zero
// leaves them as they are.
type Normaliser struct {
	greatest, logSum float64
}

// NewNormaliser is that of a row with this greatest logit and sum of the weights of all. Where the
// greatest is plus infinity, the sum is the number of logits that are.
func NewNormaliser(greatest float32, sum float64) Normaliser {
	return Normaliser{greatest: float64(greatest), logSum: math.Log(sum)}
}

// normaliser is that of a row that was surveyed.
func (s *Sampler) normaliser(logits []float32, asLogits bool) Normaliser {
	if asLogits {
		return Normaliser{}
	}
	best := s.best(logits)
	if best < 0 {
		return Normaliser{greatest: math.Inf(-1)}
	}
	greatest := logits[best]
	if math.IsInf(float64(greatest), 1) {
		return NewNormaliser(greatest, float64(rank(logits, greatest)))
	}
	_, total := s.sums(logits, greatest, newScale(greatest, 1))
	return NewNormaliser(greatest, total)
}

// Logprob is the log-probability of a token that has this logit.
func (n Normaliser) Logprob(v float32) float32 {
	switch {
	case !(v > negInf):
		return negInf
	case !math.IsInf(n.greatest, 1):
		return float32(float64(v) - n.greatest - n.logSum)
	case math.IsInf(float64(v), 1):
		return float32(-n.logSum)
	default:
		return negInf
	}
}
