package batch

import (
	"encoding/json"
	"net/http"
	"unicode/utf8"
)

// Status is the state of a batch:
//
//	validating → in_progress → finalizing → completed
//	    │             ├→ expired
//	    │             └→ cancelling → cancelled
//	    ├→ cancelling → cancelled
//	    └→ failed
type Status string

// The states of a batch.
const (
	Validating Status = "validating"
	InProgress Status = "in_progress"
	Finalizing Status = "finalizing"
	Completed  Status = "completed"
	Failed     Status = "failed"
	Expired    Status = "expired"
	Cancelling Status = "cancelling"
	Cancelled  Status = "cancelled"
)

// over says that nothing changes any more.
func (s Status) over() bool {
	return s == Completed || s == Failed || s == Expired || s == Cancelled
}

// Batch is OpenAI's batch object. Times are seconds of Unix time.
type Batch struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Endpoint         string            `json:"endpoint"`
	Model            *string           `json:"model"`
	Errors           *Problems         `json:"errors"`
	InputFileID      string            `json:"input_file_id"`
	CompletionWindow string            `json:"completion_window"`
	Status           Status            `json:"status"`
	OutputFileID     *string           `json:"output_file_id"`
	ErrorFileID      *string           `json:"error_file_id"`
	CreatedAt        int64             `json:"created_at"`
	InProgressAt     *int64            `json:"in_progress_at"`
	ExpiresAt        *int64            `json:"expires_at"`
	FinalizingAt     *int64            `json:"finalizing_at"`
	CompletedAt      *int64            `json:"completed_at"`
	FailedAt         *int64            `json:"failed_at"`
	ExpiredAt        *int64            `json:"expired_at"`
	CancellingAt     *int64            `json:"cancelling_at"`
	CancelledAt      *int64            `json:"cancelled_at"`
	RequestCounts    RequestCounts     `json:"request_counts"`
	Usage            *Usage            `json:"usage"`
	Metadata         map[string]string `json:"metadata" null:"true"`
}

// Problems are what is wrong with the input of a batch.
type Problems struct {
	Object string     `json:"object"`
	Data   []*Problem `json:"data"`
}

// RequestCounts are the rows of a batch. Those that were not asked before its end are in Total
// only.
type RequestCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// Usage are the tokens of all rows.
type Usage struct {
	InputTokens        int64 `json:"input_tokens"`
	InputTokensDetails struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens        int64 `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int64 `json:"total_tokens"`
}

// add counts the usage that an answer tells of, in the words of any of the routes.
func (u *Usage) add(answer json.RawMessage) {
	var a struct {
		Usage struct {
			Prompt        int64 `json:"prompt_tokens"`
			Completion    int64 `json:"completion_tokens"`
			Input         int64 `json:"input_tokens"`
			Output        int64 `json:"output_tokens"`
			Total         int64 `json:"total_tokens"`
			PromptDetails struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			InputDetails struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"input_tokens_details"`
			CompletionDetails struct {
				Reasoning int64 `json:"reasoning_tokens"`
			} `json:"completion_tokens_details"`
			OutputDetails struct {
				Reasoning int64 `json:"reasoning_tokens"`
			} `json:"output_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(answer, &a) != nil {
		return // an answer without usage, such as an error
	}
	v := &a.Usage
	u.InputTokens += v.Prompt + v.Input
	u.OutputTokens += v.Completion + v.Output
	u.TotalTokens += v.Total
	u.InputTokensDetails.CachedTokens += v.PromptDetails.Cached + v.InputDetails.Cached
	u.OutputTokensDetails.ReasoningTokens += v.CompletionDetails.Reasoning +
		v.OutputDetails.Reasoning
}

// Request is what a client asks for.
type Request struct {
	InputFileID, Endpoint, CompletionWindow string
	Metadata                                map[string]string
	// OutputLifetime is how many seconds the files of its answers are kept.
	OutputLifetime int64
}

// LeastLifetime and MostLifetime bound how many seconds a client may have a file kept.
const (
	LeastLifetime = 3600
	MostLifetime  = 30 * 24 * 3600
)

// check returns an *Error.
func (r *Request) check(answers func(endpoint string) bool) error {
	const bad = http.StatusBadRequest
	switch {
	case !answers(r.Endpoint):
		return refuse(bad, "endpoint",
			"`endpoint` %.100q is none that this server answers batches of", r.Endpoint)
	case r.CompletionWindow != "24h":
		return refuse(bad, "completion_window", "`completion_window` must be \"24h\", not %.100q",
			r.CompletionWindow)
	case len(r.Metadata) > 16:
		return refuse(bad, "metadata", "`metadata` has %d keys, at most 16 are kept",
			len(r.Metadata))
	}
	for key, value := range r.Metadata {
		if n := utf8.RuneCountInString(key); n > 64 {
			return refuse(bad, "metadata",
				"a key of `metadata` has %d characters, at most 64 are kept", n)
		}
		if n := utf8.RuneCountInString(value); n > 512 {
			return refuse(bad, "metadata",
				"a value of `metadata` has %d characters, at most 512 are kept", n)
		}
	}
	return nil
}
