package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/api/admin"
	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/batch"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/openapi"
	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/ops/tracing"
)

// Options configure an API. Info and Engine are needed, the rest has defaults.
type Options struct {
	// Info describes the model that Engine runs.
	Info   *open.Info
	Engine generate.Submitter
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
	// Created is the Unix time that /v1/models says of the model; 0 is now.
	Created int64
	// Health says of each of several engines why it does not serve now, nil for those that do; a
	// nil function is for one engine.
	Health func(context.Context) []error
	// Elastic changes the engines while they serve; nil for no such routes.
	Elastic admin.Elastic
	// Ranks describes the workers for GET /debug/ranks, as JSON; nil for no such route.
	Ranks func() any
	// Experts is the load of the experts of each engine for GET /debug/experts; nil for no such
	// route.
	Experts func(context.Context) ([][]engine.ExpertLoad, error)
	// Store keeps what clients ask for later; nil for none, and no routes that need it.
	Store *store.Store
	// Responses keeps the responses of /v1/responses; nil for none, and then nothing is kept of
	// them.
	Responses *store.Store
	// Tracer exports spans of requests; nil does not.
	Tracer *tracing.Tracer
	// Dashboard is the page for browsers at "/", with its feed; nil for none.
	Dashboard *dashboard.Page
	// Trainer steers the engines for a trainer; nil for no such routes. Close closes it.
	Trainer *rlhf.Control
	// Adapters are those that requests may name; nil for none, and no routes to load some. Close
	// closes it.
	Adapters *adapters.Control
	// SpecialTokensInContent lets the text of special tokens in chat messages become control
	// tokens, as vLLM does.
	SpecialTokensInContent bool
}

// API answers requests over HTTP. It is safe for concurrent use.
type API struct {
	*server.Server
	*generate.Service
	// Batches answers files and batches.
	Batches   *batch.API
	opt       Options
	lim       wire.Limits
	responses *responses.API
}

