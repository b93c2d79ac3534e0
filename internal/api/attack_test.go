package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestManyChoices: a few small requests for thousands of sequences hold neither a goroutine nor
// much memory for each, are refused beyond the queue's bound, and do not hold up a bystander.
func TestManyChoices(t *testing.T) {
	cfg := config.Default()
	cfg.Cache.MemoryBytes = 64 << 20
	cfg.Schedule.MaxNumSeqs, cfg.Schedule.MaxNumQueuedReqs = 16, 1024
	e, _, err := engine.Open(t.Context(), engine.Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	s, err := api.New(api.Options{Info: e.Info(), Engine: e, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	ctx, cancel := context.WithCancel(t.Context())
	post := func(ctx context.Context, body string) (int, string, http.Header) {
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/v1/completions",
			strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, "", nil
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, "", nil // the attackers give up at the end
		}
		defer resp.Body.Close()
		raw, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(raw), resp.Header
	}
	before := runtime.NumGoroutine()
	heap := heapInUse()

	// Each asks for 512 sequences: the first is admitted, and takes more than half of the room.
	const attackers = 12
	prompts, err := json.Marshal(strings.Fields(strings.Repeat("attack ", 32)))
	if err != nil {
		t.Fatal(err)
	}
	body := `{"prompt":` + string(prompts) +
		`,"n":16,"max_tokens":1000,"temperature":1,"ignore_eos":true}`
	var attack sync.WaitGroup
	refused := make(chan string, attackers)
	for range attackers {
		attack.Go(func() {
			if code, text, header := post(ctx, body); code != 0 {
				refused <- text
				if code != 503 || header.Get("Retry-After") == "" {
					t.Errorf("an attacker got %d %s", code, text)
				}
			}
		})
	}
	for range attackers - 1 {
		select {
		case text := <-refused:
			if !strings.Contains(text, "overloaded") {
				t.Errorf("refused with %s", text)
			}
		case <-time.After(time.Minute):
			t.Fatal("the queue takes everything")
		}
	}
	if n := runtime.NumGoroutine() - before; n > 10*attackers {
		t.Errorf("%d goroutines more than before", n)
	}
	if n := heapInUse() - heap; n > 32<<20 {
		t.Errorf("%d MB more than before", n>>20)
	}

	// A bystander is served beside them.
	if code, text, _ := post(t.Context(), `{"prompt":"bystander","max_tokens":2}`); code != 200 {
		t.Errorf("the bystander got %d %s", code, text)
	}
	if n := e.Totals().Waiting; n < 512-2*16 {
		t.Errorf("it was served when %d of the attackers' sequences were left", n)
	}
	cancel()
	attack.Wait()
	http.DefaultClient.CloseIdleConnections()
	server.Close()
	if err := e.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// heapInUse is what is live on the heap, in bytes.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
