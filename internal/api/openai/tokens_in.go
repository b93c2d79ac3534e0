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
func (s *completionsAPI) generateTokens(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *completionRequest) error {
	g, err := s.startCompletion(r.Context(), &r.Call, req)
	f.Done()
	if err != nil {
		return err
	}
	a := completionAnswer{s, g, req, shownLogprobs(req.logprobs, s.model.VocabSize)}
	if !req.stream {
		fold := newCompletionFold(a)
		if err := a.read(r.Context(), fold); err != nil {
			return err
		}
		return s.WriteJSON(w, fold.tokens())
	}
	out := s.Events(w)
	head := wire.AppendString([]byte(`data: {"request_id":`), tokensID(g))
	events := &tokensEvents{completionAnswer: a, out: out, head: append(head, `,"choices":[`...)}
	err = a.read(r.Context(), events)
	if err == nil && req.includeUsage {
		err = s.sendUsage(out, events.head, g)
	}
	return s.End(out, err)
}

// tokens is the whole answer as token ids.
func (f *completionFold) tokens() *tokensResponse {
	g, req := f.g, f.req
	answer := &tokensResponse{RequestID: tokensID(g), Choices: make([]tokensChoice, len(f.choices)),
		KVTransferParams: g.ticket}
	for i := range f.choices {
		out := tokensChoice{Index: i, FinishReason: g.choices[i].finishReason(),
			TokenIDs: append([]int32{}, f.choices[i].tokens...)}
		if req.logprobs != sample.NoLogprobs {
			out.Logprobs = f.s.appendChatLogprobs(nil, f.choices[i].scores, f.shown, true)
		}
		answer.Choices[i] = out
	}
	if req.promptLogprobs != sample.NoLogprobs {
		answer.PromptLogprobs = f.s.appendLogprobsByID(nil, g.choices[0].promptScores,
			f.s.model.VocabSize)
	}
	return answer
}

// tokensID is what answers of this route are named.
func tokensID(g *generation) string { return tokensKind + strings.TrimPrefix(g.id, "cmpl-") }

// tokensEvents sends the pieces of an answer as vLLM's GenerateStreamResponse.
type tokensEvents struct {
	completionAnswer
	out *server.EventWriter
	// head is what every chunk begins with.
	head []byte
}

func (e *tokensEvents) add(p *completionPiece) error {
	c := &e.g.choices[p.choice]
	if len(p.tokens) == 0 && !c.finished {
		return nil // text alone
	}
	b := append(e.out.Buf[:0], e.head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(p.choice), 10)
	b = append(b, `,"logprobs":`...)
	if e.req.logprobs != sample.NoLogprobs {
		b = e.s.appendChatLogprobs(b, p.scores, e.shown, true)
	} else {
		b = append(b, "null"...)
	}
	b = appendFinish(b, c)
	b = appendTokenIDs(b, "token_ids", p.tokens, true)
	b = append(b, "}]"...)
	if e.req.continuousUsage {
		b = e.s.appendUsage(append(b, ','), e.g.usageOf(p.choice))
	}
	e.out.Buf = append(b, "}\n\n"...)
	return e.out.Send()
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
