package generate

import (
	"math"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// Metrics are the times of the answer, nil unless the request asks for them and the answer is one
// output: times of several are not those of the request.
func (g *Generation) Metrics(req *Sampling) *wire.Metrics {
	if !req.Metrics || req.Beams != nil || len(g.Choices) != 1 {
		return nil
	}
	c := &g.Choices[0]
	if c.times == (engine.Times{}) { // it ended before it had an output
		return nil
	}
	t, n := &c.times, c.outputTokens
	m := &wire.Metrics{TimeToFirstToken: milliseconds(t.Prefill),
		GenerationTime: milliseconds(t.Decode), QueueTime: milliseconds(t.Queue),
		TokensPerSecond:        rate(n, t.Prefill+t.Decode),
		PrefillTokensPerSecond: rate(len(g.Prompts[0].Prompt)-c.cached, t.Prefill),
		CachedTokens:           c.cached}
	if n > 1 {
		m.MeanITL = new(milliseconds(t.Decode / time.Duration(n-1)))
		m.DecodeTokensPerSecond = rate(n-1, t.Decode)
	}
	return m
}

// milliseconds has a precision of one microsecond.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// rate is so many tokens in some time per second, to two places; nil where no time has passed.
func rate(tokens int, d time.Duration) *float64 {
	if d <= 0 {
		return nil
	}
	return new(math.Round(float64(tokens)/d.Seconds()*100) / 100)
}
