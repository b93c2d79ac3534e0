package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// TokensPath is vLLM's: token ids in and out, for programs that have the tokenizer themselves.
const TokensPath = "/inference/v1/generate"

// tokensKind is what ids of its answers begin with.
const tokensKind = "generate-tokens-"

// tokensResponse is vLLM's GenerateResponse.
type tokensResponse struct {
	RequestID        string             `json:"request_id"`
	Choices          []tokensChoice     `json:"choices"`
	PromptLogprobs   json.RawMessage    `json:"prompt_logprobs"`
	KVTransferParams *kvtransfer.Ticket `json:"kv_transfer_params"`
	Metrics          *wire.Metrics      `json:"metrics,omitempty"`
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
	req *generate.Completion) error {
	return s.complete(w, r, f, req, func(f *completionFold) any { return f.tokens() },
		func(a completionAnswer, out *server.EventWriter) (completionSink, []byte) {
			head := wire.AppendString([]byte(`data: {"request_id":`), tokensID(a.g))
			head = append(head, `,"choices":[`...)
			return &tokensEvents{completionAnswer: a, out: out, head: head}, head
		})
}

// tokens is the whole answer as token ids.
func (f *completionFold) tokens() *tokensResponse {
	g, req := f.g, f.req
	answer := &tokensResponse{RequestID: tokensID(g), Choices: make([]tokensChoice, len(f.choices)),
		KVTransferParams: g.Ticket, Metrics: g.Metrics(&req.Sampling)}
	for i := range f.choices {
		out := tokensChoice{Index: i, FinishReason: g.Choices[i].FinishReason(),
			TokenIDs: append([]int32{}, f.choices[i].tokens...)}
		if req.TopLogprobs != sample.NoLogprobs {
			out.Logprobs = f.late.Add(f.s.AppendChatLogprobs(nil, f.choices[i].scores, f.shown,
				true))
		}
		answer.Choices[i] = out
	}
	if req.TopPromptLogprobs != sample.NoLogprobs {
		answer.PromptLogprobs = f.late.Add(f.s.AppendLogprobsByID(nil, g.Choices[0].PromptScores,
			f.s.Model.VocabSize))
	}
	return answer
}

// tokensID is what answers of this route are named.
func tokensID(g *generate.Generation) string {
	return tokensKind + strings.TrimPrefix(g.ID, "cmpl-")
}

// tokensEvents sends the pieces of an answer as vLLM's GenerateStreamResponse.
type tokensEvents struct {
	completionAnswer
	out *server.EventWriter
	// head is what every chunk begins with.
	head []byte
}

func (e *tokensEvents) add(p *completionPiece) error {
	c := &e.g.Choices[p.choice]
	if len(p.tokens) == 0 && !c.Finished {
		return nil // text alone
	}
	b := append(e.out.Buf[:0], e.head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(p.choice), 10)
	b = append(b, `,"logprobs":`...)
	if e.req.TopLogprobs != sample.NoLogprobs {
		b = e.s.AppendChatLogprobs(b, p.scores, e.shown, true)
	} else {
		b = append(b, "null"...)
	}
	b = appendFinish(b, c)
	b = appendTokenIDs(b, "token_ids", p.tokens, true)
	b = append(b, "}]"...)
	if e.req.ContinuousUsage {
		b = e.s.appendUsage(append(b, ','), e.g.UsageOf(p.choice))
	}
	e.out.Buf = append(b, "}\n\n"...)
	return e.out.Send()
}

// notInTokens are fields of a completion that this route does not have, and those that stand
// outside of sampling_params.
var notInTokens, outsideParams = []string{"prompt", "echo", "suffix"}, []string{"stream",
	"stream_options"}

// samplingNeutral are members of vLLM's SamplingParams that change nothing here.
var samplingNeutral = []string{"detokenize", "output_kind", "skip_clone",
	"output_text_buffer_length"}

// decodeTokens moves what stands in sampling_params to the fields of a completion.
func decodeTokens(f *wire.Fields, m *generate.Model) (*generate.Completion, *wire.Error) {
	req := &generate.Completion{}
	if ids := f.Members["token_ids"]; ids == nil || ids[0] != '[' {
		f.Fail(wire.BadRequest("token_ids", "`token_ids` must be a list of token ids"))
	} else {
		req.Prompts = DecodePrompt(f, m, "token_ids")
	}
	if f.Err == nil && (len(req.Prompts) != 1 || req.Prompts[0].IsText) {
		f.Fail(wire.BadRequest("token_ids", "`token_ids` must be a list of token ids"))
	}
	params := f.Object("sampling_params")
	f.Unsupported("features", "{}")
	for _, name := range notInTokens {
		if f.Refused(name) != nil {
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
				return wire.BadRequest("sampling_params",
					"`%s` is also outside of `sampling_params`", wire.Clip(key))
			}
			f.Members[key] = raw
			return nil
		}))
	}
	for _, name := range samplingNeutral {
		f.Pop(name)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if named := f.Members["logprob_token_ids"]; named != nil && !wire.IsNull(named) {
		if n := f.Members["logprobs"]; n == nil || wire.IsNull(n) {
			f.Members["logprobs"] = []byte("0") // vLLM's SamplingParams need no number
		}
	}
	decodeFields(req, f, m)
	req.ReturnTokenIDs = true
	if req.Stream && req.TopPromptLogprobs != sample.NoLogprobs {
		f.Fail(wire.BadRequest("prompt_logprobs",
			"`prompt_logprobs` are not available when `stream=True`."))
	}
	return req, f.Err
}
