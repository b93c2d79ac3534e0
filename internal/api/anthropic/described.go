package anthropic

import (
	"encoding/json"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// The types here are those of events, which a Stream writes piece by piece: they are for the
// document of the routes.

// events are values of them.
var events = []any{messageStart{}, blockStart{}, blockDelta{}, blockStop{}, messageDelta{},
	messageStop{}, ErrorBody{}}

type messageStart struct {
	Type    string  `json:"type" enum:"message_start"`
	Message Message `json:"message"`
}

type blockStart struct {
	Type         string          `json:"type" enum:"content_block_start"`
	Index        int             `json:"index"`
	ContentBlock json.RawMessage `json:"content_block"`
}

type blockDelta struct {
	Type  string      `json:"type" enum:"content_block_delta"`
	Index int         `json:"index"`
	Delta deltaOfText `json:"delta"`
}

// deltaOfText has the member of its type.
type deltaOfText struct {
	Type        string `json:"type" enum:"thinking_delta,signature_delta,text_delta,input_json_delta"`
	Thinking    string `json:"thinking,omitempty"`
	Signature   string `json:"signature,omitempty"`
	Text        string `json:"text,omitempty"`
	PartialJSON string `json:"partial_json,omitempty"`
}

type blockStop struct {
	Type  string `json:"type" enum:"content_block_stop"`
	Index int    `json:"index"`
}

type messageDelta struct {
	Type string `json:"type" enum:"message_delta"`
	ended
}

// ended is how a message ended.
type ended struct {
	Delta   endDelta      `json:"delta"`
	Usage   Usage         `json:"usage"`
	Metrics *wire.Metrics `json:"metrics,omitempty"`
}

type endDelta struct {
	StopReason   string  `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

type messageStop struct {
	Type string `json:"type" enum:"message_stop"`
}

// Beginnings of forms: a request, and one with a tool.
const (
	asked  = `{"max_tokens":9,"messages":[{"role":"user","content":"a"}],`
	tooled = asked + `"tools":[{"type":"custom","name":"f","description":"d","input_schema":{}}],`
)

// forms are those of what requests have within them.
var forms = []string{
	`{"max_tokens":9,"system":"a","messages":[{"role":"system","content":[{"type":"text",` +
		`"text":"a"}]},{"role":"user","content":[{"type":"text","text":"a"}]},` +
		`{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"s"},` +
		`{"type":"redacted_thinking","data":"d"},{"type":"text","text":"a"},{"type":"tool_use",` +
		`"id":"i","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result",` +
		`"tool_use_id":"i","content":"a","is_error":false}]}]}`,
	asked + `"system":[{"type":"text","text":"a"}],"stop_sequences":["a"],"cache_control":{}}`,
	`{"max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"i",` +
		`"name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":` +
		`"i","content":[{"type":"text","text":"a"}]}]}]}`,
	tooled + `"tool_choice":{"type":"none","disable_parallel_tool_use":true}}`,
	tooled + `"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}`,
	tooled + `"tool_choice":{"type":"any","disable_parallel_tool_use":true}}`,
	tooled + `"tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true}}`,
	asked + `"thinking":{"type":"disabled"}}`,
	asked + `"thinking":{"type":"adaptive","display":"omitted"}}`,
	asked + `"thinking":{"type":"enabled","budget_tokens":5,"display":"omitted"}}`,
	asked + `"output_config":{"effort":"low","format":{"type":"json_schema","schema":{}}}}`,
	asked + `"output_config":{"effort":"medium"}}`,
	asked + `"output_config":{"effort":"high"}}`,
	asked + `"output_config":{"effort":"max"}}`,
	asked + `"output_config":{"effort":"none"}}`,
	asked + `"output_config":{"effort":"minimal"}}`,
	asked + `"output_config":{"effort":"xhigh"}}`,
	asked + `"output_format":{"type":"json_schema","schema":{}}}`,
}
