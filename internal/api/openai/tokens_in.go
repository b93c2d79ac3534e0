package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// tokensPath is vLLM's: token ids in and out, for programs that have the tokenizer themselves.
const tokensPath = "/inference/v1/generate"

// tokensKind is what ids of its answers begin with.
const tokensKind = "generate-tokens-"

// tokensResponse is vLLM's GenerateResponse.
type tokensResponse struct {
	RequestID        string             `json:"request_id"`
	Choices          []tokensChoice     `json:"choices"`
	PromptLogprobs   json.RawMessage    `json:"prompt_logprobs"`
	KVTransferParams *kvtransfer.Ticket `json:"kv_transfer_params"`
}

type tokensChoice struct {
	Index        int             `json:"index"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"`
	TokenIDs     []int32         `json:"token_ids"`
}

// generateTokens answers POST /inference/v1/generate. It is a completion whose fields of sampling
// stand in an object of their own.
func (s *API) generateTokens(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *completionRequest) error {
	g, err := s.startCompletion(r.Context(), &r.Call, req)
	f.Done()
	if err != nil {
		return err
	}
	if req.stream {
		return s.streamTokens(w, r, g, req)
	}
	if err := s.collect(r.Context(), g, &req.sampling); err != nil {
		return err
	}
	answer := tokensResponse{RequestID: tokensID(g), Choices: make([]tokensChoice, len(g.choices)),
		KVTransferParams: g.ticket}
	for i := range g.choices {
		c := &g.choices[i]
		out := tokensChoice{Index: i, FinishReason: c.finishReason(),
			TokenIDs: append([]int32{}, c.tokens...)}
		if req.logprobs != sample.NoLogprobs {
			out.Logprobs = s.appendChatLogprobs(nil, c.scores,
				shownLogprobs(req.logprobs, s.model.VocabSize), true)
		}
		answer.Choices[i] = out
	}
	if req.promptLogprobs != sample.NoLogprobs {
		answer.PromptLogprobs = s.appendLogprobsByID(nil, g.choices[0].promptScores, s.model.VocabSize)
	}
	return s.WriteJSON(w, answer)
}

// tokensID is what answers of this route are named.
func tokensID(g *generation) string { return tokensKind + strings.TrimPrefix(g.id, "cmpl-") }

// streamTokens answers with events, vLLM's GenerateStreamResponse: the choices interleaved as their
// tokens come.
func (s *API) streamTokens(w http.ResponseWriter, r *server.Request, g *generation,
	req *completionRequest) error {
	out := s.Events(w)
	head := wire.AppendString([]byte(`data: {"request_id":`), tokensID(g))
	head = append(head, `,"choices":[`...)
	shown := shownLogprobs(req.logprobs, s.model.VocabSize)
	var scores []score
	err := g.each(r.Context(), func(i int, d *engine.Delta) error {
		c := &g.choices[i]
		c.take(d)
		if len(d.Tokens) == 0 && !c.finished {
			return nil // prompt processing only
		}
		b := append(out.Buf[:0], head...)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"logprobs":`...)
		if req.logprobs != sample.NoLogprobs {
			scores = appendScores(scores[:0], c, d, false)
			b = s.appendChatLogprobs(b, scores, shown, true)
		} else {
			b = append(b, "null"...)
		}
		b = appendFinish(b, c)
		b = appendTokenIDs(b, "token_ids", d.Tokens, true)
		b = append(b, "}]"...)
		if req.continuousUsage {
			b = s.appendUsage(append(b, ','), g.usageOf(i))
		}
		out.Buf = append(b, "}\n\n"...)
		return out.Send()
	})
	if err == nil && req.includeUsage {
		err = s.sendUsage(out, head, g)
	}
	return s.End(out, err)
}

// notInTokens are fields of a completion that this route does not have, and those that stand outside
// of sampling_params.
var notInTokens, outsideParams = []string{"prompt", "echo", "suffix"}, []string{"stream", "stream_options"}

// samplingNeutral are members of vLLM's SamplingParams that change nothing here.
var samplingNeutral = []string{"detokenize", "output_kind", "skip_clone", "output_text_buffer_length"}

// decodeTokens moves what stands in sampling_params to the fields of a completion.
func decodeTokens(f *wire.Fields, m *model) (*completionRequest, *wire.Error) {
	req := &completionRequest{}
	if ids := f.Members["token_ids"]; ids == nil || ids[0] != '[' {
		f.Fail(wire.BadRequest("token_ids", "`token_ids` must be a list of token ids"))
	} else {
		req.prompts = decodePrompt(f, m, "token_ids")
	}
	if f.Err == nil && (len(req.prompts) != 1 || req.prompts[0].isText) {
		f.Fail(wire.BadRequest("token_ids", "`token_ids` must be a list of token ids"))
	}
	params := f.Object("sampling_params")
	f.Unsupported("features", "{}")
	for _, name := range notInTokens {
		if f.Take(name) != nil {
			f.Fail(wire.BadRequest(name, "`%s` is no field of this route", name))
		}
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if params != nil {
		f.Fail(wire.EachMember(params, func(key string, raw []byte) *wire.Error {
			if slices.Contains(notInTokens, key) || slices.Contains(outsideParams, key) {
				return wire.BadRequest(key, "`%s` is no field of `sampling_params`", key)
			}
			if _, twice := f.Members[key]; twice {
				return wire.BadRequest("sampling_params", "`%s` is also outside of `sampling_params`", wire.Clip(key))
			}
			f.Members[key] = raw
			return nil
		}))
	}
	for _, name := range samplingNeutral {
		f.Take(name)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	req.decode(f, m)
	req.returnTokenIDs = true
	if req.stream && req.promptLogprobs != sample.NoLogprobs {
		f.Fail(wire.BadRequest("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`."))
	}
	return req, f.Err
}
