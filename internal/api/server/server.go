package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ops/tracing"
)

// Options configure a Server. All have defaults.
type Options struct {
	Config config.Server
	Limits wire.Limits
	// Log receives failures and one line per request, without bodies; nil logs nothing.
	Log *slog.Logger
	// Metrics is nil for none.
	Metrics *metrics.Metrics
	// Tracer exports spans of requests; nil does not.
	Tracer *tracing.Tracer
	// Classify gives an error of a handler its status, nil where it does not know the error; a nil
	// function knows none.
	Classify func(error) *wire.Error
	// WeightVersion is what X-Weight-Version says, "" for no such header; a nil function says
	// nothing.
	WeightVersion func() string
	// Weights is a sum of what tokens depend on beside the request: an answer goes on at another
	// server (ResumeHeader) where it is the same. Nil is always the same.
	Weights func() uint32
	// Seed seeds the random numbers of an answer that can be resumed; nil draws the seed.
	Seed func() uint64
	// Shape is that of the answers to a client, by the path it asks and its headers; nil, also of
	// the function, is OpenAI's.
	Shape func(path string, h http.Header) *Shape
	// Absent says of a path that no route has what the server has instead, "" for nothing; a nil
	// function knows nothing.
	Absent func(path string) string
	// Closing is called when the server begins to end: what is told for as long as a client listens
	// ends then. Nil is nothing.
	Closing func()
}

// Server is the transport of the API: it knows who asks, and which route, and not what is asked. It
// is safe for concurrent use once its routes are added.
type Server struct {
	opt       Options
	lim       wire.Limits
	log       *slog.Logger
	keys      keyring
	cors      cors
	resources map[string]*resource
	load      atomic.Int64
	quota     quota
	bodies    *bodyBudget
	// unknown remembers the names of unknown fields that have been logged.
	unknown  sync.Map
	unknowns atomic.Int64
}

// New makes a Server without routes.
func New(o Options) *Server {
	c := &o.Config
	s := &Server{opt: o, lim: o.Limits.WithDefaults(), log: o.Log,
		resources: map[string]*resource{},
		keys:      newKeyring(c.APIKeys),
		quota:     quota{limit: c.MaxRequestsPerKey},
		cors:      cors{c.AllowedOrigins, c.AllowedMethods, c.AllowedHeaders, c.AllowCredentials}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Classify == nil {
		s.opt.Classify = func(error) *wire.Error { return nil }
	}
	if o.WeightVersion == nil {
		s.opt.WeightVersion = func() string { return "" }
	}
	if o.Weights == nil {
		s.opt.Weights = func() uint32 { return 0 }
	}
	s.opt.Config.RootPath = strings.TrimSuffix(c.RootPath, "/")
	s.bodies = newBodyBudget(4*c.MaxRequestBodyBytes, s.lim.BodyWait)
	if m := o.Metrics; m != nil {
		m.Expect("other", "other")
	}
	return s
}

// Drain ends what a page for browsers is told, and returns when every connection of l that was
// accepted has had its answer (Connections.Drain). The handlers must still answer.
func (s *Server) Drain(ctx context.Context, l *Connections) {
	if s.opt.Closing != nil {
		s.opt.Closing()
	}
	l.Drain(ctx)
}

// Handler answers one request. An error it returns becomes the response, unless that has begun.
type Handler func(w http.ResponseWriter, r *Request) error

// Handler serves the API on a listener bound to a loopback address: only host names of this machine
// and those in AllowedHosts are answered. HTTPServer knows the address it is for.
func (s *Server) Handler() http.Handler { return s.handler(true) }

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
	if s.opt.Closing != nil {
		server.RegisterOnShutdown(s.opt.Closing)
	}
	return server
}

func (s *Server) handler(loopback bool) http.Handler {
	guard := s.guard(loopback)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, s.newRequest(r), guard)
	})
}

// guard checks hosts and origins for a listener that is bound to a loopback address, or not.
func (s *Server) guard(loopback bool) *hostGuard {
	c := &s.opt.Config
	return &hostGuard{allowed: c.AllowedHosts, loopback: loopback, machine: thisMachine(c.Host),
		cors: &s.cors}
}

