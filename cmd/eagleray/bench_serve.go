package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/bench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// benchServe are the flags of bench serve.
type benchServe struct {
	backend, baseURL, host, endpoint string
	port                             int
	model, servedName, tokenizer     string
	skipTokenizer                    bool
	headers                          []string
	apiKey, extraBody, idPrefix      string
	readySeconds                     int
	insecure                         bool

	data                bench.DatasetOptions
	inputLen, outputLen int

	rate, burstiness float64
	rampUp           string
	rampStart        int
	rampEnd          int
	concurrency      int
	warmups          int

	adapters   []string
	assignment string

	ignoreEOS bool
	logprobs  int

	percentileMetrics []string
	percentiles       []string
	goodput           []string
	result            resultFile
	output            string
	disableTqdm       bool
	warnings          []string

	flags *pflag.FlagSet
}

// newBenchServe measures a running server.
func newBenchServe() *cobra.Command {
	var b benchServe
	c := &cobra.Command{
		Use:   "serve",
		Short: "Measure a running server",
		Long: `serve sends many requests to a server that speaks OpenAI's API and prints throughput, time to first
token (TTFT), time per output token (TPOT) and inter-token latency (ITL), as vLLM's benchmark does.

  eagleray bench serve                                     1000 random prompts, all at once
  eagleray bench serve --num-prompts 200 --random-input-len 64 --random-output-len 32
  eagleray bench serve --request-rate 10 --burstiness 0.5  ten a second on average, in bursts
  eagleray bench serve --max-concurrency 1                 one after another: single-stream latency
  eagleray bench serve --backend openai-chat --dataset-name sharegpt --dataset-path sharegpt.json
  eagleray bench serve --goodput ttft:200 tpot:50 --percentile-metrics ttft,tpot,itl,e2el --output-json figures.json`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			b.flags = c.Flags()
			printWarnings(b.warnings)
			return b.run(c.Context())
		},
	}
	b.targetFlags(c.Flags())
	b.loadFlags(c.Flags())
	b.samplingFlags(c.Flags())
	b.resultFlags(c.Flags())
	config.Words(c.Flags(), "goodput", "metadata", "header", "lora-modules")
	config.DefineKnown(c.Flags(), slices.Concat(vllmBench, vllmBenchServe), &b.warnings)
	cli.ConfigFlag(c)
	return c
}

// benchBackends are the values of --backend.
var benchBackends = []string{"openai", "vllm", "openai-chat"}

func (b *benchServe) targetFlags(f *pflag.FlagSet) {
	f.StringVar(&b.backend, "backend", "openai",
		"what is spoken: openai or vllm (completions), or openai-chat")
	config.Choices(f, "backend", benchBackends...)
	f.StringVar(&b.baseURL, "base-url", "",
		"address of the server, such as http://127.0.0.1:8000 (instead of --host and --port)")
	f.StringVar(&b.host, "host", "127.0.0.1", "host of the server")
	f.IntVar(&b.port, "port", 8000, "port of the server")
	f.StringVar(&b.endpoint, "endpoint", "",
		"path of the endpoint (default: /v1/completions, or /v1/chat/completions for openai-chat)")
	f.StringVar(&b.model, "model", "", "name of the model (default: the first the server lists)")
	f.StringVar(&b.servedName, "served-model-name", "", "name requests use, if not that of --model")
	f.StringVar(&b.tokenizer, "tokenizer", "",
		"folder with the model's tokenizer; with it random prompts are text (default: none, "+
			"or that of the built-in model)")
	config.Paths(f, config.PathModel, "tokenizer")
	f.BoolVar(&b.skipTokenizer, "skip-tokenizer-init", false,
		"send random prompts as token ids even for the built-in model")
	f.StringArrayVar(&b.headers, "header", nil,
		"KEY=VALUE sent with each request; may be given several times")
	f.StringVar(&b.apiKey, "api-key", "", "key of the server (or OPENAI_API_KEY)")
	config.Alias(f, "api-key", "OPENAI_API_KEY")
	f.StringVar(&b.extraBody, "extra-body", "",
		`JSON object merged into each request, such as {"min_tokens":8}`)
	f.StringVar(&b.idPrefix, "request-id-prefix", "",
		"send X-Request-Id: this and the number of the request")
	f.BoolVar(&b.insecure, "insecure", false, "take any certificate of the server")
	f.IntVar(&b.readySeconds, "ready-check-timeout-sec", 600,
		"how long the server may take to answer a first request, which is "+
			"not measured; 0 sends none")
	datasetFlags(f, &b.data)
	f.IntVar(&b.inputLen, "input-len", 0, "the same as --random-input-len")
	f.IntVar(&b.outputLen, "output-len", 0, "tokens of each output, whatever the dataset")
	f.Uint64Var(&b.data.Seed, "seed", 0, "seed of prompts and arrival times")
}

