package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// windowed makes a folder of a model whose layers all have a window of 64.
func windowed(t *testing.T) string {
	t.Helper()
	return configured(t, "phi3-tiny", regexp.MustCompile(`window": 47`), `window": 64`)
}

// shallow is the folder of a model of like layers, with -short of one that has the first two alone,
// which a machine for PTX computes sooner.
func shallow(t *testing.T, name string) string {
	t.Helper()
	if !testing.Short() {
		return filepath.Join(shipped, name)
	}
	return configured(t, name, regexp.MustCompile(`"num_hidden_layers": \d+`),
		`"num_hidden_layers": 2`)
}

// configured makes a folder of a model with something else in config.json.
func configured(t *testing.T, name string, what *regexp.Regexp, other string) string {
	t.Helper()
	from, err := filepath.Abs(filepath.Join(shipped, name))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range files {
		err := os.Symlink(filepath.Join(from, f.Name()), filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !what.Match(text) {
		t.Fatalf("no %v in %s", what, text)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, what.ReplaceAll(text, []byte(other)), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// alone is what a model says after a prompt, in a cache that has room for all of it.
func alone(t *testing.T, dir string, prompt []int32, n int) []int32 {
	t.Helper()
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	d, err := cpu.New(cpu.Options{Threads: 1, DType: compute.BFloat16})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := model.Load(cfg, model.FromCheckpoint(c), d,
		model.Options{Group: layers.Group{Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const size = 16
	shape := compute.CacheShape{Layers: cfg.Cache(),
		Blocks: (len(prompt) + n + size) / size, BlockSize: size, DType: compute.BFloat16}
	cache, err := d.NewCache(shape)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Free()
	b := &compute.Batch{Seq: []int32{0}, Tables: make([][]int32, 1)}
	for i := range int32(shape.Blocks) {
		b.Tables[0] = append(b.Tables[0], i)
	}
	tokens := slices.Clone(prompt)
	for pos := 0; len(tokens) < len(prompt)+n; pos++ {
		at := []int32{int32(pos)}
		b.Tokens, b.Slots, b.Position = tokens[pos:pos+1], at, at
		if err := m.Embed(b); err != nil {
			t.Fatal(err)
		}
		if err := m.Layers(b, cache); err != nil {
			t.Fatal(err)
		}
		if pos+1 < len(tokens) {
			continue
		}
		logits, err := m.Logits([]int32{0})
		if err != nil {
			t.Fatal(err)
		}
		row := logits.Floats()
		tokens = append(tokens, int32(slices.Index(row, slices.Max(row))))
	}
	return tokens[len(prompt):]
}

// TestStoredWindows finds a conversation in the files of another engine: what layers with a window
// read of it, and all that the others do.
func TestStoredWindows(t *testing.T) {
	for name, dir := range map[string]string{
		"all": windowed(t), "some": "../../testdata/models/gemma2-tiny",
	} {
		t.Run(name, func(t *testing.T) {
			stored := t.TempDir()
			open := func() *engine.Engine {
				return openEngine(t, func(c *config.Config) {
					c.Model.Path, c.Model.SkipTokenizerInit = dir, true
					c.Cache.Offloading.GiB, c.Cache.Offloading.Dir = 0.1, stored
					c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 32, 4
				})
			}
			prompt := make([]int32, 200)
			for i := range prompt {
				prompt[i] = int32(3 + i*i%400)
			}
			ask := func(e *engine.Engine, prompt []int32, cached int) []int32 {
				t.Helper()
				sampling := params(e, 60)
				sampling.IgnoreEOS, sampling.StopTokens = true, nil
				got := mustAsk(t, e, engine.NewRequest(prompt, sampling))
				if got.last.CachedTokens != cached {
					t.Errorf("%d tokens were found, not %d", got.last.CachedTokens, cached)
				}
				return got.tokens
			}
			first := open()
			talk := slices.Concat(prompt, ask(first, prompt, 0))
			awaitFiles(t, stored, 5) // of windows there are the last ones only
			second := open()
			got := ask(second, talk, len(talk)/16*16)
			if want := ask(first, talk, len(talk)/16*16); !slices.Equal(got, want) {
				t.Errorf("%v, not %v", got, want)
			}
			if second.Totals().ExternalHits == 0 {
				t.Error("nothing came from files")
			}
		})
	}
}

// TestWindowedCache generates far beyond the window of all layers in a cache that holds little more
// than it, and beyond that of some in one that holds little more beside all of the others. It wants
// what the model says with room for everything: one request in the least cache, then several at
// once that preempt each other, and one that finds its prompt again.
func TestWindowedCache(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		testWindowedCache(t, windowed(t), (63+32+14)/16+1)
	})
	t.Run("some", func(t *testing.T) {
		// Two layers read all of 512 positions, three a window of 24.
		testWindowedCache(t, "../../testdata/models/gemma2-tiny", 2*512/16+3*((23+32+14)/16+1))
	})
}

func testWindowedCache(t *testing.T, dir string, least int) {
	prompt := func(seed, n int) (p []int32) {
		for i := range n {
			p = append(p, int32(3+(i*i+seed*37+i*seed)%400))
		}
		return p
	}
	const length = 300
	var wants [3][]int32
	for i := range wants {
		wants[i] = alone(t, dir, prompt(i, 20+60*i), length)
	}
	for _, blocks := range []int{least, least + 5} {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprintf("blocks=%d/pp=%d", blocks, ranks), func(t *testing.T) {
				e := openEngine(t, func(c *config.Config) {
					c.Model.Path, c.Model.SkipTokenizerInit = dir, true
					c.Cache.MemoryBytes, c.Cache.Blocks = 0, blocks
					c.Schedule.MaxNumBatchedTokens, c.Schedule.MaxNumSeqs = 32, 4
					c.Parallel.PipelineParallelSize = ranks
				})
				var all sync.WaitGroup
				for i, want := range wants {
					ask := func() {
						p := prompt(i, 20+60*i)
						sampling := params(e, length)
						sampling.IgnoreEOS, sampling.StopTokens = true, nil
						got := mustAsk(t, e, engine.NewRequest(p, sampling)).tokens
						if !slices.Equal(got, want) {
							t.Errorf("prompt of %d: %v, not %v", len(p), got, want)
						}
					}
					all.Go(ask)
				}
				all.Wait()
				// The end of a prompt is enough to go on from it: its beginning is gone.
				for i := range 2 {
					p := prompt(7, 200)
					got := mustAsk(t, e, engine.NewRequest(p, params(e, 1))).last.CachedTokens
					if want := i * 192; got != want {
						t.Errorf("%d tokens of the prompt were cached, not %d", got, want)
					}
				}
			})
		}
	}
}
