package openai

import (
	"context"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
)

// poolingAPI answers requests for what a model pools of texts: vectors, classes, scores.
type poolingAPI struct {
	*server.Server
	*Service
}

func (s *poolingAPI) routes() []server.Route {
	score := s.scored("Score API", poolingRoute(s, decodeScore, s.score))
	rerank := s.scored("Rerank API", poolingRoute(s, decodeRerank, s.rerank))
	var list []server.Route
	for path, h := range map[string]server.Handler{
		embeddingsPath: s.embeds("Embeddings API", poolingRoute(s, decodeEmbedding, s.embed)),
		classifyPath:   s.classifies("Classification API", poolingRoute(s, decodeClassify, s.classify)),
		poolingPath:    s.pooled("Pooling API", poolingRoute(s, decodePooling, s.poolTask)),
		scorePath:      score, "/score": score,
		rerankPath: rerank, "/rerank": rerank, "/v2/rerank": rerank,
	} {
		list = append(list, server.Route{Method: http.MethodPost, Path: path, Handler: h})
	}
	return list
}

// pooled answers requests of a model that pools: it refuses those of one that generates.
func (s *poolingAPI) pooled(what string, h server.Handler) server.Handler {
	if s.model.Pooling != nil {
		return s.Counted(h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model", "The model does not support %s: it generates text. A server that "+
			"is started with --runner pooling has them.", what)
	}
}

// embeds is pooled for a model whose vectors are the answer, and classifies for one with classes.
func (s *poolingAPI) embeds(what string, h server.Handler) server.Handler {
	if p := s.model.Pooling; p == nil || p.Classes == nil {
		return s.pooled(what, h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model", "The model does not support %s: it classifies texts (POST %s)", what,
			classifyPath)
	}
}

// scored is pooled for a model whose vectors are compared, or that has one class.
func (s *poolingAPI) scored(what string, h server.Handler) server.Handler {
	p := s.model.Pooling
	if p == nil || p.Classes == nil || len(p.Classes.Labels) == 1 {
		return s.pooled(what, h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model", "The model does not support %s: it has %d classes, a score is for one "+
			"(num_labels of config.json). POST %s classifies texts", what, len(p.Classes.Labels), classifyPath)
	}
}

func (s *poolingAPI) classifies(what string, h server.Handler) server.Handler {
	if p := s.model.Pooling; p == nil || p.Classes != nil {
		return s.pooled(what, h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model", "The model does not support %s: it has no head over classes "+
			"(…ForSequenceClassification)", what)
	}
}

// pooling is what all requests for vectors share.
type pooling struct {
	sampling
}

func (p *pooling) shared() *pooling { return p }

// decode reads the shared fields.
func (p *pooling) decode(f *wire.Fields) {
	if name := f.OptString("model"); name != nil {
		p.model = *name
	}
	p.truncateRight = true // unless the request has a side: what pools reads a text from its beginning
	p.decodeTruncation(f)
	p.decodeNames(f)
	p.timeout = f.OptFloat("timeout")
	p.priority = int(f.Ranged("priority", 0, -1<<31, 1<<31-1))
	p.addSpecial = f.Boolean("add_special_tokens", true)
	p.n, p.logprobs, p.promptLogprobs = 1, sample.NoLogprobs, sample.NoLogprobs
	f.Unsupported("mm_processor_kwargs", "{}")
	f.Unsupported("softmax", "true")
}

// texts are what is pooled, each for itself.
type texts struct {
	pooling
	conversation
	input []rawPrompt
	chat  bool
	// tokens says that the ids of each prompt are shown.
	tokens bool
}

func (t *texts) decode(f *wire.Fields, m *model) {
	if f.Members["messages"] != nil {
		t.chat = true
		t.decodeConversation(f, m)
	} else {
		t.input = decodePrompt(f, m, "input")
	}
	t.pooling.decode(f)
	t.tokens = f.OptBool("return_token_ids", false)
}

// vectors are those of texts, as the model pools.
func (s *poolingAPI) vectors(r *server.Request, kind string, t *texts) (*generation, []prompt, [][]float32,
	error) {
	if t.chat {
		p, bad := s.render(r.Context(), &t.conversation, &t.sampling)
		if bad != nil {
			return nil, nil, nil, bad
		}
		t.input = []rawPrompt{{ids: p.Prompt}}
		t.conversation.forget()
	}
	prompts, bad := s.poolPrompts(r.Context(), &t.pooling, "input", t.input, s.model.Pooling.Type)
	if bad != nil {
		return nil, nil, nil, bad
	}
	g, vectors, err := s.pool(r, kind, &t.pooling, prompts)
	return g, prompts, vectors, err
}

// begin settles what does not depend on the texts.
func (s *poolingAPI) begin(p *pooling) *wire.Error {
	var bad *wire.Error
	if p.model, bad = s.checkModel(p.model); bad != nil {
		return bad
	}
	return s.checkPriority(&p.sampling)
}

// poolPrompts turns texts into requests, each for what kind pools of it.
func (s *poolingAPI) poolPrompts(ctx context.Context, p *pooling, field string, raw []rawPrompt,
	kind step.Pooling, tokens ...int32) ([]prompt, *wire.Error) {
	prompts := make([]prompt, len(raw))
	for i, one := range raw {
		if err := ctx.Err(); err != nil {
			return nil, wire.Cancelled()
		}
		t, bad := s.tokenize(ctx, &p.sampling, one)
		if bad != nil {
			return nil, bad
		}
		if n, most := len(t.Prompt), s.model.MaxModelLen-1; n > most {
			return nil, wire.BadRequest(field, "This model's maximum context length is %d tokens. "+
				"However, `%s` %d has %d tokens. Set `truncate_prompt_tokens` to -1 to have it cut.",
				most, field, i, n)
		}
		q := engine.NewPoolingRequest(t.Prompt, kind, tokens...)
		q.Salt, q.Priority = p.cacheSalt, p.priority
		prompts[i] = prompt{Request: *q}
	}
	return prompts, nil
}

// pool computes the vectors of prompts.
func (s *poolingAPI) pool(r *server.Request, kind string, p *pooling, prompts []prompt) (
	g *generation, vectors [][]float32, err error) {
	if g, err = s.start(r.Context(), &r.Call, kind, &p.sampling, prompts); err != nil {
		return nil, nil, err
	}
	vectors = make([][]float32, len(prompts))
	err = g.each(r.Context(), func(i int, d *engine.Delta) error {
		g.choices[i].take(d)
		vectors[i] = append(vectors[i], d.Pooled...)
		return nil
	})
	return g, vectors, err
}

// poolingRoute is a handler of requests for vectors: answer computes and renders what decode read.
func poolingRoute[T interface{ shared() *pooling }](s *poolingAPI,
	decode func(f *wire.Fields, m *model) (T, *wire.Error),
	answer func(r *server.Request, req T) (any, error)) server.Handler {
	return server.Post(s.Server, Bind(s.Service, decode), func(w http.ResponseWriter, r *server.Request, _ *wire.Fields, req T) error {
		if bad := s.begin(req.shared()); bad != nil {
			return bad
		}
		v, err := answer(r, req)
		if err != nil {
			return err
		}
		return s.WriteJSON(w, v)
	})
}

// usageOfPrompts counts tokens that are only read.
func usageOfPrompts(g *generation) usageInfo {
	n := g.usage().prompt
	return usageInfo{PromptTokens: n, TotalTokens: n}
}
