package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Engine are the series of one engine.
type Engine struct {
	factory
	series []prometheus.Collector

	up, running, waiting, kvUsage prometheus.Gauge
	ranksWanted, ranksServing     prometheus.Gauge

	promptTokens, generationTokens prometheus.Counter
	preemptions                    prometheus.Counter
	restarts, condemned            prometheus.Counter
	prefixQueries, prefixHits      prometheus.Counter
	externalQueries, externalHits  prometheus.Counter
	loaded, stored                 prometheus.Counter
	loadTime                       prometheus.Histogram
	grammars, grammarsKept         prometheus.Counter
	deferred                       prometheus.Counter
	drafts, draftTokens, accepted  prometheus.Counter
	acceptedAt                     *prometheus.CounterVec
	accepts                        []prometheus.Counter // by position
	// by Finish; none for Unfinished
	finished    [sample.Finishes]prometheus.Counter
	cacheConfig *prometheus.GaugeVec
	// of KV blocks from elsewhere and to elsewhere, by whether they arrived
	fetched, handed map[bool]prometheus.Counter
	fetchTime       prometheus.Histogram
	// bytes of them, by the way that they came
	byMemory, byLink prometheus.Counter

	ttft, itl prometheus.Histogram
	// first and next are those two again, in buckets that percentiles can be read from.
	first, next                                      latency
	e2e, queue, inference, prefill, decode, perToken prometheus.Histogram
	iteration, requestPrompt, requestGeneration      prometheus.Histogram
	grammarCompile                                   prometheus.Histogram
	requestMaxGeneration, requestN, requestMaxTokens prometheus.Histogram
}

