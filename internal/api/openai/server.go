package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/api/batch"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/ops/tracing"
)

// Options configure a Server. Info and Engine are needed, the rest has defaults.
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

// Server answers the HTTP API. It is safe for concurrent use.
type Server struct {
	opt           Options
	model         model
	created       int64 // Unix time shown by /v1/models
	lim           wire.Limits
	log           *slog.Logger
	keys          keyring
	cors          cors
	routes        map[string]*route
	specials      *specialTexts
	maxTokenBytes int
	load          atomic.Int64
	quota         quota
	bodies        *bodyBudget
	live          liveResponses
	inFlight      inFlight
	batches       *batch.Batches // nil for none
	// seeds counts the seeds given to requests that brought none.
	seeds atomic.Uint64
	// unknown remembers the names of unknown fields that have been logged.
	unknown  sync.Map
	unknowns atomic.Int64
}

// New checks the options and makes a Server.
func New(o Options) (*Server, error) {
	if o.Engine == nil || o.Info == nil {
		return nil, errors.New("openai server: no engine, or no description of its model")
	}
	c := &o.Config.Server
	m, err := newModel(o.Info, &o.Config, o.Limits.WithDefaults())
	if err != nil {
		return nil, fmt.Errorf("openai server: %w", err)
	}
	s := &Server{opt: o, model: m, created: time.Now().Unix(), lim: o.Limits.WithDefaults(),
		log:   o.Log,
		keys:  newKeyring(c.APIKeys),
		quota: quota{limit: c.MaxRequestsPerKey},
		live:  liveResponses{limit: o.Config.Schedule.MaxNumQueuedReqs},
		cors:  cors{c.AllowedOrigins, c.AllowedMethods, c.AllowedHeaders, c.AllowCredentials}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.opt.Config.Server.RootPath = strings.TrimSuffix(c.RootPath, "/")
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
	s.bodies = newBodyBudget(4*c.MaxRequestBodyBytes, s.lim.BodyWait)
	s.batches = s.newBatches()
	s.routes = s.makeRoutes()
	if m := o.Metrics; m != nil {
		for _, r := range s.routes {
			for method := range r.methods {
				m.Expect(r.pattern, method)
			}
		}
		m.Expect("other", "other")
	}
	return s, nil
}

// handler answers one request. An error it returns becomes the response, unless that has begun.
type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) makeRoutes() map[string]*route {
	routes := map[string]*route{}
	add := func(method, path string, public bool, h handler) {
		if routes[path] == nil {
			routes[path] = newRoute(path, public)
		}
		routes[path].methods[method] = h
	}
	add("POST", completionPath, false, s.generated(posted(s, decodeCompletion, s.completions)))
	add("POST", chatPath, false, s.generated(posted(s, decodeChat, s.chatCompletions)))
	add("POST", chatBatchPath, false, s.generated(posted(s, decodeChatBatch, s.chatBatch)))
	add("POST", tokensPath, false, s.generated(posted(s, decodeTokens, s.generateTokens)))
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
	add("POST", messagesPath, false, s.generated(posted(s, decodeMessage, s.createMessage)))
	add("POST", countTokensPath, false, s.generated(posted(s, decodeCounted, s.countTokens)))
	anthropic(routes[messagesPath])
	anthropic(routes[countTokensPath])
	add("POST", responsesPath, false, s.generates(s.createResponse))
	add("GET", responsesPath+"/{id}", false, s.getResponse)
	add("DELETE", responsesPath+"/{id}", false, s.deleteResponse)
	add("POST", responsesPath+"/{id}/cancel", false, s.cancelResponse)
	add("GET", responsesPath+"/{id}/input_items", false, s.responseInput)
	add("GET", "/v1/models", false, s.listModels)
	add("GET", "/v1/models/{model...}", false, s.getModel)
	add("POST", "/tokenize", false, posted(s, decodeTokenize, s.tokenizeText))
	add("POST", "/detokenize", false, posted(s, decodeDetokenize, s.detokenize))
	if s.model.answers.TokenizerInfo {
		add("GET", "/tokenizer_info", false, s.tokenizerInfo)
	}
	s.addBatches(add)
	s.addElastic(add)
	add("GET", "/load", false, s.showLoad)
	if ranks := s.opt.Ranks; ranks != nil {
		add("GET", "/debug/ranks", false, func(w http.ResponseWriter, _ *http.Request) error {
			return s.writeJSON(w, map[string]any{"ranks": ranks()})
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
		add("GET", "/metrics", false, func(w http.ResponseWriter, r *http.Request) error {
			scrape.ServeHTTP(w, r)
			return nil
		})
	}
	for _, r := range routes {
		if get := r.methods["GET"]; get != nil {
			r.methods["HEAD"] = get
		}
	}
	return routes
}

// Handler serves the API on a listener bound to a loopback address: only host names of this machine
// and those in AllowedHosts are answered. HTTPServer knows the address it is for.
func (s *Server) Handler() http.Handler { return s.handler(true) }

// Attached serves the API to the program that started this one, which may do what its user may: there
// are no keys, hosts and origins to check. However much it asks at a time, its requests wait for each
// other.
func (s *Server) Attached() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r.WithContext(context.WithValue(r.Context(), patientKey{}, true)), nil)
	})
}

