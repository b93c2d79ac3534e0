package open

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// has is a machine with so much memory.
func has(limit, left int64) memory.Bounds {
	return memory.Bounds{{From: "the test's memory", Limit: limit, Left: left}}
}

// planned is the built-in model on a machine with so much memory. The plan counts the heap of this
// process, from which the garbage of other tests is taken first.
func planned(t *testing.T, left int64, change func(c *config.Config)) (*Spec, error) {
	t.Helper()
	cfg := config.Default()
	cfg.Parallel.CPUThreads = 1
	if change != nil {
		change(&cfg)
	}
	r := newResolver(t.Context(), &Options{Config: &cfg,
		Bounds: func() memory.Bounds { return has(left, left) }})
	for _, f := range []func() error{r.resolve, r.readModel, r.readDraft, r.divide} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	return r.Spec, r.plan()
}

// TestPlan sizes the caches of engines by what a machine has, and refuses what it has not.
func TestPlan(t *testing.T) {
	const cache = "KV cache"
	for _, c := range []struct {
		name   string
		left   int64
		change func(c *config.Config)
		// at least and at most so many MiB of KV cache on the machine; or what the error has.
		least, most int64
		says        string
	}{
		{"all that sequences need", 64 << 30, nil, 1024, 1024, ""},
		{"4 GiB at most", 64 << 30, func(c *config.Config) { c.Schedule.MaxNumSeqs = 2048 }, 4095,
			4096, ""},
		{"a part that is asked for", 64 << 30, func(c *config.Config) {
			c.Schedule.MaxNumSeqs, c.Cache.MemoryUtilization = 2048, 0.1
		}, 5700, 6554, ""},
		{"divided among engines", 64 << 30, func(c *config.Config) {
			c.Schedule.MaxNumSeqs, c.Parallel.DataParallelSize = 2048, 2
		}, 4095, 4096, ""},
		{"divided among ranks", 64 << 30, func(c *config.Config) {
			c.Schedule.MaxNumSeqs, c.Parallel.TensorParallelSize = 2048, 2
		}, 4095, 4096, ""},
		{"what is left", 512 << 20, nil, 50, 400, ""},
		{"what several engines leave", 1 << 30,
			func(c *config.Config) { c.Parallel.DataParallelSize = 3 }, 20, 700, ""},
		{"too little", 128 << 20, nil, 0, 0, "1 rank does not fit into the memory of localhost"},
		{"too little for several", 512 << 20,
			func(c *config.Config) { c.Parallel.DataParallelSize = 4 }, 0, 0, "4 ranks do not fit"},
		{"too large a cache", 2 << 30, func(c *config.Config) { c.Cache.MemoryBytes = 900 << 30 },
			0, 0, cache + " (--kv-cache-memory-bytes)"},
		{"too large a cache for two", 2 << 30, func(c *config.Config) {
			c.Cache.MemoryBytes, c.Parallel.DataParallelSize = 1<<30, 2
		}, 0, 0, cache + " (--kv-cache-memory-bytes)"},
		{"updates", 128 << 20, func(c *config.Config) {
			c.Cache.MemoryBytes, c.Server.EnableRLHF = 64<<20, true
		}, 0, 0, "weight updates (--enable-rlhf)"},
		{"where Ray puts the ranks", 1 << 20, func(c *config.Config) { c.Parallel.Backend = "ray" },
			1024, 1024, ""},
		{"half of the ranks on another node", 700 << 20, func(c *config.Config) {
			c.Parallel.Nodes.Count, c.Parallel.TensorParallelSize, c.Cache.MemoryBytes = 2, 2,
				64<<20
		}, 64, 64, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := planned(t, c.left, c.change)
			if (c.says != "") != (err != nil) || err != nil && !strings.Contains(err.Error(),
				c.says) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			ranks := int64(max(1, b.RanksHere()))
			if mb := b.Info.CacheBytes * ranks >> 20; mb < c.least || mb > c.most {
				t.Errorf("%d MiB of KV cache, want %d to %d", mb, c.least, c.most)
			}
		})
	}
}

