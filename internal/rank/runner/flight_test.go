package runner_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
)

// TestPlansInFlight runs a model on one, two and four ranks with one, two and three plans in
// flight. All give the same tokens and the same bits of log-probabilities, and ranks exchange
// tokens only for plans that ask for them.
func TestPlansInFlight(t *testing.T) {
	for _, name := range []string{"llama-tiny", "opt-tiny"} {
		t.Run(name, func(t *testing.T) {
			var want map[uint64][]string
			for _, ranks := range []int{1, 2, 4} {
				for depth := 1; depth <= 3; depth++ {
					if testing.Short() && ranks == 4 && depth != 2 {
						continue
					}
					g := newGroup(t, shipped(name), layout.Layout{TP: ranks}, "", short())
					got, ahead := g.generate(t, depth)
					if want == nil {
						want = got
					}
					for key := range want {
						if !slices.Equal(got[key], want[key]) {
							t.Errorf("%d ranks, %d plans in flight: request %d gives\n%v, not\n%v",
								ranks, depth, key, got[key], want[key])
						}
					}
					if (ahead > 0) != (depth > 1) {
						t.Errorf("%d plans in flight: %d ask for tokens of the sampler", depth,
							ahead)
					}
					for r, b := range g.sharing {
						if ranks > 1 && b.n != ahead {
							t.Errorf("rank %d of %d broadcasts %d times for %d plans", r, ranks,
								b.n, ahead)
						}
					}
				}
			}
		})
	}
}

// counter counts the broadcasts of a rank, what it gathers, and the numbers that it sends to other
// ranks' experts.
type counter struct {
	*shm.Group
	n, gathers, sent int
}

func (c *counter) AllToAllV(dst, x []float32, counts, got []int,
	meanwhile func()) ([]float32, error) {
	c.sent += len(x) - counts[c.Rank()]
	return c.Group.AllToAllV(dst, x, counts, got, meanwhile)
}

func (c *counter) AllGather(dst, x []float32) error {
	c.gathers++
	return c.Group.AllGather(dst, x)
}

func (c *counter) Broadcast(b []byte, root int) error {
	c.n++
	return c.Group.Broadcast(b, root)
}

// group is the ranks of one model, each on a goroutine while generate lasts.
type group struct {
	config   schedule.Config
	requests []*schedule.Request
	layout   layout.Layout
	options  []runner.Options
	sharing  []*counter   // of the ranks that share layers
	prefill  []*counter   // of those that divide long prompts
	places   []*counter   // of those that divide requests
	parts    []*shm.Group // of those within a dimension of the layout
	pipes    pipes
}

// workload is what a group is made for: the limits of its plans, and requests for a vocabulary.
type workload struct {
	config   schedule.Config
	requests func(vocab int) []*schedule.Request
	// quantization is how weights of a model that runs in bfloat16 are quantised; "" is a model
	// that runs in float32.
	quantization string
	// apart says that each rank with experts is on a node of its own.
	apart bool
}

// short requests are many for their cache, of prompts that no ranks divide.
func short() workload {
	return workload{requests: func(vocab int) []*schedule.Request {
		return requests(vocab, 10, 5,
			29)
	},
		config: schedule.Config{MaxSeqs: 4, MaxTokens: 24, MaxModelLen: 64, BlockSize: 16,
			Blocks:        9,
			PrefixCaching: true, ChunkedPrefill: true}}
}

func shipped(name string) string { return filepath.Join("../../../testdata/models", name) }

// subgroup joins a rank to those that share a dimension of the layout with it. made holds their
// memory by the first of them.
func (g *group) subgroup(t *testing.T, made map[int]*os.File, ranks []int, rank int) *shm.Group {
	t.Helper()
	memory := made[ranks[0]]
	if memory == nil {
		var err error
		if memory, err = shm.Create(len(ranks), 1<<20); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { memory.Close() })
		made[ranks[0]] = memory
	}
	comm, err := shm.Join(memory, slices.Index(ranks, rank), len(ranks), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { comm.Close() })
	g.parts = append(g.parts, comm)
	return comm
}

// states is of how many requests a cache keeps the state, snapshots included.
const states = 16