func (b *benchServe) loadFlags(f *pflag.FlagSet) {
	f.Float64Var(&b.rate, "request-rate", math.Inf(1), "requests a second; inf sends all at once")
	f.Float64Var(&b.burstiness, "burstiness", 1,
		"shape of the gamma distribution of the gaps: 1 is Poisson, below "+
			"burstier, above more even")
	f.IntVar(&b.concurrency, "max-concurrency", 0, "most requests under way (default: no limit)")
	f.StringSliceVar(&b.adapters, "lora-modules", nil,
		"names of adapters that requests ask for, in the place of the model")
	f.StringVar(&b.assignment, "lora-assignment", "random",
		"which request asks for which: random, or round-robin")
	config.Choices(f, "lora-assignment", assignments...)
	f.IntVar(&b.warmups, "num-warmups", 0, "requests before those that are measured")
	f.StringVar(&b.rampUp, "ramp-up-strategy", "",
		"raise the request rate over the run: linear or exponential")
	config.Choices(f, "ramp-up-strategy", "linear", "exponential")
	f.IntVar(&b.rampStart, "ramp-up-start-rps", 0, "first request rate of a ramp")
	f.IntVar(&b.rampEnd, "ramp-up-end-rps", 0, "last request rate of a ramp")
}

// assignments are the values of --lora-assignment.
var assignments = []string{"random", "round-robin"}

// assign has requests ask for adapters.
func (b *benchServe) assign(samples []bench.Sample) {
	if len(b.adapters) == 0 {
		return
	}
	rng := rand.New(rand.NewPCG(b.data.Seed, 3))
	for i := range samples {
		n := i % len(b.adapters)
		if b.assignment == "random" {
			n = rng.IntN(len(b.adapters))
		}
		samples[i].Model = b.adapters[n]
	}
}

// noLogprobs is --logprobs when it is not given.
const noLogprobs = -1

// sampled are the sampling flags, sent under the same names.
var sampled = []string{"temperature", "top-p", "top-k", "min-p", "frequency-penalty",
	"presence-penalty", "repetition-penalty"}

func (b *benchServe) samplingFlags(f *pflag.FlagSet) {
	for _, name := range sampled {
		value := ""
		help := strings.ReplaceAll(name, "-", "_") + " of each request (default: the server's)"
		switch name {
		case "temperature":
			value, help = "0", "temperature of each request; 0 is greedy"
		case "top-k":
			f.Int(name, 0, help)
			continue
		}
		number, _ := strconv.ParseFloat(value, 64)
		f.Float64(name, number, help)
	}
	f.BoolVar(&b.ignoreEOS, "ignore-eos", false,
		"go on after the model's end-of-sequence token (always so for random prompts)")
	f.IntVar(&b.logprobs, "logprobs", noLogprobs,
		"log-probabilities asked for each token (default: none)")
	f.Lookup("logprobs").DefValue = "0" // the help says what the default is
}

func (b *benchServe) resultFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&b.percentileMetrics, "percentile-metrics", []string{"ttft", "tpot", "itl"},
		"metrics that are printed: ttft, tpot, itl, e2el")
	f.StringSliceVar(&b.percentiles, "metric-percentiles", []string{"99"},
		"percentiles of each metric")
	f.StringArrayVar(&b.goodput, "goodput", nil,
		"METRIC:MILLISECONDS a good request keeps to (ttft, tpot, e2el); "+
			"may be given several times")
	b.result.flags(f)
	f.StringVar(&b.output, "output-json", "", "file for the figures")
	config.Paths(f, config.PathFile, "output-json")
	f.BoolVar(&b.disableTqdm, "disable-tqdm", false, "show no progress")
}