// New checks the options and makes an API.
func New(o Options) (*API, error) {
	if o.Engine == nil || o.Info == nil {
		return nil, errors.New("openai server: no engine, or no description of its model")
	}
	cfg := &o.Config
	so := generate.Options{Info: o.Info, Engine: o.Engine, Config: cfg, Limits: o.Limits,
		Metrics: o.Metrics, SpecialTokensInContent: o.SpecialTokensInContent,
		Priorities: cfg.Schedule.Policy == "priority", Abortable: o.Trainer != nil}
	so.Adapters = o.Adapters
	if o.Trainer != nil && cfg.Server.EnableRLHF {
		so.WeightVersion = o.Trainer.Version
	}
	service, err := generate.New(so)
	if err != nil {
		return nil, fmt.Errorf("openai server: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &API{Service: service, opt: o, lim: o.Limits.WithDefaults()}
	options := server.Options{Config: cfg.Server, Limits: s.lim, Log: o.Log, Metrics: o.Metrics,
		Tracer: o.Tracer, Classify: generate.StatusOf, WeightVersion: service.WeightVersion,
		Weights: s.weights, Shape: anthropic.ShapeOf,
		Absent: absentRoute}
	if cfg.Model.Seed != 0 {
		options.Seed = service.NextSeed
	}
	if o.Dashboard != nil {
		options.Closing = o.Dashboard.Close
	}
	s.Server = server.New(options)
	s.Batches = batch.NewAPI(s.Server, batch.APIOptions{Store: o.Store, Dir: cfg.Server.StoreDir,
		Log: o.Log, Metrics: o.Metrics, Limits: s.lim, Serves: service.Serves,
		// Twice as many as run: a row that ends is followed at once.
		InFlight: 2 * cfg.Schedule.MaxNumSeqs * max(1, o.Info.Engines)})
	s.responses = responses.New(s.Server, service, responses.Options{Store: o.Responses, Log: o.Log,
		MaxBackground:   cfg.Schedule.MaxNumQueuedReqs,
		MaxConversation: cfg.Server.MaxRequestBodyBytes})
	s.Add(s.routes()...)
	return s, nil
}

// Close ends what goes on in the background and waits until it is stored. The server answers no
// more requests by then.
func (s *API) Close() {
	s.responses.Close()
	if t := s.opt.Trainer; t != nil {
		t.Close()
	}
	if a := s.opt.Adapters; a != nil {
		a.Close()
	}
}

// routes are those of every dialect, and of the program.
func (s *API) routes() []server.Route {
	cfg := &s.opt.Config.Server
	created := cmp.Or(s.opt.Created, time.Now().Unix())
	completions := openai.New(s.Server, s.Service, cfg, created)
	anthropics := anthropic.New(s.Server, s.Service, created)
	pooled := pooling.New(s.Server, s.Service)
	list := slices.Concat(
		grouped("Completions and models", completions.Routes()),
		grouped("Responses and conversations", s.responses.Routes()),
		grouped("Messages", anthropics.Routes()), grouped("Pooling", pooled.Routes()),
		grouped("Files and batches", s.Batches.Routes()), grouped("Server", s.programRoutes()))
	if e := s.opt.Elastic; e != nil {
		list = append(list, grouped("Engines", admin.ElasticRoutes(s.Server, e,
			cfg.EnableElasticEP || len(cfg.APIKeys) > 0))...)
	}
	if a := s.opt.Adapters; a != nil {
		list = append(list, grouped("Adapters", admin.AdapterRoutes(s.Server, a,
			len(cfg.APIKeys) > 0 || cfg.Transport.UDS != ""))...)
	}
	if t := s.opt.Trainer; t != nil {
		list = append(list, grouped("Trainers", admin.TrainerRoutes(s.Server, t, s.Abort, s.lim,
			cfg.EnableRLHF))...)
	}
	if page := s.opt.Dashboard; page != nil {
		list = append(list, grouped("Page for browsers", s.dashboardRoutes(page))...)
	}
	if cfg.DisableDocs {
		return list
	}
	o := openapi.Options{Version: s.opt.Version, Root: cfg.RootPath, Keys: len(cfg.APIKeys) > 0,
		Limits: s.lim, Error: errorOf}
	for _, r := range list {
		if !slices.Contains(o.Groups, r.Doc.Group) {
			o.Groups = append(o.Groups, r.Doc.Group)
		}
	}
	return append(list, grouped("Server", openapi.Routes(s.Server, o))...)
}

// errorOf is a value of the type of a path's errors.
func errorOf(path string) any {
	if anthropic.ShapeOf(path, nil) != nil {
		return anthropic.ErrorBody{}
	}
	return wire.ErrorBody{}
}

// grouped has the description of routes show them as parts of a group.
func grouped(name string, routes []server.Route) []server.Route {
	for i := range routes {
		routes[i].Doc.Group = name
	}
	return routes
}

// programRoutes are those that say how the program is.
func (s *API) programRoutes() []server.Route {
	var list []server.Route
	add := func(path string, public bool, h server.Handler, doc server.Doc) {
		list = append(list, server.Route{Method: "GET", Path: path, Public: public, Handler: h,
			Doc: doc})
	}
	add("/load", false, s.showLoad, server.Doc{Summary: "Count the requests in flight",
		Answer: loadAnswer{}})
	if ranks := s.opt.Ranks; ranks != nil {
		add("/debug/ranks", false, func(w http.ResponseWriter, _ *server.Request) error {
			return s.WriteJSON(w, map[string]any{"ranks": ranks()})
		}, server.Doc{Summary: "Show what the ranks are doing", Answer: map[string]any{}})
	}
	if s.opt.Experts != nil {
		add("/debug/experts", false, s.showExperts,
			server.Doc{Summary: "Show the load of experts", Answer: expertsAnswer{}})
	}
	health := server.Doc{Summary: "Say whether a request would succeed now", Media: "text/plain",
		Query: []server.Param{{Name: "generate", Type: "boolean"}}}
	for _, path := range []string{"/health", "/ping", "/readyz"} {
		add(path, true, s.health, health)
	}
	list = append(list, server.Route{Method: "POST", Path: "/ping", Public: true,
		Handler: s.health, Doc: health})
	add("/livez", true, s.alive, server.Doc{Summary: "Say whether the engine can still serve"})
	add("/version", true, s.version, server.Doc{Summary: "Say the version of the program",
		Answer: versionAnswer{}})
	if m := s.opt.Metrics; m != nil {
		scrape := m.Handler()
		add("/metrics", false, func(w http.ResponseWriter, r *server.Request) error {
			scrape.ServeHTTP(w, r.Request)
			return nil
		}, server.Doc{Summary: "Show metrics to Prometheus", Media: "text/plain"})
	}
	return list
}
