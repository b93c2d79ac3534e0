package step

// Pooling is what of a prompt's hidden states a request asks for, instead of tokens. The states are
// those after the model's final norm, [hidden size].
type Pooling uint8

// The kinds of pooling.
const (
	// NotPooled is a request that generates.
	NotPooled Pooling = iota
	// PoolLast is the state of the last token.
	PoolLast
	// PoolMean is the mean over all tokens.
	PoolMean
	// PoolLogits are the logits of Params.AllowedTokens after the last token.
	PoolLogits
	// PoolCLS is the state of the first token.
	PoolCLS
	// PoolMax is the greatest of each element over all tokens.
	PoolMax
	// PoolMeanSqrt is the sum over all tokens, divided by the root of their number.
	PoolMeanSqrt
	// PoolWeighted is the mean over all tokens, each of which weighs as much as its number, from 1.
	PoolWeighted
	// PoolAll are the states of all tokens, [tokens][hidden size], one after another.
	PoolAll
	poolings
)

// ReadsAll tells whether the states of all tokens count, or of the first: then all of a prompt is
// computed, whatever is known of it.
func (p Pooling) ReadsAll() bool {
	return p != NotPooled && p != PoolLast && p != PoolLogits
}

// Reads tells whether the state of the token at a position counts, of those of a prompt.
func (p Pooling) Reads(position int, last bool) bool {
	switch p {
	case NotPooled, PoolLogits:
		return false
	case PoolLast:
		return last
	case PoolCLS:
		return last || position == 0 // the last one completes it
	}
	return true
}

// String returns vLLM's name of the pooling type where it has it, "" for none.
func (p Pooling) String() string {
	switch p {
	case PoolLast:
		return "LAST"
	case PoolMean:
		return "MEAN"
	case PoolLogits:
		return "logits"
	case PoolCLS:
		return "CLS"
	case PoolMax:
		return "max"
	case PoolMeanSqrt:
		return "mean by the root of the length"
	case PoolWeighted:
		return "weighted mean"
	case PoolAll:
		return "ALL"
	}
	return ""
}

// Pooled is what a request that pools gets in the place of a token.
type Pooled struct {
	Slot   uint32
	Vector []float32
}
