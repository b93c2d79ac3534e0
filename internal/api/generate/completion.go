package generate

import (
	"context"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// Completion is the body of POST /v1/completions.
type Completion struct {
	Sampling
	Prompts []RawPrompt
	// ScoreOnly is echo with max_tokens 0: the prompt is scored and nothing is shown of the output.
	ScoreOnly bool
}

// RawPrompt is one prompt as the client gave it: a text or token ids.
type RawPrompt struct {
	Text string
	IDs  []int32
	// IsText tells an empty text from empty ids.
	IsText bool
	// Second is the other text of a pair.
	Second *string
	// After follows a text, and stays when the text is cut on its right.
	After string
}

// StartCompletion tokenises and submits the prompts of a completion.
func (s *Service) StartCompletion(
	ctx context.Context, r *call.Call, req *Completion,
) (*Generation, error) {
	if bad := s.Begin(&req.Sampling); bad != nil {
		return nil, bad
	}
	base, bad := s.params(&req.Sampling, defaultCompletionTokens)
	if bad != nil {
		return nil, bad
	}
	prompts := make([]Prompt, len(req.Prompts))
	for i, raw := range req.Prompts {
		if err := call.Ended(ctx); err != nil {
			return nil, err
		}
		if prompts[i], bad = s.Tokenize(ctx, &req.Sampling, "prompt", raw); bad != nil {
			return nil, bad
		}
		if bad = s.fit(&prompts[i], &req.Sampling, base, "prompt"); bad != nil {
			return nil, bad
		}
	}
	req.Prompts = nil
	return s.Start(ctx, r, "cmpl-", &req.Sampling, prompts)
}

// ShownLogprobs is how many of the most likely tokens an answer shows.
func ShownLogprobs(count int32, vocab int) int {
	if count == sample.AllLogprobs {
		return vocab
	}
	return int(count)
}
