// Package tracing exports what requests took as spans of OpenTelemetry, over OTLP/HTTP. Spans are
// made and batched by OpenTelemetry's SDK, by its own variables (OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_…).
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracer makes spans. Nil makes none.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New exports to an endpoint: http(s)://host:port, where /v1/traces is meant, or a whole URL.
func New(ctx context.Context, endpoint, version string, log *slog.Logger) (*Tracer, error) {
	address, err := address(endpoint)
	if err != nil {
		return nil, err
	}
	headers, err := headers(os.Getenv)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "eagleray"), attribute.String("service.version", version)),
		resource.WithFromEnv()) // what comes later goes before
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	e := &exporter{url: address, headers: headers, log: log,
		client: &http.Client{Timeout: exportTimeout}}
	p := sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithBatcher(e))
	return &Tracer{p, p.Tracer("github.com/eagleray/eagleray", trace.WithInstrumentationVersion(
		version))}, nil
}

// address is the URL that spans are posted to.
func address(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return "", err
	case u.Scheme == "grpc" || u.Scheme == "grpcs":
		return "", fmt.Errorf("%q: OTLP is spoken over HTTP, which collectors have at port 4318: "+
			"http://%s:4318", endpoint, u.Hostname())
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", fmt.Errorf("%q is not an address such as http://localhost:4318", endpoint)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

// headers are those that collectors want, as OpenTelemetry's variables have them: a=b,c=d.
func headers(env func(string) string) (http.Header, error) {
	h := http.Header{}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for pair := range strings.SplitSeq(env(name), ",") {
			if pair = strings.TrimSpace(pair); pair == "" {
				continue
			}
			key, value, ok := strings.Cut(pair, "=")
			value, err := url.PathUnescape(strings.TrimSpace(value))
			if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
				// it may be a secret
				return nil, fmt.Errorf("%s is not a list such as a=b,c=d", name)
			}
			h.Set(key, value)
		}
	}
	return h, nil
}

// Parent is the trace that a request says it belongs to (W3C's traceparent); it may be none.
func Parent(ctx context.Context, h http.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
}

// ID is the trace of a context in hexadecimal, "" for none.
func ID(ctx context.Context) string {
	c := trace.SpanContextFromContext(ctx)
	if !c.HasTraceID() {
		return ""
	}
	return c.TraceID().String()
}

// Start begins the span of a request in the trace that the context belongs to.
func (t *Tracer) Start(ctx context.Context, began time.Time) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	return t.tracer.Start(ctx, "llm_request", trace.WithSpanKind(trace.SpanKindServer),
		trace.WithTimestamp(began))
}

// End ends a span with what is known of its request; a message says that it has failed.
func End(s trace.Span, failed string, known ...attribute.KeyValue) {
	if s == nil {
		return
	}
	s.SetAttributes(known...)
	if failed != "" {
		s.SetStatus(codes.Error, failed)
	}
	s.End()
}

// Close exports what is left, for as long as ctx lasts.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
