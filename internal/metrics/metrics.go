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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/status"
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
}

// Metrics are the series of one engine and of the HTTP server before it, on a registry of their
// own.
type Metrics struct {
	labels   prometheus.Labels
	registry *prometheus.Registry
	shown    prometheus.Gatherer

	running, waiting, kvUsage prometheus.Gauge

	promptTokens, generationTokens prometheus.Counter
	preemptions                    prometheus.Counter
	prefixQueries, prefixHits      prometheus.Counter
	// by Finish; none for Unfinished
	finished    [sample.Finishes]prometheus.Counter
	rejections  *prometheus.CounterVec
	cacheConfig *prometheus.GaugeVec

	ttft, itl                                        prometheus.Histogram
	e2e, queue, inference, prefill, decode, perToken prometheus.Histogram
	iteration, requestPrompt, requestGeneration      prometheus.Histogram
	requestMaxGeneration, requestN, requestMaxTokens prometheus.Histogram
	httpRequests                                     *prometheus.CounterVec
	httpDuration                                     *prometheus.HistogramVec
}

// New makes the series at zero.
func New(o Options) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	// vLLM numbers the engines of one server; here there is one.
	if len(o.Prefixes) == 0 {
		o.Prefixes = []string{DefaultPrefix}
	}
	m.shown = renamed(m.registry, o.Prefixes)
	m.labels = prometheus.Labels{"model_name": o.ModelName, "engine": "0"}
	f := factory{registry: m.registry, labels: m.labels}

	m.running = f.gauge("num_requests_running", "Number of requests in model execution batches.")
	m.waiting = f.gauge("num_requests_waiting", "Number of requests waiting to be processed.")
	m.kvUsage = f.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")

	m.promptTokens = f.counter("prompt_tokens_total", "Number of prefill tokens processed.")
	m.generationTokens = f.counter("generation_tokens_total",
		"Number of generation tokens processed.")
	m.preemptions = f.counter("num_preemptions_total",
		"Cumulative number of preemptions from the engine.")
	m.prefixQueries = f.counter("prefix_cache_queries_total",
		"Prefix cache queries, in terms of number of queried tokens.")
	m.prefixHits = f.counter("prefix_cache_hits_total",
		"Prefix cache hits, in terms of number of cached tokens.")
	finished := f.counterVec("request_success_total", "Count of finished requests.",
		"finished_reason")
	for f := sample.FinishStop; f < sample.Finishes; f++ {
		m.finished[f] = finished.WithLabelValues(f.String())
	}
	m.rejections = f.counterVec("admission_rejections_total",
		"Count of requests refused before they reached the engine.", "reason")
	for _, reason := range Rejections {
		m.rejections.WithLabelValues(reason)
	}
	m.cacheConfig = f.gaugeVec("cache_config_info",
		"Information of the KV cache's configuration; always 1.",
		"block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype")

	m.ttft = f.histogram("time_to_first_token_seconds",
		"Histogram of time to first token in seconds.", timeToFirstTokenBuckets)
	m.itl = f.histogram("inter_token_latency_seconds",
		"Histogram of inter-token latency in seconds.", interTokenLatencyBuckets)
	m.perToken = f.histogram("request_time_per_output_token_seconds",
		"Histogram of time per output token in seconds per request.", interTokenLatencyBuckets)
	m.e2e = f.histogram("e2e_request_latency_seconds",
		"Histogram of e2e request latency in seconds.", requestLatencyBuckets)
	m.queue = f.histogram("request_queue_time_seconds",
		"Histogram of time spent in WAITING phase for request.", requestLatencyBuckets)
	m.inference = f.histogram("request_inference_time_seconds",
		"Histogram of time spent in RUNNING phase for request.", requestLatencyBuckets)
	m.prefill = f.histogram("request_prefill_time_seconds",
		"Histogram of time spent in PREFILL phase for request.", requestLatencyBuckets)
	m.decode = f.histogram("request_decode_time_seconds",
		"Histogram of time spent in DECODE phase for request.", requestLatencyBuckets)

	tokens := oneTwoFive(o.MaxModelLen)
	m.iteration = f.histogram("iteration_tokens_total",
		"Histogram of number of tokens per engine_step.", iterationTokensBuckets)
	m.requestPrompt = f.histogram("request_prompt_tokens", "Number of prefill tokens processed.",
		tokens)
	m.requestGeneration = f.histogram("request_generation_tokens",
		"Number of generation tokens processed.", tokens)
	m.requestMaxGeneration = f.histogram("request_max_num_generation_tokens",
		"Histogram of maximum number of requested generation tokens.", tokens)
	m.requestN = f.histogram("request_params_n", "Histogram of the n request parameter.",
		requestNBuckets)
	m.requestMaxTokens = f.histogram("request_params_max_tokens",
		"Histogram of the max_tokens request parameter.", tokens)

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
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler shows the series in Prometheus' text format (or OpenMetrics where the scraper asks for
// it).
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.shown, promhttp.HandlerOpts{MaxRequestsInFlight: 8})
}

