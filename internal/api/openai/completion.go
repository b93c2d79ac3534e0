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

const completionPath = "/v1/completions"

// completions answers POST /v1/completions.
func (s *API) completions(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *completionRequest) error {
	g, err := s.startCompletion(r, req)
	f.Done()
	if err != nil {
		return err
	}
	if req.stream {
		return s.streamCompletion(w, r, g, req)
	}
	return s.fullCompletion(w, r, g, req)
}

func (s *API) startCompletion(r *server.Request, req *completionRequest) (*generation, error) {
	var bad *wire.Error
	if req.model, bad = s.checkModel(req.model); bad != nil {
		return nil, bad
	}
	if bad = s.checkPriority(&req.sampling); bad != nil {
		return nil, bad
	}
	base, bad := s.params(&req.sampling, defaultCompletionTokens)
	if bad != nil {
		return nil, bad
	}
	prompts := make([]prompt, len(req.prompts))
	for i, raw := range req.prompts {
		if err := call.Ended(r.Context()); err != nil {
			return nil, err
		}
		if prompts[i], bad = s.tokenize(r.Context(), &req.sampling, raw); bad != nil {
			return nil, bad
		}
		if bad = s.fit(&prompts[i], &req.sampling, base, "prompt"); bad != nil {
			return nil, bad
		}
	}
	req.prompts = nil
	return s.start(r, "cmpl-", &req.sampling, prompts)
}

// shownLogprobs is how many of the most likely tokens an answer shows.
func shownLogprobs(count int32, vocab int) int {
	if count == sample.AllLogprobs {
		return vocab
	}
	return int(count)
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

// repetitionDetected is the stop reason of an output that repeats itself.
const repetitionDetected = "repetition_detected"

// stopReason is a string, a token id, or nil.
func (c *choice) stopReason() any {
	switch {
	case c.finish == sample.FinishRepetition:
		return repetitionDetected
	case c.stopString != "":
		return c.stopString
	case c.stopToken >= 0:
		return c.stopToken
	}
	return nil
}

// collect reads a generation to its end.
func (s *API) collect(r *server.Request, g *generation, req *sampling) error {
	return g.each(r.Context(), func(i int, d *engine.Delta) error {
		c := &g.choices[i]
		if !c.started && req.promptLogprobs != sample.NoLogprobs {
			c.promptScores = s.promptScores(g.prompts[i/g.n].Prompt, d.PromptLogprobs)
		}
		c.take(d)
		if d.Ticket != nil {
			g.ticket = d.Ticket
		}
		if req.logprobs != sample.NoLogprobs {
			c.scores = appendScores(c.scores, c, d, true)
		}
		if req.returnTokenIDs {
			c.tokens = append(c.tokens, d.Tokens...)
		}
		c.text = append(c.text, d.Text...)
		return nil
	})
}

func (s *API) fullCompletion(w http.ResponseWriter, r *server.Request, g *generation,
	req *completionRequest) error {
	if req.echo {
		for i := range g.choices {
			g.choices[i].echo(g.prompts[i/g.n].text)
		}
	}
	if err := s.collect(r, g, &req.sampling); err != nil {
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

// echo puts the prompt before the output.
func (c *choice) echo(text string) {
	c.text = append(c.text, text...)
	c.echoed, c.echoedRunes = len(text), countRunes(text)
}

// dropOutput leaves the prompt only: echo with max_tokens 0.
func (c *choice) dropOutput(text string) {
	c.text = append(c.text[:0], text...)
	c.scores, c.tokens, c.outputTokens = nil, nil, 0
	c.finish, c.stopString, c.stopToken = sample.FinishLength, "", -1
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
