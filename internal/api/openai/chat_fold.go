package openai

import (
	"encoding/json"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/text/output"
)

// chatResponse is the answer without streaming.
type chatResponse struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []chatChoice       `json:"choices"`
	ServiceTier       *string            `json:"service_tier"`
	SystemFingerprint *string            `json:"system_fingerprint"`
	Usage             wire.UsageInfo     `json:"usage"`
	Metrics           *wire.Metrics      `json:"metrics,omitempty"`
	PromptLogprobs    json.RawMessage    `json:"prompt_logprobs"`
	PromptTokenIDs    []int32            `json:"prompt_token_ids" null:"true"`
	PromptText        *string            `json:"prompt_text"`
	KVTransferParams  *kvtransfer.Ticket `json:"kv_transfer_params"`
	WeightVersion     string             `json:"weight_version,omitempty"`
}

type chatChoice struct {
	Index        int             `json:"index"`
	Message      chatMessage     `json:"message"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"`
	StopReason   any             `json:"stop_reason"`
	TokenIDs     []int32         `json:"token_ids" null:"true"`
}

type chatMessage struct {
	Role         string     `json:"role"`
	Content      *string    `json:"content"`
	Refusal      *string    `json:"refusal"`
	Annotations  *struct{}  `json:"annotations"`
	Audio        *struct{}  `json:"audio"`
	FunctionCall *struct{}  `json:"function_call"`
	ToolCalls    []toolCall `json:"tool_calls,omitempty"`
	Reasoning    *string    `json:"reasoning"`
}

// toolCall is a call in a message.
type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// chatFold adds up the pieces of an answer that is not streamed.
type chatFold struct {
	chatAnswer
	late    wire.Late
	choices []chatChoice
	said    []foldedChat // of each choice
}

type foldedChat struct {
	content, reasoning, logprobs []byte
	arguments                    [][]byte // of each call
}

func (f *chatFold) open() error {
	n := len(f.g.Choices)
	f.choices, f.said = make([]chatChoice, n), make([]foldedChat, n)
	for i := range f.choices {
		f.choices[i].Index, f.choices[i].Message.Role = i, f.req.Role()
		f.said[i].content = append(f.said[i].content, f.req.ChatEcho()...)
		if f.req.ReturnTokenIDs {
			f.choices[i].TokenIDs = []int32{}
		}
		if f.req.TopLogprobs != sample.NoLogprobs {
			f.said[i].logprobs = []byte(logprobsHead)
		}
	}
	return nil
}

// logprobsHead begins the logprobs of a chat answer.
const logprobsHead = `{"content":[`

func (f *chatFold) add(p *chatPiece) error {
	out, said := &f.choices[p.choice], &f.said[p.choice]
	switch part := p.part; {
	case part == nil:
		said.content = append(said.content, p.text...)
	case part.Kind == output.Call:
		out.Message.ToolCalls = append(out.Message.ToolCalls, toolCall{ID: part.ID,
			Type: "function", Function: functionCall{Name: part.Name}})
		said.arguments = append(said.arguments, nil)
	default:
		to := &said.content
		switch part.Kind {
		case output.Reasoning:
			to = &said.reasoning
		case output.Arguments:
			to = &said.arguments[part.Index]
		}
		*to = append(*to, part.Text...)
	}
	if f.req.ReturnTokenIDs {
		out.TokenIDs = append(out.TokenIDs, p.tokens...)
	}
	if len(p.scores) > 0 {
		if len(said.logprobs) > len(logprobsHead) {
			said.logprobs = append(said.logprobs, ',')
		}
		said.logprobs = f.s.AppendTokenLogprobs(said.logprobs, p.scores, f.req.Shown(f.s.Service),
			f.req.AsTokenIDs)
	}
	return nil
}

// answer is the whole, once the last piece is there.
func (f *chatFold) answer() *chatResponse {
	g := f.g
	answer := &chatResponse{ID: g.ID, Object: "chat.completion", Created: g.Created, Model: g.Model,
		Choices: f.choices, Usage: f.s.usageInfo(g.Usage()),
		Metrics: g.Metrics(&f.req.Sampling), KVTransferParams: g.Ticket,
		WeightVersion: f.s.WeightVersion()}
	for i := range f.choices {
		c, out, said := &g.Choices[i], &f.choices[i], &f.said[i]
		// An answer of thoughts or calls alone has no content.
		if c.Reader == nil || len(said.content) > 0 || !c.Thought && c.Calls == 0 {
			out.Message.Content = new(string(said.content))
		}
		if len(said.reasoning) > 0 {
			out.Message.Reasoning = new(string(said.reasoning))
		}
		for i, text := range said.arguments {
			out.Message.ToolCalls[i].Function.Arguments = string(text)
		}
		if said.logprobs != nil {
			out.Logprobs = f.late.Add(append(said.logprobs, "]}"...))
		}
		out.FinishReason, out.StopReason = c.FinishReason(), c.StopReason()
	}
	if f.req.TopPromptLogprobs != sample.NoLogprobs {
		answer.PromptLogprobs = f.late.Add(f.s.AppendLogprobsByID(nil, g.Choices[0].PromptScores,
			f.s.Model.VocabSize))
	}
	if f.req.ReturnTokenIDs {
		answer.PromptTokenIDs = g.Prompts[0].Prompt
	}
	if f.req.ReturnPromptText {
		answer.PromptText = &g.Prompts[0].Text
	}
	return answer
}
