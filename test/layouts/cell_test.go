package layouts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/predictortest"
)

// cell is one way to run a workload. Its fields are the names and values of -cell.
type cell struct {
	// Backend starts the ranks: uni, mp, link for mp whose ranks reach the driver and each other as
	// those of different machines do, nodes for mp over two nodes on loopback, or ray.
	Backend string
	// TP, PP, PCP and DP are the sizes of the layout, Threads the cores of each rank.
	TP, PP, PCP, DP, Threads int
	// EP has ranks hold whole experts: then the DP engines are places of one group.
	EP bool
	// Batch is alone (one submission after the other) or mixed.
	Batch string
	// Chunk is the most tokens of a step, 0 for prompts that are not cut; Block is the block size.
	Chunk, Block int
	// Cache is the prefix cache: off, cold, warm from an earlier run of the same workload, or files
	// that an engine before has left (a model that keeps states has none: then it is warm).
	Cache string
	// Async plans ahead of results, Tight has so few blocks that requests are preempted, Priority
	// is the scheduling policy.
	Async, Tight, Priority bool
	// Moving has experts with copies, which move between ranks as their loads are.
	Moving bool
	// Drafts is how many tokens are guessed at a time, 0 for none; Method is ngram, suffix, a
	// draft model: self, which guesses most tokens right, or other, which guesses few, or head: a
	// layer that predicts a token more, or a head of EAGLE-3. It is ngram where a model can have
	// no other.
	Drafts int
	Method string
}

// plain is what all others are compared with.
var plain = cell{Backend: "uni", TP: 1, PP: 1, PCP: 1, DP: 1, Threads: 1, Batch: "alone", Block: 16,
	Cache: "off", Method: "ngram"}

// sizes are those of the layouts compared.
var sizes = struct{ tp, pp, pcp, dp []int }{[]int{1, 2, 4}, []int{1, 2, 4}, []int{1, 2},
	[]int{1, 2}}

// mostRanks is how many a layout has with -short: more than a few on a core wait for each other
// more than they compute.
const mostRanks = 16

