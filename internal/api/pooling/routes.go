package pooling

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Examples of requests.
const (
	textExample   = `{"input":"Package strings implements"}`
	scoreExample  = `{"text_1":"files","text_2":["package os","package math"]}`
	rerankExample = `{"query":"files","documents":["package os","package math"]}`
)

var cohereExamples = []string{`{"texts":["Package strings implements"],"embedding_types":["float"]}`,
	`{"inputs":[{"content":[{"type":"text","text":"Package strings implements"}]}]}`}

// Routes are those for what a model pools.
func (s *API) Routes() []server.Route {
	score := poolingRoute(s, decodeScore, s.score, server.Doc{Summary: "Score pairs of texts",
		Answer: answer[scoreItem]{}}, scoreExample)
	score.Handler = s.scored("Score API", score.Handler)
	rerank := poolingRoute(s, decodeRerank, s.rerank, server.Doc{
		Summary: "Order documents by their scores with a query", Answer: rerankResponse{}},
		rerankExample)
	rerank.Handler = s.scored("Rerank API", rerank.Handler)
	embed := poolingRoute(s, decodeEmbedding, s.embed, server.Doc{Summary: "Embed texts",
		Answer: answer[embedding]{}}, textExample)
	embed.Handler = s.embeds("Embeddings API", embed.Handler)
	cohere := poolingRoute(s, decodeCohere, s.embedCohere, server.Doc{
		Summary: "Embed texts, as Cohere's clients ask for it", Answer: cohereAnswer{}},
		cohereExamples...)
	cohere.Handler = s.embeds("Embed API", cohere.Handler)
	classes := poolingRoute(s, decodeClassify, s.classify, server.Doc{Summary: "Classify texts",
		Answer: answer[classify]{}}, textExample)
	if p := s.Model.Pooling; p == nil || p.Classes == nil {
		classes.Doc.Body.Decode = nil
	}
	classes.Handler = s.classifies("Classification API", classes.Handler)
	pool := poolingRoute(s, decodePooling, s.poolTask, server.Doc{
		Summary: "Embed or classify texts, as the task says", Answer: answer[poolOut]{}},
		`{"task":"embed","input":"Package strings implements"}`,
		`{"task":"classify","input":"Package strings implements"}`)
	pool.Handler = s.pooled("Pooling API", pool.Handler)
	var list []server.Route
	for _, at := range []struct {
		path  string
		route server.Route
	}{{EmbeddingsPath, embed}, {CoherePath, cohere}, {CohereV1Path, cohere},
		{ClassifyPath, classes}, {PoolingPath, pool}, {ScorePath, score},
		{"/score", score}, {RerankPath, rerank}, {"/rerank", rerank}, {"/v2/rerank", rerank}} {
		at.route.Path = at.path
		list = append(list, at.route)
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

// poolingRoute is a route of requests for vectors: answer computes and renders what decode read.
// Its fields depend on the model, and are known where that pools.
func poolingRoute[T interface{ shared() *pooling }](s *API,
	decode func(f *wire.Fields, m *generate.Model) (T, *wire.Error),
	answer func(r *server.Request, req T) (any, error), doc server.Doc,
	examples ...string) server.Route {
	r := server.Posted(s.Server, "", generate.Bind(s.Service, decode), func(w http.ResponseWriter,
		r *server.Request, _ *wire.Fields, req T) error {
		if bad := s.Begin(&req.shared().Sampling); bad != nil {
			return bad
		}
		v, err := answer(r, req)
		if err != nil {
			return err
		}
		return s.WriteJSON(w, v)
	}, doc, examples...)
	if s.Model.Pooling == nil {
		r.Doc.Body.Decode = nil
	}
	return r
}
