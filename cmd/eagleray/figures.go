package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/sys/figure"
)

// figuresEvery is how often a busy server logs its figures.
const figuresEvery = 10 * time.Second

// logFigures logs throughput while there is any, or while requests wait for it.
func logFigures(ctx context.Context, log *slog.Logger, totals func() engine.Totals) {
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	was := totals()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := totals()
		moved := now.PromptTokens != was.PromptTokens || now.OutputTokens != was.OutputTokens
		if moved || now.Running+now.Waiting > 0 {
			log.LogAttrs(ctx, slog.LevelInfo, "throughput", figures(was, now)...)
		}
		was = now
	}
}

// figures are those of vLLM's line: of the time since the last one, and what is now.
func figures(was, now engine.Totals) []slog.Attr {
	tenths := func(key string, v float64) slog.Attr {
		return slog.Any(key, figure.Decimal{Value: v, Digits: 1})
	}
	rate := func(key string, was, now uint64) slog.Attr {
		return tenths(key, float64(now-was)/figuresEvery.Seconds())
	}
	hits := 0.0
	if asked := now.PrefixQueries - was.PrefixQueries; asked > 0 {
		hits = 100 * float64(now.PrefixHits-was.PrefixHits) / float64(asked)
	}
	attrs := []slog.Attr{rate("prompt_tokens_per_s", was.PromptTokens, now.PromptTokens),
		rate("generation_tokens_per_s", was.OutputTokens, now.OutputTokens),
		slog.Int("running", now.Running), slog.Int("waiting", now.Waiting),
		tenths("kv_usage_percent", 100*now.CacheUsage), tenths("prefix_hit_percent", hits)}
	if drafted := now.DraftTokens - was.DraftTokens; drafted > 0 {
		attrs = append(attrs, tenths("draft_accepted_percent",
			100*float64(now.AcceptedTokens-was.AcceptedTokens)/float64(drafted)))
	}
	return attrs
}
