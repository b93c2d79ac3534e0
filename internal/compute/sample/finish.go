package sample

// Finish says whether and why a request ended.
type Finish uint8

// The ways a request ends, as OpenAI and vLLM call them.
const (
	// Unfinished is the Finish of a request that goes on.
	Unfinished Finish = iota
	// FinishStop is an end-of-sequence token, a stop token or a stop string.
	FinishStop
	// FinishLength is Params.MaxTokens, or the longest sequence the model can hold.
	FinishLength
	// FinishAbort is a caller that gave the request up, or an engine that was stopped.
	FinishAbort
	// FinishError is an engine that failed, or a request that cannot go on.
	FinishError
	// FinishRepetition is an output that repeats itself, where the request asked to end it then.
	FinishRepetition
	// Finishes is the number of values above.
	Finishes = iota
)

// String returns "stop", "length", "abort", "error" or "repetition", and "" for a request that goes
// on.
func (f Finish) String() string {
	switch f {
	case Unfinished:
		return ""
	case FinishStop:
		return "stop"
	case FinishLength:
		return "length"
	case FinishAbort:
		return "abort"
	case FinishRepetition:
		return "repetition"
	}
	return "error"
}
