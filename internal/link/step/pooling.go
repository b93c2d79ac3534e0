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
	poolings
)

// String returns vLLM's name of the pooling type, "" for none.
func (p Pooling) String() string {
	switch p {
	case PoolLast:
		return "LAST"
	case PoolMean:
		return "MEAN"
	case PoolLogits:
		return "logits"
	}
	return ""
}

// Pooled is what a request that pools gets in the place of a token.
type Pooled struct {
	Slot   uint32
	Vector []float32
}