// newGroup loads the model of a folder on an instruction set ("" is the best).
func newGroup(t *testing.T, dir string, l layout.Layout, isa string, w workload) *group {
	t.Helper()
	l = l.Sizes()
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := folder.ReadFile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	dtype := compute.Float32
	if w.quantization != "" {
		dtype = compute.BFloat16
		if err := cfg.Quantise(w.quantization); err != nil {
			t.Fatal(err)
		}
	}
	weights, err := checkpoint.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	g := &group{requests: w.requests(cfg.VocabSize), config: w.config, layout: l,
		pipes: pipes{made: map[[2]int]chan []byte{}, broken: make(chan struct{})}}
	g.config.Stages = l.PP
	stages := layout.Balance(slices.Repeat([]int64{1}, cfg.Layers), l.PP)
	var tp, rows, places = map[int]*os.File{}, map[int]*os.File{}, map[int]*os.File{}
	for r := range l.World() {
		var stage model.Stage
		stage.From, stage.To = stages.Range(l.Place(r).PP, cfg.Layers)
		place := layers.Group{Rank: l.Place(r).TP, Size: l.TP}
		opt := runner.Options{
			BlockSize: g.config.BlockSize, Blocks: g.config.Blocks, Vocab: cfg.VocabSize,
			States:  states,
			MaxSeqs: g.config.MaxSeqs * l.DP, MaxModelLen: g.config.MaxModelLen,
			Layout: l, Rank: r, From: stage.From, To: stage.To, Status: new(status.Rank),
		}
		if l.TP > 1 {
			c := &counter{Group: g.subgroup(t, tp, l.TPGroup(r), r)}
			g.sharing = append(g.sharing, c)
			place.Comm, opt.TP = layers.OnHost{Group: c}, c
		}
		if l.PCP > 1 {
			c := &counter{Group: g.subgroup(t, rows, l.PCPGroup(r), r)}
			g.prefill = append(g.prefill, c)
			place.PCP = &layers.RowGroup{Rank: l.Place(r).PCP, Size: l.PCP,
				Comm: layers.OnHost{Group: c}}
			opt.PCP = c
		}
		if l.DP > 1 {
			c := &counter{Group: g.subgroup(t, places, l.DPGroup(r), r)}
			g.places = append(g.places, c)
			place.DP = &layers.RowGroup{Rank: l.Place(r).DP, Size: l.DP,
				Comm: layers.OnHost{Group: c}}
			opt.DP = c
		}
		if l.EP {
			place.Experts = &layers.ExpertGroup{}
			place.Experts.Share, place.Experts.Shares = l.Experts(r)
			for share := range place.Experts.Shares {
				if w.apart {
					place.Experts.Nodes = append(place.Experts.Nodes, share)
				}
			}
		}
		if l.PP > 1 {
			opt.PP = &pipe{g: &g.pipes, ranks: l.PPGroup(r), own: r}
		}
		d, err := cpu.New(cpu.Options{Threads: 1, DType: dtype, ISA: isa})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		m, err := model.Load(cfg, model.FromCheckpoint(weights), d, model.Options{Group: place,
			Stage: stage})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		shape := compute.CacheShape{Layers: model.CacheLayers(cfg, stage.From, stage.To, l.TP),
			Blocks: g.config.Blocks, BlockSize: g.config.BlockSize, DType: dtype,
			States: states}
		c, err := d.NewCache(shape)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Free() })
		opt.Model, opt.Cache, opt.Pool = m, c, d.Pool()
		g.options = append(g.options, opt)
	}
	return g
}

