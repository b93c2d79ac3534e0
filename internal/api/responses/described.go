package responses

import "encoding/json"

// The types here are those of events, which a Stream writes piece by piece: they are for the
// document of the routes.

// events are values of them.
var events = []any{wholeEvent{}, itemEvent{}, partEvent{}, deltaEvent{}, textEvent{}, callEvent{}}

// wholeEvent has the response.
type wholeEvent struct {
	Type     string   `json:"type" enum:"response.created,response.queued,response.in_progress,response.completed,response.incomplete,response.failed"`
	Sequence int      `json:"sequence_number"`
	Response Response `json:"response"`
}

// itemEvent has an item of the output.
type itemEvent struct {
	Type        string          `json:"type" enum:"response.output_item.added,response.output_item.done"`
	Sequence    int             `json:"sequence_number"`
	OutputIndex int             `json:"output_index"`
	Item        json.RawMessage `json:"item"`
}

// ofItem is what events have that are of an item.
type ofItem struct {
	Sequence    int    `json:"sequence_number"`
	ItemID      string `json:"item_id"`
	OutputIndex int    `json:"output_index"`
}

// partEvent has a part of an item's content.
type partEvent struct {
	Type string `json:"type" enum:"response.content_part.added,response.content_part.done"`
	ofItem
	ContentIndex int             `json:"content_index"`
	Part         json.RawMessage `json:"part"`
}

// deltaEvent has more of a text.
type deltaEvent struct {
	Type string `json:"type" enum:"response.output_text.delta,response.reasoning_text.delta,response.function_call_arguments.delta"`
	ofItem
	ContentIndex int               `json:"content_index,omitempty"`
	Delta        string            `json:"delta"`
	Logprobs     []json.RawMessage `json:"logprobs,omitempty"`
}

// textEvent has a whole text.
type textEvent struct {
	Type string `json:"type" enum:"response.output_text.done,response.reasoning_text.done"`
	ofItem
	ContentIndex int               `json:"content_index"`
	Text         string            `json:"text"`
	Logprobs     []json.RawMessage `json:"logprobs,omitempty"`
}

// callEvent has the arguments of a call.
type callEvent struct {
	Type string `json:"type" enum:"response.function_call_arguments.done"`
	ofItem
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Beginnings of forms: a request, and one with a tool.
const (
	asked  = `{"input":"a",`
	tooled = asked + `"tools":[{"type":"function","name":"f","description":"d","parameters":{},` +
		`"strict":true}],`
	function = `{"type":"function","name":"f"}`
)

// partList has a part of each type, itemList an item of each kind, with them.
const (
	partList = `[{"type":"input_text","text":"a"},{"type":"output_text","text":"a"},` +
		`{"type":"text","text":"a"},{"type":"summary_text","text":"a"},` +
		`{"type":"reasoning_text","text":"a"},{"type":"refusal","refusal":"a"}]`
	itemList = `[{"type":"message","role":"user","content":` + partList + `},` +
		`{"type":"message","role":"system","content":"a"},` +
		`{"type":"message","role":"developer","content":"a"},` +
		`{"type":"reasoning","id":"i1","summary":` + partList + `},` +
		`{"type":"reasoning","content":` + partList + `},` +
		`{"type":"message","id":"i2","role":"assistant","status":"completed","content":"a"},` +
		`{"type":"function_call","id":"i3","call_id":"c","name":"f","namespace":"n",` +
		`"arguments":"{}"},` +
		`{"type":"function_call_output","id":"i4","call_id":"c","output":"a"},` +
		`{"type":"function_call_output","call_id":"c","output":` + partList + `},` +
		`{"role":"user","content":"a"}]`
)

// itemForms are those of requests with items.
var itemForms = []string{`{"items":` + itemList + `}`}

// forms are those of what requests have within them.
var forms = []string{
	`{"input":` + itemList + `}`,
	asked + `"conversation":{"id":"conv_1"}}`,
	asked + `"conversation":"conv_1"}`,
	asked + `"tools":[{"type":"namespace","name":"n","description":"d","tools":[` + function + `]}]}`,
	tooled + `"tool_choice":"none"}`,
	tooled + `"tool_choice":"auto"}`,
	tooled + `"tool_choice":"required"}`,
	tooled + `"tool_choice":` + function + `}`,
	tooled + `"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[` + function + `]}}`,
	tooled + `"tool_choice":{"type":"allowed_tools","mode":"required","tools":[` + function + `]}}`,
	asked + `"reasoning":{"effort":"none","summary":"auto","generate_summary":"auto"}}`,
	asked + `"reasoning":{"effort":"minimal"}}`,
	asked + `"reasoning":{"effort":"low"}}`,
	asked + `"reasoning":{"effort":"medium"}}`,
	asked + `"reasoning":{"effort":"high"}}`,
	asked + `"reasoning":{"effort":"xhigh"}}`,
	asked + `"reasoning":{"effort":"max"}}`,
	asked + `"text":{"verbosity":"medium","format":{"type":"text"}}}`,
	asked + `"text":{"format":{"type":"json_object"}}}`,
	asked + `"text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{}}}}`,
	asked + `"stream":true,"stream_options":{"include_usage":true}}`,
	asked + `"stop":["a"],"logit_bias":{"5":1.5},"include":["message.output_text.logprobs"]}`,
}
