package openai

import (
	"encoding/json"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// completionResponse is the answer without streaming; fields that are always null are there because
// clients of vLLM see them.
type completionResponse struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []completionChoice `json:"choices"`
	ServiceTier       *string            `json:"service_tier"`
	SystemFingerprint *string            `json:"system_fingerprint"`
	Usage             wire.UsageInfo     `json:"usage"`
	Metrics           *wire.Metrics      `json:"metrics,omitempty"`
	KVTransferParams  *kvtransfer.Ticket `json:"kv_transfer_params"`
	WeightVersion     string             `json:"weight_version,omitempty"`
}

type completionChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   string          `json:"finish_reason"`
	StopReason     any             `json:"stop_reason"`
	TokenIDs       []int32         `json:"token_ids" null:"true"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
	PromptTokenIDs []int32         `json:"prompt_token_ids" null:"true"`
}

// completionFold adds up the pieces of an answer that is not streamed.
type completionFold struct {
	completionAnswer
	late    wire.Late
	choices []foldedCompletion
}

type foldedCompletion struct {
	text   []byte
	scores []generate.Score
	tokens []int32
}

func newCompletionFold(a completionAnswer) *completionFold {
	return &completionFold{completionAnswer: a,
		choices: make([]foldedCompletion, len(a.g.Choices))}
}

func (f *completionFold) add(p *completionPiece) error {
	c := &f.choices[p.choice]
	c.text = append(c.text, p.text...)
	c.scores = generate.MergeScores(c.scores, p.scores)
	if f.req.ReturnTokenIDs {
		c.tokens = append(c.tokens, p.tokens...)
	}
	return nil
}

// answer is the whole, once the last piece is there.
func (f *completionFold) answer() *completionResponse {
	g, req := f.g, f.req
	answer := &completionResponse{ID: g.ID, Object: "text_completion", Created: g.Created,
		Model: g.Model, Choices: make([]completionChoice, len(f.choices)),
		Usage: f.s.usageInfo(g.Usage()), Metrics: g.Metrics(&req.Sampling),
		KVTransferParams: g.Ticket,
		WeightVersion:    f.s.WeightVersion()}
	for i := range f.choices {
		c, folded := &g.Choices[i], &f.choices[i]
		out := completionChoice{Index: i, FinishReason: c.Finish.String(),
			StopReason: c.StopReason(), Text: string(folded.text)}
		if req.TopLogprobs != sample.NoLogprobs {
			out.Logprobs = f.late.Add(f.s.AppendLogprobs(nil, folded.scores, f.shown,
				&req.Sampling))
		}
		if req.TopPromptLogprobs != sample.NoLogprobs {
			out.PromptLogprobs = f.late.Add(f.s.AppendLogprobsByID(nil, c.PromptScores,
				f.s.Model.VocabSize))
		}
		if req.ReturnTokenIDs {
			out.PromptTokenIDs = g.Prompts[i/g.N].Prompt
			out.TokenIDs = append([]int32{}, folded.tokens...)
		}
		answer.Choices[i] = out
	}
	return answer
}