// newEngine makes the series of one engine; tokens are the buckets of tokens of a request.
func newEngine(f factory, tokens []float64) *Engine {
	e := &Engine{factory: f}
	f.made = &e.series
	e.made = f.made
	e.up = f.gauge("engine_up", "1 while the engine serves requests, 0 once it has failed.")
	e.up.Set(1)
	e.ranksWanted = f.gauge("ranks_wanted", "Ranks that the engine's layout has.")
	e.ranksServing = f.gauge("ranks_serving",
		"Ranks that serve: fewer after --on-failure shrink, none while they are started.")
	e.running = f.gauge("num_requests_running", "Number of requests in model execution batches.")
	e.waiting = f.gauge("num_requests_waiting", "Number of requests waiting to be processed.")
	e.kvUsage = f.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")

	e.promptTokens = f.counter("prompt_tokens_total", "Number of prefill tokens processed.")
	e.generationTokens = f.counter("generation_tokens_total",
		"Number of generation tokens processed.")
	e.preemptions = f.counter("num_preemptions_total",
		"Cumulative number of preemptions from the engine.")
	e.restarts = f.counter("worker_restarts_total",
		"New groups of workers that took the place of one that failed.")
	e.condemned = f.counter("condemned_requests_total",
		"Requests that were failed alone because workers fail whenever they compute them.")
	e.prefixQueries = f.counter("prefix_cache_queries_total",
		"Prefix cache queries, in terms of number of queried tokens.")
	e.prefixHits = f.counter("prefix_cache_hits_total",
		"Prefix cache hits, in terms of number of cached tokens.")
	e.externalQueries = f.counter("external_prefix_cache_queries_total",
		"Tokens that the prefix cache did not have and that files were asked for.")
	e.externalHits = f.counter("external_prefix_cache_hits_total",
		"Tokens that came from files (--kv-offloading-size).")
	offloaded := f.counterVec("kv_offload_bytes_total",
		"Bytes of KV blocks that ranks have read from files (load) or written to them (store).",
		"direction")
	e.loaded, e.stored = offloaded.WithLabelValues("load"), offloaded.WithLabelValues("store")
	e.loadTime = f.histogram("kv_offload_load_time_seconds",
		"Histogram of time that a request waited for KV blocks from files.",
		requestLatencyBuckets)
	e.drafts = f.counter("spec_decode_num_drafts_total", "Number of spec decoding drafts.")
	e.draftTokens = f.counter("spec_decode_num_draft_tokens_total", "Number of draft tokens.")
	e.accepted = f.counter("spec_decode_num_accepted_tokens_total", "Number of accepted tokens.")
	e.acceptedAt = f.counterVec("spec_decode_num_accepted_tokens_per_pos_total",
		"Accepted tokens per draft position.", "position")
	e.grammars = f.counter("grammar_cache_queries_total",
		"Requests with a constraint: a schema, a regular expression, a grammar.")
	e.grammarsKept = f.counter("grammar_cache_hits_total",
		"Requests whose constraint was compiled before, or was being compiled.")
	e.deferred = f.counter("grammar_deferred_tokens_total",
		"Tokens chosen a step or more later, because their constraint or its mask was not ready.")
	e.grammarCompile = f.histogram("grammar_compile_seconds",
		"Histogram of time to compile a constraint, with the wait for other ones.",
		grammarCompileBuckets)
	finished := f.counterVec("request_success_total", "Count of finished requests.",
		"finished_reason")
	for f := sample.FinishStop; f < sample.Finishes; f++ {
		e.finished[f] = finished.WithLabelValues(f.String())
	}
	e.cacheConfig = f.gaugeVec("cache_config_info",
		"Information of the KV cache's configuration; always 1.",
		"block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype")

	e.ttft = f.histogram("time_to_first_token_seconds",
		"Histogram of time to first token in seconds.", timeToFirstTokenBuckets)
	e.itl = f.histogram("inter_token_latency_seconds",
		"Histogram of inter-token latency in seconds.", interTokenLatencyBuckets)
	e.perToken = f.histogram("request_time_per_output_token_seconds",
		"Histogram of time per output token in seconds per request.", interTokenLatencyBuckets)
	e.e2e = f.histogram("e2e_request_latency_seconds",
		"Histogram of e2e request latency in seconds.", requestLatencyBuckets)
	e.queue = f.histogram("request_queue_time_seconds",
		"Histogram of time spent in WAITING phase for request.", requestLatencyBuckets)
	transfers := f.counterVec("kv_transfers_total",
		"Prompts whose KV blocks came from another engine (in) or went to one (out), by whether "+
			"they arrived.", "direction", "outcome")
	both := func(direction string) map[bool]prometheus.Counter {
		return map[bool]prometheus.Counter{true: transfers.WithLabelValues(direction, "done"),
			false: transfers.WithLabelValues(direction, "lost")}
	}
	e.fetched, e.handed = both("in"), both("out")
	ways := f.counterVec("kv_transfer_bytes_total",
		"Bytes of KV blocks that came from another engine, through shared memory or over a link.",
		"way")
	e.byMemory, e.byLink = ways.WithLabelValues("shared_memory"), ways.WithLabelValues("link")
	e.fetchTime = f.histogram("kv_transfer_time_seconds",
		"Histogram of time that a request waited for KV blocks from another engine.",
		requestLatencyBuckets)
	e.inference = f.histogram("request_inference_time_seconds",
		"Histogram of time spent in RUNNING phase for request.", requestLatencyBuckets)
	e.prefill = f.histogram("request_prefill_time_seconds",
		"Histogram of time spent in PREFILL phase for request.", requestLatencyBuckets)
	e.decode = f.histogram("request_decode_time_seconds",
		"Histogram of time spent in DECODE phase for request.", requestLatencyBuckets)

	e.iteration = f.histogram("iteration_tokens_total",
		"Histogram of number of tokens per engine_step.", iterationTokensBuckets)
	e.requestPrompt = f.histogram("request_prompt_tokens", "Number of prefill tokens processed.",
		tokens)
	e.requestGeneration = f.histogram("request_generation_tokens",
		"Number of generation tokens processed.", tokens)
	e.requestMaxGeneration = f.histogram("request_max_num_generation_tokens",
		"Histogram of maximum number of requested generation tokens.", tokens)
	e.requestN = f.histogram("request_params_n", "Histogram of the n request parameter.",
		requestNBuckets)
	e.requestMaxTokens = f.histogram("request_params_max_tokens",
		"Histogram of the max_tokens request parameter.", tokens)
	return e
}

// SetDown shows that the engine has failed.
func (e *Engine) SetDown() {
	e.up.Set(0)
	e.ranksServing.Set(0)
}

// Restarted counts a new group of workers that has taken the place of one that failed.
func (e *Engine) Restarted() { e.restarts.Inc() }

// SetRanks shows how many ranks are wanted, and how many serve.
func (e *Engine) SetRanks(wanted, serving int) {
	e.ranksWanted.Set(float64(wanted))
	e.ranksServing.Set(float64(serving))
}

// SetQueues shows the scheduler's state after a step: requests running and waiting, and the share
// of KV-cache blocks in use, from 0 to 1.
func (e *Engine) SetQueues(running, waiting int, kvUsage float64) {
	e.running.Set(float64(running))
	e.waiting.Set(float64(waiting))
	e.kvUsage.Set(kvUsage)
}

// Iteration counts one engine step: prompt tokens computed and tokens sampled in it.
func (e *Engine) Iteration(promptTokens, generationTokens int) {
	e.promptTokens.Add(float64(promptTokens))
	e.generationTokens.Add(float64(generationTokens))
	e.iteration.Observe(float64(promptTokens + generationTokens))
}