// TestWindowedLeast wants a cache of a window of 47 and of 32 tokens a step to do for a model whose
// layers all have it, and one block less to be refused. A model of which half of the layers have it
// needs as much of those beside all of the others, in blocks of one layer, or all of both.
func TestWindowedLeast(t *testing.T) {
	for _, c := range []struct {
		model  string
		blocks int
		one    bool // group of layers
		says   string
	}{
		{"phi3-tiny", 6, false, ""},
		{"phi3-tiny", 5, false, "cannot hold one sequence of --max-model-len 512"},
		{"gemma2-tiny", 2*32 + 3*5, false, ""},
		{"gemma2-tiny", 2*32 + 3*5 - 1, false, "cannot hold one sequence of --max-model-len 512"},
		{"gemma2-tiny", 32, true, ""},
		{"gemma2-tiny", 31, true, "cannot hold one sequence of --max-model-len 512"},
	} {
		b, err := planned(t, 8<<30, func(cfg *config.Config) {
			cfg.Model.Path, cfg.Model.SkipTokenizerInit = "../../../testdata/models/"+c.model, true
			cfg.Schedule.MaxNumBatchedTokens, cfg.Schedule.MaxNumSeqs = 32, 4
			cfg.Cache.Blocks, cfg.Cache.OneGroup = c.blocks, c.one
		})
		if (c.says != "") != (err != nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s in %d blocks: %v", c.model, c.blocks, err)
			continue
		}
		if want := int64(c.blocks) * b.BlockBytes(); err == nil && b.Info.CacheBytes != want {
			t.Errorf("%s: %d bytes of cache, not %d", c.model, b.Info.CacheBytes, want)
		}
	}
}

// TestScaleUpIsRefused counts what engines that run will take, not only what they have taken.
func TestScaleUpIsRefused(t *testing.T) {
	b, err := planned(t, 1<<30, func(c *config.Config) { c.Cache.MemoryBytes = 200 << 20 })
	if err != nil {
		t.Fatal(err)
	}
	if err := b.CheckMemory(has(1<<30, 1<<30), []int{1}, 2); err != nil {
		t.Errorf("a second engine: %v", err)
	}
	var refused *Refused
	if err := b.CheckMemory(has(1<<30, 1<<30), []int{1, 2, 3}, 4); !errors.As(err, &refused) ||
		!strings.Contains(refused.Reason, "4 ranks do not fit into the memory of localhost") ||
		!strings.HasSuffix(refused.Reason, " are missing: no more engines than 3 fit") {
		t.Errorf("four engines: %v", err)
	}
	// Others have taken what there was.
	if err := b.CheckMemory(has(1<<30, 100<<20), []int{1}, 2); !errors.As(err, &refused) ||
		!strings.Contains(refused.Reason, "1 rank does not fit") ||
		!strings.HasSuffix(refused.Reason, ": no more engines than 1 fit") {
		t.Errorf("a second engine beside others: %v", err)
	}
}

