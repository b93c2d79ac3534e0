package openai

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/tracing"
)

// observed is what becomes known of a request for generation on its way: for its span, and for the
// log with --enable-log-requests. Of prompts and answers it has lengths only.
type observed struct {
	server *Server
	ctx    context.Context // of its trace
	began  time.Time
	span   trace.Span

	g     *generation
	first time.Time // of its first token
}

type observedKey struct{}

// observe has the log and the tracer see a request, whose context then knows.
func (s *Server) observe(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if !s.opt.Config.Server.Observe.LogRequests && s.opt.Tracer == nil {
			return h(w, r)
		}
		o := &observed{server: s, began: time.Now()}
		o.ctx, o.span = s.opt.Tracer.Start(tracing.Parent(r.Context(), r.Header), o.began)
		err := h(w, r.WithContext(context.WithValue(o.ctx, observedKey{}, o)))
		o.end(r, err)
		return err
	}
}

// observedBy is what observes the request of a context; nil is nobody.
func observedBy(ctx context.Context) *observed {
	o, _ := ctx.Value(observedKey{}).(*observed)
	return o
}

// submitted notes that the engine has the request.
func (o *observed) submitted(g *generation, req *sampling) {
	if o == nil {
		return
	}
	o.g = g
	if !o.server.opt.Config.Server.Observe.LogRequests {
		return
	}
	p := &g.prompts[0].Params
	o.log("request received", "model", g.model, "prompts", len(g.prompts), "n", g.n,
		"prompt_tokens", g.usage().prompt, "max_tokens", p.MaxTokens, "temperature", p.Temperature,
		"top_p", p.TopP, "stream", req.stream, "constrained", req.constraintField != "")
}

// tokens notes that some came.
func (o *observed) tokens(count int) {
	if o != nil && count > 0 && o.first.IsZero() {
		o.first = time.Now()
	}
}

// log writes a line with what names the request.
func (o *observed) log(message string, more ...any) {
	if o.g != nil {
		more = append([]any{"id", o.g.id}, more...)
	}
	if id := tracing.ID(o.ctx); id != "" {
		more = append(more, "trace_id", id)
	}
	o.server.log.Info(message, more...)
}

// end notes how the answer ended.
func (o *observed) end(r *http.Request, err error) {
	took := time.Since(o.began)
	failed := ""
	switch {
	case err != nil:
		failed = asAPIError(err).Message
	case r.Context().Err() != nil:
		failed = "the client has gone"
	}
	if o.server.opt.Config.Server.Observe.LogRequests {
		o.logEnd(took, failed)
	}
	if o.span == nil {
		return
	}
	// The names are vLLM's (SpanAttributes).
	known := []attribute.KeyValue{attribute.Float64("gen_ai.latency.e2e", took.Seconds())}
	if g := o.g; g != nil {
		p, u := &g.prompts[0].Params, g.usage()
		known = append(known, attribute.String("gen_ai.request.id", g.id),
			attribute.String("gen_ai.response.model", g.model),
			attribute.Int("gen_ai.request.n", g.n),
			attribute.Int("gen_ai.request.max_tokens", int(p.MaxTokens)),
			attribute.Float64("gen_ai.request.temperature", float64(p.Temperature)),
			attribute.Float64("gen_ai.request.top_p", float64(p.TopP)),
			attribute.Int("gen_ai.usage.num_sequences", len(g.choices)),
			attribute.Int("gen_ai.usage.prompt_tokens", u.prompt),
			attribute.Int("gen_ai.usage.cached_tokens", u.cached),
			attribute.Int("gen_ai.usage.completion_tokens", u.output),
			attribute.StringSlice("gen_ai.response.finish_reasons", g.finishReasons()))
	}
	if !o.first.IsZero() {
		known = append(known, attribute.Float64("gen_ai.latency.time_to_first_token",
			o.first.Sub(o.began).Seconds()))
	}
	tracing.End(o.span, failed, known...)
}

func (o *observed) logEnd(took time.Duration, failed string) {
	more := []any{"ms", milliseconds(took)}
	if g := o.g; g != nil {
		u := g.usage()
		more = append(more, "prompt_tokens", u.prompt, "cached_tokens", u.cached,
			"output_tokens", u.output, "finish", g.finishReasons())
	}
	if !o.first.IsZero() {
		more = append(more, "ttft_ms", milliseconds(o.first.Sub(o.began)))
	}
	if failed != "" {
		more = append(more, slog.String("error", wire.ClipTo(failed, 200)))
	}
	o.log("request finished", more...)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// finishReasons are those of the choices that have ended, each once.
func (g *generation) finishReasons() []string {
	var list []string
	seen := map[string]bool{}
	for i := range g.choices {
		if c := &g.choices[i]; c.finished && !seen[c.finishReason()] {
			seen[c.finishReason()] = true
			list = append(list, c.finishReason())
		}
	}
	return list
}

// traceOf is the trace that a request says it belongs to, for the log; none leaves nothing there.
func traceOf(r *http.Request) slog.Attr {
	if id := tracing.ID(tracing.Parent(r.Context(), r.Header)); id != "" {
		return slog.String("trace_id", id)
	}
	return slog.Attr{}
}
