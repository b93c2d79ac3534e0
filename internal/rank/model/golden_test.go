package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

const models = "../../../testdata/models"

// goldens is a fixture's goldens.json: what transformers computes in float32 from the bfloat16
// weights.
type goldens struct {
	Prompts []struct {
		IDs     []int32      `json:"ids"`
		Top     [][2]float64 `json:"last_logits_top"`
		Greedy  []int32      `json:"greedy"`
		Margins []float64    `json:"margins"`
		Std     float64      `json:"std"`
	} `json:"prompts"`
	BF16Error float64 `json:"bf16_activation_max_error"`
}

func readGoldens(t testing.TB, name string) *goldens {
	t.Helper()
	raw, err := os.ReadFile(goldenPath(name))
	if err != nil {
		t.Fatal(err)
	}
	g := new(goldens)
	if err := json.Unmarshal(raw, g); err != nil {
		t.Fatal(err)
	}
	return g
}

const blockSize = 16

// fixture is a model folder, the configuration in it to use, and how its weights are quantised.
type fixture struct {
	dir, config, quantization string
	// serve is the longest sequence, if not 0.
	serve int
	// change, unless it is nil, changes config.json.
	change func(raw string) string
}

// shipped is a fixture that has one configuration.
func shipped(name string) fixture {
	return fixture{dir: filepath.Join(models, name), config: "config.json"}
}

// shallow is the first two layers of a fixture of like layers, which a machine for PTX computes
// sooner; all of it without -short.
func (f fixture) shallow() fixture {
	if testing.Short() {
		f.change = func(raw string) string {
			raw = layerTypes.ReplaceAllString(raw, `$1`)
			return numHiddenLayers.ReplaceAllString(raw, `"num_hidden_layers": 2`)
		}
	}
	return f
}

var (
	numHiddenLayers = regexp.MustCompile(`"num_hidden_layers": *\d+`)
	// layerTypes are the first two of them, and the others.
	layerTypes = regexp.MustCompile(`("layer_types": *\[[^],]*,[^],]*),[^]]*`)
)