// serve answers one request, then logs and counts it.
func (s *Server) serve(inner http.ResponseWriter, r *Request, guard *hostGuard) {
	began := time.Now()
	w := &recorder{ResponseWriter: inner}
	r.Named = &w.named
	if c := connectionOf(r.Request); c != nil {
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
		// A Content-Length may have stood beside it, which net/http drops: a proxy in between may
		// see another end of this request, and so another next one (RFC 9112, 6.1).
		w.Header().Set("Connection", "close")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if v := s.opt.WeightVersion(); v != "" {
		w.Header().Set("X-Weight-Version", v)
	}
	s.resumable(r)
	if s.opt.Config.EnableRequestIDHeaders {
		if !wire.ValidID(r.Header.Get("X-Request-Id")) {
			r.Header.Set("X-Request-Id", r.Origin.ID())
		}
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
	}
	if id := r.Header.Get("X-Request-Id"); wire.ValidID(id) {
		r.ID, w.named = id, id
	}
	found := s.find(r.Request)
	r.shape = s.shapeOf(r.Request)
	r.shape.begin(w.Header())
	err := s.dispatch(w, r, guard, found)
	status := w.status
	if err != nil {
		api := s.StatusOf(err)
		s.LogError(err, api, r.LogName())
		status = api.Status
		if w.status == 0 {
			// A body may have taken longer than a write may.
			_ = rc.SetWriteDeadline(time.Now().Add(s.lim.WriteTimeout))
			if r.shape.Fail(w, api.OnWire()); status != wire.StatusClientClosed {
				status = w.status
			}
		}
	}
	s.record(r, found, w, status, time.Since(began))
}

// dispatch runs the checks in order, cheapest and most general first, then the handler.
func (s *Server) dispatch(w *recorder, r *Request, guard *hostGuard,
	found *resource) (err error) {
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
	if answered, err := s.admit(w, r, guard, found); answered || err != nil {
		return err
	}
	if found == nil {
		return s.NoRoute(r.Request)
	}
	h := found.handler(r.Method, r.shape)
	if h == nil {
		return &wire.Error{Status: http.StatusMethodNotAllowed, Allow: found.allowed(r.shape),
			Message: "method " + wire.Clip(r.Method) + " is not allowed for " + found.pattern}
	}
	if r.resume != nil {
		return r.resume.resumed(h, w, r)
	}
	return h(w, r)
}

// admit refuses what is not for this server, or not for this client. A browser's question about
// what it may ask is answered.
func (s *Server) admit(w *recorder, r *Request, guard *hostGuard,
	found *resource) (answered bool, err error) {
	if bad := guard.check(r.Request); bad != nil {
		return false, bad
	}
	local := guard.local(r.Request)
	s.cors.headersFor(w.Header(), r.Header.Get("Origin"), local)
	if s.cors.preflight(w, r.Request, local) {
		return true, nil
	}
	if (found == nil || !found.public) && !s.keys.admits(r.Header) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return false, &wire.Error{Status: http.StatusUnauthorized, Message: "Unauthorized"}
	}
	if c := connectionOf(r.Request); c != nil && c.surplus && (found == nil || !found.public) {
		if m := s.opt.Metrics; m != nil {
			m.Rejected("connections")
		}
		return false, &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1,
			Expected: true,
			Message:  "too many connections are open: try again later"}
	}
	return false, nil
}

// record writes the access log and the metrics of a request.
func (s *Server) record(r *Request, found *resource, w *recorder, status int,
	took time.Duration) {
	pattern, method := "other", "other"
	if found != nil {
		pattern = found.pattern
		if found.handler(r.Method, r.shape) != nil {
			method = r.Method
		}
	}
	if m := s.opt.Metrics; m != nil {
		m.HTTP(pattern, method, status, took)
	}
	if s.opt.Config.DisableAccessLog {
		return
	}
	level := slog.LevelInfo
	if found != nil && found.public {
		level = slog.LevelDebug // probes come every few seconds
	}
	s.log.Log(r.Context(), level, "request", "method", wire.Clip(r.Method), "path",
		wire.Clip(r.URL.Path), "status", status, "ms", float64(took.Microseconds())/1000, "bytes",
		w.bytes, "client", r.RemoteAddr, r.LogName(), traceOf(r.Request))
}

// StatusOf gives every error its status.
func (s *Server) StatusOf(err error) *wire.Error {
	var api *wire.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		return api
	case errors.Is(err, call.ErrDeadline):
		return &wire.Error{Status: http.StatusRequestTimeout, Message: err.Error()}
	}
	if known := s.opt.Classify(err); known != nil {
		return known
	}
	switch {
	case errors.As(err, &tooLarge):
		return &wire.Error{Status: http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("request body is larger than %d bytes", tooLarge.Limit)}
	case errors.Is(err, ErrClientGone), errors.Is(err, context.Canceled):
		return wire.Cancelled()
	}
	return &wire.Error{Status: http.StatusInternalServerError, Message: InternalError}
}

// InternalError is all that a client is told of an error that is not its own.
const InternalError = "internal server error"

