package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/eagleray/eagleray/cmd/internal/bandwidth"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
)

// Subject is what is measured: one engine, or the router before several.
type Subject interface {
	Info() *open.Info
	Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error)
	Totals() engine.Totals
}

// ThroughputOptions describe one run of all samples through an engine, as fast as it can.
type ThroughputOptions struct {
	Samples []Sample
	// N is the number of outputs of each prompt.
	N    int
	Seed uint64
	// DisableDetokenize leaves outputs as token ids.
	DisableDetokenize bool
	// Warmups are how often the first prompt is answered before those that are measured.
	Warmups int
	// Progress, when not nil, is called now and then with how many tokens of output there are.
	Progress func(done, total int)
}

// Throughput are the figures of such a run.
type Throughput struct {
	Elapsed                    time.Duration
	Requests                   int
	PromptTokens, OutputTokens int
}

// MeasureThroughput submits all samples at once and waits for their outputs, sampled at temperature
// 1 without an end before their length, as `vllm bench throughput` does.
func MeasureThroughput(ctx context.Context, e Subject,
	o ThroughputOptions) (Throughput, error) {
	t := Throughput{Requests: len(o.Samples)}
	prompts := make([][]int32, len(o.Samples))
	for i, s := range o.Samples {
		prompts[i] = s.Tokens
		if len(s.Tokens) == 0 {
			if e.Info().Tokenizer == nil {
				return t, errors.New("prompts are text and there is no tokenizer")
			}
			prompts[i] = e.Info().Tokenizer.Encode(s.Text, true)
		}
		t.PromptTokens += len(prompts[i])
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x7468726f))
	for range o.Warmups {
		s, err := submit(ctx, e, prompts[0], o.Samples[0].OutputLen, rng.Uint64(),
			o.DisableDetokenize)
		if err != nil {
			return t, err
		}
		_, _, err = drain(ctx, s, func() {})
		s.Close()
		if err != nil {
			return t, err
		}
	}
	started := time.Now()
	var streams []engine.Stream
	defer func() { closeAll(streams) }()
	for i, s := range o.Samples {
		for range o.N {
			stream, err := submit(ctx, e, prompts[i], s.OutputLen, rng.Uint64(),
				o.DisableDetokenize)
			if err != nil {
				return t, fmt.Errorf("prompt %d of %d tokens in, %d out: %w", i, len(prompts[i]),
					s.OutputLen, err)
			}
			streams = append(streams, stream)
		}
	}
	before, total := e.Totals().OutputTokens, 0
	for _, s := range o.Samples {
		total += s.OutputLen * o.N
	}
	progress := func() {
		if o.Progress != nil {
			o.Progress(int(e.Totals().OutputTokens-before), total)
		}
	}
	for _, s := range streams {
		_, n, err := drain(ctx, s, progress)
		if err != nil {
			return t, err
		}
		t.OutputTokens += n
	}
	t.Elapsed = time.Since(started)
	return t, nil
}

// Print writes the figures as `vllm bench throughput` does.
func (t Throughput) Print(w io.Writer) {
	s := t.Elapsed.Seconds()
	fmt.Fprintf(w, "Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
		float64(t.Requests)/s, float64(t.PromptTokens+t.OutputTokens)/s, float64(t.OutputTokens)/s)
	fmt.Fprintf(w, "Total num prompt tokens:  %d\nTotal num output tokens:  %d\n", t.PromptTokens,
		t.OutputTokens)
}

// JSON is the result under vLLM's names.
func (t Throughput) JSON() map[string]any {
	s, total := t.Elapsed.Seconds(), t.PromptTokens+t.OutputTokens
	return map[string]any{"elapsed_time": s, "num_requests": t.Requests, "total_num_tokens": total,
		"requests_per_second": float64(t.Requests) / s, "tokens_per_second": float64(total) / s,
		"total_num_output_tokens":  t.OutputTokens,
		"output_tokens_per_second": float64(t.OutputTokens) / s}
}

// submit queues a request that ends after output tokens and not before, and samples from the whole
// vocabulary as the model gives it, whatever its generation config says.
func submit(ctx context.Context, e Subject, prompt []int32, output int, seed uint64,
	raw bool) (engine.Stream, error) {
	o := sample.Overrides{Seed: seed, IgnoreEOS: true, Settings: sample.Settings{MaxTokens: &output,
		Temperature: new(1.0), TopP: new(1.0), TopK: new(0), MinP: new(0.0),
		RepetitionPenalty: new(1.0)}}
	p, err := e.Info().Resolve(&o, 0)
	if err != nil {
		return nil, err
	}
	r := engine.NewRequest(prompt, p)
	r.Raw = raw
	return e.Submit(ctx, r)
}

