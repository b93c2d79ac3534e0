package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metrics are those whose figures can be shown, in the order of the table.
var metrics = []struct{ key, short, title string }{
	{"ttft", "TTFT", "Time to First Token"},
	{"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
	{"itl", "ITL", "Inter-token Latency"},
	{"e2el", "E2EL", "End-to-end Latency"},
}

// IsMetric tells whether name is ttft, tpot, itl or e2el.
func IsMetric(name string) bool {
	for _, m := range metrics {
		if m.key == name {
			return true
		}
	}
	return false
}

func (r *Result) summary(key string) Summary {
	return map[string]Summary{"ttft": r.TTFT, "tpot": r.TPOT, "itl": r.ITL, "e2el": r.E2EL}[key]
}

func (r *Result) perSecond(n int) float64 {
	if r.Duration <= 0 {
		return 0
	}
	return float64(n) / r.Duration.Seconds()
}

// tableWidth is that of vLLM's tables.
const tableWidth = 50

// table prints a result as vLLM does: labels in 40 columns, values in 10.
type table struct{ w io.Writer }

// title centres s as Python's format does: the odd column goes to the right.
func (t table) title(s, fill string) {
	pad := max(tableWidth-len(s), 0)
	fmt.Fprintf(t.w, "%s%s%s\n", strings.Repeat(fill, pad/2), s, strings.Repeat(fill, pad-pad/2))
}
func (t table) count(name string, v int)     { fmt.Fprintf(t.w, "%-40s %-10d\n", name+":", v) }
func (t table) value(name string, v float64) { fmt.Fprintf(t.w, "%-40s %-10.2f\n", name+":", v) }

// Print writes the table of `vllm bench serve`, with blocks for the metrics in show.
func (r *Result) Print(w io.Writer, show []string) {
	t := table{w}
	t.title(" Serving Benchmark Result ", "=")
	t.count("Successful requests", r.Completed)
	t.count("Failed requests", r.Failed)
	if r.MaxConcurrency > 0 {
		t.count("Maximum request concurrency", r.MaxConcurrency)
	}
	if !math.IsInf(r.Arrival.Rate, 1) {
		t.value("Request rate configured (RPS)", r.Arrival.Rate)
	}
	t.value("Benchmark duration (s)", r.Duration.Seconds())
	t.count("Total input tokens", r.InputTokens)
	t.count("Total generated tokens", r.OutputTokens)
	t.value("Request throughput (req/s)", r.perSecond(r.Completed))
	if r.HasGoodput {
		t.value("Request goodput (req/s)", r.perSecond(r.Good))
	}
	t.value("Output token throughput (tok/s)", r.perSecond(r.OutputTokens))
	t.value("Peak output token throughput (tok/s)", float64(r.PeakOutput))
	t.value("Peak concurrent requests", float64(r.PeakConcurrent))
	t.value("Total token throughput (tok/s)", r.perSecond(r.InputTokens+r.OutputTokens))
	for _, m := range metrics {
		if !slices.Contains(show, m.key) {
			continue
		}
		s := r.summary(m.key)
		t.title(m.title, "-")
		t.value("Mean "+m.short+" (ms)", s.Mean)
		t.value("Median "+m.short+" (ms)", s.Median)
		for _, p := range s.Percentiles {
			t.value("P"+number(p.P)+" "+m.short+" (ms)", p.Value)
		}
	}
	t.title("", "=")
}

// number spells 99 as 99 and 99.9 as 99.9.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// JSON is the result under the names vLLM saves it; detailed adds what became of each request,
// times in seconds.
func (r *Result) JSON(detailed bool) map[string]any {
	m := map[string]any{
		"duration": r.Duration.Seconds(), "completed": r.Completed, "failed": r.Failed,
		"total_input_tokens": r.InputTokens, "total_output_tokens": r.OutputTokens,
		"request_throughput":      r.perSecond(r.Completed),
		"output_throughput":       r.perSecond(r.OutputTokens),
		"total_token_throughput":  r.perSecond(r.InputTokens + r.OutputTokens),
		"max_output_tokens_per_s": float64(r.PeakOutput),
		"max_concurrent_requests": r.PeakConcurrent,
		"request_goodput":         nil, "request_rate": "inf", "burstiness": r.Arrival.Burstiness,
		"max_concurrency": nil,
	}
	if !math.IsInf(r.Arrival.Rate, 1) {
		m["request_rate"] = r.Arrival.Rate
	}
	if math.IsInf(r.Arrival.Burstiness, 1) {
		m["burstiness"] = "inf"
	}
	if r.MaxConcurrency > 0 {
		m["max_concurrency"] = r.MaxConcurrency
	}
	if r.Arrival.RampUp != "" {
		m["ramp_up_strategy"], m["ramp_up_start_rps"], m["ramp_up_end_rps"] = r.Arrival.RampUp,
			r.Arrival.RampStart, r.Arrival.RampEnd
	}
	if r.HasGoodput {
		m["request_goodput"] = r.perSecond(r.Good)
	}
	for _, x := range metrics {
		s := r.summary(x.key)
		m["mean_"+x.key+"_ms"] = s.Mean
		m["median_"+x.key+"_ms"] = s.Median
		m["std_"+x.key+"_ms"] = s.Std
		for _, p := range s.Percentiles {
			m["p"+number(p.P)+"_"+x.key+"_ms"] = p.Value
		}
	}
	if detailed {
		r.addRequests(m)
	}
	return m
}

// addRequests adds one list a quantity, in the order of the requests.
func (r *Result) addRequests(m map[string]any) {
	add := func(name string, of func(o *Outcome) any) {
		list := make([]any, len(r.Outcomes))
		for i := range r.Outcomes {
			list[i] = of(&r.Outcomes[i])
		}
		m[name] = list
	}
	add("input_lens", func(o *Outcome) any { return o.PromptLen })
	add("output_lens", func(o *Outcome) any { return o.OutputLen })
	add("ttfts", func(o *Outcome) any { return o.TTFT.Seconds() })
	add("itls", func(o *Outcome) any { return seconds(o.ITL) })
	add("latencies", func(o *Outcome) any { return o.Latency.Seconds() })
	add("start_times", func(o *Outcome) any { return o.Start.Seconds() })
	add("generated_texts", func(o *Outcome) any { return o.Text })
	add("errors", func(o *Outcome) any { return o.Err })
}

func seconds(times []time.Duration) []float64 {
	s := make([]float64, len(times))
	for i, t := range times {
		s[i] = t.Seconds()
	}
	return s
}
