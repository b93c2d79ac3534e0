package openai

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// chatCompletions answers POST /v1/chat/completions.
func (s *API) chatCompletions(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *chatRequest) error {
	g, err := s.startChat(r.Context(), &r.Call, "chatcmpl-", req)
	f.Done()
	if err != nil {
		return err
	}
	defer g.closeReaders()
	if req.stream {
		return s.streamChat(w, r, g, req)
	}
	return s.fullChat(w, r, g, req)
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

func (s *API) fullChat(w http.ResponseWriter, r *server.Request, g *generation,
	req *chatRequest) error {
	for i := range g.choices {
		g.choices[i].echo(req.chatEcho())
	}
	if err := s.collect(r.Context(), g, &req.sampling); err != nil {
		return err
	}
	answer := chatResponse{ID: g.id, Object: "chat.completion", Created: g.created, Model: g.model,
		Choices: make([]chatChoice, len(g.choices)), WeightVersion: s.weightVersion()}
	for i := range g.choices {
		c := &g.choices[i]
		out := chatChoice{Index: i, Message: messageOf(req, c), StopReason: c.stopReason()}
		out.FinishReason = c.finishReason()
		if req.logprobs != sample.NoLogprobs {
			out.Logprobs = s.appendChatLogprobs(nil, c.scores, req.shown(s.Service), req.asTokenIDs)
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
		answer.PromptText = &g.prompts[0].text
	}
	return s.WriteJSON(w, answer)
}

// streamChat answers with events: the role of each choice with the first delta, then the text as it
// comes.
func (s *API) streamChat(w http.ResponseWriter, r *server.Request, g *generation,
	req *chatRequest) error {
	out := s.Events(w)
	head := chunkHead(g, "chat.completion.chunk")
	var scores []score

	err := g.each(r.Context(), func(i int, d *engine.Delta) error {
		c := &g.choices[i]
		first := !c.started
		c.take(d)
		if !out.Started {
			if err := s.sendRoles(out, head, g, req); err != nil {
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
		b = s.appendChatLogprobs(b, scores, req.shown(s.Service), req.asTokenIDs)
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
func (s *API) sendRoles(out *server.EventWriter, head []byte, g *generation,
	req *chatRequest) error {
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
				b = wire.AppendString(b, g.prompts[0].text)
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
