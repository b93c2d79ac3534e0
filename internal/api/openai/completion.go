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

// completions answers POST /v1/completions.
func (s *API) completions(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *completionRequest) error {
	g, err := s.startCompletion(r.Context(), &r.Call, req)
	f.Done()
	if err != nil {
		return err
	}
	if req.stream {
		return s.streamCompletion(w, r, g, req)
	}
	return s.fullCompletion(w, r, g, req)
}

// completionResponse is the answer without streaming; fields that are always null are there because
// clients of vLLM see them.
type completionResponse struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []completionChoice `json:"choices"`
	ServiceTier       *string            `json:"service_tier"`
	SystemFingerprint *string            `json:"system_fingerprint"`
	Usage             usageInfo          `json:"usage"`
	KVTransferParams  *kvtransfer.Ticket `json:"kv_transfer_params"`
	WeightVersion     string             `json:"weight_version,omitempty"`
}

type completionChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   string          `json:"finish_reason"`
	StopReason     any             `json:"stop_reason"`
	TokenIDs       []int32         `json:"token_ids"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
	PromptTokenIDs []int32         `json:"prompt_token_ids"`
}

// usageInfo is vLLM's UsageInfo.
type usageInfo struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	PromptTokensDetails *promptTokensDetails `json:"prompt_tokens_details"`
	// CompletionTokensDetails is there where reasoning is told apart.
	CompletionTokensDetails *completionTokensDetails `json:"completion_tokens_details,omitempty"`
}

type promptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

type completionTokensDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

func (s *API) usageInfo(u usage) usageInfo {
	info := usageInfo{PromptTokens: u.prompt, TotalTokens: u.prompt + u.output,
		CompletionTokens: u.output}
	if s.opt.Config.Server.EnablePromptTokensDetails {
		info.PromptTokensDetails = &promptTokensDetails{CachedTokens: u.cached}
	}
	if u.reasons {
		info.CompletionTokensDetails = &completionTokensDetails{ReasoningTokens: u.reasoning}
	}
	return info
}

func (s *API) fullCompletion(w http.ResponseWriter, r *server.Request, g *generation,
	req *completionRequest) error {
	if req.echo {
		for i := range g.choices {
			g.choices[i].echo(g.prompts[i/g.n].text)
		}
	}
	if err := s.collect(r.Context(), g, &req.sampling); err != nil {
		return err
	}
	shown := shownLogprobs(req.logprobs, s.model.VocabSize)
	answer := completionResponse{ID: g.id, Object: "text_completion", Created: g.created,
		Model:   g.model,
		Choices: make([]completionChoice, len(g.choices)), WeightVersion: s.weightVersion()}
	for i := range g.choices {
		c, p := &g.choices[i], &g.prompts[i/g.n]
		if req.scoreOnly {
			c.dropOutput(p.text)
		}
		out := completionChoice{Index: i, FinishReason: c.finish.String(),
			StopReason: c.stopReason(), Text: string(c.text)}
		if req.logprobs != sample.NoLogprobs {
			scores := c.scores
			if req.echo {
				scores = append(c.promptScores[:len(c.promptScores):len(c.promptScores)], scores...)
			}
			out.Logprobs = s.appendLogprobs(nil, scores, shown, &req.sampling)
		}
		if req.promptLogprobs != sample.NoLogprobs {
			out.PromptLogprobs = s.appendLogprobsByID(nil, c.promptScores, s.model.VocabSize)
		}
		if req.returnTokenIDs {
			out.PromptTokenIDs = p.Prompt
			out.TokenIDs = append([]int32{}, c.tokens...)
		}
		answer.Choices[i] = out
	}
	answer.Usage, answer.KVTransferParams = s.usageInfo(g.usage()), g.ticket
	return s.WriteJSON(w, answer)
}

// streamCompletion answers with events, the choices interleaved as their tokens come.
func (s *API) streamCompletion(w http.ResponseWriter, r *server.Request, g *generation,
	req *completionRequest) error {
	out := s.Events(w)
	head := chunkHead(g, "text_completion")
	shown := shownLogprobs(req.logprobs, s.model.VocabSize)
	var scores []score
	var text []byte

	err := g.each(r.Context(), func(i int, d *engine.Delta) error {
		c, p := &g.choices[i], &g.prompts[i/g.n]
		first := !c.started
		c.take(d)
		scores, text = scores[:0], text[:0]
		if first && req.echo {
			text = append(text, p.text...)
			c.echoed, c.echoedRunes = len(p.text), countRunes(p.text)
			if req.logprobs != sample.NoLogprobs {
				scores = append(scores, s.promptScores(p.Prompt, d.PromptLogprobs)...)
			}
		}
		if req.scoreOnly {
			c.outputTokens = 0
			if !first {
				return nil
			}
			d = &engine.Delta{Finish: sample.FinishLength}
			c.finished, c.finish, c.stopString, c.stopToken = true, sample.FinishLength, "", -1
		} else if first && !req.echo && len(d.Text) == 0 && len(d.Tokens) == 0 &&
			d.Finish == sample.Unfinished {
			c.started = false // prompt processing only: nothing to show yet
			return nil
		}
		if req.logprobs != sample.NoLogprobs {
			scores = appendScores(scores, c, d, false)
		}
		text = append(text, d.Text...)

		b := append(out.Buf[:0], head...)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"text":`...)
		b = wire.AppendString(b, text)
		b = append(b, `,"logprobs":`...)
		if req.logprobs != sample.NoLogprobs {
			b = s.appendLogprobs(b, scores, shown, &req.sampling)
		} else {
			b = append(b, "null"...)
		}
		b = appendFinish(b, c)
		b = appendStopReason(b, c)
		b = appendTokenIDs(b, "prompt_token_ids", p.Prompt, first && req.returnTokenIDs)
		b = appendTokenIDs(b, "token_ids", d.Tokens, req.returnTokenIDs)
		b = append(b, "}]"...)
		b = s.appendWeightVersion(b, c.finished)
		if req.continuousUsage {
			b = append(b, ',')
			b = s.appendUsage(b, g.usageOf(i))
		}
		out.Buf = append(b, "}\n\n"...)
		return out.Send()
	})
	if err == nil && req.includeUsage {
		err = s.sendUsage(out, head, g)
	}
	return s.End(out, err)
}

// sendUsage sends the last chunk: no choices, the tokens counted.
func (s *API) sendUsage(out *server.EventWriter, head []byte, g *generation) error {
	b := append(out.Buf[:0], head...)
	b = append(b, "],"...)
	b = s.appendUsage(b, g.usage())
	out.Buf = append(b, "}\n\n"...)
	return out.Send()
}
