package pooling

import (
	"slices"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Routes of vLLM's for models that pool.
const (
	ClassifyPath = "/classify"
	PoolingPath  = "/pooling"
)

// classifyRequest is the body of POST /classify.
type classifyRequest struct {
	texts
	activate bool
}

func decodeClassify(f *wire.Fields, m *generate.Model) (*classifyRequest, *wire.Error) {
	r := &classifyRequest{}
	r.texts.decode(f, m)
	r.activate = decodeActivation(f, m)
	return r, f.Err
}

// decodeActivation reads whether classes have probabilities, by both of its names.
func decodeActivation(f *wire.Fields, m *generate.Model) bool {
	return f.OptBool("use_activation", f.OptBool("activation", m.Pooling.Classes.Activate))
}

// classify is the answer for one text.
type classify struct {
	Index int `json:"index"`
	// Label is that of the class with the highest value, the first of equal ones.
	Label          string    `json:"label"`
	Probs          []float32 `json:"probs"`
	Classes        int       `json:"num_classes"`
	PromptTokenIDs []int32   `json:"prompt_token_ids,omitempty"`
}

// classify answers POST /classify.
func (s *API) classify(r *server.Request, req *classifyRequest) (any, error) {
	g, prompts, vectors, err := s.vectors(r, "classify-", &req.texts)
	if err != nil {
		return nil, err
	}
	head := s.Model.Pooling.Classes
	list := newAnswer[classify](g, len(vectors))
	for i, v := range vectors {
		values, err := head.Of(v, req.activate)
		if err != nil {
			return nil, err
		}
		best := slices.Index(values, slices.Max(values))
		c := classify{Index: i, Label: head.Labels[best], Probs: values, Classes: len(values)}
		if req.tokens {
			c.PromptTokenIDs = prompts[i].Prompt
		}
		list.Data[i] = c
	}
	return list, nil
}

// poolingRequest is the body of POST /pooling: what of a model's vectors, the task says.
type poolingRequest struct {
	embeddingRequest
	activate bool
}

// decodePooling reads a task and its fields. As in vLLM a request without a task is for a vector of
// each token.
func decodePooling(f *wire.Fields, m *generate.Model) (*poolingRequest, *wire.Error) {
	task, own := f.OptString("task"), "embed"
	if m.Pooling.Classes != nil {
		own = "classify"
	}
	each := task == nil || *task == "token_"+own
	switch {
	case f.Err != nil:
		return nil, f.Err
	case !each && *task != own:
		return nil, wire.BadRequest("task", "`task` %q is not supported: this model has %q and %q",
			wire.Clip(*task), own, "token_"+own)
	case own == "classify" && f.Members["dimensions"] != nil:
		return nil, wire.BadRequest("dimensions",
			"`dimensions` are for embeddings: this model classifies")
	}
	r := &poolingRequest{}
	if m.Pooling.Classes != nil { // before an embedding's field of the same name
		r.activate = decodeActivation(f, m)
	}
	e, bad := decodeEmbedding(f, m)
	if bad != nil {
		return nil, bad
	}
	r.embeddingRequest, r.each = *e, each
	return r, nil
}

type poolOut struct {
	Index          int     `json:"index"`
	Object         string  `json:"object"`
	Data           any     `json:"data"`
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"`
}

// poolTask answers POST /pooling.
func (s *API) poolTask(r *server.Request, req *poolingRequest) (any, error) {
	g, prompts, vectors, err := s.vectors(r, "pool-", &req.texts)
	if err != nil {
		return nil, err
	}
	list := newAnswer[poolOut](g, len(vectors))
	for i, v := range vectors {
		if list.Data[i], err = s.poolOut(req, v, len(prompts[i].Prompt)); err != nil {
			return nil, err
		}
		list.Data[i].Index = i
		if req.tokens {
			list.Data[i].PromptTokenIDs = prompts[i].Prompt
		}
	}
	return list, nil
}

// poolOut is what is answered of a text: of its vector, or of those of its tokens, which as base64
// stand one after another.
func (s *API) poolOut(req *poolingRequest, v []float32, tokens int) (poolOut, error) {
	out := poolOut{Object: "pooling"}
	if !req.each {
		v, err := s.outOf(req, v)
		out.Data = req.encode(v)
		return out, err
	}
	var all []float32
	rows := make([]any, 0, tokens)
	for row := range slices.Chunk(v, len(v)/tokens) {
		row, err := s.Model.Pooling.Vector(row)
		if err == nil {
			row, err = s.outOf(req, row)
		}
		if err != nil {
			return out, err
		}
		if req.base64 {
			all = append(all, row...)
		} else {
			rows = append(rows, req.encode(row))
		}
	}
	if out.Data = rows; req.base64 {
		out.Data = req.encode(all)
	}
	return out, nil
}

// outOf is what the task makes of a vector.
func (s *API) outOf(req *poolingRequest, v []float32) ([]float32, error) {
	if head := s.Model.Pooling.Classes; head != nil {
		return head.Of(v, req.activate)
	}
	return req.trim(v), nil
}
