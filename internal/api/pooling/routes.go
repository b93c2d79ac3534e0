package pooling

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Routes are those for what a model pools.
func (s *API) Routes() []server.Route {
	score := s.scored("Score API", poolingRoute(s, decodeScore, s.score))
	rerank := s.scored("Rerank API", poolingRoute(s, decodeRerank, s.rerank))
	var list []server.Route
	for path, h := range map[string]server.Handler{
		EmbeddingsPath: s.embeds("Embeddings API", poolingRoute(s, decodeEmbedding, s.embed)),
		ClassifyPath: s.classifies("Classification API", poolingRoute(s, decodeClassify,
			s.classify)),
		PoolingPath: s.pooled("Pooling API", poolingRoute(s, decodePooling, s.poolTask)),
		ScorePath:   score, "/score": score,
		RerankPath: rerank, "/rerank": rerank, "/v2/rerank": rerank,
	} {
		list = append(list, server.Route{Method: http.MethodPost, Path: path, Handler: h})
	}
	return list
}

// pooled answers requests of a model that pools: it refuses those of one that generates.
func (s *API) pooled(what string, h server.Handler) server.Handler {
	if s.Model.Pooling != nil {
		return s.Counted(h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model",
			"The model does not support %s: it generates text. A server that is started with "+
				"--runner pooling has them.", what)
	}
}

// embeds is pooled for a model whose vectors are the answer, and classifies for one with classes.
func (s *API) embeds(what string, h server.Handler) server.Handler {
	if p := s.Model.Pooling; p == nil || p.Classes == nil {
		return s.pooled(what, h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model",
			"The model does not support %s: it classifies texts (POST %s)", what, ClassifyPath)
	}
}

// scored is pooled for a model whose vectors are compared, or that has one class.
func (s *API) scored(what string, h server.Handler) server.Handler {
	p := s.Model.Pooling
	if p == nil || p.Classes == nil || len(p.Classes.Labels) == 1 {
		return s.pooled(what, h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model",
			"The model does not support %s: it has %d classes, a score is for one (num_labels of "+
				"config.json). POST %s classifies texts", what, len(p.Classes.Labels), ClassifyPath)
	}
}

func (s *API) classifies(what string, h server.Handler) server.Handler {
	if p := s.Model.Pooling; p == nil || p.Classes != nil {
		return s.pooled(what, h)
	}
	return func(http.ResponseWriter, *server.Request) error {
		return wire.BadRequest("model",
			"The model does not support %s: it has no head over classes "+
				"(…ForSequenceClassification)", what)
	}
}

// poolingRoute is a handler of requests for vectors: answer computes and renders what decode read.
func poolingRoute[T interface{ shared() *pooling }](s *API,
	decode func(f *wire.Fields, m *generate.Model) (T, *wire.Error),
	answer func(r *server.Request, req T) (any, error)) server.Handler {
	return server.Post(s.Server, generate.Bind(s.Service, decode), func(w http.ResponseWriter,
		r *server.Request, _ *wire.Fields, req T) error {
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
