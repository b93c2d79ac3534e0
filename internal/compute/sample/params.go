// Package sample turns a row of logits into a token: sampling parameters, logits processors, and a
// counter-based random generator keyed by (seed, position), so that a token never depends on batch
// neighbours, scheduling, preemption or layout.
package sample

// Params says how the tokens of one request are chosen. Every field is resolved (see
// Defaults.Resolve).
type Params struct {
	// Temperature scales the logits; below 1e-5 the choice is greedy.
	Temperature float32
	// TopP keeps the smallest set of tokens whose probability reaches it; 1 is off.
	TopP float32
	// TopK keeps the K most likely tokens; 0 is off.
	TopK int32
	// MinP drops tokens less likely than MinP times the most likely one; 0 is off.
	MinP float32
	// RepetitionPenalty divides positive and multiplies negative logits of tokens seen in the
	// prompt or the output; 1 is off.
	RepetitionPenalty float32
	// PresencePenalty is subtracted once from each token seen in the output; 0 is off.
	PresencePenalty float32
	// FrequencyPenalty is subtracted per occurrence in the output; 0 is off.
	FrequencyPenalty float32
	// Seed keys the generator. A request without a seed gets a random one on admission.
	Seed uint64
	// Logprobs is how many of the most likely tokens are reported beside the sampled one;
	// NoLogprobs is none at all, 0 the sampled one only, AllLogprobs the whole vocabulary.
	Logprobs int32
	// LogprobTokens, when not empty, are reported beside the sampled token instead of the most
	// likely ones. Logprobs is not NoLogprobs then.
	LogprobTokens []int32
	// PromptLogprobs is what Logprobs is for the prompt's tokens.
	PromptLogprobs int32
	// Processed has Logprobs be those that the token is drawn by (vLLM's logprobs_mode
	// processed_logprobs), not the model's; with AsLogits they are logits (processed_logits and
	// raw_logits), and so are PromptLogprobs, the model's in any case.
	Processed, AsLogits bool
	// MaxTokens ends the output by "length"; always >= 1.
	MaxTokens int32
	// MinTokens is the number of output tokens before EOS, StopTokens and Withheld may be chosen.
	MinTokens int32
	// EOS is the model's end-of-sequence token, -1 for none.
	EOS int32
	// IgnoreEOS goes on after EOS (StopTokens still stop).
	IgnoreEOS bool
	// StopTokens end the output, each reported as the stop reason.
	StopTokens []int32
	// Withheld are the model's further ends where IgnoreEOS goes on after them, too.
	Withheld []int32
	// LogitBias is added to the logits.
	LogitBias []Bias
	// AllowedTokens, when not empty, are the only ones that may be chosen.
	AllowedTokens []int32
	// BadWords are token sequences whose last token may not follow the others.
	BadWords [][]int32
	// ThinkingBudget is how many tokens reasoning may have; then the tokens of ThinkingEnd follow.
	// Reasoning begins with the tokens of ThinkingStart, or with the output where there are none,
	// and ends with those of ThinkingEnd; without these there is no bound.
	ThinkingBudget             int32
	ThinkingStart, ThinkingEnd []int32
}

// Set makes p equal to q. It keeps nothing of q's memory, and reuses p's.
func (p *Params) Set(q *Params) {
	was := *p
	*p = *q
	p.LogprobTokens = append(was.LogprobTokens[:0], q.LogprobTokens...)
	p.StopTokens = append(was.StopTokens[:0], q.StopTokens...)
	p.Withheld = append(was.Withheld[:0], q.Withheld...)
	p.LogitBias = append(was.LogitBias[:0], q.LogitBias...)
	p.AllowedTokens = append(was.AllowedTokens[:0], q.AllowedTokens...)
	p.ThinkingStart = append(was.ThinkingStart[:0], q.ThinkingStart...)
	p.ThinkingEnd = append(was.ThinkingEnd[:0], q.ThinkingEnd...)
	p.BadWords = was.BadWords[:0]
	for i, w := range q.BadWords {
		var word []int32
		if i < cap(p.BadWords) {
			word = p.BadWords[:i+1][i]
		}
		p.BadWords = append(p.BadWords, append(word[:0], w...))
	}
}

// Bias adds Value to the logit of token ID.
type Bias struct {
	ID    int32
	Value float32
}

// Special values of Params.Logprobs and Params.PromptLogprobs.
const (
	NoLogprobs  = -1
	AllLogprobs = -2
)

// GreedyTemperature is the temperature below which the choice is greedy (vLLM's _SAMPLING_EPS).
const GreedyTemperature = 1e-5
