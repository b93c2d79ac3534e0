package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// withExperts opens an engine of a mixture whose ranks hold whole experts.
func withExperts(t *testing.T, backend string, tp, dp, redundant int,
	change func(c *config.Config)) *engine.Engine {
	t.Helper()
	e, _ := openMeasured(t, func(c *config.Config) {
		c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/qwen3moe-tiny", true
		p := &c.Parallel
		p.Backend, p.CPUThreads, p.TensorParallelSize, p.DataParallelSize = backend, 1, tp, dp
		p.ExpertParallel, p.EPLB.Redundant = true, redundant
		c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 64, 8
		if change != nil {
			change(c)
		}
	})
	return e
}

// seeded is one of several requests.
func seeded(e *engine.Engine, n uint64) *engine.Request {
	r := rand.New(rand.NewPCG(n, 2))
	tokens := make([]int32, 20+r.IntN(60))
	for i := range tokens {
		tokens[i] = r.Int32N(int32(e.Info().VocabSize))
	}
	q := engine.NewRequest(tokens, sample.Params{Temperature: 0.9, Seed: n, TopP: 1,
		RepetitionPenalty: 1, EOS: -1, Logprobs: 1, PromptLogprobs: sample.NoLogprobs,
		MaxTokens: 12})
	q.Raw = true
	return q
}

// asking asks an engine the same questions again and again until it is ended; each answer must be
// the one that another engine gives.
type asking struct {
	t    *testing.T
	stop atomic.Bool
	done sync.WaitGroup
	n    atomic.Int64
}

func keepAsking(t *testing.T, e *engine.Engine, want []answer) *asking {
	a := &asking{t: t}
	for i := range want {
		a.done.Go(func() {
			for !a.stop.Load() && !t.Failed() {
				got := mustAsk(t, e, seeded(e, uint64(i)))
				if !slices.Equal(got.tokens, want[i].tokens) || lastOf(&got) != lastOf(&want[i]) {
					t.Errorf("question %d: %v, not %v", i, got, want[i])
				}
				a.n.Add(1)
			}
		})
	}
	return a
}

// lastOf is the last token with its log-probability.
func lastOf(a *answer) step.TokenLogprob {
	l := a.last.Logprobs
	return l[len(l)-1].Sampled
}

func (a *asking) more(n int64) {
	for until, begun := a.n.Load()+n, time.Now(); a.n.Load() < until && !a.t.Failed(); {
		if time.Sleep(time.Millisecond); time.Since(begun) > time.Minute {
			a.t.Fatal("no answers")
		}
	}
}

func (a *asking) end() {
	a.stop.Store(true)
	a.done.Wait()
}

// TestMoveExperts moves experts at random while requests run, and kills ranks between: no answer is
// lost, and none is another.
func TestMoveExperts(t *testing.T) {
	one, _ := openMeasured(t, func(c *config.Config) {
		c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/qwen3moe-tiny", true
		c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 64, 8
	})
	var want []answer
	for i := range uint64(4) {
		want = append(want, mustAsk(t, one, seeded(one, i)))
	}
	for _, l := range []struct {
		backend           string
		tp, dp, redundant int
	}{{"uni", 2, 1, 0}, {"uni", 1, 3, 5}, {"mp", 2, 1, 3}, {"mp", 2, 2, 2}} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			e := withExperts(t, l.backend, l.tp, l.dp, l.redundant, nil)
			a := keepAsking(t, e, want)
			defer a.end()
			r := rand.New(rand.NewPCG(3, 4))
			experts, shares := e.Model().Experts(), l.tp*l.dp
			ranks, err := balance.Spread(experts, l.redundant, make([]int, shares))
			if err != nil {
				t.Fatal(err)
			}
			for turn := range 12 {
				layer := r.IntN(4)
				err := e.MoveExperts(t.Context(), layer, shuffled(r, experts, ranks))
				if lost := (*executor.Failure)(nil); err != nil && !errors.As(err, &lost) {
					t.Fatal(err)
				}
				a.more(2)
				if l.backend == "mp" && turn%4 == 3 {
					pid := e.Report()[r.IntN(shares)].PID
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
					a.more(4)
				}
			}
			// What cannot be has changed nothing.
			bad := balance.Placement(slices.Repeat([][]int{{0}}, shares))
			if err := e.MoveExperts(t.Context(), 1, bad); err == nil ||
				!strings.Contains(err.Error(), "experts of layer 1") {
				t.Errorf("%v", err)
			}
			a.more(4)
		})
	}
}

