package engine_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// sharing has an engine exchange KV blocks, and have no other use for those of before. It waits for
// them, and for ranks, for so many seconds.
func sharing(t *testing.T, folder string, tp int, tcp bool,
	seconds int) func(*config.Config) {
	t.Helper()
	return func(c *config.Config) {
		c.Cache.PrefixCaching = false
		c.Model.Path = folder
		c.Parallel.TensorParallelSize = tp
		if err := c.Transfer.Set(fmt.Sprintf(`{"kv_connector":"EagleRayConnector",
			"kv_role":"kv_both","kv_connector_extra_config":{"shared_memory":%v,
			"fetch_timeout_seconds":%d}}`, !tcp, seconds)); err != nil {
			t.Fatal(err)
		}
		c.Queue.StepTimeout = time.Duration(seconds) * time.Second
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
	return fmt.Sprintf("What is computed by one server, number %d, and gone on from by another, "+
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
// either side's device is lost in a transfer, or hangs, or the producer computes on a CPU: the
// consumer says why no blocks came, and computes them.
func TestCUDASplit(t *testing.T) {
	folder := shallow(t, builtin.Name)
	alone := onCUDA(t, "", func(c *config.Config) { c.Model.Path = folder })
	want := receiveAll(t, alone, splitRequests(alone), func(int) {})
	const lost = "cuStreamCreateWithPriority: CUDA_ERROR_OF_A_TEST (700)"
	for _, c := range []struct {
		name string
		// from and to are the ranks of the producer, 0 for a CPU, and of the consumer. Their
		// drivers return a code for the first transfer's stream, or hang; "" is well.
		from, to           int
		fromFails, toFails string
		tcp                bool
		// wrong is why the first prompt's blocks do not come, or those of all.
		wrong string
		all   bool
		long  bool // not with -short
	}{
		{name: "one rank", from: 1, to: 1, long: true},
		{name: "over TCP", from: 1, to: 1, tcp: true, long: true},
		{name: "two ranks to one", from: 2, to: 1},
		{name: "one rank to two", from: 1, to: 2, long: true},
		{name: "the producer's device is lost", from: 1, to: 1, fromFails: "700",
			wrong: "the other engine says: copy beside the device's steps: " + lost, long: true},
		{name: "the consumer's device is lost", from: 1, to: 1, toFails: "700",
			wrong: "copy beside the device's steps: " + lost},
		{name: "the producer's device hangs", from: 1, to: 1, fromFails: "hang",
			wrong: "read from rank 0: ", long: true},
		{name: "the consumer's device hangs", from: 1, to: 1, toFails: "hang",
			wrong: "no answer to call kv_fetch after 6s in which no rank has moved", long: true},
		{name: "from a CPU", from: 0, to: 1, wrong: "instruction set (--cpu-isa), or GPU,",
			all: true},
	} {
		if testing.Short() && c.long {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			fails := func(code string) string {
				if code == "" {
					return ""
				}
				// The second stream of a driver is the first transfer's.
				return fmt.Sprintf("fail=cuStreamCreateWithPriority:%s:2:%s", code,
					filepath.Join(t.TempDir(), "failed"))
			}
			seconds := 60
			if c.fromFails == "hang" || c.toFails == "hang" {
				seconds = 3
			}
			var mu sync.Mutex
			var fetched []status.KVFetched
			consumer := onWatchedCUDA(t, fails(c.toFails), func(e status.Event) {
				if f, ok := e.(status.KVFetched); ok {
					mu.Lock()
					defer mu.Unlock()
					fetched = append(fetched, f)
				}
			}, sharing(t, folder, c.to, c.tcp, seconds))
			var producer *engine.Engine
			if c.from == 0 {
				producer = openEngine(t, sharing(t, folder, 1, c.tcp, seconds))
			} else {
				producer = onCUDA(t, fails(c.fromFails),
					sharing(t, folder, c.from, c.tcp, seconds))
			}
			for i, r := range splitRequests(consumer) {
				r.Ticket = handedOver(t, producer, i)
				got := receiveAll(t, consumer, []*engine.Request{r}, func(int) {})
				same(t, fmt.Sprintf("request %d", i), got, want[i:i+1])
			}
			mu.Lock()
			defer mu.Unlock()
			for i, f := range fetched {
				moved := f.ByMemory
				if c.tcp {
					moved = f.ByLink
				}
				if c.wrong != "" && (c.all || i == 0) {
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