// layouts are all combinations of sizes that a model can have.
func layouts(t testing.TB, m *modelUnderTest) []cell {
	t.Helper()
	var all []cell
	for _, tp := range sizes.tp {
		for _, pp := range sizes.pp {
			for _, pcp := range sizes.pcp {
				for _, dp := range sizes.dp {
					for _, ep := range []bool{false, true} {
						c := plain
						c.TP, c.PP, c.PCP, c.DP, c.EP = tp, pp, pcp, dp, ep
						few := c.ranks() <= mostRanks
						if !m.fits(t, c.layout()) {
							continue
						}
						if few || !testing.Short() || *cellsFlag > 0 {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

func (c cell) layout() layout.Layout {
	l := layout.Layout{TP: c.TP, PP: c.PP, PCP: c.PCP, EP: c.EP}
	if c.EP {
		l.DP = c.DP
	}
	return l
}

// ranks are those of all engines.
func (c cell) ranks() int {
	if c.EP {
		return c.layout().World()
	}
	return c.layout().World() * c.DP
}

// vary draws what is not the layout.
func (c cell) vary(rng *rand.Rand) cell {
	c.Threads = pick(rng, 1, 1, 2)
	c.Batch = pick(rng, "mixed", "mixed", "mixed", "alone")
	c.Chunk = pick(rng, 8, 64, 0)
	c.Block = pick(rng, 16, 16, 32, 64)
	c.Cache = pick(rng, "off", "cold", "warm")
	c.Async = rng.IntN(2) == 0
	c.Tight = rng.IntN(2) == 0
	c.Priority = rng.IntN(3) == 0
	c.Moving = rng.IntN(2) == 0 && c.EP && c.TP*c.DP > 1
	c.Drafts = pick(rng, 0, 1, 3, 8)
	c.Method = pick(rng, "ngram", "suffix", "self", "other", "head", "head")
	return c
}

// String is what -cell takes: all fields as name=value.
func (c cell) String() string {
	v := reflect.ValueOf(c)
	parts := make([]string, v.NumField())
	for i := range parts {
		parts[i] = fmt.Sprintf("%s=%v", strings.ToLower(v.Type().Field(i).Name), v.Field(i))
	}
	return strings.Join(parts, ",")
}

// parseCell undoes String; what is left out is as in plain.
func parseCell(text string) (cell, error) {
	c := plain
	v := reflect.ValueOf(&c).Elem()
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		f := v.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
		var err error
		switch {
		case !f.IsValid():
			err = fmt.Errorf("no such field")
		case f.Kind() == reflect.String:
			f.SetString(value)
		case f.Kind() == reflect.Int:
			var n int
			n, err = strconv.Atoi(value)
			f.SetInt(int64(n))
		default:
			var b bool
			b, err = strconv.ParseBool(value)
			f.SetBool(b)
		}
		if err != nil {
			return c, fmt.Errorf("-cell: %q: %w", part, err)
		}
	}
	return c, nil
}

// config is the engine's configuration.
func (c cell) config(m *modelUnderTest) config.Config {
	cfg := config.Default()
	cfg.Model.Path, cfg.Model.DType, cfg.Model.MaxModelLen = m.path(), m.dtype, m.maxLen
	cfg.Model.Tokenizer = filepath.Join("..", "..", "testdata", "models", "go-std-tiny")
	cfg.Cache.DType = m.cacheDType
	if m.dummy {
		cfg.Model.LoadFormat = "dummy"
	}
	p := &cfg.Parallel
	p.Backend, p.CPUThreads, p.CPUISA = c.Backend, c.Threads, m.isa
	switch c.Backend {
	case "link":
		p.Backend, cfg.Queue.Transport = "mp", "link"
	case "nodes":
		p.Backend, p.Nodes.Count, p.Nodes.Master = "mp", 2, "127.0.0.1"
	}
	p.TensorParallelSize, p.PipelineParallelSize = c.TP, c.PP
	p.PrefillContextParallelSize, p.DataParallelSize, p.ExpertParallel = c.PCP, c.DP, c.EP
	if c.Moving {
		p.EPLB = config.EPLB{Enabled: true, StepInterval: 10, Redundant: 2}
	}
	s := &cfg.Schedule
	s.MaxNumSeqs, s.Async, s.ChunkedPrefill = 8, c.Async, c.Chunk > 0
	s.MaxNumBatchedTokens = max(c.Chunk, s.MaxNumSeqs)
	if c.Priority {
		s.Policy = "priority"
	}
	if c.Drafts > 0 {
		cfg.Speculative = config.Speculative{Method: config.Ngram, Tokens: c.Drafts, LookupMin: 1,
			LookupMax: 4}
		switch s := &cfg.Speculative; {
		case c.Method == "suffix":
			s.Method, s.CachedRequests, s.MaxFactor = config.Suffix, 100, 4
		case c.Method == "head" && m.predicts:
			s.Method, cfg.Model.Path = config.MTP, m.predictor()
		case c.Method == "head" && m.eagle:
			s.Method, s.Model = config.Eagle3, m.predictor()
		case c.Method != "ngram" && c.Method != "head" && !m.windowed():
			s.Method, s.Model = config.DraftModel, m.draft(c.Method == "self")
		}
	}
	cfg.Cache.PrefixCaching, cfg.Cache.BlockSize = c.Cache != "off", c.Block
	// One request of the greatest length must fit. With a few blocks more others run beside it, and
	// are preempted as outputs grow.
	one := m.least(&cfg)
	cfg.Cache.Blocks = one + 2
	if !c.Tight {
		cfg.Cache.Blocks = (s.MaxNumSeqs + 1) * one
	}
	return cfg
}

// least is how many blocks of KV cache one request of the greatest length needs.
func (m *modelUnderTest) least(cfg *config.Config) int {
	s := &cfg.Schedule
	c := schedule.Config{MaxSeqs: s.MaxNumSeqs, MaxTokens: s.MaxNumBatchedTokens,
		MaxModelLen: m.maxLen, BlockSize: cfg.Cache.BlockSize, ChunkedPrefill: s.ChunkedPrefill,
		Stages: cfg.Parallel.PipelineParallelSize}
	if !s.ChunkedPrefill {
		c.MaxTokens = max(c.MaxTokens, m.maxLen)
	}
	dtype := compute.BFloat16 // others have as many blocks
	layers := m.caches()
	c.Groups = compute.GroupsOf(layers, m.maxLen, cfg.Cache.BlockSize, dtype)
	c.Window = compute.Window(layers, c.Groups)
	return c.Least()
}

// predictor is the folder of the model with a layer more, which predicts a token more, or that of a
// head of EAGLE-3.
func (m *modelUnderTest) predictor() string {
	extended.Lock()
	defer extended.Unlock()
	dir := filepath.Join(extended.dir, filepath.Base(m.folder))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	make := func() error { return predictortest.Eagle3(dir, m.path(), 1, []int{1, 2, 3}) }
	if m.predicts {
		make = func() error {
			return predictortest.Extend(dir, m.path(), predictortest.Options{Seed: 1})
		}
	}
	if err := make(); err != nil {
		panic(err)
	}
	return dir
}

// extended is where the folders are that predictor makes.
var extended struct {
	sync.Mutex
	dir string
}

// windowed says that all layers have a window.
func (m *modelUnderTest) windowed() bool {
	return compute.Window(m.caches(), grouping.Groups{}) > 0
}

// caches are what the layers keep; nil where opening the model will say what is wrong with it.
func (m *modelUnderTest) caches() []compute.CacheLayer {
	raw, err := os.ReadFile(filepath.Join(m.path(), "config.json"))
	if err != nil {
		return nil
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		return nil
	}
	return cfg.Cache()
}

// draft is the folder of a draft model of the same vocabulary: the model itself, or another one.
func (m *modelUnderTest) draft(self bool) string {
	if self && !m.states {
		return m.path()
	}
	for i := range models { // none that keeps a state
		if o := &models[i]; o.vocab == m.vocab && o.folder != m.folder && !o.states && !o.dummy {
			return o.path()
		}
	}
	return m.path()
}

// processes are the backends whose ranks are processes, on this machine.
var processes = []string{"mp", "link", "nodes"}

// maxProcesses is how many of them a cell may have.
const maxProcesses = 8

// runsOn says whether a cell can be run by a backend, and with as many processes as may be.
func (c cell) runsOn(backend string) bool {
	ranks := c.ranks()
	switch backend {
	case "nodes":
		return ranks%2 == 0 && ranks <= maxProcesses
	case "mp", "link":
		return ranks <= maxProcesses
	}
	return true
}

// fits says whether the model can have a layout.
func (m *modelUnderTest) fits(t testing.TB, l layout.Layout) bool {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(m.path(), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	return model.CheckLayout(cfg, l) == nil
}