func (b *benchServe) run(ctx context.Context) error {
	o, err := b.options()
	if err != nil {
		return err
	}
	shown := newMeter(os.Stderr, "requests")
	shown.off = b.disableTqdm
	defer shown.end()
	o.Waiting = shown.waiting
	base := b.base()
	served := bench.Served{ID: b.model, Root: b.model}
	if b.model == "" {
		ask := func(ctx context.Context) (err error) {
			served, err = bench.FirstModel(ctx, o.Target.Client, base, o.Target.Header)
			return err
		}
		within := time.Duration(b.readySeconds) * time.Second
		if err := bench.Wait(ctx, within, ask, shown.waiting); err != nil {
			return err
		}
	}
	o.Target.Model = served.ID
	if b.servedName != "" {
		o.Target.Model = b.servedName
	}
	if b.data.Tokenizer, err = b.loadTokenizer(served.Root); err != nil {
		return err
	}
	if t := b.data.Tokenizer; t != nil {
		o.Target.Count = func(text string) int { return len(t.Encode(text, false)) }
	}
	if o.Target.Chat && b.data.Tokenizer == nil && b.data.Path == "" {
		return cli.UsageError("--backend openai-chat takes text: random prompts need --tokenizer")
	}
	shown.restart("prompts made")
	b.data.Progress = shown.update
	if o.Samples, err = loadDataset(b.data); err != nil {
		return err
	}
	b.assign(o.Samples)
	shown.restart("requests")
	o.Progress = shown.update
	r, err := bench.Serve(ctx, o)
	shown.end()
	if err != nil {
		return fmt.Errorf("%s: %w", o.Target.URL, err)
	}
	for _, failure := range r.Failures(10) {
		fmt.Fprintln(os.Stderr, "failed request:", failure)
	}
	out := cli.PrintTo(os.Stdout)
	r.Print(out, b.percentileMetrics)
	if err := b.save(r, served.ID); err != nil {
		return err
	}
	return out.Err
}

// options checks the flags and turns them into a run, but for the model and the prompts.
func (b *benchServe) options() (bench.ServeOptions, error) {
	var o bench.ServeOptions
	if err := b.check(); err != nil {
		return o, err
	}
	if err := b.lengths(); err != nil {
		return o, err
	}
	header, err := b.header()
	if err != nil {
		return o, err
	}
	extra, err := b.extra()
	if err != nil {
		return o, err
	}
	if o.Goodput, err = parseGoodput(b.goodput); err != nil {
		return o, err
	}
	for _, text := range b.percentiles {
		p, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return o, cli.UsageError("--metric-percentiles %q is not a number from 0 to 100", text)
		}
		o.Percentiles = append(o.Percentiles, p)
	}
	if err := b.result.check(); err != nil {
		return o, err
	}
	o.Target = bench.Target{Client: bench.NewClient(b.insecure), URL: b.base() + b.path(),
		Chat: b.backend == "openai-chat", Header: header, Extra: extra}
	o.Arrival = bench.Arrival{Rate: b.rate, Burstiness: b.burstiness, RampUp: b.rampUp,
		RampStart: float64(b.rampStart), RampEnd: float64(b.rampEnd), Seed: b.data.Seed}
	o.MaxConcurrency, o.Warmups, o.RequestIDPrefix = b.concurrency, b.warmups, b.idPrefix
	o.ReadyWithin = time.Duration(b.readySeconds) * time.Second
	return o, nil
}

// check refuses values that make no run.
func (b *benchServe) check() error {
	given := b.flags.Changed
	switch {
	case !slices.Contains(benchBackends, b.backend):
		return cli.UsageError("--backend %q is not one of %s", b.backend,
			strings.Join(benchBackends, ", "))
	case b.baseURL != "" && !strings.HasPrefix(b.baseURL, "http://") &&
		!strings.HasPrefix(b.baseURL, "https://"):
		return cli.UsageError("--base-url %q does not begin with http:// or https://", b.baseURL)
	case b.port < 1 || b.port > 65535:
		return cli.UsageError("--port %d is not a port", b.port)
	case b.endpoint != "" && !strings.HasPrefix(b.endpoint, "/"):
		return cli.UsageError("--endpoint %q does not begin with /", b.endpoint)
	case !slices.Contains(assignments, b.assignment):
		return cli.UsageError("--lora-assignment %q is not one of %s", b.assignment,
			strings.Join(assignments, ", "))
	case !(b.rate > 0):
		return cli.UsageError("--request-rate %g is not positive", b.rate)
	case !(b.burstiness > 0):
		return cli.UsageError("--burstiness %g is not positive", b.burstiness)
	case given("max-concurrency") && b.concurrency < 1:
		return cli.UsageError("--max-concurrency %d is less than 1", b.concurrency)
	case b.warmups < 0:
		return cli.UsageError("--num-warmups %d is less than 0", b.warmups)
	case b.readySeconds < 0:
		return cli.UsageError("--ready-check-timeout-sec %d is less than 0", b.readySeconds)
	case given("logprobs") && b.logprobs < 0:
		return cli.UsageError("--logprobs %d is less than 0", b.logprobs)
	}
	for _, m := range b.percentileMetrics {
		if !bench.IsMetric(m) {
			return cli.UsageError("--percentile-metrics %q is not one of ttft, tpot, itl, e2el", m)
		}
	}
	return b.checkRamp()
}