// FirstToken times the first token of a request, from its arrival.
func (e *Engine) FirstToken(d time.Duration) {
	e.ttft.Observe(d.Seconds())
	e.first.observe(d)
}

// NextToken times the gap between two outputs of a request: a token, or as many as a step made.
func (e *Engine) NextToken(d time.Duration) {
	e.itl.Observe(d.Seconds())
	e.next.observe(d)
}

// PrefixCache counts prompt tokens looked up in the prefix cache and those found.
func (e *Engine) PrefixCache(queries, hits int) {
	e.prefixQueries.Add(float64(queries))
	e.prefixHits.Add(float64(hits))
}

// ExternalPrefixCache counts prompt tokens that the prefix cache did not have, and those of them
// that came from files.
func (e *Engine) ExternalPrefixCache(queries, hits int) {
	e.externalQueries.Add(float64(queries))
	e.externalHits.Add(float64(hits))
}

// SetDrafts says of how many tokens drafts are at most.
func (e *Engine) SetDrafts(tokens int) {
	for i := len(e.accepts); i < tokens; i++ {
		e.accepts = append(e.accepts, e.acceptedAt.WithLabelValues(strconv.Itoa(i)))
	}
}

// Drafted counts drafts, their tokens, and how many of those were accepted at each position.
func (e *Engine) Drafted(drafts, tokens uint64, accepted []uint64) {
	e.drafts.Add(float64(drafts))
	e.draftTokens.Add(float64(tokens))
	for i, at := range e.accepts {
		e.accepted.Add(float64(accepted[i]))
		at.Add(float64(accepted[i]))
	}
}

// Preempted counts requests that were put back to wait.
func (e *Engine) Preempted(n int) { e.preemptions.Add(float64(n)) }

// Deferred counts tokens that waited for their constraint.
func (e *Engine) Deferred(n int) { e.deferred.Add(float64(n)) }

// Listen counts what events say; it is a status.Listener.
func (e *Engine) Listen(event status.Event) {
	switch event := event.(type) {
	case status.RequestCondemned:
		e.condemned.Inc()
	case status.KVFetched:
		e.fetched[event.Err == nil].Inc()
		e.byMemory.Add(float64(event.ByMemory))
		e.byLink.Add(float64(event.ByLink))
		e.fetchTime.Observe(event.Took.Seconds())
	case status.KVHandedOver:
		e.handed[event.Fetched].Inc()
	case status.OffloadLoaded:
		e.loaded.Add(float64(event.Bytes))
		e.loadTime.Observe(event.Took.Seconds())
	case status.OffloadStored:
		e.stored.Add(float64(event.Bytes))
	case status.GrammarCompiled:
		e.grammars.Inc()
		if event.Cached {
			e.grammarsKept.Inc()
		} else {
			e.grammarCompile.Observe(event.Took.Seconds())
		}
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
func (e *Engine) ObserveRequest(r Request) {
	e.CountFinished(r.Finish)
	e.e2e.Observe(r.E2E.Seconds())
	e.queue.Observe(r.Queue.Seconds())
	e.inference.Observe(r.Inference.Seconds())
	e.prefill.Observe(r.Prefill.Seconds())
	e.decode.Observe(r.Decode.Seconds())
	e.requestPrompt.Observe(float64(r.PromptTokens))
	e.requestGeneration.Observe(float64(r.OutputTokens))
	e.requestMaxGeneration.Observe(float64(r.OutputTokens))
	if r.OutputTokens > 1 {
		e.perToken.Observe(r.Decode.Seconds() / float64(r.OutputTokens-1))
	}
}

// CountFinished counts a request that ended by how it did only; ObserveRequest includes it.
func (e *Engine) CountFinished(f sample.Finish) { e.finished[f].Inc() }

// ObserveParams records the n and max_tokens of a request as the client asked for them.
func (e *Engine) ObserveParams(n, maxTokens int) {
	e.requestN.Observe(float64(n))
	e.requestMaxTokens.Observe(float64(maxTokens))
}

// CacheConfig describes the KV cache once it is laid out.
type CacheConfig struct {
	BlockSize, Blocks int
	PrefixCaching     bool
	Dtype             string
}

// SetCacheConfig shows the KV cache's configuration, in place of any shown before.
func (e *Engine) SetCacheConfig(c CacheConfig) {
	e.cacheConfig.Reset()
	e.cacheConfig.WithLabelValues(strconv.Itoa(c.BlockSize), strconv.Itoa(c.Blocks),
		strconv.FormatBool(c.PrefixCaching), c.Dtype).Set(1)
}
