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
// log with --enable-log-requests. Of prompts and answers it has lengths only. A nil one observes
// nothing.
type observed struct {
	log   *slog.Logger    // nil does not log
	ctx   context.Context // of its trace
	began time.Time
	span  trace.Span

	report func() report // nil until the engine has the request
	first  time.Time     // of its first token
}

// report is what is known of a request that the engine has, and of its answer so far.
type report struct {
	id, model                                string
	prompts, n, maxTokens, sequences         int
	temperature, topP                        float32
	stream, constrained                      bool
	promptTokens, cachedTokens, outputTokens int
	finishReasons                            []string
}

// observe begins to observe a request.
func observe(r *http.Request, log *slog.Logger, tracer *tracing.Tracer) *observed {
	o := &observed{log: log, began: time.Now()}
	o.ctx, o.span = tracer.Start(tracing.Parent(r.Context(), r.Header), o.began)
	return o
}

// context is that of the request within its trace.
func (o *observed) context() context.Context { return o.ctx }

// submitted notes that the engine has the request.
func (o *observed) submitted(known func() report) {
	if o == nil {
		return
	}
	o.report = known
	if o.log == nil {
		return
	}
	g := known()
	o.say("request received", "model", g.model, "prompts", g.prompts, "n", g.n,
		"prompt_tokens", g.promptTokens, "max_tokens", g.maxTokens, "temperature", g.temperature,
		"top_p", g.topP, "stream", g.stream, "constrained", g.constrained)
}

// tokens notes that some came.
func (o *observed) tokens(count int) {
	if o != nil && count > 0 && o.first.IsZero() {
		o.first = time.Now()
	}
}

// say writes a line with what names the request.
func (o *observed) say(message string, more ...any) {
	if o.report != nil {
		more = append([]any{"id", o.report().id}, more...)
	}
	if id := tracing.ID(o.ctx); id != "" {
		more = append(more, "trace_id", id)
	}
	o.log.Info(message, more...)
}

// end notes how the answer ended: failed says why it did early, "" otherwise.
func (o *observed) end(failed string) {
	took := time.Since(o.began)
	if o.log != nil {
		o.logEnd(took, failed)
	}
	if o.span == nil {
		return
	}
	// The names are vLLM's (SpanAttributes).
	known := []attribute.KeyValue{attribute.Float64("gen_ai.latency.e2e", took.Seconds())}
	if o.report != nil {
		g := o.report()
		known = append(known, attribute.String("gen_ai.request.id", g.id),
			attribute.String("gen_ai.response.model", g.model),
			attribute.Int("gen_ai.request.n", g.n),
			attribute.Int("gen_ai.request.max_tokens", g.maxTokens),
			attribute.Float64("gen_ai.request.temperature", float64(g.temperature)),
			attribute.Float64("gen_ai.request.top_p", float64(g.topP)),
			attribute.Int("gen_ai.usage.num_sequences", g.sequences),
			attribute.Int("gen_ai.usage.prompt_tokens", g.promptTokens),
			attribute.Int("gen_ai.usage.cached_tokens", g.cachedTokens),
			attribute.Int("gen_ai.usage.completion_tokens", g.outputTokens),
			attribute.StringSlice("gen_ai.response.finish_reasons", g.finishReasons))
	}
	if !o.first.IsZero() {
		known = append(known, attribute.Float64("gen_ai.latency.time_to_first_token",
			o.first.Sub(o.began).Seconds()))
	}
	tracing.End(o.span, failed, known...)
}

func (o *observed) logEnd(took time.Duration, failed string) {
	more := []any{"ms", milliseconds(took)}
	if o.report != nil {
		g := o.report()
		more = append(more, "prompt_tokens", g.promptTokens, "cached_tokens", g.cachedTokens,
			"output_tokens", g.outputTokens, "finish", g.finishReasons)
	}
	if !o.first.IsZero() {
		more = append(more, "ttft_ms", milliseconds(o.first.Sub(o.began)))
	}
	if failed != "" {
		more = append(more, slog.String("error", wire.ClipTo(failed, 200)))
	}
	o.say("request finished", more...)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