// requests are n greedy and sampled ones, with penalties, bad words, log-probabilities and stop
// tokens, of prompts of least to least + more tokens.
func requests(vocab int, n uint64, least, more int) []*schedule.Request {
	var all []*schedule.Request
	for key := range n {
		p := sample.Params{
			TopP: 1, RepetitionPenalty: 1, MaxTokens: int32(3 + 5*key%37), EOS: -1, Seed: key,
			Logprobs: 2, PromptLogprobs: sample.NoLogprobs,
		}
		switch key % 3 {
		case 1:
			p.Temperature, p.TopP, p.FrequencyPenalty = 0.9, 0.95, 0.4
		case 2:
			p.Temperature, p.RepetitionPenalty, p.MinTokens = 1.2, 1.3, 4
			p.BadWords = [][]int32{{1, 2}, {3}}
			p.PromptLogprobs = 1
			for stop := range int32(vocab / 16) {
				p.StopTokens = append(p.StopTokens, 16*stop)
			}
		}
		prompt := make([]int32, least+7*int(key)%more)
		for i := range prompt {
			prompt[i] = int32((i*i + 31*int(key%4)) % vocab)
		}
		all = append(all, &schedule.Request{Key: key, Prompt: prompt, Params: p})
	}
	return all
}

// generate completes the requests with up to depth plans in flight. It returns what became of each,
// and the number of plans that went on from tokens not known when they were made.
func (g *group) generate(t *testing.T, depth int) (map[uint64][]string, int) {
	t.Helper()
	config := g.config
	config.MaxInFlight = depth
	if config.Stages > 1 {
		// A plan takes a part of a step's tokens then: the same number as with one stage.
		config.MaxTokens *= 4 * config.Stages
	}
	s, err := schedule.NewPlaces(config, max(1, g.layout.DP))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range g.requests {
		s.Add(q)
	}
	results := make(chan []byte, depth)
	failed := make(chan error, len(g.options))
	plans := make([]chan []byte, len(g.options))
	var ranks sync.WaitGroup
	for r, opt := range g.options {
		opt.MaxInFlight = depth
		run := runner.New(opt)
		plans[r] = make(chan []byte, depth)
		ranks.Go(func() {
			var p step.Plan
			var res step.Result
			for raw := range plans[r] {
				err := step.DecodePlan(raw, &p)
				if err == nil {
					err = run.Execute(&p, &res)
				}
				if err != nil {
					failed <- fmt.Errorf("rank %d: %w", r, err)
					for _, c := range g.parts {
						c.Abort(err)
					}
					g.pipes.abort()
					return
				}
				if r == g.layout.Output() {
					results <- step.AppendResult(nil, &res)
				}
			}
		})
	}
	defer func() {
		for _, c := range plans {
			close(c)
		}
		ranks.Wait()
	}()

	all := map[uint64][]string{}
	ahead := 0
	var p step.Plan
	var res step.Result
	for {
		if s.Schedule(&p) {
			raw := step.AppendPlan(nil, &p)
			for _, c := range plans {
				c <- raw
			}
			if slices.ContainsFunc(p.Rows,
				func(r step.Row) bool { return r.Source == step.FromSampler }) {
				ahead++
			}
			if s.InFlight() < depth {
				continue
			}
		}
		if s.InFlight() == 0 {
			break
		}
		select {
		case err := <-failed:
			t.Fatal(err)
		case raw := <-results:
			if err := step.DecodeResult(raw, &res); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Check(&res); err != nil {
			t.Fatal(err)
		}
		for _, o := range s.Update(&res, nil) {
			for i, token := range o.Tokens {
				all[o.Key] = append(all[o.Key], fmt.Sprintf("%d %s", token, bits(o.Logprobs[i])))
			}
			if o.PromptLogprobs != nil {
				for _, l := range o.PromptLogprobs.Entries {
					all[o.Key+100] = append(all[o.Key+100], bits(l))
				}
			}
			if o.Finish != sample.Unfinished {
				all[o.Key] = append(all[o.Key], fmt.Sprint(o.Finish, o.StopToken))
			}
		}
	}
	if st := s.Stats(); st.Running+st.Waiting+st.Cache.Used > 0 || st.Preemptions == 0 {
		t.Errorf("%d plans in flight end with %+v", depth, st)
	}
	return all, ahead
}

// bits spells log-probabilities exactly.
func bits(l step.Logprobs) string {
	x := l.Sampled
	s := fmt.Sprintf("%d:%d:%08x", x.Token, x.Rank, math.Float32bits(x.Logprob))
	for _, x := range l.Top {
		s += fmt.Sprintf(" %d:%08x", x.Token, math.Float32bits(x.Logprob))
	}
	return s
}
