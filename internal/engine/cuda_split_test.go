package engine_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// sharing has an engine exchange KV blocks, and have no other use for those of before.
func sharing(t *testing.T, tp int, memory bool) func(*config.Config) {
	t.Helper()
	return func(c *config.Config) {
		c.Cache.PrefixCaching = false
		c.Parallel.TensorParallelSize = tp
		if err := c.Transfer.Set(fmt.Sprintf(`{"kv_connector":"EagleRayConnector",
			"kv_role":"kv_both","kv_connector_extra_config":{"shared_memory":%v}}`,
			memory)); err != nil {
			t.Fatal(err)
		}
	}
}

// splitRequests are requests of whose prompts some blocks are full.
func splitRequests(e *engine.Engine) (list []*engine.Request) {
	for i, like := range sampled(e, 2) {
		r := greedy(e, splitQuestion(i), 12)
		r.Params, r.Constraint = like.Params, like.Constraint
		r.Params.MaxTokens, r.Params.MinTokens = 12, 10
		list = append(list, r)
	}
	return list
}

func splitQuestion(i int) string {
	return fmt.Sprintf("What is computed by one server, number %d, and gone on from by another one, "+
		"which has neither seen the prompt nor computed any of its keys and values?", i)
}

// handedOver has an engine compute a prompt of splitRequests for another one.
func handedOver(t *testing.T, e *engine.Engine, i int) *kvtransfer.Ticket {
	t.Helper()
	r := greedy(e, splitQuestion(i), 1)
	r.HandOver = true
	a, err := ask(t.Context(), e, r)
	if err != nil || a.last.Ticket == nil {
		t.Fatalf("no ticket: %v", err)
	}
	return a.last.Ticket
}

// TestCUDASplit computes prompts on one engine and goes on from them on another one, both on CUDA
// devices, divided alike or not: the answers are those of one engine, to the bit. So they are where
// either side's device is lost in the transfer, or the producer is no CUDA device's: the consumer
// says why no blocks came, and computes them.
func TestCUDASplit(t *testing.T) {
	alone := onCUDA(t, "", func(*config.Config) {})
	want := receiveAll(t, alone, splitRequests(alone), func(int) {})
	lost := func(t *testing.T) string {
		// The second stream is the first transfer's.
		return fmt.Sprintf("fail=cuStreamCreateWithPriority:%d:2:%s", driver.IllegalAddress,
			filepath.Join(t.TempDir(), "failed"))
	}
	none := func(*testing.T) string { return "" }
	for _, c := range []struct {
		name          string
		from, to      int // ranks; 0 is a CPU
		memory        bool
		fromIs, toIs  func(t *testing.T) string
		wrong         string // why the first prompt's blocks do not come
		always, short bool
	}{
		{"one rank", 1, 1, true, none, none, "", false, true},
		{"over TCP", 1, 1, false, none, none, "", false, false},
		{"two ranks to one", 2, 1, true, none, none, "", false, true},
		{"one rank to two", 1, 2, true, none, none, "", false, false},
		{"the producer's device is lost", 1, 1, true, lost, none,
			"the other engine says: copy KV blocks: cuStreamCreateWithPriority: " +
				"CUDA_ERROR_OF_A_TEST (700)", false, true},
		{"the consumer's device is lost", 1, 1, true, none, lost,
			"copy KV blocks: cuStreamCreateWithPriority: CUDA_ERROR_OF_A_TEST (700)", false, true},
		{"from a CPU", 0, 1, true, none, none, "instruction set (--cpu-isa), or GPU,", true, true},
	} {
		if testing.Short() && !c.short {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var fetched []status.KVFetched
			consumer := onWatchedCUDA(t, c.toIs(t), func(e status.Event) {
				if f, ok := e.(status.KVFetched); ok {
					mu.Lock()
					defer mu.Unlock()
					fetched = append(fetched, f)
				}
			}, sharing(t, c.to, c.memory))
			var producer *engine.Engine
			if c.from == 0 {
				producer = openEngine(t, sharing(t, 1, c.memory))
			} else {
				producer = onCUDA(t, c.fromIs(t), sharing(t, c.from, c.memory))
			}
			for i, r := range splitRequests(consumer) {
				r.Ticket = handedOver(t, producer, i)
				got := receiveAll(t, consumer, []*engine.Request{r}, func(int) {})
				same(t, fmt.Sprintf("request %d", i), got, want[i:i+1])
			}
			mu.Lock()
			defer mu.Unlock()
			for i, f := range fetched {
				moved := f.ByLink
				if c.memory {
					moved = f.ByMemory
				}
				if refused := c.wrong != "" && (c.always || i == 0); refused {
					if f.Err == nil || !strings.Contains(f.Err.Error(), c.wrong) {
						t.Errorf("fetch %d: %v, want %q", i, f.Err, c.wrong)
					}
				} else if f.Err != nil || moved == 0 {
					t.Errorf("fetch %d: %d bytes came, %v", i, moved, f.Err)
				}
			}
			if len(fetched) != len(want) {
				t.Errorf("%d fetches of %d", len(fetched), len(want))
			}
		})
	}
}
