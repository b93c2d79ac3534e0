package call

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

// Observed is what becomes known of a request for generation on its way: for its span, and for the
// log with --enable-log-requests. Of prompts and answers it has lengths only. A nil one observes
// nothing.
type Observed struct {
	log   *slog.Logger    // nil does not log
	ctx   context.Context // of its trace
	began time.Time
	span  trace.Span
	named *string // what the request is called (Call.Named)

	report func() Report // nil until the engine has the request
	first  time.Time     // of its first token
}

// Report is what is known of a request that the engine has, and of its answer so far.
type Report struct {
	ID, Model                                string
	Prompts, N, MaxTokens, Sequences         int
	Temperature, TopP                        float32
	Stream, Constrained                      bool
	PromptTokens, CachedTokens, OutputTokens int
	FinishReasons                            []string
}

// Observe begins to observe a request, which named names once it has a name.
func Observe(r *http.Request, named *string, log *slog.Logger, tracer *tracing.Tracer) *Observed {
	o := &Observed{log: log, began: time.Now(), named: named}
	o.ctx, o.span = tracer.Start(tracing.Parent(r.Context(), r.Header), o.began)
	return o
}

// Context is that of the request within its trace.
func (o *Observed) Context() context.Context { return o.ctx }

// Submitted notes that the engine has the request.
func (o *Observed) Submitted(known func() Report) {
	if o == nil {
		return
	}
	o.report = known
	if o.log == nil {
		return
	}
	g := known()
	o.say("request received", "model", g.Model, "prompts", g.Prompts, "n", g.N,
		"prompt_tokens", g.PromptTokens, "max_tokens", g.MaxTokens, "temperature", g.Temperature,
		"top_p", g.TopP, "stream", g.Stream, "constrained", g.Constrained)
}

// Tokens notes that some came.
func (o *Observed) Tokens(count int) {
	if o != nil && count > 0 && o.first.IsZero() {
		o.first = time.Now()
	}
}

// say writes a line with what names the request.
func (o *Observed) say(message string, more ...any) {
	if o.named != nil && *o.named != "" {
		more = append([]any{"id", wire.Clip(*o.named)}, more...)
	}
	if id := tracing.ID(o.ctx); id != "" {
		more = append(more, "trace_id", id)
	}
	o.log.Info(message, more...)
}

// End notes how the answer ended: failed says why it did early, "" otherwise.
func (o *Observed) End(failed string) {
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
		known = append(known, attribute.String("gen_ai.request.id", g.ID),
			attribute.String("gen_ai.response.model", g.Model),
			attribute.Int("gen_ai.request.n", g.N),
			attribute.Int("gen_ai.request.max_tokens", g.MaxTokens),
			attribute.Float64("gen_ai.request.temperature", float64(g.Temperature)),
			attribute.Float64("gen_ai.request.top_p", float64(g.TopP)),
			attribute.Int("gen_ai.usage.num_sequences", g.Sequences),
			attribute.Int("gen_ai.usage.prompt_tokens", g.PromptTokens),
			attribute.Int("gen_ai.usage.cached_tokens", g.CachedTokens),
			attribute.Int("gen_ai.usage.completion_tokens", g.OutputTokens),
			attribute.StringSlice("gen_ai.response.finish_reasons", g.FinishReasons))
	}
	if !o.first.IsZero() {
		known = append(known, attribute.Float64("gen_ai.latency.time_to_first_token",
			o.first.Sub(o.began).Seconds()))
	}
	tracing.End(o.span, failed, known...)
}

func (o *Observed) logEnd(took time.Duration, failed string) {
	more := []any{"ms", milliseconds(took)}
	if o.report != nil {
		g := o.report()
		more = append(more, "prompt_tokens", g.PromptTokens, "cached_tokens", g.CachedTokens,
			"output_tokens", g.OutputTokens, "finish", g.FinishReasons)
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
