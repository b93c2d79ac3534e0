package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/bench"
	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/engine/open"
)

// measured are the percentiles of a measurement that the page asks for: those that it draws.
var measured = []float64{10, 25, 50, 75, 90, 95, 99, 99.9}

// measureOver is `bench serve` on the server itself, for its page. dial reaches it, as a client
// does but inside the process. A model that only pools has none.
func measureOver(dial func(ctx context.Context, network, addr string) (net.Conn, error),
	info *open.Info) dashboard.Measure {
	if info.Pooling != nil {
		return nil
	}
	return func(ctx context.Context, m dashboard.Measurement, progress func(int)) (
		map[string]any, error) {
		data := bench.DatasetOptions{Name: bench.Datasets[0], Prompts: m.Prompts,
			Random: bench.RandomOptions{InputLen: m.InputLen, OutputLen: m.OutputLen},
			// As long prompts take tries to be text of just their length, they are token ids.
			Vocab: min(1000, info.VocabSize), Seed: uint64(time.Now().UnixNano())}
		samples, err := bench.Load(data)
		if err != nil {
			return nil, err
		}
		transport := &http.Transport{DialContext: dial, DisableCompression: true,
			MaxIdleConnsPerHost: m.Concurrency}
		defer transport.CloseIdleConnections()
		r, err := bench.Serve(ctx, bench.ServeOptions{
			Target: bench.Target{Client: &http.Client{Transport: transport},
				URL: "http://127.0.0.1/v1/completions", Model: info.Names[0], Header: m.Header,
				Extra: map[string]any{"temperature": 0, "ignore_eos": true}},
			Samples: samples, Arrival: bench.Arrival{Rate: math.Inf(1), Burstiness: 1},
			MaxConcurrency: m.Concurrency, Percentiles: measured,
			Progress: func(done, _ int) { progress(done) }})
		if err != nil {
			return nil, err
		}
		lengths := fmt.Sprintf("%d in, %d out", m.InputLen, m.OutputLen)
		return figuresOf(r, "openai", info.Names[0], m.Prompts,
			map[string]any{"label": lengths}, false), nil
	}
}
