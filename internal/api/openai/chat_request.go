package openai

import (
	"context"
	"encoding/json"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/output"
)

// chatPath and completionPath are named by the errors of requests that are for the other one.
const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	sampling
	conversation
	// returnPromptText adds the rendered prompt to the answer.
	returnPromptText bool
	// includeReasoning shows what the model thought.
	includeReasoning bool
	// thinkingBudget is how many tokens it may think, nil for any number.
	thinkingBudget *int32
	toolUse
}

// conversation is what a chat template renders. Messages, tools and documents stay as the client
// wrote them so that templates see the keys in that order.
type conversation struct {
	messages  []json.RawMessage
	tools     []tool
	documents []byte
	// field is the one that the client's dialect has the conversation in.
	field string
	// kwargs are the members of chat_template_kwargs.
	kwargs []wire.Member
	// template is the client's own, "" for the model's.
	template string
	// reasoningEffort is "" when not set.
	reasoningEffort     string
	addGenerationPrompt bool
	continueFinal       bool
	// lastRole and lastContent describe the last message; the content only where it is plain text.
	lastRole, lastContent string
}

// newChat is the request of a dialect before its fields are read: messages names the one with the
// conversation.
func newChat(m *model, messages string) *chatRequest {
	r := &chatRequest{includeReasoning: true}
	r.field, r.parallel, r.addGenerationPrompt = messages, true, true
	r.compactJSON, r.anyKeyOrder = m.answers.CompactJSON, m.answers.AnyKeyOrder
	r.logprobs = sample.NoLogprobs
	return r
}

// decodeChat reads the fields of OpenAI's dialect.
func decodeChat(f *wire.Fields, m *model) (*chatRequest, *wire.Error) {
	r := newChat(m, "messages")
	r.decodeOwn(f, m)
	r.conversation.decodeMessages(f, f.Array(r.field))
	r.decodeShared(f, m)
	return r, f.Err
}

// decodeOwn reads what other dialects have under names of their own, or not at all, but for the
// messages.
func (r *chatRequest) decodeOwn(f *wire.Fields, m *model) {
	r.decodeTools(f)
	r.toolUse.decode(f, m, r.tools)
	r.parallel = f.OptBool("parallel_tool_calls", true)
	if e := f.OptString("reasoning_effort"); e != nil {
		f.Fail(r.setReasoningEffort("reasoning_effort", *e))
	}
	r.decodeGenerationPrompt(f)
	r.echo = f.Boolean("echo", false)
	r.decodeMaxTokens(f, "max_completion_tokens", "max_tokens")
	r.decodeLogprobs(f, m)
	r.returnPromptText = f.OptBool("return_prompt_text", false)
	r.includeReasoning = f.OptBool("include_reasoning", true)
	f.Removed("functions", "use tools", "[]")
	f.Removed("function_call", "use tool_choice", `"none"`)
}

// decodeConversation reads a conversation alone, in OpenAI's dialect.
func (c *conversation) decodeConversation(f *wire.Fields, m *model) {
	c.field = "messages"
	c.decodeMessages(f, f.Array(c.field))
	c.decodeTools(f)
	if e := f.OptString("reasoning_effort"); e != nil {
		f.Fail(c.setReasoningEffort("reasoning_effort", *e))
	}
	c.decodeGenerationPrompt(f)
	c.decode(f, m)
}

// decodeShared reads what all dialects have under the same names, vLLM's, once the rest of the request
// is known, and checks the whole.
func (r *chatRequest) decodeShared(f *wire.Fields, m *model) {
	r.decodeTransfer(f)
	r.sampling.decode(f, m)
	r.conversation.decode(f, m)
	r.addSpecial = f.Boolean("add_special_tokens", false)
	f.Fail(r.checkMaxTokens())
	if v := f.OptInt("thinking_token_budget"); v != nil && r.thinkingBudget == nil {
		f.Fail(r.setThinkingBudget("thinking_token_budget", *v, m))
	}
	if r.echo && !r.stream && r.promptLogprobs == sample.NoLogprobs {
		r.promptLogprobs = r.logprobs
	}
	f.Fail(r.checkTransfer(1))
	if r.choice == noTools && m.flags.ExcludeToolsWhenToolChoiceNone {
		r.tools = nil
	}
	r.checkBeams(f, m, r.choice != noTools, r.thinkingBudget != nil)
}