// HTTPServer returns a server for addr with the time and size limits of Limits. The caller listens
// and serves.
func (s *Server) HTTPServer(addr string) *http.Server {
	server := &http.Server{
		Addr:              addr,
		Handler:           s.handler(isLoopbackAddr(addr)),
		ReadHeaderTimeout: s.lim.HeaderTimeout,
		IdleTimeout:       s.lim.IdleTimeout,
		ConnContext:       withConnection,
		MaxHeaderBytes:    s.lim.Header,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if page := s.opt.Window; page != nil {
		server.RegisterOnShutdown(page.Close)
	}
	return server
}

// Drain ends what a page for browsers is told, and returns when every connection of l that was accepted has had
// its answer (Connections.Drain). The engine must still serve.
func (s *Server) Drain(ctx context.Context, l *Connections) {
	if page := s.opt.Window; page != nil {
		page.Close()
	}
	l.Drain(ctx)
}

func (s *Server) handler(loopback bool) http.Handler {
	guard := s.guard(loopback)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, guard) })
}

// guard checks hosts and origins for a listener that is bound to a loopback address, or not.
func (s *Server) guard(loopback bool) *hostGuard {
	c := &s.opt.Config.Server
	return &hostGuard{allowed: c.AllowedHosts, loopback: loopback, machine: thisMachine(c.Host),
		cors: &s.cors}
}

// serve answers one request, then logs and counts it. Without a guard everything is admitted.
func (s *Server) serve(inner http.ResponseWriter, r *http.Request, guard *hostGuard) {
	began := time.Now()
	w := &recorder{ResponseWriter: inner}
	if c := connectionOf(r); c != nil {
		c.set(true)
		defer c.set(false)
		if c.surplus || c.of.draining.Load() {
			w.Header().Set("Connection", "close")
		}
	}
	rc := http.NewResponseController(inner)
	// Whatever deadline an earlier request left on the connection is not ours. A body must arrive
	// in time, whether it is read (readBody, which lifts the limit once it has) or dropped. Not
	// every writer has deadlines: then there are none.
	_ = rc.SetWriteDeadline(began.Add(s.lim.WriteTimeout))
	if r.ContentLength != 0 {
		_ = rc.SetReadDeadline(began.Add(s.lim.BodyTimeout))
	}
	if len(r.TransferEncoding) > 0 {
		// A Content-Length may have stood beside it, which net/http drops: whoever is in between may
		// see another end of this request, and so another next one (RFC 9112, 6.1).
		w.Header().Set("Connection", "close")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if v := s.weightVersion(); v != "" {
		w.Header().Set("X-Weight-Version", v)
	}
	r = s.withOrigin(r)
	if s.opt.Config.Server.EnableRequestIDHeaders {
		if !wire.ValidID(r.Header.Get("X-Request-Id")) {
			r.Header.Set("X-Request-Id", originOf(r.Context()).id())
		}
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
	}
	found := s.find(r)
	if found != nil && found.begin != nil {
		found.begin(w)
	}
	err := s.dispatch(w, r, guard, found)
	status := w.status
	if err != nil {
		api := asAPIError(err)
		s.logError(err, api)
		if w.status == 0 {
			// A body may have taken longer than a write may.
			_ = rc.SetWriteDeadline(time.Now().Add(s.lim.WriteTimeout))
			found.errors()(w, api.OnWire())
		}
		status = api.Status
	}
	s.record(r, found, status, w.bytes, time.Since(began))
}

// dispatch runs the checks in order, cheapest and most general first, then the handler.
func (s *Server) dispatch(w *recorder, r *http.Request, guard *hostGuard,
	found *route) (err error) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				panic(v)
			}
			s.log.Error("handler panicked", "path", wire.Clip(r.URL.Path), "panic", v, "stack",
				string(debug.Stack()))
			if w.status != 0 { // cut the response off, it must not look complete
				panic(http.ErrAbortHandler)
			}
			err = &wire.Error{Status: http.StatusInternalServerError,
				Message: "internal server error"}
		}
	}()
	if guard != nil {
		if answered, err := s.admit(w, r, guard, found); answered || err != nil {
			return err
		}
	}
	if found == nil {
		return &wire.Error{Status: http.StatusNotFound, Message: "no such route: " + wire.Clip(r.URL.Path)}
	}
	h := found.methods[r.Method]
	if h == nil {
		return &wire.Error{Status: http.StatusMethodNotAllowed, Allow: found.allowed(),
			Message: "method " + wire.Clip(r.Method) + " is not allowed for " + found.pattern}
	}
	if from := originOf(r.Context()); from != nil {
		return from.resumed(h, w, r)
	}
	return h(w, r)
}

