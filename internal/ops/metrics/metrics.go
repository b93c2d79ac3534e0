// Package metrics counts and times what the engine and the HTTP server do, and shows it to
// Prometheus.
//
// The names, labels and buckets are vLLM's (vllm/v1/metrics/loggers.py and buckets.py) with the
// prefix "eagleray:" in place of "vllm:", or with both: Options.Prefixes. They are an API:
// testdata/names.txt lists them and a test compares.
//
// Every series whose labels are known is there from the start, at zero: a rate is then known from
// the first event, and an alert on a counter that never moved is not one on nothing.
//
// Everything a running engine calls is safe for concurrent use, allocates nothing and costs
// nanoseconds: every series is resolved when a Metrics is made.
package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// DefaultPrefix begins the names of the series, before a colon.
const DefaultPrefix = "eagleray"

const prefix = DefaultPrefix + ":"

// Options says whose metrics they are.
type Options struct {
	// ModelName is the served model's name, the value of the label model_name.
	ModelName string
	// MaxModelLen bounds the buckets that count tokens of a request.
	MaxModelLen int
	// Prefixes take the place of DefaultPrefix: the series are shown once under each.
	Prefixes []string
	// Engines is the number of engines behind the server; 0 is 1. First is the number of the first
	// one where it is one of several servers.
	Engines, First int
}

// Metrics are the series of a server and of the engines behind it, on a registry of their own. The
// label engine is the number of an engine, or of a place of one that has several; what the server
// refuses counts under the first.
type Metrics struct {
	registry *prometheus.Registry
	shown    prometheus.Gatherer
	options  Options

	mu sync.Mutex
	// engines are those that there are, by number.
	engines map[int]*Engine
	// first and next are the latencies of those that were removed.
	first, next Histogram

	rejections   *prometheus.CounterVec
	batchRows    *prometheus.CounterVec
	batchRunning prometheus.Gauge
	httpRequests *prometheus.CounterVec
	httpDuration *prometheus.HistogramVec
}

// New makes the series at zero.
func New(o Options) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), options: o, engines: map[int]*Engine{}}
	if len(o.Prefixes) == 0 {
		o.Prefixes = []string{DefaultPrefix}
	}
	m.shown = renamed(m.registry, o.Prefixes)
	for i := range max(1, o.Engines) {
		m.Engine(i)
	}
	m.rejections = factory{registry: m.registry, labels: m.Engine(0).labels}.counterVec(
		"admission_rejections_total",
		"Count of requests refused before they reached the engine.", "reason")
	for _, reason := range Rejections {
		m.rejections.WithLabelValues(reason)
	}
	server := factory{registry: m.registry, labels: m.engines[0].labels}
	m.batchRows = server.counterVec("batch_rows_total",
		"Count of rows of batches that were answered, by the class of their status.", "status")
	for _, status := range []string{"2xx", "4xx", "5xx"} {
		m.batchRows.WithLabelValues(status)
	}
	m.batchRunning = server.gauge("batch_rows_running", "Rows of batches that are being answered.")
	m.httpRequests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "http_requests_total", Help: "Total number of requests by " +
			"method, status and handler.",
	}, []string{"method", "status", "handler"})
	m.httpDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "http_request_duration_seconds", Help: "Duration of HTTP requests by method and " +
			"handler, to the last byte written.",
		Buckets: requestLatencyBuckets,
	}, []string{"method", "handler"})
	m.registry.MustRegister(m.httpRequests, m.httpDuration,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Engine are the series of an engine by its number, from 0. Those of one that was not there before
// begin at zero.
func (m *Metrics) Engine(i int) *Engine {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.engines[i]
	if e == nil {
		e = newEngine(factory{registry: m.registry, labels: prometheus.Labels{
			"model_name": m.options.ModelName, "engine": m.label(i)}},
			oneTwoFive(m.options.MaxModelLen))
		m.engines[i] = e
	}
	return e
}

// label is the value of the label engine of one of this server's.
func (m *Metrics) label(i int) string { return strconv.Itoa(m.options.First + i) }

// Remove takes the series of an engine that was removed away. Latencies goes on with its own, as
// what was counted is not to become less.
func (m *Metrics) Remove(i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.engines[i]; e != nil {
		for _, c := range e.series {
			m.registry.Unregister(c)
		}
		e.first.addTo(&m.first)
		e.next.addTo(&m.next)
		delete(m.engines, i)
	}
}

// Handler shows the series in Prometheus' text format (or OpenMetrics where the scraper asks for
// it).
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.shown, promhttp.HandlerOpts{MaxRequestsInFlight: 8})
}

// Rejections are the reasons for which requests are refused before the engine sees them: the
// waiting queue is full, the bodies under way leave no room, there are too many connections.
var Rejections = []string{"queue_full", "bodies", "connections", "quota"}

// Rejected counts a request refused before the engine saw it, by one of Rejections.
func (m *Metrics) Rejected(reason string) { m.rejections.WithLabelValues(reason).Inc() }

// BatchRow counts a row of a batch that is being answered, until done is called with the status of
// its answer, 0 for none.
func (m *Metrics) BatchRow() (done func(status int)) {
	m.batchRunning.Inc()
	return func(status int) {
		m.batchRunning.Dec()
		if status != 0 {
			m.batchRows.WithLabelValues(statusClass(status)).Inc()
		}
	}
}

// HTTP counts one HTTP request. The handler is the route's pattern, never the raw path, and the
// method one the route knows, so that clients cannot make series.
func (m *Metrics) HTTP(handler, method string, status int, d time.Duration) {
	m.httpRequests.WithLabelValues(method, statusClass(status), handler).Inc()
	m.httpDuration.WithLabelValues(method, handler).Observe(d.Seconds())
}

// Expect shows the series of a handler and a method from the start, at zero.
func (m *Metrics) Expect(handler, method string) {
	for _, status := range []string{"2xx", "4xx", "5xx"} {
		m.httpRequests.WithLabelValues(method, status, handler)
	}
	m.httpDuration.WithLabelValues(method, handler)
}

// statusClass groups statuses as vLLM's web framework does: 2xx, 4xx, 5xx.
func statusClass(status int) string {
	switch status / 100 {
	case 1:
		return "1xx"
	case 2:
		return "2xx"
	case 3:
		return "3xx"
	case 4:
		return "4xx"
	}
	return "5xx"
}