func closeAll(streams []engine.Stream) {
	for _, s := range streams {
		s.Close()
	}
}

// drain reads a stream to its end and returns when the first token was seen and how many there
// were. news is called with each delta.
func drain(ctx context.Context, s engine.Stream,
	news func()) (first time.Time, tokens int, err error) {
	for {
		d, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return first, tokens, nil
		}
		if err != nil {
			return first, tokens, err
		}
		if first.IsZero() {
			first = time.Now()
		}
		tokens += len(d.Tokens)
		news()
	}
}

// LatencyOptions describe repeated runs of one batch.
type LatencyOptions struct {
	// InputLen and OutputLen are tokens of each request, BatchSize the prompts of a run, each with
	// N outputs.
	InputLen, OutputLen, BatchSize, N int
	// Warmups are runs before the Iterations that are measured.
	Warmups, Iterations int
	Seed                uint64
	DisableDetokenize   bool
	// ReadBytes is how much memory a reading of the bandwidth reads, 0 well beyond the last cache.
	ReadBytes int
	// Progress, when not nil, is called after each run, warm-ups included, with how many are done.
	Progress func(done, total int)
}

// Latency are the figures of such runs.
type Latency struct {
	// Latencies are the times of the measured runs, in order.
	Latencies []time.Duration
	// Steps are the times of one decode step in each of them: what a run took after its last
	// request's first token, divided by the tokens that followed. Step is their median, and 0 when
	// outputs are of one token.
	Steps []time.Duration
	Step  time.Duration
	// WeightBytes is what one step reads of weights, all ranks together: of a mixture of experts
	// those that one sequence is sent to, where it is alone, else all of them. Threads is the
	// number that read them.
	WeightBytes int64
	Threads     int
	// Readings are how many bytes a second as many threads read from memory before the first run
	// and after each, ReadBandwidth is their median.
	Readings      []float64
	ReadBandwidth float64
}

// MeasureLatency runs one batch of random prompts again and again, as `vllm bench latency` does,
// and measures the memory's bandwidth between the runs: on a machine that others use it changes
// from one to the next.
func MeasureLatency(ctx context.Context, e Subject, o LatencyOptions) (*Latency, error) {
	rng := rand.New(rand.NewPCG(o.Seed, 0x6c6174))
	prompts := make([][]int32, o.BatchSize)
	for i := range prompts {
		for range o.InputLen {
			prompts[i] = append(prompts[i], rng.Int32N(int32(min(e.Info().VocabSize, 10000))))
		}
	}
	l := &Latency{WeightBytes: e.Info().WeightBytes}
	if o.BatchSize*o.N == 1 {
		l.WeightBytes = e.Info().StepBytes
	}
	for _, r := range e.Info().Ranks {
		l.Threads += max(r.Threads, 1)
	}
	memory, err := bandwidth.NewReader(l.Threads, o.ReadBytes)
	if err != nil {
		return nil, err
	}
	// Nothing depends on the mapping being gone: the process ends soon.
	defer func() { _ = memory.Close() }()
	for i := range o.Warmups + o.Iterations {
		if i == o.Warmups {
			l.Readings = append(l.Readings, memory.Rate())
		}
		took, decode, err := runBatch(ctx, e, o, prompts, rng)
		if err != nil {
			return nil, err
		}
		if i >= o.Warmups {
			l.Latencies = append(l.Latencies, took)
			l.Readings = append(l.Readings, memory.Rate())
			if o.OutputLen > 1 {
				l.Steps = append(l.Steps, decode/time.Duration(o.OutputLen-1))
			}
		}
		if o.Progress != nil {
			o.Progress(i+1, o.Warmups+o.Iterations)
		}
	}
	if len(l.Steps) > 0 {
		l.Step = slices.Sorted(slices.Values(l.Steps))[len(l.Steps)/2]
	}
	if len(l.Readings) > 0 {
		l.ReadBandwidth = percentile(slices.Sorted(slices.Values(l.Readings)), 50)
	}
	return l, nil
}

