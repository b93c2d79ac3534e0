package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
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
	rate := func(was, now uint64) string {
		return fmt.Sprintf("%.1f", float64(now-was)/figuresEvery.Seconds())
	}
	hits := 0.0
	if asked := now.PrefixQueries - was.PrefixQueries; asked > 0 {
		hits = 100 * float64(now.PrefixHits-was.PrefixHits) / float64(asked)
	}
	return []slog.Attr{slog.String("prompt_tokens_per_s", rate(was.PromptTokens, now.PromptTokens)),
		slog.String("generation_tokens_per_s", rate(was.OutputTokens, now.OutputTokens)),
		slog.Int("running", now.Running), slog.Int("waiting", now.Waiting),
		slog.String("kv_usage_percent", fmt.Sprintf("%.1f", 100*now.CacheUsage)),
		slog.String("prefix_hit_percent", fmt.Sprintf("%.1f", hits))}
}