// open reads the configuration and maps the weights until the test ends.
func (f fixture) open(t testing.TB) (*model.Config, *checkpoint.Checkpoint) {
	t.Helper()
	folder, err := checkpoint.Dir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := folder.ReadFile(f.config)
	if err != nil {
		t.Fatal(err)
	}
	if f.change != nil {
		raw = []byte(f.change(string(raw)))
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Quantise(f.quantization); err != nil {
		t.Fatal(err)
	}
	if f.serve > 0 {
		cfg.Serve(f.serve)
	}
	weights, err := checkpoint.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	return cfg, weights
}

// shard is one rank of a loaded fixture.
type shard struct {
	model *model.Model
	cache compute.Cache
	vocab int
	// factors are those of the groups of layers in the cache, none of one group.
	factors []int
	// adapter is that of all rows, 0 for none.
	adapter uint32
}

func loadShard(t testing.TB, f fixture, opt cpu.Options, g layers.Group) *shard {
	t.Helper()
	cfg, weights := f.open(t)
	d, err := cpu.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	m, err := model.Load(cfg, model.FromCheckpoint(weights), d, model.Options{Group: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := d.NewCache(compute.CacheShape{Layers: model.CacheLayers(cfg, 0, cfg.Layers, g.Size),
		Blocks: 64, BlockSize: blockSize, DType: opt.DType, States: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	return &shard{model: m, cache: c, vocab: cfg.VocabSize}
}

// piece is a run of one sequence's tokens computed in a step.
type piece struct {
	seq    int
	start  int
	tokens []int32
}

// batch lays pieces out as one step. The blocks of a sequence descend, and so do states.
func batch(pieces ...piece) *compute.Batch {
	b := new(compute.Batch)
	seqs := 0
	for _, p := range pieces {
		for i, id := range p.tokens {
			pos := p.start + i
			block := blockOf(p.seq, pos/blockSize)
			b.Tokens = append(b.Tokens, id)
			b.Slots = append(b.Slots, block*blockSize+int32(pos%blockSize))
			b.Position = append(b.Position, int32(pos))
			b.Seq = append(b.Seq, int32(p.seq))
		}
		seqs = max(seqs, p.seq+1)
	}
	for q := range seqs {
		var table []int32
		for i := range 20 {
			table = append(table, blockOf(q, i))
		}
		b.Tables = append(b.Tables, table)
		b.States = append(b.States, int32(7-q))
	}
	return b
}

// forward is the whole of a batch but its logits.
func forward(m *model.Model, b *compute.Batch, cache compute.Cache) error {
	if err := m.Embed(b); err != nil {
		return err
	}
	return m.Layers(b, cache)
}

// forward computes pieces in one step and returns the logits of every row, on rank 0.
func (s *shard) forward(t testing.TB, rank int, pieces ...piece) [][]float32 {
	t.Helper()
	b := batch(pieces...)
	if s.adapter != 0 {
		b.Adapters = []compute.AdapterRows{{Adapter: s.adapter, To: int32(b.Rows())}}
	}
	if err := forward(s.model, b, s.cache); err != nil {
		t.Fatal(err)
	}
	rows := make([]int32, len(b.Tokens))
	for i := range rows {
		rows[i] = int32(i)
	}
	logits, err := s.model.Logits(rows)
	if err != nil {
		t.Fatal(err)
	}
	if rank != 0 {
		return nil
	}
	dst := slices.Clone(logits.Floats())
	if err := s.model.Failed(); err != nil {
		t.Fatal(err)
	}
	out := make([][]float32, len(rows))
	for i := range out {
		out[i] = dst[i*s.vocab : (i+1)*s.vocab]
	}
	return out
}

func blockOf(seq, i int) int32 { return int32((seq*20 + 19 - i) % 64) }

func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// fixtureNames has a fixture of every family.
var fixtureNames = []string{"llama-tiny", "qwen2-tiny", "qwen3-tiny", "qwen3moe-tiny", "opt-tiny",
	"gemma2-tiny", "gemma3-tiny", "phi3-tiny", "mixtral-tiny", "qwen2moe-tiny", "granite-tiny",
	"olmo2-tiny", "cohere2-tiny", "smollm3-tiny", "glm4-tiny", "starcoder2-tiny", "gptneox-tiny",
	"glm4moe-tiny", "gpt-oss-tiny", "gpt-oss-mxfp4-tiny",
	"deepseek-v3-tiny", "granitemoe-tiny", "granitemoeshared-tiny",
	"minimaxm2-tiny", "deepseekv2-tiny", "olmo3-tiny", "qwen3next-tiny"}

// mixtures are those in which rounding flips the router's choice: they have no bfloat16 tolerance.
var mixtures = []string{"qwen3moe-tiny", "mixtral-tiny", "qwen2moe-tiny", "glm4moe-tiny",
	"gpt-oss-tiny", "gpt-oss-mxfp4-tiny",
	"deepseek-v3-tiny", "granitemoe-tiny", "granitemoeshared-tiny",
	"minimaxm2-tiny", "deepseekv2-tiny", "qwen3next-tiny"}

// TestGoldens holds every architecture to transformers: in float32 each logit within 1e-4 standard
// deviations and each greedy token equal; in bfloat16 within twice what rounding activations to
// bfloat16 causes in the reference itself.
func TestGoldens(t *testing.T) {
	for i, name := range fixtureNames {
		g := readGoldens(t, name)
		full := readFullLogits(t, name)
		for _, set := range isa.All() {
			for j, dtype := range []compute.DType{compute.Float32, compute.BFloat16} {
				if slices.Contains(mixtures, name) && dtype != compute.Float32 {
					continue
				}
				if testing.Short() && set == isa.Portable && isa.Best() != set &&
					(dtype != compute.Float32 || name != "llama-tiny" && name != "qwen3moe-tiny") {
					// slow; gemm and attention hold its products to those of the other sets
					continue
				}
				if testing.Short() && takesTurns(set) && (i+j+int(set))%2 == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, set, dtype), func(t *testing.T) {
					tolerance := 1e-4
					if dtype == compute.BFloat16 {
						tolerance = 2 * g.BF16Error
					}
					opt := cpu.Options{Threads: 2, ISA: set.String(), DType: dtype}
					s := loadShard(t, shipped(name), opt, layers.Group{Size: 1})
					checkGoldens(t, s, g, full, tolerance, dtype == compute.Float32)
				})
			}
		}
	}
}

// takesTurns tells whether a set of vectors is not what a machine chooses: with -short it has every
// second case, because gemm and attention hold the sets to the same bits.
func takesTurns(set isa.ISA) bool { return set != isa.Portable && set != isa.Best() }

func checkGoldens(t *testing.T, s *shard, g *goldens, full map[int][]float32,
	tolerance float64, exact bool) {
	worst, compared, tokens, near := 0.0, 0, 0, 0
	for _, p := range g.Prompts {
		if testing.Short() && len(p.IDs) > 110 && full[len(p.IDs)] == nil {
			continue
		}
		rows := s.forward(t, 0, piece{tokens: p.IDs})
		if want := full[len(p.IDs)]; want != nil {
			for i, row := range rows {
				for j, v := range row {
					e := math.Abs(float64(v-want[i*s.vocab+j])) / p.Std
					worst = max(worst, e)
					compared++
				}
			}
		}
		last := rows[len(rows)-1]
		for _, top := range p.Top {
			worst = max(worst, math.Abs(float64(last[int(top[0])])-top[1])/p.Std)
			compared++
		}
		ids := slices.Clone(p.IDs)
		for k, want := range p.Greedy {
			got := argmax(last)
			tokens++
			if got != want {
				if exact || p.Margins[k] >= tolerance*p.Std {
					t.Errorf("prompt of %d tokens: greedy token %d is %d, not %d (margin %g)",
						len(p.IDs), k, got, want, p.Margins[k])
				}
				near++
				break
			}
			ids = append(ids, got)
			out := s.forward(t, 0, piece{start: len(ids) - 1, tokens: ids[len(ids)-1:]})
			last = out[0]
		}
	}
	if worst > tolerance || math.IsNaN(worst) || compared == 0 {
		t.Errorf("largest logit error is %.3g standard deviations, more than %.3g",
			worst, tolerance)
	}
	t.Logf("%d logits compared, largest error %.3g std (limit %.3g); "+
		"%d greedy tokens, %d sequences left at a near tie",
		compared, worst, tolerance, tokens, near)
}

func readFullLogits(t testing.TB, name string) map[int][]float32 {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(models, name, "full_logits.st"))
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := checkpoint.ParseFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	out := map[int][]float32{}
	for _, n := range []int{7, 33, 130} {
		x, ok := tensors[fmt.Sprintf("logits_%d", n)]
		if !ok {
			continue
		}
		v := make([]float32, len(x.Data)/4)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(x.Data)), x.Data)
		out[n] = v
	}
	if len(out) == 0 {
		t.Fatalf("%s: logits of %d prompts", name, len(out))
	}
	return out
}

