package engine_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// shrinking is an engine on a fake cluster whose ranks are processes, under load.
type shrinking struct {
	*engine.Engine
	*fake.Cluster
	t       *testing.T
	metrics *metrics.Metrics
	nodes   int
	// What happened: shrunk and grown, and layouts that did not start.
	happened chan status.Event

	want     []received
	clients  sync.WaitGroup
	ended    atomic.Bool
	answered atomic.Int64
}

// add joins a node with a device, and returns its id.
func (x *shrinking) add() string {
	x.nodes++
	id := fmt.Sprintf("node%d", x.nodes)
	x.AddNode(ray.Node{ID: id, IP: fmt.Sprintf("127.0.0.%d", x.nodes),
		Resources: map[string]float64{"CPU": 1, "GPU": 1}})
	return id
}

// startShrinking opens the engine on as many nodes as it has ranks, and asks it for the answers
// that one rank in this process gives, again and again.
func startShrinking(t *testing.T, nodes int, change func(c *config.Config)) *shrinking {
	t.Helper()
	settings := func() config.Config {
		c := config.Default()
		c.Cache.MemoryBytes = 64 << 20
		c.Model.Path = "../../testdata/models/qwen3moe-tiny"
		c.Model.SkipTokenizerInit = true
		return c
	}
	x := &shrinking{t: t, Cluster: fake.New(), happened: make(chan status.Event, 100)}
	for range nodes {
		x.add()
	}
	x.Worker, x.Dir = fake.Process, t.TempDir()
	c := settings()
	alone, _, err := engine.Open(t.Context(), engine.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		x.want = append(x.want, x.ask(alone, i))
	}
	if err := alone.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	c = settings()
	c.Recovery.OnFailure, c.Parallel.Backend = "shrink", "ray"
	c.Parallel.Ray.Address, c.Parallel.Ray.NodeIP = x.Address(), "127.0.0.1"
	c.Parallel.Ray.DeviceKey = "GPU"
	change(&c)
	t.Cleanup(x.Wait)
	x.Engine, x.metrics, err = engine.Open(t.Context(), engine.Options{Config: c,
		SearchEvery: time.Second, StartBridge: x.Start,
		Events: func(e status.Event) {
			switch e.(type) {
			case status.Shrunk, status.Grown, status.RelayoutFailed:
				x.happened <- e
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := x.Stop(ctx); err != nil {
			t.Error(err)
		}
		x.clients.Wait()
	})
	for i, want := range x.want {
		x.clients.Go(func() {
			for !x.ended.Load() {
				if got := x.ask(x.Engine, i); !reflect.DeepEqual(got, want) {
					t.Errorf("client %d: %v, tokens %v, want %v", i, got.err, got.tokens,
						want.tokens)
					return
				}
				x.answered.Add(1)
			}
		})
	}
	x.more()
	return x
}

// end ends the load: answers that were asked for come, unless the test has failed.
func (x *shrinking) end() {
	x.ended.Store(true)
	if !x.t.Failed() {
		x.clients.Wait()
	}
}

// ask is what a client asks: tokens are drawn, so that a lost state of a request shows.
func (x *shrinking) ask(e *engine.Engine, client int) received {
	p := params(e, 40)
	p.Temperature, p.Seed, p.Logprobs, p.IgnoreEOS = 0.9, uint64(client), 1, true
	p.FrequencyPenalty = 0.4
	var prompt []int32
	for i := range 40 {
		prompt = append(prompt, int32(5+(7*i+11*client)%1000))
	}
	s, err := e.Submit(context.Background(), engine.NewRequest(prompt, p))
	if err != nil {
		return received{err: err}
	}
	return collect(x.t, s, func(int) {})
}

// more waits for an answer that was asked for since, to every client.
func (x *shrinking) more() {
	x.t.Helper()
	from, begun := x.answered.Load(), time.Now()
	for x.answered.Load() < from+int64(2*len(x.want)) {
		if x.t.Failed() || time.Since(begun) > time.Minute {
			x.t.Fatal("no answers")
		}
		time.Sleep(time.Millisecond)
	}
}

// next waits for the next of what happens, which must be an event with these parts, and returns
// when.
func (x *shrinking) next(parts ...string) time.Time {
	x.t.Helper()
	select {
	case e := <-x.happened:
		_, message, attrs := e.Log()
		for _, part := range parts {
			if !strings.Contains(message+" "+status.Details(attrs), part) {
				x.t.Fatalf("%+v, not %q", e, part)
			}
		}
	case <-time.After(time.Minute):
		x.t.Fatalf("waited in vain for %q", parts)
	}
	return time.Now()
}

// serves checks that clients get answers of so many ranks, of as many as are wanted.
func (x *shrinking) serves(l layout.Layout, wanted int) {
	x.t.Helper()
	x.more()
	if err := x.Healthy(x.t.Context()); err != nil {
		x.t.Error(err)
	}
	if got := x.Info().Layout; got != l || len(x.Report()) != l.World() {
		x.t.Errorf("%v, %d ranks, want %v", got, len(x.Report()), l)
	}
	for name, n := range map[string]int{"wanted": wanted, "serving": l.World()} {
		all := 0.0
		for _, ranks := range byPlace(x.t, x.metrics, "ranks_"+name) {
			all += ranks
		}
		if all != float64(n) {
			x.t.Errorf("%v ranks %s, not %d", all, name, n)
		}
	}
}

// places are a layout with whole experts.
func places(n int) layout.Layout { return layout.Layout{TP: 1, PP: 1, PCP: 1, DP: n, EP: true} }

// TestShrink takes two of three nodes, among which requests are divided, and gives back one, which
// is too little, and then the other. It then fails to grow at first. No request is lost, and none
// has other tokens.
func TestShrink(t *testing.T) {
	x := startShrinking(t, 3, func(c *config.Config) {
		p := &c.Parallel
		p.DataParallelSize, p.ExpertParallel = 3, true
		p.EPLB.Redundant = 4 // of which one rank can hold none
	})
	defer x.end()
	x.serves(places(3), 3)
	x.KillNode("node2")
	x.KillNode("node3")
	x.next("serving with fewer ranks", `layout="TP 1 × EP" ranks=1 wanted=3`,
		`missing="2 bundles of {GPU: 1}"`)
	x.serves(places(1), 3)
	x.add()
	fifth := x.add()
	x.next("serving with all ranks again", `layout="DP 3 × EP" ranks=3`)
	x.serves(places(3), 3)
	if testing.Short() {
		return
	}
	x.KillNode(fifth)
	x.next("serving with fewer ranks", `layout="DP 2 × EP" ranks=2 wanted=3`)
	x.serves(places(2), 3)
	// A process of the smaller group is lost, which is started again.
	x.LoseActor(1, frame.Fault{Class: "ActorDiedError", Message: "killed"})
	x.more()
	x.serves(places(2), 3)
	x.RefuseActor(2, frame.Fault{Class: "ActorDiedError", Message: "no room for it"})
	x.add()
	failed := x.next("the other layout did not start", `layout="DP 3 × EP"`, "no room for it")
	x.serves(places(2), 3)
	again := x.next("the other layout did not start", `layout="DP 3 × EP"`, "no room for it")
	if after := again.Sub(failed); after < 2*time.Second {
		t.Errorf("tried again after %v", after)
	}
	// What is asked for meanwhile is what is wanted from then on.
	if err := x.Relayout(t.Context(), open.Sizes{Places: 2}); err != nil {
		t.Error(err)
	}
	x.serves(places(2), 2)
}

// TestShrinkRefused takes a node from an engine that cannot have another layout: it says so, and
// waits for another node.
func TestShrinkRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for nodes")
	}
	x := startShrinking(t, 2, func(c *config.Config) {
		c.Parallel.TensorParallelSize, c.Parallel.Ray.BundleIndices = 2, "0,1"
	})
	defer x.end()
	x.KillNode("node2")
	x.next("the other layout did not start", `layout="tensor parallel size 1"`,
		"--bundle-indices 0,1")
	x.add()
	x.serves(layout.Layout{TP: 2, PP: 1, PCP: 1, DP: 1}, 2)
	select {
	case e := <-x.happened:
		t.Error(e)
	default:
	}
}
