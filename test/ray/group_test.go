package ray_test

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// ranks are a started group with what was heard of its start.
type ranks struct {
	*executor.Executor
	log      *tail
	failures chan *executor.Failure
}

// wish says how a test wants its ranks started.
type wish struct {
	// ray changes how they are placed, exec how they are run.
	ray  func(*rayactor.Options)
	exec func(*executor.Options)
	// ctx bounds the start; nil is patience.
	ctx context.Context
	// silent leaves the callback of a failure to the test.
	silent bool
}

// onPhase is a listener that also calls f with the name of each phase that begins: "ray connect".
func onPhase(logging status.Listener, f func(name string)) status.Listener {
	return status.Tee(logging, func(e status.Event) {
		if p, ok := e.(status.Progress); ok && p.Rank < 0 {
			f(p.Phase)
		}
	})
}

// try starts ranks on logical GPUs of a cluster. They need not end with the test.
func try(t testing.TB, p ground, tp int, w wish) (*ranks, error) {
	t.Helper()
	g := &ranks{log: &tail{}, failures: make(chan *executor.Failure, 10)}
	if w.ctx == nil {
		w.ctx = within(t)
	}
	log := slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o := rayactor.Options{Layout: layout.Layout{TP: tp}, Log: log, Events: status.LogTo(log),
		Ray: config.Ray{Namespace: namespace, SkipBundle: -1, DeviceKey: "GPU", PerWorker: 1}}
	p.options(&o)
	if w.ray != nil {
		w.ray(&o)
	}
	l, err := rayactor.Connect(w.ctx, o)
	if err != nil {
		return g, err
	}
	e := executor.Options{Launcher: l, Address: l.Address(), Log: log, Events: status.LogTo(log),
		Init: queue.Init{Layout: layout.Layout{TP: tp}, LoadFormat: "auto", DType: "float32",
			Blocks:    64,
			BlockSize: 16, MaxSeqs: 4,
			MaxModelLen: 256}}
	if w.exec != nil {
		w.exec(&e)
	}
	if g.Executor, err = executor.Start(w.ctx, e); err != nil {
		return g, err
	}
	if !w.silent {
		g.OnFailure(func(f *executor.Failure) { g.failures <- f })
	}
	return g, nil
}

func (s *site) try(t testing.TB, tp int, w wish) (*ranks, error) {
	t.Helper()
	return try(t, s, tp, w)
}

// start starts ranks that end with the test.
func start(t testing.TB, p ground, tp int, w wish) *ranks {
	t.Helper()
	g, err := try(t, p, tp, w)
	if err != nil {
		t.Fatalf("%s\n%v", g.log, err)
	}
	t.Cleanup(func() { g.end(t) })
	return g
}

func (s *site) start(t testing.TB, tp int, w wish) *ranks {
	t.Helper()
	return start(t, s, tp, w)
}

// end shuts the group down, three times.
func (g *ranks) end(t testing.TB) {
	t.Helper()
	for range 3 {
		if err := g.Shutdown(context.Background()); err != nil {
			t.Errorf("%s\nshutdown: %v", g.log, err)
		}
	}
}

// refused starts ranks in vain, and returns the error when everything is gone.
func (s *site) refused(t testing.TB, tp int, w wish) string {
	t.Helper()
	begun := time.Now()
	return refusedAfter(t, s, tp, &begun, w)
}

// refusedAfter is refused, and logs how long after a moment that is known only then.
func refusedAfter(t testing.TB, p ground, tp int, at *time.Time, w wish) string {
	t.Helper()
	g, err := try(t, p, tp, w)
	if err == nil {
		g.end(t)
		t.Fatalf("%s\nit started", g.log)
	}
	t.Logf("known after %v: %v", time.Since(*at).Round(time.Millisecond), err)
	p.clean(t)
	return err.Error()
}