// TestSameBitsAnyLayout computes one set of sequences in many ways — tensor parallel sizes,
// threads, chunked prefill, batches — and wants the same bits.
func TestSameBitsAnyLayout(t *testing.T) {
	for i, name := range append([]string{"go-std-tiny"}, fixtureNames...) {
		for _, dtype := range []compute.DType{compute.BFloat16, compute.Float32} {
			if testing.Short() && i > 0 && (i%2 == 0) != (dtype == compute.BFloat16) {
				continue // the families take turns
			}
			t.Run(fmt.Sprintf("%s/%s", name, dtype), func(t *testing.T) {
				checkSameBits(t, shipped(name), dtype, prompt(70), 2, 4)
			})
		}
	}
}

// checkSameBits computes ids, which are at least 34, in many ways and wants the same bits of all
// their logits.
func checkSameBits(t *testing.T, f fixture, dtype compute.DType, ids []int32, sizes ...int) {
	t.Helper()
	last := len(ids) - 1
	other := slices.Clone(ids[:33])
	slices.Reverse(other)
	opt := cpu.Options{Threads: 1, DType: dtype}
	ref := loadShard(t, f, opt, layers.Group{Size: 1})
	want := ref.forward(t, 0, piece{tokens: ids})

	chunked := loadShard(t, f, cpu.Options{Threads: 2, DType: dtype}, layers.Group{Size: 1})
	var got [][]float32
	for at := 0; at < len(ids); {
		n := min(1+at%23, len(ids)-at)
		got = append(got, chunked.forward(t, 0, piece{start: at, tokens: ids[at : at+n]})...)
		at += n
	}
	compareRows(t, "chunked prefill on two threads", got, want)

	mixed := loadShard(t, f, opt, layers.Group{Size: 1})
	mixed.forward(t, 0, piece{seq: 1, tokens: other})
	got = mixed.forward(t, 0, piece{seq: 0, tokens: ids[:last]},
		piece{seq: 1, start: 33, tokens: []int32{5}})[:last]
	got = append(got, mixed.forward(t, 0, piece{seq: 1, start: 34, tokens: []int32{9, 8}},
		piece{seq: 0, start: last, tokens: ids[last:]})[2])
	compareRows(t, "batch of two sequences", got, want)

	cfg, _ := f.open(t)
	for _, size := range sizes {
		if model.CheckShard(cfg, size) != nil {
			continue
		}
		compareRows(t, fmt.Sprintf("tensor parallel size %d", size),
			tensorParallel(t, f, opt, size, false, ids), want)
		if cfg.Experts() > 0 {
			compareRows(t, fmt.Sprintf("whole experts on %d ranks", size),
				tensorParallel(t, f, opt, size, true, ids), want)
		}
	}
}

func prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*7 + i*131 + 3) % 500)
	}
	return ids
}

func compareRows(t *testing.T, how string, got, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows, not %d", how, len(got), len(want))
	}
	for i := range want {
		for j, v := range want[i] {
			if math.Float32bits(got[i][j]) != math.Float32bits(v) {
				t.Fatalf("%s: row %d, logit %d is %x, not %x", how, i, j,
					math.Float32bits(got[i][j]), math.Float32bits(v))
			}
		}
	}
}

// together are the ways of ranks of this process to each other.
func together(t *testing.T, size int) (all []*shm.Group) {
	t.Helper()
	const segment = 64 << 10
	region, err := shm.Create(size, segment)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	for r := range size {
		g, err := shm.Join(region, r, size, segment)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Close() })
		all = append(all, g)
	}
	return all
}

func tensorParallel(t *testing.T, f fixture, opt cpu.Options, size int, experts bool,
	ids []int32) [][]float32 {
	t.Helper()
	shards := make([]*shard, size)
	for r, g := range together(t, size) {
		place := layers.Group{Rank: r, Size: size, Comm: layers.OnHost{Group: g}}
		if experts {
			place.Experts = &layers.ExpertGroup{Share: r, Shares: size}
		}
		shards[r] = loadShard(t, f, opt, place)
	}
	var out [][]float32
	var wg sync.WaitGroup
	for r := range shards {
		wg.Go(func() {
			half := len(ids) * 2 / 3
			got := shards[r].forward(t, r, piece{tokens: ids[:half]})
			more := shards[r].forward(t, r, piece{start: half, tokens: ids[half:]})
			if r == 0 {
				out = append(got, more...)
			}
		})
	}
	wg.Wait()
	return out
}