func (b *benchServe) checkRamp() error {
	given := b.flags.Changed
	switch {
	case b.rampUp == "" && (given("ramp-up-start-rps") || given("ramp-up-end-rps")):
		return cli.UsageError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
	case b.rampUp == "":
		return nil
	case b.rampUp != "linear" && b.rampUp != "exponential":
		return cli.UsageError("--ramp-up-strategy %q is not linear or exponential", b.rampUp)
	case !math.IsInf(b.rate, 1):
		return cli.UsageError("--request-rate is not used with --ramp-up-strategy")
	case b.rampStart < 1 || b.rampEnd < b.rampStart:
		return cli.UsageError("--ramp-up-start-rps %d and --ramp-up-end-rps %d are not rising "+
			"from at least 1", b.rampStart, b.rampEnd)
	}
	return nil
}

// lengths applies the general length flags and checks the dataset's.
func (b *benchServe) lengths() error {
	if b.flags.Changed("input-len") {
		b.data.Random.InputLen = b.inputLen
	}
	if b.flags.Changed("output-len") {
		if b.outputLen < 1 {
			return cli.UsageError("--output-len %d is less than 1", b.outputLen)
		}
		b.data.Random.OutputLen, b.data.ShareGPTOutputLen = b.outputLen, b.outputLen
		b.data.CustomOutputLen, b.data.PrefixRepetition.OutputLen = b.outputLen, b.outputLen
	}
	return checkDataset(&b.data)
}

func (b *benchServe) base() string {
	if b.baseURL != "" {
		return strings.TrimRight(b.baseURL, "/")
	}
	return "http://" + net.JoinHostPort(b.host, strconv.Itoa(b.port))
}

func (b *benchServe) path() string {
	switch {
	case b.endpoint != "":
		return b.endpoint
	case b.backend == "openai-chat":
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func (b *benchServe) header() (http.Header, error) {
	h := http.Header{}
	if b.apiKey != "" {
		h.Set("Authorization", "Bearer "+b.apiKey)
	}
	for _, kv := range b.headers {
		k, v, ok := strings.Cut(kv, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if !ok || !isToken(k) || strings.ContainsAny(v, "\r\n\x00") {
			return nil, cli.UsageError("--header %q is not KEY=VALUE", kv)
		}
		h.Set(k, v)
	}
	return h, nil
}

// isToken tells whether s can be the name of a header (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		alphanumeric := c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// extra are the members every request has beside its prompt and length.
func (b *benchServe) extra() (map[string]any, error) {
	extra := map[string]any{}
	for _, name := range sampled {
		f := b.flags.Lookup(name)
		if f.Changed || name == "temperature" {
			extra[strings.ReplaceAll(name, "-", "_")] = json.Number(f.Value.String())
		}
	}
	if b.ignoreEOS || b.data.Name == "random" {
		extra["ignore_eos"] = true
	}
	switch {
	case b.logprobs >= 0 && b.backend == "openai-chat":
		extra["logprobs"], extra["top_logprobs"] = true, b.logprobs
	case b.logprobs >= 0:
		extra["logprobs"] = b.logprobs
	}
	if b.extraBody == "" {
		return extra, nil
	}
	// Members given by hand win over flags.
	if err := json.Unmarshal([]byte(b.extraBody), &extra); err != nil || extra == nil {
		return nil, cli.UsageError("--extra-body %q is not a JSON object", b.extraBody)
	}
	return extra, nil
}

// loadTokenizer finds the tokenizer of random prompts; nil is none.
func (b *benchServe) loadTokenizer(root string) (*tokenizer.Tokenizer, error) {
	if b.tokenizer != "" {
		t, err := tokenizer.Load(b.tokenizer)
		if err != nil {
			return nil, fmt.Errorf("--tokenizer: %w", err)
		}
		return t, nil
	}
	if root != builtin.Name || b.skipTokenizer {
		return nil, nil
	}
	return tokenizer.Open(builtin.Folder())
}

// parseGoodput reads METRIC:MILLISECONDS pairs.
func parseGoodput(pairs []string) (bench.Goodput, error) {
	var g bench.Goodput
	for _, pair := range pairs {
		name, text, _ := strings.Cut(pair, ":")
		ms, err := strconv.ParseFloat(text, 64)
		if err != nil || !(ms >= 0 && ms < 1e12) {
			return g, cli.UsageError("--goodput %q is not METRIC:MILLISECONDS", pair)
		}
		limit := time.Duration(ms * float64(time.Millisecond))
		switch name {
		case "ttft":
			g.TTFT = &limit
		case "tpot":
			g.TPOT = &limit
		case "e2el":
			g.E2EL = &limit
		default:
			return g, cli.UsageError("--goodput %q is not one of ttft, tpot, e2el", pair)
		}
	}
	return g, nil
}