// Share is the median, over the runs, of the rate at which steps read weights to that of the
// readings before and after the run; 0 when steps were not measured.
func (l *Latency) Share() float64 {
	if len(l.Steps) == 0 {
		return 0
	}
	shares := make([]float64, len(l.Steps))
	for i, s := range l.Steps {
		beside := (l.Readings[i] + l.Readings[i+1]) / 2
		shares[i] = float64(l.WeightBytes) / max(s.Seconds(), 1e-9) / beside
	}
	slices.Sort(shares)
	return percentile(shares, 50)
}

// runBatch runs the prompts together. decode is the time after the first token of the last one: it
// is prefilled last, and from then on every step decodes all.
func runBatch(ctx context.Context, e Subject, o LatencyOptions, prompts [][]int32,
	rng *rand.Rand) (took, decode time.Duration, err error) {
	started := time.Now()
	streams := make([]engine.Stream, 0, len(prompts))
	defer func() { closeAll(streams) }()
	for _, p := range prompts {
		for range o.N {
			s, err := submit(ctx, e, p, o.OutputLen, rng.Uint64(), o.DisableDetokenize)
			if err != nil {
				return 0, 0, err
			}
			streams = append(streams, s)
		}
	}
	first, _, err := drain(ctx, streams[len(streams)-1], func() {})
	if err != nil {
		return 0, 0, err
	}
	decode = time.Since(first)
	for _, s := range streams[:len(streams)-1] {
		if _, _, err := drain(ctx, s, func() {}); err != nil {
			return 0, 0, err
		}
	}
	return time.Since(started), decode, nil
}

// latencyPercentiles are those vLLM prints.
var latencyPercentiles = []float64{10, 25, 50, 75, 90, 99}

func (l *Latency) sorted() []float64 { return slices.Sorted(slices.Values(seconds(l.Latencies))) }

// WeightRate is how many bytes of weights a second a decode step reads, 0 when it was not measured.
func (l *Latency) WeightRate() float64 {
	if l.Step <= 0 {
		return 0
	}
	return float64(l.WeightBytes) / l.Step.Seconds()
}

// Print writes the figures as `vllm bench latency` does, then those of a decode step.
func (l *Latency) Print(w io.Writer) {
	s := l.sorted()
	fmt.Fprintf(w, "Avg latency: %v seconds\nStd latency: %v seconds\n", mean(s), deviation(s))
	for _, p := range latencyPercentiles {
		fmt.Fprintf(w, "%s%% percentile latency: %v seconds\n", number(p), percentile(s, p))
	}
	if l.Step <= 0 {
		return
	}
	const gb = 1e9
	fmt.Fprintf(w, "Decode step: %.3f ms (median), %.2f GB/s of weights (%.1f MB)\n",
		l.Step.Seconds()*1e3, l.WeightRate()/gb, float64(l.WeightBytes)/1e6)
	fmt.Fprintf(w, "Memory read bandwidth between the runs, %d threads: %.2f GB/s (median; "+
		"%.2f to %.2f); share of it: %.0f%%\n", l.Threads, l.ReadBandwidth/gb,
		slices.Min(l.Readings)/gb, slices.Max(l.Readings)/gb, 100*l.Share())
	if cache := bandwidth.LastCacheBytes(); cache > 0 && l.WeightBytes < int64(cache) {
		fmt.Fprintf(w, "These weights fit the last cache (%d MB): the share says nothing about "+
			"larger models\n", cache>>20)
	}
}

// JSON is the result under vLLM's names, with the decode step's beside them.
func (l *Latency) JSON() map[string]any {
	s, percentiles := l.sorted(), map[string]any{}
	for _, p := range latencyPercentiles {
		percentiles[number(p)] = percentile(s, p)
	}
	m := map[string]any{"avg_latency": mean(s), "std_latency": deviation(s),
		"latencies": seconds(l.Latencies), "percentiles": percentiles}
	maps.Copy(m, map[string]any{"decode_step_ms": l.Step.Seconds() * 1e3,
		"weight_bytes":            l.WeightBytes,
		"weight_bytes_per_second": l.WeightRate(), "read_bytes_per_second": l.ReadBandwidth,
		"decode_step_seconds":          seconds(l.Steps),
		"read_bytes_per_second_beside": l.Readings,
		"bandwidth_share":              l.Share(), "threads": l.Threads})
	return m
}
