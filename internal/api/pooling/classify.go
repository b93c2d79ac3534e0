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
	Label          string  `json:"label"`
	Probs          floats  `json:"probs"`
	Classes        int     `json:"num_classes"`
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"`
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

// decodePooling reads a task and its fields. vLLM's default is a vector of each token, which there
// is not: so the task is given.
func decodePooling(f *wire.Fields, m *generate.Model) (*poolingRequest, *wire.Error) {
	task, own := f.OptString("task"), "embed"
	if m.Pooling.Classes != nil {
		own = "classify"
	}
	switch {
	case f.Err != nil:
		return nil, f.Err
	case task == nil:
		return nil, wire.BadRequest("task",
			"`task` is missing: this model has %q. Vectors of each token (token_embed, "+
				"token_classify), which are vLLM's default, are not supported.", own)
	case *task != own:
		return nil, wire.BadRequest("task", "`task` %q is not supported: this model has %q",
			wire.Clip(*task), own)
	case own == "classify" && f.Members["dimensions"] != nil:
		return nil, wire.BadRequest("dimensions",
			"`dimensions` are for embeddings: this model classifies")
	}
	e, bad := decodeEmbedding(f, m)
	if bad != nil {
		return nil, bad
	}
	r := &poolingRequest{embeddingRequest: *e}
	if m.Pooling.Classes != nil {
		r.activate = decodeActivation(f, m)
	}
	return r, f.Err
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
		if head := s.Model.Pooling.Classes; head == nil {
			v = req.cut(v)
		} else if v, err = head.Of(v, req.activate); err != nil {
			return nil, err
		}
		list.Data[i] = poolOut{Index: i, Object: "pooling", Data: req.encode(v)}
		if req.tokens {
			list.Data[i].PromptTokenIDs = prompts[i].Prompt
		}
	}
	return list, nil
}