// shuffled is a placement at random.
func shuffled(r *rand.Rand, experts int, ranks balance.Ranks) balance.Placement {
	for {
		p := make(balance.Placement, len(ranks.Slots))
		seen := map[int]bool{}
		for i, n := range ranks.Slots {
			p[i] = r.Perm(experts)[:n]
			for _, e := range p[i] {
				seen[e] = true
			}
		}
		if len(seen) == experts {
			return p
		}
	}
}

// TestEPLB has experts moved by their loads while requests run.
func TestEPLB(t *testing.T) {
	e := withExperts(t, "uni", 2, 1, 2, func(c *config.Config) {
		c.Parallel.EPLB.Enabled, c.Parallel.EPLB.StepInterval = true, 5
	})
	var want []answer
	for i := range uint64(3) {
		want = append(want, mustAsk(t, e, seeded(e, i)))
	}
	a := keepAsking(t, e, want)
	defer a.end()
	for begun := time.Now(); ; {
		a.more(1)
		loads, err := e.ExpertLoad(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(loads, func(l engine.ExpertLoad) bool { return l.At != nil }) {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("nothing is moved")
		}
	}
	a.more(6)
}

// TestCUDAWholeExperts moves experts at random between CUDA devices while requests run, also of
// several places, and kills a rank: the answers have the bits of one rank's.
func TestCUDAWholeExperts(t *testing.T) {
	const redundant = 2
	layers := 4
	if testing.Short() {
		layers = 1
	}
	type divided struct {
		tp, pp, pcp, dp int
		options, dtype  string
	}
	folder := shallow(t, "qwen3moe-tiny")
	start := func(l divided) *engine.Engine {
		return onCUDA(t, l.options, func(c *config.Config) {
			c.Model.Path, c.Model.SkipTokenizerInit = folder, true
			c.Model.DType = l.dtype
			p := &c.Parallel
			p.TensorParallelSize, p.PipelineParallelSize = l.tp, l.pp
			p.PrefillContextParallelSize, p.DataParallelSize = l.pcp, l.dp
			if p.ExpertParallel = l.tp*l.dp > 1; p.ExpertParallel {
				p.EPLB.Redundant = redundant
			}
		})
	}
	want := map[string][]answer{}
	for _, l := range []divided{{2, 1, 1, 1, "", "auto"}, {1, 1, 1, 2, "", "auto"},
		{4, 1, 1, 1, "", "auto"}, {2, 2, 1, 1, "", "auto"}, {2, 1, 1, 2, "", "auto"},
		{1, 1, 1, 2, "apart,nccl", "auto"}, {2, 1, 1, 2, "apart,nccl", "auto"},
		{1, 1, 1, 2, "apart", "auto"}, {1, 2, 1, 2, "", "auto"}, {1, 1, 2, 2, "", "auto"},
		{2, 1, 1, 1, "", "float32"}, {1, 1, 1, 2, "", "float32"}} {
		if testing.Short() && (l.tp*l.pp*l.pcp*l.dp > 2 || l.options != "" || l.dtype != "auto") {
			continue
		}
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			if want[l.dtype] == nil {
				one := start(divided{1, 1, 1, 1, "", l.dtype})
				for i := range uint64(2) {
					want[l.dtype] = append(want[l.dtype], mustAsk(t, one, seeded(one, i)))
				}
			}
			e := start(l)
			a := keepAsking(t, e, want[l.dtype])
			defer a.end()
			a.more(2)
			r := rand.New(rand.NewPCG(3, 4))
			experts := e.Model().Experts()
			ranks, err := balance.Spread(experts, redundant, make([]int, l.tp*l.dp))
			if err != nil {
				t.Fatal(err)
			}
			for layer := range layers {
				err := e.MoveExperts(t.Context(), layer, shuffled(r, experts, ranks))
				if err != nil {
					t.Fatal(err)
				}
				a.more(1)
			}
			a.more(2)
			if l.dp > 1 {
				report := e.Report()
				pid := report[r.IntN(len(report))].PID
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				a.more(3)
			}
			for _, n := range []int{3, 2} {
				if l.tp*l.pp*l.pcp > 1 || l.dp == 1 || testing.Short() {
					break
				}
				if err := e.Relayout(t.Context(), open.Sizes{Places: n}); err != nil {
					t.Fatal(err)
				}
				a.more(3)
			}
		})
	}
}
