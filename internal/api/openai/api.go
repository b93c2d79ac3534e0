package openai

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/api/batch"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/ops/tracing"
)

// Options configure an API. Info and Engine are needed, the rest has defaults.
type Options struct {
	// Info describes the model that Engine runs.
	Info   *engine.Info
	Engine Engine
	// Config is the program's, config.Default at least: of it count Server, what Model says of
	// requests, and Schedule.Policy.
	Config config.Config
	Limits wire.Limits
	// Log receives failures and one line per request, without bodies; nil logs nothing.
	Log *slog.Logger
	// Metrics is nil for none; then /metrics is absent too.
	Metrics *metrics.Metrics
	// Version is what /version says.
	Version string
	// Health says of each of several engines why it does not serve now, nil for those that do; a nil
	// function is for one engine.
	Health func(context.Context) []error
	// Elastic changes the engines while they serve; nil for no such routes.
	Elastic Elastic
	// Ranks describes the workers for GET /debug/ranks, as JSON; nil for no such route.
	Ranks func() any
	// Store keeps what clients ask for later; nil for none, and no routes that need it.
	Store *store.Store
	// Responses keeps the responses of /v1/responses; nil for none, and then nothing is kept of them.
	Responses *store.Store
	// Tracer exports spans of requests; nil does not.
	Tracer *tracing.Tracer
	// Window is the page for browsers at "/", with its feed; nil for none.
	Window *dashboard.Window
	// Trainer steers the engines for a trainer; nil for no such routes. Close closes it.
	Trainer *rlhf.Control
	// SpecialTokensInContent lets the text of special tokens in chat messages become control
	// tokens, as vLLM does.
	SpecialTokensInContent bool
}

// API answers requests over HTTP. It is safe for concurrent use.
type API struct {
	*server.Server
	opt           Options
	model         model
	lim           wire.Limits
	log           *slog.Logger
	created       int64 // Unix time shown by /v1/models
	specials      *specialTexts
	maxTokenBytes int
	live          liveResponses
	inFlight      inFlight
	batches       *batch.Batches // nil for none
	// seeds counts the seeds given to requests that brought none.
	seeds atomic.Uint64
}

// New checks the options and makes an API.
func New(o Options) (*API, error) {
	if o.Engine == nil || o.Info == nil {
		return nil, errors.New("openai server: no engine, or no description of its model")
	}
	c := &o.Config.Server
	lim := o.Limits.WithDefaults()
	m, err := newModel(o.Info, &o.Config, lim)
	if err != nil {
		return nil, fmt.Errorf("openai server: %w", err)
	}
	s := &API{opt: o, model: m, lim: lim, log: o.Log, created: time.Now().Unix(),
		live: liveResponses{limit: o.Config.Schedule.MaxNumQueuedReqs}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	so := server.Options{Config: *c, Limits: lim, Log: s.log, Metrics: o.Metrics, Tracer: o.Tracer,
		Classify: engineError, WeightVersion: s.weightVersion, Weights: s.weights}
	if m.flags.Seed != 0 {
		so.Seed = s.nextSeed
	}
	if o.Window != nil {
		so.Closing = o.Window.Close
	}
	s.Server = server.New(so)
	var special []string
	if tok := m.Tokenizer; tok != nil {
		for id := range int32(tok.VocabSize()) {
			s.maxTokenBytes = max(s.maxTokenBytes, len(tok.TokenBytes(id)))
			if text, ok := tok.Token(id); ok && tok.IsSpecial(id) {
				special = append(special, text)
			}
		}
	}
	s.specials = newSpecialTexts(special)
	s.batches = s.newBatches()
	s.Add(s.routes()...)
	return s, nil
}

func (s *API) routes() []server.Route {
	var list []server.Route
	add := func(method, path string, public bool, h server.Handler) {
		list = append(list, server.Route{Method: method, Path: path, Public: public, Handler: h})
	}
	anthropics := func(path string, h server.Handler) {
		list = append(list, server.Route{Method: "POST", Path: path, Handler: h, Shape: &anthropic})
	}
	add("POST", completionPath, false, s.generated(withModel(s, decodeCompletion, s.completions)))
	add("POST", chatPath, false, s.generated(withModel(s, decodeChat, s.chatCompletions)))
	add("POST", chatBatchPath, false, s.generated(withModel(s, decodeChatBatch, s.chatBatch)))
	add("POST", tokensPath, false, s.generated(withModel(s, decodeTokens, s.generateTokens)))
	add("POST", embeddingsPath, false, s.embeds("Embeddings API",
		poolingRoute(s, decodeEmbedding, s.embed)))
	add("POST", classifyPath, false, s.classifies("Classification API",
		poolingRoute(s, decodeClassify, s.classify)))
	add("POST", poolingPath, false, s.pooled("Pooling API",
		poolingRoute(s, decodePooling, s.poolTask)))
	score := s.scored("Score API", poolingRoute(s, decodeScore, s.score))
	add("POST", scorePath, false, score)
	add("POST", "/score", false, score)
	rerank := s.scored("Rerank API", poolingRoute(s, decodeRerank, s.rerank))
	for _, path := range []string{rerankPath, "/rerank", "/v2/rerank"} {
		add("POST", path, false, rerank)
	}
	anthropics(messagesPath, s.generated(withModel(s, decodeMessage, s.createMessage)))
	anthropics(countTokensPath, s.generated(withModel(s, decodeCounted, s.countTokens)))
	add("POST", responsesPath, false, s.generates(s.createResponse))
	add("GET", responsesPath+"/{id}", false, s.getResponse)
	add("DELETE", responsesPath+"/{id}", false, s.deleteResponse)
	add("POST", responsesPath+"/{id}/cancel", false, s.cancelResponse)
	add("GET", responsesPath+"/{id}/input_items", false, s.responseInput)
	add("GET", "/v1/models", false, s.listModels)
	add("GET", "/v1/models/{model...}", false, s.getModel)
	add("POST", "/tokenize", false, withModel(s, decodeTokenize, s.tokenizeText))
	add("POST", "/detokenize", false, withModel(s, decodeDetokenize, s.detokenize))
	if s.model.answers.TokenizerInfo {
		add("GET", "/tokenizer_info", false, s.tokenizerInfo)
	}
	s.addBatches(add)
	s.addElastic(add)
	add("GET", "/load", false, s.showLoad)
	if ranks := s.opt.Ranks; ranks != nil {
		add("GET", "/debug/ranks", false, func(w http.ResponseWriter, _ *server.Request) error {
			return s.WriteJSON(w, map[string]any{"ranks": ranks()})
		})
	}
	s.addTrainer(add)
	if page := s.opt.Window; page != nil {
		s.addWindow(page, add)
	}
	add("GET", "/health", true, s.health)
	add("GET", "/ping", true, s.health)
	add("POST", "/ping", true, s.health)
	add("GET", "/readyz", true, s.health)
	add("GET", "/livez", true, s.alive)
	add("GET", "/version", true, s.version)
	if m := s.opt.Metrics; m != nil {
		scrape := m.Handler()
		add("GET", "/metrics", false, func(w http.ResponseWriter, r *server.Request) error {
			scrape.ServeHTTP(w, r.Request)
			return nil
		})
	}
	return list
}

// withModel is posted for requests that are checked against the model.
func withModel[T any](s *API, decode func(f *wire.Fields, m *model) (T, *wire.Error),
	respond func(w http.ResponseWriter, r *server.Request, f *wire.Fields, req T) error) server.Handler {
	return server.Post(s.Server, func(f *wire.Fields) (T, *wire.Error) { return decode(f, &s.model) },
		respond)
}