// SetQueues shows the scheduler's state after a step: requests running and waiting, and the share
// of KV-cache blocks in use, from 0 to 1.
func (m *Metrics) SetQueues(running, waiting int, kvUsage float64) {
	m.running.Set(float64(running))
	m.waiting.Set(float64(waiting))
	m.kvUsage.Set(kvUsage)
}

// Iteration counts one engine step: prompt tokens computed and tokens sampled in it.
func (m *Metrics) Iteration(promptTokens, generationTokens int) {
	m.promptTokens.Add(float64(promptTokens))
	m.generationTokens.Add(float64(generationTokens))
	m.iteration.Observe(float64(promptTokens + generationTokens))
}

// FirstToken times the first token of a request, from its arrival.
func (m *Metrics) FirstToken(d time.Duration) { m.ttft.Observe(d.Seconds()) }

// NextToken times the gap between two tokens of a request.
func (m *Metrics) NextToken(d time.Duration) { m.itl.Observe(d.Seconds()) }

// PrefixCache counts prompt tokens looked up in the prefix cache and those found.
func (m *Metrics) PrefixCache(queries, hits int) {
	m.prefixQueries.Add(float64(queries))
	m.prefixHits.Add(float64(hits))
}

// Listen counts what events say; it is a status.Listener.
func (m *Metrics) Listen(e status.Event) {
	if p, ok := e.(status.Preempted); ok {
		m.preemptions.Add(float64(p.Requests))
	}
}

// Request describes a finished request: how long each phase took and how many tokens went in and
// out.
type Request struct {
	Finish sample.Finish
	// E2E is arrival to last token; Queue is arrival to first scheduled; Inference is first
	// scheduled to last token, and is Prefill (to the first token) plus Decode.
	E2E, Queue, Inference, Prefill, Decode time.Duration
	// PromptTokens and OutputTokens are counts.
	PromptTokens, OutputTokens int
}

// ObserveRequest counts a finished request.
func (m *Metrics) ObserveRequest(r Request) {
	m.CountFinished(r.Finish)
	m.e2e.Observe(r.E2E.Seconds())
	m.queue.Observe(r.Queue.Seconds())
	m.inference.Observe(r.Inference.Seconds())
	m.prefill.Observe(r.Prefill.Seconds())
	m.decode.Observe(r.Decode.Seconds())
	m.requestPrompt.Observe(float64(r.PromptTokens))
	m.requestGeneration.Observe(float64(r.OutputTokens))
	m.requestMaxGeneration.Observe(float64(r.OutputTokens))
	if r.OutputTokens > 1 {
		m.perToken.Observe(r.Decode.Seconds() / float64(r.OutputTokens-1))
	}
}

// CountFinished counts a request that ended by how it did only; ObserveRequest includes it.
func (m *Metrics) CountFinished(f sample.Finish) { m.finished[f].Inc() }

// ObserveParams records the n and max_tokens of a request as the client asked for them.
func (m *Metrics) ObserveParams(n, maxTokens int) {
	m.requestN.Observe(float64(n))
	m.requestMaxTokens.Observe(float64(maxTokens))
}

// Rejections are the reasons for which requests are refused before the engine sees them: the
// waiting queue is full, the bodies under way leave no room, there are too many connections.
var Rejections = []string{"queue_full", "bodies", "connections"}

// Rejected counts a request refused before the engine saw it, by one of Rejections.
func (m *Metrics) Rejected(reason string) { m.rejections.WithLabelValues(reason).Inc() }

// CacheConfig describes the KV cache once it is laid out.
type CacheConfig struct {
	BlockSize, Blocks int
	PrefixCaching     bool
	Dtype             string
}

// SetCacheConfig shows the KV cache's configuration, in place of any shown before.
func (m *Metrics) SetCacheConfig(c CacheConfig) {
	m.cacheConfig.Reset()
	m.cacheConfig.WithLabelValues(strconv.Itoa(c.BlockSize), strconv.Itoa(c.Blocks),
		strconv.FormatBool(c.PrefixCaching), c.Dtype).Set(1)
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
