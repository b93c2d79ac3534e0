package engine_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// BenchmarkSingleStream is the time of one token of one request on the built-in model, without
// HTTP.
func BenchmarkSingleStream(b *testing.B) {
	for _, c := range []struct {
		backend       string
		size, threads int
	}{{"uni", 1, 1}, {"uni", 1, 2}, {"mp", 1, 1}, {"mp", 2, 1}} {
		b.Run(fmt.Sprintf("%s/tp=%d/threads=%d", c.backend, c.size, c.threads), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 3))
			e := openEngine(b, func(cfg *config.Config) {
				cfg.Parallel.Backend, cfg.Parallel.TensorParallelSize,
					cfg.Parallel.CPUThreads = c.backend, c.size, c.threads
			})
			r := greedy(e, question, 1900)
			r.Params.IgnoreEOS, r.Params.StopTokens = true, nil
			tokens := 0
			for b.Loop() {
				s, err := e.Submit(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				for tokens = 0; tokens < 100; {
					d, err := s.Next(b.Context())
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
					tokens += len(d.Tokens)
				}
				s.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/100, "us/token")
		})
	}
}