// admit refuses what is not for this server, or not for this client. A browser's question about what
// it may ask is answered.
func (s *Server) admit(w *recorder, r *http.Request, guard *hostGuard,
	found *route) (answered bool, err error) {
	if bad := guard.check(r); bad != nil {
		return false, bad
	}
	local := guard.local(r)
	s.cors.headersFor(w.Header(), r.Header.Get("Origin"), local)
	if s.cors.preflight(w, r, local) {
		return true, nil
	}
	if (found == nil || !found.public) && !s.keys.admits(r.Header) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return false, &wire.Error{Status: http.StatusUnauthorized, Message: "Unauthorized"}
	}
	if c := connectionOf(r); c != nil && c.surplus && (found == nil || !found.public) {
		if m := s.opt.Metrics; m != nil {
			m.Rejected("connections")
		}
		return false, &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Expected: true,
			Message: "too many connections are open: try again later"}
	}
	return false, nil
}

// record writes the access log and the metrics of a request.
func (s *Server) record(r *http.Request, found *route, status int, bytes int64,
	took time.Duration) {
	pattern, method := "other", "other"
	if found != nil {
		pattern = found.pattern
		if found.methods[r.Method] != nil {
			method = r.Method
		}
	}
	if m := s.opt.Metrics; m != nil {
		m.HTTP(pattern, method, status, took)
	}
	if s.opt.Config.Server.DisableAccessLog {
		return
	}
	level := slog.LevelInfo
	if found != nil && found.public {
		level = slog.LevelDebug // probes come every few seconds
	}
	s.log.Log(r.Context(), level, "request", "method", wire.Clip(r.Method), "path", wire.Clip(r.URL.Path),
		"status", status,
		"ms", float64(took.Microseconds())/1000, "bytes", bytes, "client", r.RemoteAddr,
		"id", wire.Clip(r.Header.Get("X-Request-Id")), traceOf(r))
}

// logError logs what the client's operator cannot see from the answer.
func (s *Server) logError(err error, api *wire.Error) {
	if api.Status >= http.StatusInternalServerError && !api.Expected {
		s.log.Error("request failed", "status", api.Status, "error", err)
	}
}

// counted keeps the number of requests in flight that /load shows.
func (s *Server) counted(h handler) handler {
	h = s.observe(h)
	return func(w http.ResponseWriter, r *http.Request) error {
		leave, err := s.enter(r, answered)
		if err != nil {
			return err
		}
		defer leave()
		return h(w, r)
	}
}