// TestFlagsAreBlamed tells what a flag is at fault for from what the machine is, and names what
// would fit.
func TestFlagsAreBlamed(t *testing.T) {
	// 4 layers of 32 experts, of 6 MiB each.
	mixture := t.TempDir()
	if err := os.WriteFile(filepath.Join(mixture, "config.json"), []byte(`{"architectures":
		["Qwen3MoeForCausalLM"], "hidden_act": "silu", "hidden_size": 2048, "head_dim": 128,
		"intermediate_size": 512, "moe_intermediate_size": 512, "num_hidden_layers": 4,
		"num_attention_heads": 8, "num_key_value_heads": 8, "num_experts": 32,
		"num_experts_per_tok": 4, "norm_topk_prob": true, "rms_norm_eps": 1e-6,
		"max_position_embeddings": 1024, "rope_theta": 10000, "vocab_size": 256}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		left   int64
		change func(c *config.Config)
		flag   bool
		way    string
	}{
		"the machine": {100 << 20, nil, false, "raise the limit"},
		"smaller steps would do": {150 << 20, nil, false,
			": --max-num-batched-tokens 1024 fits; or divide"},
		"a cache": {1 << 30, func(c *config.Config) { c.Cache.MemoryBytes = 900 << 30 }, true,
			"--kv-cache-memory-bytes "},
		"a cache on too small a machine": {100 << 20,
			func(c *config.Config) { c.Cache.MemoryBytes = 1 << 30 }, false, "raise the limit"},
		"a cache of less than a sequence": {1 << 30, func(c *config.Config) { c.Cache.Blocks = 3 },
			true, "(--num-gpu-blocks-override) cannot hold one sequence"},
		"more blocks than can be numbered": {1 << 30,
			func(c *config.Config) { c.Cache.Blocks = 1 << 28 }, true,
			"--num-gpu-blocks-override asks for 268435456 blocks"},
		"a part": {1 << 30, func(c *config.Config) { c.Cache.MemoryUtilization = 0.1 }, true,
			"a greater --gpu-memory-utilization"},
		"a part of too small a machine": {100 << 20,
			func(c *config.Config) { c.Cache.MemoryUtilization = 0.1 }, false, "raise the limit"},
		"steps": {1 << 30, func(c *config.Config) { c.Schedule.MaxNumBatchedTokens = 1 << 20 },
			true,
			": --max-num-batched-tokens 2048 fits"},
		"requests": {1 << 30, func(c *config.Config) {
			c.Schedule.MaxNumSeqs,
				c.Schedule.MaxNumBatchedTokens = 1<<20, 1<<20
		}, true,
			": --max-num-batched-tokens 2048 with --max-num-seqs 256 fits"},
		"engines": {600 << 20, func(c *config.Config) { c.Parallel.DataParallelSize = 9 }, true,
			"--data-parallel-size 4 fits"},
		"updates": {195 << 20, func(c *config.Config) {
			c.Cache.MemoryBytes,
				c.Server.EnableRLHF = 16<<20, true
		}, true, "it fits without --enable-rlhf"},
		"a draft model": {190 << 20, func(c *config.Config) {
			c.Cache.MemoryBytes = 16 << 20
			c.Speculative = config.Speculative{Method: config.DraftModel, Tokens: 4,
				Model: builtin.Name}
		}, true, "of draft model (--speculative-config)"},
		"without a draft model": {190 << 20, func(c *config.Config) {
			c.Cache.MemoryBytes = 16 << 20
			c.Speculative = config.Speculative{Method: config.DraftModel, Tokens: 4,
				Model: builtin.Name}
		}, true, "it fits without the draft model of --speculative-config"},
		"copies of experts": {2300 << 20, func(c *config.Config) {
			c.Model.Path, c.Model.LoadFormat = mixture, "dummy"
			c.Model.SkipTokenizerInit, c.Cache.MemoryBytes = true, 16<<20
			c.Parallel.TensorParallelSize, c.Parallel.ExpertParallel = 2, true
			c.Parallel.EPLB.Redundant = 32
		}, true, ": --num-redundant-experts 8 fits; or"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := planned(t, c.left, c.change)
			var mistake *config.UsageError
			if err == nil || errors.As(err, &mistake) != c.flag || !strings.Contains(err.Error(),
				c.way) {
				t.Error(err)
			}
		})
	}
}

// TestConstraintsHaveWhatIsLeft gives the constraints of a process no more than its machine has
// beside the plan.
func TestConstraintsHaveWhatIsLeft(t *testing.T) {
	for left, c := range map[int64]struct{ least, most int64 }{400 << 20: {24, 200},
		64 << 30: {20 << 10, 32 << 10}} {
		b, err := planned(t, left, nil)
		if err != nil {
			t.Fatal(err)
		}
		if mb := b.ConstraintBytes() >> 20; mb < c.least || mb > c.most {
			t.Errorf("%d MiB of %d", mb, left>>20)
		}
	}
	b, err := planned(t, 1<<30, func(c *config.Config) { c.Parallel.Backend = "ray" })
	if bytes := b.ConstraintBytes(); err != nil || bytes != 0 {
		t.Errorf("%d bytes on machines of which nothing is known, %v", bytes, err)
	}
}

// TestStates plans a state of each request that may run and of a quarter as many snapshots, and
// says how many fit where they do not.
func TestStates(t *testing.T) {
	plan := func(left int64, seqs int, caching bool) (*Spec, error) {
		return planned(t, left, func(cfg *config.Config) {
			cfg.Model.Path = "../../../testdata/models/qwen3next-tiny"
			cfg.Model.SkipTokenizerInit, cfg.Cache.PrefixCaching = true, caching
			cfg.Schedule.MaxNumSeqs, cfg.Cache.MemoryBytes = seqs, 4<<20
		})
	}
	// Of 4 layers, each 2 key heads of 3 rows of 64 channels and two matrices of 16 by 16.
	const each = 4 * 2 * (3*64 + 2*256) * 4
	for _, c := range []struct {
		seqs    int
		caching bool
		states  int
	}{{2, true, 6}, {256, true, 320}, {256, false, 256}} {
		b, err := plan(8<<30, c.seqs, c.caching)
		if err != nil {
			t.Fatal(err)
		}
		init, err := b.RankInit()
		if n := b.Planned.Hosts[0].Ranks[0].States; err != nil || init.States != c.states ||
			n != int64(c.states*each) {
			t.Errorf("%d requests, cached %v: %d states of %d bytes, %v", c.seqs, c.caching,
				init.States, n, err)
		}
	}
	_, err := plan(155<<20, 2048, true)
	for _, want := range []string{"56 MiB of states of --max-num-seqs requests",
		"--max-num-seqs 1024 fits"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
