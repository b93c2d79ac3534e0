package openai

import (
	"encoding/json"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// The types here are those of events, which are written piece by piece: they are for the document
// of the routes.

// chatChunk is the data of an event of a chat. The last has no choices and the usage, where that is
// asked for.
type chatChunk struct {
	ID             string        `json:"id"`
	Object         string        `json:"object" enum:"chat.completion.chunk"`
	Created        int64         `json:"created"`
	Model          string        `json:"model"`
	Choices        []chunkChoice `json:"choices"`
	PromptTokenIDs []int32       `json:"prompt_token_ids,omitempty" null:"true"`
	PromptText     string        `json:"prompt_text,omitempty"`
	chunkTail
}

// chunkTail is what chunks have beside their choices.
type chunkTail struct {
	WeightVersion string        `json:"weight_version,omitempty"`
	Usage         *chunkUsage   `json:"usage,omitempty"`
	Metrics       *wire.Metrics `json:"metrics,omitempty"`
}

type chunkUsage struct {
	PromptTokens            int                           `json:"prompt_tokens"`
	TotalTokens             int                           `json:"total_tokens"`
	CompletionTokens        int                           `json:"completion_tokens"`
	PromptTokensDetails     *wire.PromptTokensDetails     `json:"prompt_tokens_details,omitempty"`
	CompletionTokensDetails *wire.CompletionTokensDetails `json:"completion_tokens_details,omitempty"`
}

type chunkChoice struct {
	Index        int             `json:"index"`
	Delta        chunkDelta      `json:"delta"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   any             `json:"stop_reason,omitempty"`
	TokenIDs     []int32         `json:"token_ids,omitempty" null:"true"`
}

type chunkDelta struct {
	Role      string      `json:"role,omitempty"`
	Content   string      `json:"content,omitempty"`
	Reasoning string      `json:"reasoning,omitempty"`
	ToolCalls []chunkCall `json:"tool_calls,omitempty"`
}

// chunkCall is a piece of a call: the first has its id, its type and the function's name.
type chunkCall struct {
	Index    int           `json:"index"`
	ID       string        `json:"id,omitempty"`
	Type     string        `json:"type,omitempty" enum:"function"`
	Function chunkFunction `json:"function"`
}

type chunkFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// completionChunk is the data of an event of a completion.
type completionChunk struct {
	ID      string                  `json:"id"`
	Object  string                  `json:"object" enum:"text_completion"`
	Created int64                   `json:"created"`
	Model   string                  `json:"model"`
	Choices []completionChunkChoice `json:"choices"`
	chunkTail
}

type completionChunkChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   *string         `json:"finish_reason"`
	StopReason     any             `json:"stop_reason"`
	PromptTokenIDs []int32         `json:"prompt_token_ids" null:"true"`
	TokenIDs       []int32         `json:"token_ids" null:"true"`
}

// tokensChunk is the data of an event of an answer in token ids.
type tokensChunk struct {
	RequestID string              `json:"request_id"`
	Choices   []tokensChunkChoice `json:"choices"`
	chunkTail
}

type tokensChunkChoice struct {
	Index        int             `json:"index"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	TokenIDs     []int32         `json:"token_ids"`
}

// Beginnings of forms: a completion, a chat, and a chat with a tool.
const (
	prompted = `{"prompt":"a",`
	asked    = `{"messages":[{"role":"user","content":"a"}],`
	tooled   = asked + `"tools":[{"type":"function","function":{"name":"f","description":"d",` +
		`"parameters":{},"strict":true}}],`
)

// samplingForms are forms of the fields that all requests for an answer have, behind a beginning.
func samplingForms(begin string) []string {
	list := []string{`"stop":["a"],"logit_bias":{"5":1.5},"stream":true,"stream_options":` +
		`{"include_usage":true,"continuous_usage_stats":false}}`}
	for _, c := range []string{`{"type":"text"}`, `{"type":"json_object"}`, `{"type":"json_schema",` +
		`"json_schema":{"name":"n","description":"d","strict":true,"schema":{}}}`,
		`{"type":"structural_tag"}`} {
		list = append(list, `"response_format":`+c+`}`)
	}
	for _, c := range []string{`"json":{}`, `"regex":"a"`, `"choice":["a"]`, `"grammar":"a"`,
		`"json_object":true`, `"structural_tag":{}`} {
		list = append(list, `"structured_outputs":{`+c+`,"disable_any_whitespace":true,`+
			`"any_key_order":true,"disable_fallback":true}}`)
	}
	for i := range list {
		list[i] = begin + list[i]
	}
	return list
}

// promptForms are those of a prompt, or of what is tokenised.
var promptForms = []string{`{"prompt":["a"]}`, `{"prompt":[1]}`, `{"prompt":[[1]]}`}

// chatForms are those of a conversation.
var chatForms = []string{
	`{"messages":[{"role":"system","content":"a","name":"n"},{"role":"user","content":[` +
		`{"type":"text","text":"a"},"b"]},{"role":"assistant","content":null,"reasoning":"r",` +
		`"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"c","content":"a"}],"documents":[{"title":"a","text":"b"}]}`,
	tooled + `"tool_choice":"none"}`,
	tooled + `"tool_choice":"auto"}`,
	tooled + `"tool_choice":"required"}`,
	tooled + `"tool_choice":{"type":"function","function":{"name":"f"}}}`,
	tooled + `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[` +
		`{"type":"function","function":{"name":"f"}}]}}}`,
	tooled + `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[` +
		`{"type":"function","function":{"name":"f"}}]}}}`,
}
