package generate

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// Conversation is what a chat template renders. Messages, tools and documents stay as the client
// wrote them so that templates see the keys in that order.
type Conversation struct {
	Messages  []json.RawMessage
	Tools     []Tool
	Documents []byte
	// ShownTools says that only the template can tell the model of the tools: no call is forced,
	// and they may be called.
	ShownTools bool
	// Field is the one that the client's dialect has the conversation in.
	Field string
	// Kwargs are the members of chat_template_kwargs.
	Kwargs []wire.Member
	// template is the client's own, "" for the model's.
	template string
	// reasoningEffort is "" when not set.
	reasoningEffort     string
	AddGenerationPrompt bool
	ContinueFinal       bool
	// LastRole and LastTexts describe the last message: its content is one text, or several parts.
	LastRole  string
	LastTexts []string
}

// SetTools takes the tools that the template shows, once they are checked.
func (c *Conversation) SetTools(tools []Tool) *wire.Error {
	c.Tools = tools
	return checkTools(tools)
}

// reservedKwargs are template variables that have a field of their own, or that would change how
// the template is chosen or run (vLLM's CVE-2025-61620).
var reservedKwargs = map[string]string{
	"messages": "messages", "tools": "tools", "documents": "documents",
	"chat_template":          "chat_template",
	"add_generation_prompt":  "add_generation_prompt",
	"continue_final_message": "continue_final_message",
	"tokenize":               "", "return_dict": "", "conversation": "messages",
}

// checkKwarg refuses a name that chat_template_kwargs cannot set.
func checkKwarg(name string) *wire.Error {
	field, reserved := reservedKwargs[name]
	switch {
	case !reserved:
		return nil
	case field == "":
		return wire.BadRequest("chat_template_kwargs", "`chat_template_kwargs` cannot set %q", name)
	}
	return wire.BadRequest("chat_template_kwargs",
		"`chat_template_kwargs` cannot set %q, use the field `%s`", name, field)
}

// DecodeShared reads what stands beside the messages and tools under the same names in all
// dialects.
func (c *Conversation) DecodeShared(f *wire.Fields, m *Model) {
	c.Documents = f.Array("documents")
	c.DecodeKwargs(f, m)
	if t := f.OptString("chat_template"); t != nil {
		c.template = *t
		if !m.flags.TrustRequestChatTemplate {
			f.Fail(wire.BadRequest("chat_template",
				"Chat template is passed with request, but "+
					"--trust-request-chat-template is not set. "+
					"Refused request with untrusted chat template."))
		}
	}
}

// DecodeKwargs reads the variables that a template is given.
func (c *Conversation) DecodeKwargs(f *wire.Fields, m *Model) {
	if raw := f.Object("chat_template_kwargs"); raw != nil {
		f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			c.Kwargs = append(c.Kwargs, wire.Member{Key: key, Raw: raw})
			return checkKwarg(key)
		}))
	}
	c.Kwargs = slices.Concat(m.kwargs, c.Kwargs) // the last one counts
}

// SetReasoningEffort says how much the model is to think.
func (c *Conversation) SetReasoningEffort(field, effort string) *wire.Error {
	switch effort {
	case "none", "minimal", "low", "medium", "high", "xhigh", "max":
		c.reasoningEffort = effort
		return nil
	}
	return wire.BadRequest(field,
		"`%s` must be none, minimal, low, medium, high, xhigh or max, got %q", field,
		wire.Clip(effort))
}

// Drop lets go of what only the template needed: the request lasts longer.
func (c *Conversation) Drop() {
	c.Messages, c.Tools, c.Documents, c.Kwargs, c.template = nil, nil, nil, nil, ""
}

// lastContent is the content of the last message, as templates get that is one text.
func (c *Conversation) lastContent() string { return strings.Join(c.LastTexts, "\n") }

// Role is the role of the answer: the assistant's, or that of the last message when it goes on.
func (c *Conversation) Role() string {
	if c.AddGenerationPrompt {
		return "assistant"
	}
	return c.LastRole
}