// enter counts a request in flight until leave is called, unless its client has too many.
func (s *Server) enter(r *http.Request, how kind) (leave func(), err error) {
	if _, is := rowOf(r.Context()); is { // their number has a bound of its own
		return func() {}, nil
	}
	c := claim{s.clientOf(r), how}
	if bad := s.quota.enter(c); bad != nil {
		if m := s.opt.Metrics; m != nil {
			m.Rejected("quota")
		}
		return nil, bad
	}
	s.load.Add(1)
	return func() {
		s.quota.leave(c)
		s.load.Add(-1)
	}, nil
}

// readBody reads and checks a JSON body. The caller calls done of the fields once they are not
// needed any more.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (*wire.Fields, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, &wire.Error{Status: http.StatusUnsupportedMediaType,
			Message: "Unsupported Media Type: Only 'application/json' is allowed"}
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, &wire.Error{Status: http.StatusUnsupportedMediaType,
			Message: "Content-Encoding " + wire.Clip(enc) + " is not supported"}
	}
	b := &body{budget: s.bodies}
	deadline := time.Now().Add(s.lim.BodyTimeout)
	if err := http.NewResponseController(w).SetReadDeadline(deadline); err == nil {
		b.deadline = deadline
	}
	f, err := s.parseBody(b, w, r)
	if err != nil {
		b.done()
		return nil, err
	}
	return f, nil
}

// parseBody receives a body and takes it apart.
func (s *Server) parseBody(b *body, w http.ResponseWriter, r *http.Request) (*wire.Fields, error) {
	if err := b.receive(w, r, s.opt.Config.Server.MaxRequestBodyBytes); err != nil {
		if errors.Is(err, errBodies) && s.opt.Metrics != nil {
			s.opt.Metrics.Rejected("bodies")
		}
		return nil, err
	}
	// From here on reading only watches for the client going away.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return nil, fmt.Errorf("clear read deadline: %w", err)
	}
	members, bad := wire.ParseObject(b.text, s.lim)
	if bad != nil {
		return nil, bad
	}
	f := wire.NewFields(members, s.lim)
	f.Release = b.done
	return f, nil
}

// maxUnknown bounds the memory of unknown names; past it they are ignored in silence.
const maxUnknown = 1000

// logUnknown logs fields that are not known, once per name, as vLLM accepts them.
func (s *Server) logUnknown(f *wire.Fields) {
	for name := range f.Members {
		if s.unknowns.Load() >= maxUnknown {
			return
		}
		name = wire.Clip(name)
		if _, seen := s.unknown.LoadOrStore(name, true); !seen {
			s.unknowns.Add(1)
			s.log.Warn("unknown request field is ignored", "field", name)
		}
	}
}

func (s *Server) checkPriority(r *sampling) *wire.Error {
	if r.priority != 0 && s.opt.Config.Schedule.Policy != "priority" {
		return wire.BadRequest("priority", "`priority` of %d needs a server with priority scheduling "+
			"(--scheduling-policy priority)", r.priority)
	}
	return nil
}

// writeJSON answers 200 with v.
func (s *Server) writeJSON(w http.ResponseWriter, v any) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return s.writeRaw(w, b.String())
}

// writeRaw answers 200 with JSON.
func (s *Server) writeRaw(w http.ResponseWriter, b string) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(http.StatusOK)
	return writeInTime(w, b, s.lim.WriteTimeout)
}

// writeInTime writes in pieces, each of which the client must take within timeout.
func writeInTime(w http.ResponseWriter, s string, timeout time.Duration) error {
	const piece = 64 << 10
	rc := http.NewResponseController(w)
	for len(s) > 0 {
		if err := rc.SetWriteDeadline(time.Now().Add(timeout)); err != nil &&
			!errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("%w: %w", errClientGone, err)
		}
		n := min(piece, len(s))
		if _, err := io.WriteString(w, s[:n]); err != nil {
			return fmt.Errorf("%w: %w", errClientGone, err)
		}
		s = s[n:]
	}
	return nil
}

// writeError answers with an error in OpenAI's shape.
func writeError(w http.ResponseWriter, e *wire.Error) { writeErrorBody(w, e, e.Append(nil)) }

// writeErrorBody answers with an error. A failed write has no one to be reported to.
func writeErrorBody(w http.ResponseWriter, e *wire.Error, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(body, '\n'))
}

// recorder notes the status and size of a response.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
