package responses

import (
	"encoding/json"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Status is where a response, or an item of its output, stands.
type Status string

// The states of a response. Items know in_progress, completed and incomplete.
const (
	Queued     Status = "queued"
	InProgress Status = "in_progress"
	Completed  Status = "completed"
	Incomplete Status = "incomplete"
	Failed     Status = "failed"
	Cancelled  Status = "cancelled"
)

// Final reports whether nothing follows.
func (s Status) Final() bool { return s != Queued && s != InProgress }

// Response is the object of the API. The raw members are those of the request, as the client wrote
// them.
type Response struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	CreatedAt          int64              `json:"created_at"`
	Status             Status             `json:"status"`
	Background         bool               `json:"background"`
	CompletedAt        *int64             `json:"completed_at"`
	Conversation       *ConversationID    `json:"conversation"`
	Error              *Error             `json:"error"`
	IncompleteDetails  *IncompleteDetails `json:"incomplete_details"`
	Instructions       json.RawMessage    `json:"instructions"`
	MaxOutputTokens    *int               `json:"max_output_tokens"`
	MaxToolCalls       *int64             `json:"max_tool_calls"`
	Model              string             `json:"model"`
	Output             []json.RawMessage  `json:"output"`
	ParallelToolCalls  bool               `json:"parallel_tool_calls"`
	PreviousResponseID *string            `json:"previous_response_id"`
	PromptCacheKey     *string            `json:"prompt_cache_key"`
	Reasoning          Reasoning          `json:"reasoning"`
	SafetyIdentifier   *string            `json:"safety_identifier"`
	ServiceTier        string             `json:"service_tier"`
	Store              bool               `json:"store"`
	Temperature        float64            `json:"temperature"`
	Text               Text               `json:"text"`
	ToolChoice         json.RawMessage    `json:"tool_choice"`
	Tools              json.RawMessage    `json:"tools"`
	TopLogprobs        int                `json:"top_logprobs"`
	TopP               float64            `json:"top_p"`
	Truncation         string             `json:"truncation"`
	Usage              *Usage             `json:"usage"`
	Metrics            *wire.Metrics      `json:"metrics,omitempty"`
	User               *string            `json:"user"`
	Metadata           json.RawMessage    `json:"metadata"`
}

// ConversationID names the conversation that a response is in.
type ConversationID struct {
	ID string `json:"id"`
}

// Error is why a response failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// IncompleteDetails is why a response ended early.
type IncompleteDetails struct {
	Reason string `json:"reason"`
}

// Reasoning is what the request says of it.
type Reasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

// Text is the form of the answer.
type Text struct {
	Format    json.RawMessage `json:"format"`
	Verbosity *string         `json:"verbosity"`
}

// Usage counts tokens.
type Usage struct {
	InputTokens         int           `json:"input_tokens"`
	InputTokensDetails  InputDetails  `json:"input_tokens_details"`
	OutputTokens        int           `json:"output_tokens"`
	OutputTokensDetails OutputDetails `json:"output_tokens_details"`
	TotalTokens         int           `json:"total_tokens"`
}

// InputDetails are parts of the input.
type InputDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// OutputDetails are parts of the output.
type OutputDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// item is an element of the output: a message, reasoning, or a call.
type item struct {
	kind, id     string
	status       Status
	text         []byte // of a message, of reasoning, or the arguments of a call
	logprobs     []byte // entries of a list, without its brackets
	callID, name string
	namespace    string // of the function, "" for none
}

// json is the item. One that has just been added has no content yet.
func (t *item) json(added bool) (json.RawMessage, error) {
	type textPart struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	switch t.kind {
	case "reasoning":
		v := struct {
			Type    string     `json:"type"`
			ID      string     `json:"id"`
			Status  Status     `json:"status"`
			Summary []struct{} `json:"summary"`
			Content []textPart `json:"content"`
		}{t.kind, t.id, t.status, []struct{}{}, []textPart{}}
		if !added {
			v.Content = []textPart{{"reasoning_text", string(t.text)}}
		}
		return jsonx.Marshal(v)
	case "function_call":
		return jsonx.Marshal(struct {
			Type      string `json:"type"`
			ID        string `json:"id"`
			Status    Status `json:"status"`
			CallID    string `json:"call_id"`
			Name      string `json:"name"`
			Namespace string `json:"namespace,omitempty"`
			Arguments string `json:"arguments"`
		}{t.kind, t.id, t.status, t.callID, t.name, t.namespace, string(t.text)})
	}
	v := struct {
		Type    string            `json:"type"`
		ID      string            `json:"id"`
		Status  Status            `json:"status"`
		Role    string            `json:"role"`
		Content []json.RawMessage `json:"content"`
	}{t.kind, t.id, t.status, "assistant", []json.RawMessage{}}
	if !added {
		v.Content = append(v.Content, t.part())
	}
	return jsonx.Marshal(v)
}

// part is the one part that a message or reasoning has.
func (t *item) part() json.RawMessage {
	if t.kind == "reasoning" {
		return append(appendString([]byte(`{"type":"reasoning_text","text":`), t.text), '}')
	}
	b := appendString([]byte(`{"type":"output_text","text":`), t.text)
	b = append(b, `,"annotations":[],"logprobs":[`...)
	b = append(b, t.logprobs...)
	return append(b, "]}"...)
}