// setThinkingBudget bounds the tokens of reasoning, as vLLM does; -1 is no bound.
func (r *chatRequest) setThinkingBudget(field string, v int64, m *model) *wire.Error {
	switch {
	case v == -1:
		return nil
	case v < 0 || v > math.MaxInt32:
		return wire.BadRequest(field, "`%s` must be -1 or at least 0, got %d", field, v)
	case m.thinking == nil:
		return wire.BadRequest(field, "`%s` needs a model that reasons: --reasoning-parser says how it "+
			"writes that", field)
	}
	r.thinkingBudget = new(int32(v))
	return nil
}

func (r *chatRequest) decodeLogprobs(f *wire.Fields, m *model) {
	shown := logprobCount(f, "top_logprobs", m)
	if f.OptBool("logprobs", false) {
		r.setLogprobs(shown)
	} else if shown != sample.NoLogprobs && shown != 0 {
		f.Fail(wire.BadRequest("top_logprobs",
			"when using `top_logprobs`, `logprobs` must be set to true."))
	}
}

// setLogprobs shows how tokens were chosen, and so many of the most likely ones.
func (r *chatRequest) setLogprobs(shown int32) {
	r.logprobs = max(shown, 0)
	if shown == sample.AllLogprobs {
		r.logprobs = sample.AllLogprobs
	}
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

// decode reads what stands beside the messages and tools under the same names in all dialects.
func (c *conversation) decode(f *wire.Fields, m *model) {
	c.documents = f.Array("documents")
	if raw := f.Object("chat_template_kwargs"); raw != nil {
		f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			c.kwargs = append(c.kwargs, wire.Member{Key: key, Raw: raw})
			return checkKwarg(key)
		}))
	}
	c.kwargs = slices.Concat(m.kwargs, c.kwargs) // the last one counts
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

// setReasoningEffort says how much the model is to think.
func (c *conversation) setReasoningEffort(field, effort string) *wire.Error {
	switch effort {
	case "none", "minimal", "low", "medium", "high", "xhigh", "max":
		c.reasoningEffort = effort
		return nil
	}
	return wire.BadRequest(field, "`%s` must be none, minimal, low, medium, high, xhigh or max, got %q",
		field, wire.Clip(effort))
}

// decodeGenerationPrompt reads how the rendered conversation ends.
func (c *conversation) decodeGenerationPrompt(f *wire.Fields) {
	c.continueFinal = f.Boolean("continue_final_message", false)
	_, given := f.Members["add_generation_prompt"]
	c.addGenerationPrompt = f.Boolean("add_generation_prompt", true)
	if c.continueFinal && c.addGenerationPrompt {
		if given {
			f.Fail(wire.BadRequest("continue_final_message",
				"Cannot set both `continue_final_message` and `add_generation_prompt` to True."))
		}
		c.addGenerationPrompt = false
	}
}

// decodeMessages checks what every template relies on: objects with a role, and content that is
// text.
func (c *conversation) decodeMessages(f *wire.Fields, raw []byte) {
	if raw == nil && f.Members["prompt"] != nil {
		f.Fail(wire.BadRequest("prompt", "`prompt` is for POST %s; this route, %s, takes `messages`",
			completionPath, chatPath))
		return
	}
	if raw == nil {
		f.Fail(wire.BadRequest("messages", "`messages` must be a list of messages"))
		return
	}
	f.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		if raw[0] != '{' {
			return wire.BadRequest("messages", "`messages[%d]` must be an object, got %s", i,
				wire.Describe(raw))
		}
		c.messages = append(c.messages, raw)
		c.lastRole, c.lastContent = "", ""
		if err := wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			switch key {
			case "role":
				if raw[0] != '"' {
					return wire.BadRequest("messages", "`messages[%d].role` must be a string, got %s", i,
						wire.Describe(raw))
				}
				c.lastRole = wire.Unquote(raw)
			case "content":
				if raw[0] == '"' {
					c.lastContent = wire.Unquote(raw)
				}
				return checkContent(i, raw)
			}
			return nil
		}); err != nil {
			return err
		}
		if c.lastRole == "" {
			return wire.BadRequest("messages", "`messages[%d]` has no role", i)
		}
		return nil
	}))
	if len(c.messages) == 0 {
		f.Fail(wire.BadRequest("messages", "`messages` must not be empty"))
	}
}

