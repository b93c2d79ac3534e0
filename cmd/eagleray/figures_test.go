package main

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/eagleray/eagleray/internal/engine"
)

// A busy server logs its figures every ten seconds, also when requests wait and nothing moves; an
// idle one logs nothing.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		totals := []engine.Totals{{},
			{PromptTokens: 1000, OutputTokens: 505, Running: 3, Waiting: 1, CacheUsage: 0.125,
				PrefixQueries: 1000, PrefixHits: 250},
			{PromptTokens: 1000, OutputTokens: 505, Running: 3, Waiting: 1, CacheUsage: 0.125,
				PrefixQueries: 1000, PrefixHits: 250},
			{PromptTokens: 1000, OutputTokens: 505, PrefixQueries: 1000, PrefixHits: 250}}
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		var out bytes.Buffer
		logFigures(ctx, slog.New(slog.NewTextHandler(&out, nil)), func() engine.Totals {
			calls++
			if calls == len(totals)+2 {
				cancel()
			}
			return totals[min(calls, len(totals))-1]
		})
		var got []string
		for line := range strings.Lines(out.String()) {
			_, text, _ := strings.Cut(line, "level=INFO ")
			got = append(got, text)
		}
		const want = "msg=throughput prompt_tokens_per_s=100.0 generation_tokens_per_s=50.5 " +
			"running=3 waiting=1 kv_usage_percent=12.5 prefix_hit_percent=25.0\nmsg=throughput " +
			"prompt_tokens_per_s=0.0 generation_tokens_per_s=0.0 running=3 waiting=1 " +
			"kv_usage_percent=12.5 prefix_hit_percent=0.0\n"
		if strings.Join(got, "") != want {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}
