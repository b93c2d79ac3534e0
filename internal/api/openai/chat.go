package openai

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

const chatPath = "/v1/chat/completions"

// chatCompletions answers POST /v1/chat/completions.
func (s *API) chatCompletions(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *chatRequest) error {
	g, text, err := s.startChat(r, "chatcmpl-", req)
	f.Done()
	if err != nil {
		return err
	}
	defer g.closeReaders()
	if req.stream {
		return s.streamChat(w, r, g, req, text)
	}
	return s.fullChat(w, r, g, req, text)
}

// startChat renders and submits a conversation, whose id begins with kind; it also returns the
// rendered prompt.
func (s *API) startChat(r *server.Request, kind string, req *chatRequest) (*generation, string, error) {
	var bad *wire.Error
	if req.model, bad = s.checkModel(req.model); bad != nil {
		return nil, "", bad
	}
	if bad = s.checkPriority(&req.sampling); bad != nil {
		return nil, "", bad
	}
	base, bad := s.params(&req.sampling, defaultChatTokens)
	if bad != nil {
		return nil, "", bad
	}
	p, bad := s.render(r.Context(), &req.conversation, &req.sampling)
	if err := call.Ended(r.Context()); err != nil {
		return nil, "", err
	}
	if bad != nil {
		return nil, "", bad
	}
	reading, bad := s.reading(r.Context(), r.Origin, req, p.text)
	if bad != nil {
		return nil, "", bad
	}
	s.boundThinking(req, &reading, &base)
	req.forget()
	if !req.returnPromptText {
		p.text = ""
	}
	if bad = s.fit(&p, &req.sampling, base, "messages"); bad != nil {
		return nil, "", bad
	}
	g, err := s.start(r, kind, &req.sampling, []prompt{p})
	if err == nil {
		g.read(reading, req.choice == oneTool)
	}
	return g, p.text, err
}

// chatResponse is the answer without streaming.
type chatResponse struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []chatChoice       `json:"choices"`
	ServiceTier       *string            `json:"service_tier"`
	SystemFingerprint *string            `json:"system_fingerprint"`
	Usage             usageInfo          `json:"usage"`
	PromptLogprobs    json.RawMessage    `json:"prompt_logprobs"`
	PromptTokenIDs    []int32            `json:"prompt_token_ids"`
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
	TokenIDs     []int32         `json:"token_ids"`
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

// chatEcho is what echo puts before the answer: the last message, when the answer goes on in its
// role.
func (r *chatRequest) chatEcho() string {
	if !r.echo || r.role() != r.lastRole {
		return ""
	}
	return r.lastContent
}

func (s *API) fullChat(w http.ResponseWriter, r *server.Request, g *generation, req *chatRequest,
	text string) error {
	for i := range g.choices {
		g.choices[i].echo(req.chatEcho())
	}
	if err := s.collect(r, g, &req.sampling); err != nil {
		return err
	}
	answer := chatResponse{ID: g.id, Object: "chat.completion", Created: g.created, Model: g.model,
		Choices: make([]chatChoice, len(g.choices)), WeightVersion: s.weightVersion()}
	for i := range g.choices {
		c := &g.choices[i]
		out := chatChoice{Index: i, Message: req.message(c), StopReason: c.stopReason()}
		out.FinishReason = c.finishReason()
		if req.logprobs != sample.NoLogprobs {
			out.Logprobs = s.appendChatLogprobs(nil, c.scores, req.shown(s), req.asTokenIDs)
		}
		if req.returnTokenIDs {
			out.TokenIDs = append([]int32{}, c.tokens...)
		}
		answer.Choices[i] = out
	}
	answer.Usage, answer.KVTransferParams = s.usageInfo(g.usage()), g.ticket
	if req.promptLogprobs != sample.NoLogprobs {
		answer.PromptLogprobs = s.appendLogprobsByID(nil, g.choices[0].promptScores, s.model.VocabSize)
	}
	if req.returnTokenIDs {
		answer.PromptTokenIDs = g.prompts[0].Prompt
	}
	if req.returnPromptText {
		answer.PromptText = &text
	}
	return s.WriteJSON(w, answer)
}

// shown is how many of the most likely tokens the answer shows.
func (r *chatRequest) shown(s *API) int { return shownLogprobs(r.logprobs, s.model.VocabSize) }

