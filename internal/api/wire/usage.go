package wire

// UsageInfo is vLLM's UsageInfo.
type UsageInfo struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	PromptTokensDetails *PromptTokensDetails `json:"prompt_tokens_details"`
	// CompletionTokensDetails is there where reasoning is told apart.
	CompletionTokensDetails *CompletionTokensDetails `json:"completion_tokens_details,omitempty"`
}

// PromptTokensDetails says how many tokens of the prompts were cached.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// CompletionTokensDetails says how many tokens of the answers are reasoning.
type CompletionTokensDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// Metrics are the times of one answer. Those before PrefillTokensPerSecond are vLLM's
// (--enable-per-request-metrics); nil is a figure that needs more tokens.
type Metrics struct {
	// TimeToFirstToken is from when the request was scheduled, which it was after QueueTime.
	TimeToFirstToken float64 `json:"time_to_first_token_ms"`
	// GenerationTime is from the first token to the last.
	GenerationTime float64 `json:"generation_time_ms"`
	QueueTime      float64 `json:"queue_time_ms"`
	// MeanITL is the mean time between two tokens.
	MeanITL *float64 `json:"mean_itl_ms"`
	// TokensPerSecond is of the output, from when the request was scheduled.
	TokensPerSecond *float64 `json:"tokens_per_second"`
	// PrefillTokensPerSecond is of the prompt but for CachedTokens, until the first token.
	PrefillTokensPerSecond *float64 `json:"prefill_tokens_per_second"`
	// DecodeTokensPerSecond is of the output after the first token.
	DecodeTokensPerSecond *float64 `json:"decode_tokens_per_second"`
	CachedTokens          int      `json:"cached_tokens"`
}