// LogError logs what the client's operator cannot see from the answer, with what is known of the
// request.
func (s *Server) LogError(err error, api *wire.Error, known ...any) {
	if api.Status >= http.StatusInternalServerError && !api.Expected {
		s.log.Error("request failed", append(known, "status", api.Status, "error", err)...)
	}
}

// Admits reports whether a request carries a key where one is needed.
func (s *Server) Admits(r *Request) bool { return s.keys.admits(r.Header) }

// InFlight is how many requests are counted now.
func (s *Server) InFlight() int64 { return s.load.Load() }

// BodyBytes is how many bytes of request bodies are under way, for tests that none is forgotten.
func (s *Server) BodyBytes() int64 {
	s.bodies.mu.Lock()
	defer s.bodies.mu.Unlock()
	return s.bodies.used
}

// Counted keeps the number of requests in flight that /load shows.
func (s *Server) Counted(h Handler) Handler {
	h = s.observe(h)
	return func(w http.ResponseWriter, r *Request) error {
		leave, err := s.Enter(r, Answered)
		if err != nil {
			return err
		}
		defer leave()
		return h(w, r)
	}
}

// observe has the log and the tracer see a request.
func (s *Server) observe(h Handler) Handler {
	var log *slog.Logger
	if s.opt.Config.Observe.LogRequests {
		log = s.log
	}
	if log == nil && s.opt.Tracer == nil {
		return h
	}
	return func(w http.ResponseWriter, r *Request) error {
		o := call.Observe(r.Request, r.Named, log, s.opt.Tracer)
		seen := r.WithContext(o.Context())
		seen.Observed = o
		err := h(w, seen)
		switch {
		case err != nil:
			o.End(s.StatusOf(err).Message)
		case r.Context().Err() != nil:
			o.End("the client has gone")
		default:
			o.End("")
		}
		return err
	}
}

// Enter counts a request in flight until leave is called, unless its client has too many.
func (s *Server) Enter(r *Request, how Kind) (leave func(), err error) {
	if r.Row { // their number has a bound of its own
		return func() {}, nil
	}
	c := claim{r.Client, how}
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

// ReadBody reads and checks a JSON body. The caller calls done of the fields once they are not
// needed any more.
func (s *Server) ReadBody(w http.ResponseWriter, r *Request) (*wire.Fields, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, &wire.Error{Status: http.StatusUnsupportedMediaType,
			Message: "Unsupported Media Type: Only 'application/json' is allowed"}
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
func (s *Server) parseBody(b *body, w http.ResponseWriter, r *Request) (*wire.Fields, error) {
	if err := b.receive(w, r.Request, s.opt.Config.MaxRequestBodyBytes); err != nil {
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

// LogUnknown logs fields that are not known, once per name, as vLLM accepts them.
func (s *Server) LogUnknown(f *wire.Fields) {
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

// WriteJSON answers 200 with v.
func (s *Server) WriteJSON(w http.ResponseWriter, v any) error {
	return s.WriteAround(w, v, &wire.Late{})
}

// WriteAround answers 200 with v, which the parts of late stand in.
func (s *Server) WriteAround(w http.ResponseWriter, v any, late *wire.Late) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	return s.WriteRaw(w, late.Pieces(b.Bytes())...)
}

// WriteRaw answers 200 with the JSON that pieces make one after another.
func (s *Server) WriteRaw(w http.ResponseWriter, pieces ...[]byte) error {
	length := 0
	for _, b := range pieces {
		length += len(b)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(http.StatusOK)
	for _, b := range pieces {
		if err := s.WriteInTime(w, b); err != nil {
			return err
		}
	}
	return nil
}

// WriteInTime writes in pieces, each of which the client must take within the limit.
func (s *Server) WriteInTime(w http.ResponseWriter, text []byte) error {
	const piece = 64 << 10
	rc := http.NewResponseController(w)
	for len(text) > 0 {
		if err := rc.SetWriteDeadline(time.Now().Add(s.lim.WriteTimeout)); err != nil &&
			!errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("%w: %w", ErrClientGone, err)
		}
		n := min(piece, len(text))
		if _, err := w.Write(text[:n]); err != nil {
			return fmt.Errorf("%w: %w", ErrClientGone, err)
		}
		text = text[n:]
	}
	return nil
}

// recorder notes the status and size of a response.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	// named is the request's name (call.Call), once it has one.
	named string
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
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

// traceOf is the trace that a request says it belongs to, for the log; none leaves nothing there.
func traceOf(r *http.Request) slog.Attr {
	if id := tracing.ID(tracing.Parent(r.Context(), r.Header)); id != "" {
		return slog.String("trace_id", id)
	}
	return slog.Attr{}
}