// checkContent accepts a string, null, or a list of parts of type text.
func checkContent(i int, raw []byte) *wire.Error {
	switch raw[0] {
	case '"', 'n':
		return nil
	case '[':
	default:
		return wire.BadRequest("messages", "`messages[%d].content` must be a string or a list "+
			"of parts, got %s", i, wire.Describe(raw))
	}
	return wire.EachElement(raw, func(j int, raw []byte) *wire.Error {
		if raw[0] == '"' { // vLLM takes a bare string for a part of type text
			return nil
		}
		if raw[0] != '{' {
			return wire.BadRequest("messages", "`messages[%d].content[%d]` must be an object, got %s", i,
				j, wire.Describe(raw))
		}
		kind, text := "", false
		_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			if key == "type" && raw[0] == '"' {
				kind = wire.Unquote(raw)
			}
			text = text || key == "text" && raw[0] == '"'
			return nil
		})
		if kind != "text" {
			return wire.BadRequest("messages",
				"`messages[%d].content[%d]` has type %q: only text is supported", i, j, wire.Clip(kind))
		}
		if !text {
			return wire.BadRequest("messages", "`messages[%d].content[%d].text` must be a string", i, j)
		}
		return nil
	})
}

// forget lets go of what only the template needed: the request lasts longer.
func (c *conversation) forget() {
	c.messages, c.tools, c.documents, c.kwargs, c.template = nil, nil, nil, nil, ""
}

// role is the role of the answer: the assistant's, or that of the last message when it goes on.
func (c *conversation) role() string {
	if c.addGenerationPrompt {
		return "assistant"
	}
	return c.lastRole
}

// chatEcho is what echo puts before the answer: the last message, when the answer goes on in its
// role.
func (r *chatRequest) chatEcho() string {
	if !r.echo || r.role() != r.lastRole {
		return ""
	}
	return r.lastContent
}

// shown is how many of the most likely tokens the answer shows.
func (r *chatRequest) shown(s *Service) int { return shownLogprobs(r.logprobs, s.model.VocabSize) }

// startChat renders and submits a conversation; the id of the answer begins with kind.
func (s *Service) startChat(ctx context.Context, r *call.Call, kind string,
	req *chatRequest) (*generation, error) {
	return s.startChats(ctx, r, kind, req, []conversation{req.conversation})
}

// startChats is startChat for several conversations of which the request says the same.
func (s *Service) startChats(ctx context.Context, r *call.Call, kind string, req *chatRequest,
	talks []conversation) (*generation, error) {
	var bad *wire.Error
	if req.model, bad = s.checkModel(req.model); bad != nil {
		return nil, bad
	}
	if bad = s.checkPriority(&req.sampling); bad != nil {
		return nil, bad
	}
	base, bad := s.params(&req.sampling, defaultChatTokens)
	if bad != nil {
		return nil, bad
	}
	prompts, readings := make([]prompt, len(talks)), make([]output.Options, len(talks))
	for i := range talks {
		req.conversation = talks[i]
		p, bad := s.render(ctx, &req.conversation, &req.sampling)
		if err := call.Ended(ctx); err != nil {
			return nil, err
		}
		if bad == nil {
			readings[i], bad = s.reading(ctx, r.Origin, req, p.text)
		}
		if bad != nil {
			return nil, bad
		}
		params := base
		s.boundThinking(req, &readings[i], &params)
		if !req.returnPromptText {
			p.text = ""
		}
		if bad = s.fit(&p, &req.sampling, params, talks[i].field); bad != nil {
			return nil, bad
		}
		prompts[i] = p
	}
	clear(talks)
	req.forget()
	g, err := s.start(ctx, r, kind, &req.sampling, prompts)
	if err != nil {
		return nil, err
	}
	for i := range g.choices {
		if o := readings[i/g.n]; o.Tools != nil || o.Reasoning != nil {
			g.choices[i].readBy(o)
			g.choices[i].named = req.choice == oneTool
		}
	}
	return g, nil
}
