package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// exportTimeout bounds one request to the collector.
const exportTimeout = 10 * time.Second

// exporter posts spans as OTLP's JSON, which its specification has beside Protobuf and collectors
// take at the same address.
type exporter struct {
	url     string
	headers http.Header
	client  *http.Client
	log     *slog.Logger

	mu sync.Mutex
	// failing says that the last batch was not taken: that is logged once.
	failing bool
}

// The messages of opentelemetry/proto/collector/trace/v1 in the JSON form of OTLP 1: ids in
// hexadecimal, 64-bit integers as text.
type (
	exportRequest struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource struct {
			Attributes []keyValue `json:"attributes"`
		} `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	scopeSpans struct {
		Scope struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"scope"`
		Spans []span `json:"spans"`
	}
	span struct {
		TraceID           string     `json:"traceId"`
		SpanID            string     `json:"spanId"`
		ParentSpanID      string     `json:"parentSpanId,omitempty"`
		TraceState        string     `json:"traceState,omitempty"`
		Flags             uint32     `json:"flags"`
		Name              string     `json:"name"`
		Kind              int        `json:"kind"`
		StartTimeUnixNano string     `json:"startTimeUnixNano"`
		EndTimeUnixNano   string     `json:"endTimeUnixNano"`
		Attributes        []keyValue `json:"attributes"`
		Status            status     `json:"status"`
	}
	status struct {
		Code    int    `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	}
	keyValue struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String *string  `json:"stringValue,omitempty"`
		Bool   *bool    `json:"boolValue,omitempty"`
		Int    *string  `json:"intValue,omitempty"`
		Double *float64 `json:"doubleValue,omitempty"`
	}
)

// ExportSpans implements sdk.SpanExporter. Spans that are not taken are lost.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	err := e.post(ctx, encode(spans))
	e.mu.Lock()
	defer e.mu.Unlock()
	if failing := err != nil; failing != e.failing {
		e.failing = failing
		if failing {
			e.log.Warn("traces are lost: the collector does not take them", "error", err)
		} else {
			e.log.Info("the collector takes traces again")
		}
	}
	return nil // the SDK would log it anew for each batch
}

func (e *exporter) post(ctx context.Context, message exportRequest) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header = e.headers.Clone()
	r.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s: %q", r.URL.Redacted(), resp.Status, said)
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// encode makes a message of spans of one provider, which have one resource and scope.
func encode(spans []sdk.ReadOnlySpan) exportRequest {
	var s scopeSpans
	s.Scope.Name = spans[0].InstrumentationScope().Name
	s.Scope.Version = spans[0].InstrumentationScope().Version
	for _, x := range spans {
		c, parent := x.SpanContext(), x.Parent()
		one := span{TraceID: c.TraceID().String(), SpanID: c.SpanID().String(),
			TraceState: c.TraceState().String(), Flags: uint32(c.TraceFlags()), Name: x.Name(),
			Kind:              int(x.SpanKind()), // both begin with internal at 1
			StartTimeUnixNano: nanoseconds(x.StartTime()),
			EndTimeUnixNano:   nanoseconds(x.EndTime()),
			Attributes:        attributes(x.Attributes())}
		if parent.HasSpanID() {
			one.ParentSpanID = parent.SpanID().String()
		}
		if x.Status().Code == codes.Error {
			one.Status = status{Code: 2, Message: x.Status().Description}
		}
		s.Spans = append(s.Spans, one)
	}
	r := resourceSpans{ScopeSpans: []scopeSpans{s}}
	r.Resource.Attributes = attributes(spans[0].Resource().Attributes())
	return exportRequest{[]resourceSpans{r}}
}

func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func attributes(list []attribute.KeyValue) []keyValue {
	out := make([]keyValue, 0, len(list))
	for _, a := range list {
		kv := keyValue{Key: string(a.Key)}
		switch a.Value.Type() {
		case attribute.INT64:
			n := strconv.FormatInt(a.Value.AsInt64(), 10)
			kv.Value.Int = &n
		case attribute.FLOAT64:
			f := a.Value.AsFloat64()
			kv.Value.Double = &f
		case attribute.BOOL:
			b := a.Value.AsBool()
			kv.Value.Bool = &b
		default:
			s := a.Value.String()
			kv.Value.String = &s
		}
		out = append(out, kv)
	}
	return out
}