// prompt is a plan that computes a prompt in a fresh slot and samples its first token.
func prompt(id uint64, tokens ...int32) *step.Plan {
	return &step.Plan{ID: id, Free: []uint32{0},
		New: []step.NewRequest{{PromptLen: uint32(len(tokens)), Tokens: tokens,
			Params: sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
				PromptLogprobs: sample.NoLogprobs, MaxTokens: 10, EOS: -1}}},
		Rows:   []step.Row{{Count: uint32(len(tokens)), Blocks: 1, Sample: true}},
		Blocks: []uint32{3}}
}

// step runs one step of the model.
func (g *ranks) step(id uint64) (token int32, err error) {
	f, err := g.Execute(prompt(id, 5, 6, 7))
	if err != nil {
		return 0, err
	}
	r, err := f.Wait()
	if err != nil {
		return 0, err
	}
	return r.Token[0], nil
}

// works wants a step, a sign of life of every rank, and calls that all ranks answer in order.
func (g *ranks) works(t testing.TB) (token int32) {
	t.Helper()
	token, err := g.step(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := executor.Call(within(t), g.Executor, calls.CheckHealth, rpc.None{},
		executor.RPCOptions{}); err != nil {
		t.Errorf("check_health: %v", err)
	}
	for _, text := range []string{"one", "two"} {
		all, err := g.CollectiveRPC(within(t), calls.Echo.Name, []byte(text),
			executor.RPCOptions{Timeout: patience})
		if err != nil || len(all) != len(g.Ranks()) ||
			slices.ContainsFunc(all, func(b []byte) bool { return string(b) != text }) {
			t.Errorf("echo of %s: %q, %v", text, all, err)
		}
	}
	infos, err := executor.Call(within(t), g.Executor, calls.RankInfo, rpc.None{},
		executor.RPCOptions{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	for rank, info := range infos {
		if info != g.Ranks()[rank] || info.Rank != rank {
			t.Errorf("rank %d says %+v", rank, info)
		}
	}
	if g.Err() != nil {
		t.Errorf("failed: %v", g.Err())
	}
	return token
}

// pids are the workers' processes, in rank order.
func (g *ranks) pids() (pids []int) {
	for _, r := range g.Ranks() {
		pids = append(pids, r.PID)
	}
	return pids
}

// nodes are the addresses of the ranks' nodes, in rank order.
func (g *ranks) nodes() (ips []string) {
	for _, r := range g.Report() {
		ips = append(ips, r.Node)
	}
	return ips
}

// bundleOrder is the bundle of each rank, as logged.
func (g *ranks) bundleOrder() string { return attribute(g.log.line(`msg="ray order"`), "bundles") }

// groupID is the id of the placement group, as logged.
func (g *ranks) groupID() string { return attribute(g.log.line(`msg="ray place"`), "group") }

// instance is the part of the actors' names that is the engine's own.
func (g *ranks) instance() string {
	name := attribute(g.log.line(`msg="ray spawn"`), "first")
	instance, _, _ := strings.Cut(strings.TrimPrefix(name, "eagleray_"), "_")
	return instance
}

// localRanks are each rank's number on its node, as logged.
func (g *ranks) localRanks() (local []string) {
	for place := range strings.FieldsSeq(attribute(g.log.line(`msg="ray identify"`), "ranks")) {
		_, number, _ := strings.Cut(place, "/")
		local = append(local, number)
	}
	return local
}

// attribute is the value of a name in a line of slog's text.
func attribute(line, name string) string {
	m := regexp.MustCompile(`(?:^| )` + name + `=("[^"]*"|\S+)`).FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	return strings.Trim(m[1], `"`)
}

// sameToken is what any number of ranks samples in works.
func sameToken(t testing.TB, want *int32, got int32) {
	t.Helper()
	if *want < 0 {
		*want = got
	}
	if got != *want {
		t.Errorf("token %d, others sampled %d", got, *want)
	}
}
