package generate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
)

// Render turns a conversation into a prompt by the chat template. The prompt's text is what the
// template made. It stops when ctx ends: the caller asks it why.
func (s *Service) Render(ctx context.Context, c *Conversation, r *Sampling) (Prompt, *wire.Error) {
	if s.Model.Tokenizer == nil {
		return Prompt{}, wire.BadRequest(c.Field,
			"chat needs a tokenizer and the server runs without one: "+
				"give `prompt` as token ids to /v1/completions")
	}
	template, bad := s.templateFor(c)
	if bad != nil {
		return Prompt{}, bad
	}
	if c.ShownTools && c.Tools != nil && !template.Reads("tools") {
		return Prompt{}, wire.BadRequest("tools", "`tools` have no place in the chat template, so "+
			"the model would not know of them: choose one by `tool_choice`, whose calls are "+
			"made by a constraint, or start the server with a --chat-template that reads `tools`")
	}
	m := newMask()
	vars, bad := s.templateVars(c, m, template)
	if bad != nil {
		return Prompt{}, bad
	}
	text, err := template.Render(vars, chattemplate.Options{Stop: ctx.Err})
	if err != nil {
		return Prompt{}, c.templateError(err)
	}
	if c.ContinueFinal {
		last := "" // templates put what they like between the texts of a message
		if n := len(c.LastTexts); n > 0 {
			last = m.text(s.maskable(), c.LastTexts[n-1])
		}
		if text, bad = cutAfter(text, last); bad != nil {
			return Prompt{}, bad
		}
	}
	whole := m.restore(text)
	if bad := s.checkText(r, c.Field, whole); bad != nil {
		return Prompt{}, bad
	}
	ids, err := s.encodeMasked(ctx, m, text, r.AddSpecial)
	if err != nil {
		return Prompt{}, wire.Cancelled()
	}
	p := Prompt{Text: whole}
	if p.Prompt, bad = s.truncate(r, ids); bad != nil {
		return Prompt{}, bad
	}
	if len(p.Prompt) == 0 {
		return Prompt{}, wire.BadRequest(c.Field, "the rendered conversation has no tokens")
	}
	return p, nil
}

// maskable are the special tokens that a client may only write as text.
func (s *Service) maskable() *specialTexts {
	if s.opt.SpecialTokensInContent {
		return new(specialTexts)
	}
	return s.specials
}

// templateFor is the client's template where that is allowed (conversation.decode saw to it), else
// the model's.
func (s *Service) templateFor(c *Conversation) (*chattemplate.Template, *wire.Error) {
	if c.template != "" {
		t, err := chattemplate.Parse(c.template)
		if err != nil {
			return nil, wire.BadRequest("chat_template", "%v", err)
		}
		return t, nil
	}
	t := s.Model.Template
	if c.Tools != nil && s.Model.ToolTemplate != nil {
		t = s.Model.ToolTemplate
	}
	if t == nil {
		return nil, wire.BadRequest(c.Field,
			"the model has no chat template: start the server with --chat-template, "+
				"or use /v1/completions with a prompt of your own")
	}
	return t, nil
}

// templateError is a failed rendering: the conversation's fault when the template says so, and a
// client error in any case, as in vLLM.
func (c *Conversation) templateError(err error) *wire.Error {
	var t *chattemplate.Error
	if errors.As(err, &t) && t.Raised {
		return wire.BadRequest(c.Field, "the chat template refuses the conversation (line %d): %s",
			t.Line, t.Msg)
	}
	return wire.BadRequest(c.Field, "%v", err)
}

// templateVars are what Hugging Face gives a template: the conversation, the special tokens, and
// the client's own variables, which come first so that they cannot replace the others.
func (s *Service) templateVars(c *Conversation, m *mask,
	t *chattemplate.Template) (*chattemplate.Map, *wire.Error) {
	specials := s.maskable()
	vars := chattemplate.NewMap()
	for name, text := range s.Model.Tokenizer.Config().SpecialTokens {
		vars.Set(name, chattemplate.String(text))
	}
	for _, kw := range c.Kwargs {
		v, err := chattemplate.FromJSON(m.json(specials, kw.Raw))
		if err != nil {
			return nil, wire.BadRequest("chat_template_kwargs", "`chat_template_kwargs.%s`: %v",
				wire.Clip(kw.Key), err)
		}
		vars.Set(kw.Key, v)
	}
	if c.reasoningEffort != "" {
		vars.Set("reasoning_effort", chattemplate.String(c.reasoningEffort))
		if _, set := vars.Get("enable_thinking"); !set {
			vars.Set("enable_thinking", chattemplate.Bool(c.reasoningEffort != "none"))
		}
	}
	messages := make([]json.RawMessage, len(c.Messages))
	for i, raw := range c.Messages {
		messages[i] = m.json(specials, raw)
	}
	list, err := chattemplate.Messages(messages, t.ContentFormat())
	if err != nil {
		return nil, wire.BadRequest(c.Field, "%v", err)
	}
	vars.Set("messages", list)
	for name, raw := range map[string][]byte{"tools": listOf(c.Tools), "documents": c.Documents} {
		v := chattemplate.None()
		if raw != nil {
			if v, err = chattemplate.FromJSON(m.json(specials, raw)); err != nil {
				return nil, wire.BadRequest(name, "`%s`: %v", name, err)
			}
		}
		vars.Set(name, v)
	}
	vars.Set("add_generation_prompt", chattemplate.Bool(c.AddGenerationPrompt))
	return vars, nil
}

// cutAfter ends a rendered conversation right after the last message, so that the model goes on
// with it: what the template put behind it goes. As transformers does (apply_chat_template), a
// message that the template trimmed is found trimmed.
func cutAfter(text, last string) (string, *wire.Error) {
	trimmed := strings.TrimSpace(last)
	if trimmed == "" {
		return "", wire.BadRequest("continue_final_message",
			"`continue_final_message` needs a last message with text")
	}
	at := strings.LastIndex(text, trimmed)
	if at < 0 {
		return "", wire.BadRequest("continue_final_message",
			"the last message does not appear in the rendered conversation, "+
				"so it cannot be continued")
	}
	spaced := bytes.TrimLeft([]byte(last), " \t\r\n\v\f")
	if strings.HasPrefix(text[at:], string(spaced)) {
		return text[:at+len(spaced)], nil
	}
	return text[:at+len(trimmed)], nil
}

// listOf is the JSON array of tools that a template is given, nil for none.
func listOf(tools []Tool) []byte {
	if tools == nil {
		return nil
	}
	b := []byte{'['}
	for i := range tools {
		b = append(wire.Comma(b, i), tools[i].raw...)
	}
	return append(b, ']')
}
