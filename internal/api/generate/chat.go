package generate

import (
	"context"
	"math"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Chat is the body of POST /v1/chat/completions.
type Chat struct {
	Sampling
	Conversation
	// ReturnPromptText adds the rendered prompt to the answer.
	ReturnPromptText bool
	// IncludeReasoning shows what the model thought.
	IncludeReasoning bool
	// thinkingBudget is how many tokens it may think, nil for any number.
	thinkingBudget *int32
	toolUse
}

// NewChat is the request of a dialect before its fields are read: messages names the one with the
// conversation.
func NewChat(messages string) *Chat {
	r := &Chat{IncludeReasoning: true}
	r.Field, r.Parallel, r.AddGenerationPrompt = messages, true, true
	r.TopLogprobs = sample.NoLogprobs
	return r
}

// DecodeShared reads what all dialects have under the same names, vLLM's, once the rest of the
// request is known, and checks the whole.
func (r *Chat) DecodeShared(f *wire.Fields, m *Model) {
	r.DecodeTransfer(f)
	r.Sampling.Decode(f, m)
	r.Conversation.DecodeShared(f, m)
	r.AddSpecial = f.Boolean("add_special_tokens", false)
	f.Fail(r.CheckMaxTokens())
	if v := f.OptInt("thinking_token_budget"); v != nil && r.thinkingBudget == nil {
		f.Fail(r.SetThinkingBudget("thinking_token_budget", *v, m))
	}
	if r.Echo && !r.Stream && r.TopPromptLogprobs == sample.NoLogprobs {
		r.TopPromptLogprobs = r.TopLogprobs
		if len(r.LogprobTokens) > 0 {
			r.TopPromptLogprobs = 0
		}
	}
	f.Fail(r.CheckTransfer(1))
	if r.choice == noTools && m.flags.ExcludeToolsWhenToolChoiceNone {
		r.Tools = nil
	}
	r.ShownTools = r.choice == autoTools
	if r.choice.forced() && r.responseFormat {
		// It is of what is said to the user, which is nothing: clients send one with every request.
		r.constraint, r.constraintField = constrain.Spec{}, ""
	}
	r.CheckBeams(f, m, r.choice != noTools, r.thinkingBudget != nil)
}

// SetThinkingBudget bounds the tokens of reasoning, as vLLM does; -1 is no bound.
func (r *Chat) SetThinkingBudget(field string, v int64, m *Model) *wire.Error {
	switch {
	case v == -1:
		return nil
	case v < 0 || v > math.MaxInt32:
		return wire.BadRequest(field, "`%s` must be -1 or at least 0, got %d", field, v)
	case m.Thinking == nil:
		return wire.BadRequest(field,
			"`%s` needs a model that reasons: --reasoning-parser says how it writes that", field)
	}
	r.thinkingBudget = new(int32(v))
	return nil
}

// SetLogprobs shows how tokens were chosen, and so many of the most likely ones.
func (r *Chat) SetLogprobs(shown int32) {
	r.TopLogprobs = max(shown, 0)
	if shown == sample.AllLogprobs {
		r.TopLogprobs = sample.AllLogprobs
	}
}

// ChatEcho is what echo puts before the answer: the last message, when the answer goes on in its
// role.
func (r *Chat) ChatEcho() string {
	if !r.Echo || r.Role() != r.LastRole {
		return ""
	}
	return r.lastContent()
}

// Shown is how many of the most likely tokens the answer shows.
func (r *Chat) Shown(s *Service) int { return ShownLogprobs(r.TopLogprobs, s.Model.VocabSize) }

// Fits is the error of a conversation that cannot be rendered, or is too long for the model beside
// max_tokens; nil for none.
func (s *Service) Fits(ctx context.Context, req *Chat) *wire.Error {
	p, bad := s.Render(ctx, &req.Conversation, &req.Sampling)
	if bad != nil {
		return bad
	}
	return s.checkRoom(&req.Sampling, len(p.Prompt), req.Field)
}

// StartChat renders and submits a conversation; the id of the answer begins with kind. A request
// whose conversation is too long (wire.TooLong) is as it was before.
func (s *Service) StartChat(ctx context.Context, r *call.Call, kind string,
	req *Chat) (*Generation, error) {
	return s.StartChats(ctx, r, kind, req, []Conversation{req.Conversation})
}

// StartChats is startChat for several conversations of which the request says the same.
func (s *Service) StartChats(ctx context.Context, r *call.Call, kind string, req *Chat,
	talks []Conversation) (*Generation, error) {
	if bad := s.Begin(&req.Sampling); bad != nil {
		return nil, bad
	}
	base, bad := s.params(&req.Sampling, defaultChatTokens)
	if bad != nil {
		return nil, bad
	}
	prompts, readings := make([]Prompt, len(talks)), make([]output.Options, len(talks))
	for i := range talks {
		req.Conversation = talks[i]
		p, bad := s.Render(ctx, &req.Conversation, &req.Sampling)
		if err := call.Ended(ctx); err != nil {
			return nil, err
		}
		if bad == nil {
			bad = s.fit(&p, &req.Sampling, base, talks[i].Field)
		}
		if bad == nil {
			readings[i], bad = s.reading(ctx, r.Origin, req, &p)
		}
		if bad != nil {
			return nil, bad
		}
		if !req.ReturnPromptText {
			p.Text = ""
		}
		prompts[i] = p
	}
	clear(talks)
	req.Drop()
	g, err := s.Start(ctx, r, kind, &req.Sampling, prompts)
	if err != nil {
		return nil, err
	}
	for i := range g.Choices {
		if o := readings[i/g.N]; o.Tools != nil || o.Reasoning != nil {
			g.Choices[i].readBy(o)
			g.Choices[i].named = req.choice == oneTool
		}
	}
	return g, nil
}
