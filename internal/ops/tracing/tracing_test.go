package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// collector takes spans as a collector does.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	requests []exportRequest
	header   http.Header
	status   int
}

func newCollector(t *testing.T) *collector {
	c := &collector{status: http.StatusOK}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		var m exportRequest
		raw, err := io.ReadAll(r.Body)
		strict := json.NewDecoder(bytes.NewReader(raw))
		strict.DisallowUnknownFields()
		if err == nil {
			err = strict.Decode(&m)
		}
		if err != nil || r.URL.Path != "/v1/traces" ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v: %s", r.Method, r.URL, err, raw)
		}
		c.requests, c.header = append(c.requests, m), r.Header
		w.WriteHeader(c.status)
	}))
	t.Cleanup(c.Close)
	return c
}

// TestSpans: a span arrives with its trace, its parent, its times and what is known, and the
// resource says whose it is.
func TestSpans(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, other = 1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	c := newCollector(t)
	tracer, err := New(t.Context(), c.URL, "1.2", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	const id = "0af7651916cd43dd8448eb211c80319c"
	parent := Parent(t.Context(), http.Header{"Traceparent": {"00-" + id + "-b7ad6b7169203331-01"}})
	if ID(parent) != id || ID(t.Context()) != "" {
		t.Errorf("ids %q, %q", ID(parent), ID(t.Context()))
	}
	began := time.Now().Add(-time.Second)
	ctx, span := tracer.Start(parent, began)
	if ID(ctx) != id {
		t.Errorf("the span is of trace %s", ID(ctx))
	}
	End(span, "it broke", attribute.Int("n", 1<<40), attribute.Float64("f", 0.5),
		attribute.Bool("b", true), attribute.StringSlice("s", []string{"x"}))
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(c.requests) != 1 || c.header.Get("X-Key") != "a b" || c.header.Get("Other") != "1" {
		t.Fatalf("%d requests, header %v", len(c.requests), c.header)
	}
	r := c.requests[0].ResourceSpans[0]
	got := r.ScopeSpans[0].Spans[0]
	if got.TraceID != id || got.ParentSpanID != "b7ad6b7169203331" || got.Name != "llm_request" ||
		got.Kind != 2 || got.Status != (status{2, "it broke"}) || len(got.SpanID) != 16 ||
		got.StartTimeUnixNano != nanoseconds(began) ||
		got.EndTimeUnixNano <= got.StartTimeUnixNano {
		t.Errorf("%+v", got)
	}
	text, err := json.Marshal([]any{got.Attributes, r.Resource.Attributes})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"key":"n","value":{"intValue":"1099511627776"}}`,
		`{"key":"f","value":{"doubleValue":0.5}}`, `{"key":"b","value":{"boolValue":true}}`,
		`{"key":"s","value":{"stringValue":"[\"x\"]"}}`,
		`{"key":"service.name","value":{"stringValue":"mine"}}`,
		`{"key":"service.version","value":{"stringValue":"1.2"}}`, `"deployment.environment"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

// TestLostSpans: a collector that refuses is logged once, without its password, and again when it
// takes spans.
func TestLostSpans(t *testing.T) {
	c := newCollector(t)
	c.status = http.StatusServiceUnavailable
	var log bytes.Buffer
	tracer, err := New(t.Context(), strings.Replace(c.URL, "//", "//user:secret@", 1)+"/v1/traces",
		"1", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	flush := func() {
		_, span := tracer.Start(context.Background(), time.Now())
		End(span, "")
		if err := tracer.provider.ForceFlush(t.Context()); err != nil {
			t.Error(err)
		}
	}
	flush()
	flush()
	c.mu.Lock()
	c.status = http.StatusOK
	c.mu.Unlock()
	flush()
	if err := tracer.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "traces are lost"); n != 1 ||
		strings.Count(log.String(), "takes traces again") != 1 ||
		strings.Contains(log.String(), "secret") {
		t.Errorf("logged %s", log.String())
	}
}

// TestNoTracer: without one nothing is made.
func TestNoTracer(t *testing.T) {
	var tracer *Tracer
	ctx, span := tracer.Start(t.Context(), time.Now())
	End(span, "")
	if err := tracer.Close(ctx); err != nil || ID(ctx) != "" {
		t.Errorf("%v, %q", err, ID(ctx))
	}
}

// TestRefused: addresses and headers that cannot be are refused, and a secret is not repeated.
func TestRefused(t *testing.T) {
	for endpoint, want := range map[string]string{"grpc://c:4317": "http://c:4318",
		"c:4318":  "is not an address",
		"ftp://c": "is not an address", "http://": "is not an address",
		":": "missing protocol scheme"} {
		if _, err := New(t.Context(), endpoint, "", nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret")
	if _, err := New(t.Context(), "http://c", "", nil); err == nil || strings.Contains(err.Error(),
		"secret") {
		t.Errorf("headers: %v", err)
	}
}