// streamChat answers with events: the role of each choice with the first delta, then the text as it
// comes.
func (s *API) streamChat(w http.ResponseWriter, r *server.Request, g *generation, req *chatRequest,
	text string) error {
	out := s.Events(w)
	head := chunkHead(g, "chat.completion.chunk")
	var scores []score

	err := g.each(r.Context(), func(i int, d *engine.Delta) error {
		c := &g.choices[i]
		first := !c.started
		c.take(d)
		if !out.Started {
			if err := s.sendRoles(out, head, g, req, text); err != nil {
				return err
			}
		}
		if first && len(d.Text) == 0 && len(d.Tokens) == 0 && d.Finish == sample.Unfinished {
			c.started = false // prompt processing only: nothing to show yet
			return nil
		}
		if req.logprobs != sample.NoLogprobs {
			scores = appendScores(scores[:0], c, d, false)
		}
		if c.reader != nil {
			return s.sendParts(out, head, g, req, i, d, scores)
		}
		return s.sendChunk(out, head, g, req, i, func(b []byte) []byte {
			return wire.AppendString(append(b, `"content":`...), d.Text)
		}, scores, d.Tokens, c.finished)
	})
	if err == nil && req.includeUsage {
		err = s.sendUsage(out, head, g)
	}
	return s.End(out, err)
}

// sendChunk sends a chunk of choice i, with the members of its delta, with tokens and how they were
// chosen, and with what ended the answer.
func (s *API) sendChunk(out *server.EventWriter, head []byte, g *generation, req *chatRequest, i int,
	delta func([]byte) []byte, scores []score, tokens []int32, last bool) error {
	c := &g.choices[i]
	b := append(out.Buf[:0], head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"delta":{`...)
	b = delta(b)
	b = append(b, `},"logprobs":`...)
	if req.logprobs != sample.NoLogprobs {
		b = s.appendChatLogprobs(b, scores, req.shown(s), req.asTokenIDs)
	} else {
		b = append(b, "null"...)
	}
	if last {
		b = appendFinish(b, c)
		b = appendStopReason(b, c)
	} else {
		b = append(b, `,"finish_reason":null`...)
	}
	b = appendTokenIDs(b, "token_ids", tokens, req.returnTokenIDs)
	b = append(b, "}]"...)
	b = s.appendWeightVersion(b, last)
	if req.continuousUsage {
		b = append(b, ',')
		b = s.appendUsage(b, g.usageOf(i))
	}
	out.Buf = append(b, "}\n\n"...)
	return out.Send()
}

// sendRoles sends the first chunk of every choice, with what describes the prompt, and the echo.
func (s *API) sendRoles(out *server.EventWriter, head []byte, g *generation, req *chatRequest,
	text string) error {
	echo := req.chatEcho()
	for i := range g.choices {
		if err := s.sendDelta(out, head, g, req, i, func(b []byte) []byte {
			b = append(b, `"role":`...)
			b = wire.AppendString(b, req.role())
			return append(b, `,"content":""`...)
		}, func(b []byte) []byte {
			b = appendTokenIDs(b, "prompt_token_ids", g.prompts[0].Prompt, req.returnTokenIDs)
			if req.returnPromptText {
				b = append(b, `,"prompt_text":`...)
				b = wire.AppendString(b, text)
			}
			return b
		}); err != nil {
			return err
		}
	}
	if echo == "" {
		return nil
	}
	for i := range g.choices {
		if err := s.sendDelta(out, head, g, req, i, func(b []byte) []byte {
			b = append(b, `"content":`...)
			return wire.AppendString(b, echo)
		}, func(b []byte) []byte { return b }); err != nil {
			return err
		}
	}
	return nil
}

// sendDelta sends a chunk that carries no tokens: delta writes the members of the delta, tail those
// of the chunk.
func (s *API) sendDelta(out *server.EventWriter, head []byte, g *generation, req *chatRequest, i int,
	delta, tail func([]byte) []byte) error {
	b := append(out.Buf[:0], head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	b = append(b, `,"delta":{`...)
	b = delta(b)
	b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
	if req.continuousUsage {
		u := g.usageOf(i)
		u.output = 0
		b = append(b, ',')
		b = s.appendUsage(b, u)
	}
	b = tail(b)
	out.Buf = append(b, "}\n\n"...)
	return out.Send()
}
