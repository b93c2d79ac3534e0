package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

// randomAdapter is an adapter of numbers that a seed gives, of some modules of a model.
type randomAdapter struct {
	*lora.Adapter
	src layers.Source
}

// newAdapter makes one of every module that picked lets through, of ranks between 1 and 9.
func newAdapter(t testing.TB, cfg *model.Config, seed uint64,
	picked func(module string) bool) randomAdapter {
	return newAdapterOf(t, cfg, seed, 0, picked)
}

// newAdapterOf makes one of a rank, 0 for several.
func newAdapterOf(t testing.TB, cfg *model.Config, seed uint64, rank int,
	picked func(module string) bool) randomAdapter {
	t.Helper()
	shapes, err := model.Adaptable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	a := &lora.Adapter{}
	var tensors []checkpoint.Tensor
	matrix := func(name string, rows, cols int, width float64) {
		raw := make([]byte, 0, 4*rows*cols)
		for range rows * cols {
			raw = binary.LittleEndian.AppendUint32(raw,
				math.Float32bits(float32((2*rng.Float64()-1)*width)))
		}
		tensors = append(tensors, checkpoint.Tensor{Name: name, DType: checkpoint.F32,
			Shape: []int{rows, cols}, Data: raw})
	}
	for _, s := range shapes {
		if !picked(s.Name) {
			continue
		}
		m := lora.Module{Name: s.Name, Rank: 1 + rng.IntN(9), In: s.In, Out: s.Out,
			Scale: float32(0.5 + rng.Float64()), A: s.Name + ".a", B: s.Name + ".b"}
		if rank > 0 {
			m.Rank = rank
		}
		matrix(m.A, m.Rank, m.In, 0.3)
		matrix(m.B, m.Out, m.Rank, 0.3)
		a.Modules = append(a.Modules, m)
	}
	if len(a.Modules) == 0 {
		t.Fatal("an adapter of no module")
	}
	c := checkpoint.InMemory("adapter", tensors, func() error { return nil })
	return randomAdapter{a, model.FromCheckpoint(c)}
}

func (a randomAdapter) load(t testing.TB, m *model.Model, id uint32) {
	t.Helper()
	y := m.Adapt(id, a.Adapter, a.src)
	for steps := 0; ; steps++ {
		done, err := y.Step(3)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		if m.Adapted(id) {
			t.Fatalf("adapter %d is there after %d steps", id, steps)
		}
	}
}

// merged is a source of a model's tensors to which an adapter's products are added. Tensors of
// modules with conv1D are [in][out].
type merged struct {
	layers.Source
	adapter randomAdapter
	conv1D  bool
}

func (s merged) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	w, err := s.Source.Tensor(name, shape...)
	if err != nil {
		return w, err
	}
	i := slices.IndexFunc(s.adapter.Modules, func(m lora.Module) bool {
		// Hunyuan 3's own name for what it has of transformers.
		return m.Name+".weight" == name || strings.ReplaceAll(m.Name, ".shared_experts.",
			".shared_mlp.")+".weight" == name
	})
	if i < 0 {
		return w, nil
	}
	m := s.adapter.Modules[i]
	a, _ := s.adapter.src.Tensor(m.A, m.Rank, m.In)
	b, _ := s.adapter.src.Tensor(m.B, m.Out, m.Rank)
	at := func(t checkpoint.Tensor, i int) float64 {
		switch t.DType {
		case checkpoint.BF16:
			return float64(math.Float32frombits(uint32(
				binary.LittleEndian.Uint16(t.Data[2*i:])) << 16))
		case checkpoint.F32:
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
		}
		panic(t.DType)
	}
	raw := make([]byte, 4*m.Out*m.In)
	for o := range m.Out {
		for i := range m.In {
			sum := 0.0
			for r := range m.Rank {
				sum += at(b, o*m.Rank+r) * at(a, r*m.In+i)
			}
			to := o*m.In + i
			if s.conv1D {
				to = i*m.Out + o
			}
			binary.LittleEndian.PutUint32(raw[4*to:],
				math.Float32bits(float32(at(w, to)+float64(m.Scale)*sum)))
		}
	}
	return checkpoint.Tensor{Name: name, DType: checkpoint.F32, Shape: w.Shape, Data: raw}, nil
}

// adaptedPiece is a piece with the id of its adapter, 0 for none.
type adaptedPiece struct {
	piece
	adapter uint32
}

// adapted computes pieces in one step.
func (s *shard) adapted(t testing.TB, rank int, pieces ...adaptedPiece) [][]float32 {
	t.Helper()
	var plain []piece
	for _, p := range pieces {
		plain = append(plain, p.piece)
	}
	b := batch(plain...)
	row := int32(0)
	for _, p := range pieces {
		n := int32(len(p.tokens))
		if p.adapter != 0 {
			b.Adapters = append(b.Adapters, compute.AdapterRows{Adapter: p.adapter, From: row,
				To: row + n})
		}
		row += n
	}
	if err := forward(s.model, b, s.cache); err != nil {
		t.Fatal(err)
	}
	rows := make([]int32, row)
	for i := range rows {
		rows[i] = int32(i)
	}
	logits, err := s.model.Logits(rows)
	if err != nil {
		t.Fatal(err)
	}
	if rank != 0 {
		if err := s.model.Finish(); err != nil { // for which others wait
			t.Fatal(err)
		}
		return nil
	}
	dst := slices.Clone(logits.Floats())
	out := make([][]float32, row)
	for i := range out {
		out[i] = dst[i*s.vocab : (i+1)*s.vocab]
	}
	return out
}

// adaptedFixtures are families whose modules differ: fused, reordered, in heads, with multipliers,
// biases, norms after blocks, gates, latents, experts that all rows share, and quantised ones.
var adaptedFixtures = []string{"llama-tiny", "qwen2-tiny", "qwen3-tiny", "phi3-tiny",
	"cohere2-tiny", "gptneox-tiny", "granite-tiny", "gemma2-tiny", "opt-tiny", "starcoder2-tiny",
	"qwen3next-tiny", "deepseek-v3-tiny", "granitemoeshared-tiny", "glm4-tiny"}

// TestAdapterIsMerged holds a model with an adapter to one whose weights have it added.
func TestAdapterIsMerged(t *testing.T) {
	for _, name := range adaptedFixtures {
		t.Run(name, func(t *testing.T) {
			f, opt := shipped(name), cpu.Options{Threads: 2, DType: compute.Float32}
			cfg, weights := f.open(t)
			a := newAdapter(t, cfg, 7, func(string) bool { return true })
			s := loadShard(t, f, opt, layers.Group{Size: 1})
			ids := prompt(40)
			base := s.forward(t, 0, piece{tokens: ids})
			a.load(t, s.model, 3)
			got := s.adapted(t, 0, adaptedPiece{piece{tokens: ids}, 3})

			d, err := cpu.New(opt)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			m, err := model.Load(cfg, merged{model.FromCheckpoint(weights), a, false}, d,
				model.Options{Group: layers.Group{Size: 1}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			s.model = m
			want := s.forward(t, 0, piece{tokens: ids})
			moved, off := distance(base, want), distance(got, want)
			t.Logf("the adapter moves logits by up to %.3g, they are off by %.3g", moved, off)
			if moved < 0.05 || off > 2e-3*moved {
				t.Errorf("logits are off by %g where the adapter moves them by %g", off, moved)
			}
		})
	}
}

// distance is the largest difference of two logits.
func distance(a, b [][]float32) (most float64) {
	for i := range a {
		for j := range a[i] {
			most = max(most, math.Abs(float64(a[i][j]-b[i][j])))
		}
	}
	return most
}

// TestAdapterSameBits computes rows of adapters and of none in many ways, and wants the same bits.
func TestAdapterSameBits(t *testing.T) {
	for i, name := range append([]string{"gptq-g128-tiny"}, adaptedFixtures...) {
		for _, dtype := range []compute.DType{compute.BFloat16, compute.Float32} {
			if testing.Short() && i > 2 && (i%2 == 0) != (dtype == compute.BFloat16) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", name, dtype), func(t *testing.T) {
				checkAdapterBits(t, shipped(name), dtype)
			})
		}
	}
}

// adaptedTogether computes a sequence with adapters 1 and 2 and with none beside each other, in
// steps that cut them differently, and returns the logits of each on rank 0.
func adaptedTogether(t testing.TB, s *shard, rank int, ids []int32) map[uint32][][]float32 {
	t.Helper()
	got := map[uint32][][]float32{}
	for at := 0; at < len(ids); {
		n := min(1+at%17, len(ids)-at)
		order := []uint32{1, 0, 2}
		if at%2 == 1 {
			order = []uint32{2, 1, 0}
		}
		var pieces []adaptedPiece
		for _, id := range order {
			pieces = append(pieces, adaptedPiece{piece{int(id), at, ids[at : at+n]}, id})
		}
		rows := s.adapted(t, rank, pieces...)
		for i, id := range order {
			if rank == 0 {
				got[id] = append(got[id], rows[i*n:(i+1)*n]...)
			}
		}
		at += n
	}
	return got
}

func checkAdapterBits(t *testing.T, f fixture, dtype compute.DType) {
	cfg, _ := f.open(t)
	all := newAdapter(t, cfg, 1, func(string) bool { return true })
	some := newAdapter(t, cfg, 2, func(module string) bool {
		return !strings.Contains(module, "layers.1.") && !strings.HasSuffix(module, "up_proj")
	})
	opt := cpu.Options{Threads: 1, DType: dtype}
	load := func(threads int, g layers.Group) *shard {
		s := loadShard(t, f, cpu.Options{Threads: threads, DType: dtype}, g)
		all.load(t, s.model, 1)
		some.load(t, s.model, 2)
		return s
	}
	ids := prompt(50)
	one := layers.Group{Size: 1}
	plain := loadShard(t, f, opt, one).forward(t, 0, piece{tokens: ids})
	want := map[uint32][][]float32{0: plain}
	for _, id := range []uint32{1, 2} {
		want[id] = load(1, one).adapted(t, 0, adaptedPiece{piece{tokens: ids}, id})
		if distance(want[id], plain) == 0 {
			t.Fatalf("adapter %d changes nothing", id)
		}
	}
	compare := func(how string, got map[uint32][][]float32) {
		t.Helper()
		for id, rows := range want {
			compareRows(t, fmt.Sprintf("%s, adapter %d", how, id), got[id], rows)
		}
	}
	s := load(2, one)
	compare("together on two threads", adaptedTogether(t, s, 0, ids))
	s.model.Unadapt(1)
	if s.model.Adapted(1) || !s.model.Adapted(2) {
		t.Fatal("adapter 1 is there, or 2 is not")
	}
	all.load(t, s.model, 9)
	got := s.adapted(t, 0, adaptedPiece{piece{tokens: ids}, 9})
	compareRows(t, "an adapter that was loaded again", got, want[1])

	for _, size := range []int{2, 4} {
		if model.CheckShard(cfg, size) != nil {
			continue
		}
		shards := make([]*shard, size)
		for r, g := range together(t, size) {
			shards[r] = load(1, layers.Group{Rank: r, Size: size, Comm: layers.OnHost{Group: g}})
		}
		var first map[uint32][][]float32
		var wg sync.WaitGroup
		for r := range shards {
			wg.Go(func() {
				if got := adaptedTogether(t, shards[r], r, ids); r == 0 {
					first = got
				}
			})
		}
		wg.Wait()
		compare(fmt.Sprintf("tensor parallel size %d", size), first)
	}
}

// TestAdapterGoldens holds adapters that PEFT made to what transformers computes with them.
func TestAdapterGoldens(t *testing.T) {
	root := filepath.Join(fixtures.Dir(t), "lora")
	list, err := os.ReadDir(root)
	if err != nil || len(list) == 0 {
		t.Skipf("no adapters at %s", root)
	}
	for _, e := range list {
		raw, err := os.ReadFile(filepath.Join(root, e.Name(), "goldens.json"))
		if err != nil {
			t.Fatal(err)
		}
		var g struct {
			goldens
			Base string `json:"base"`
		}
		if err := json.Unmarshal(raw, &g); err != nil {
			t.Fatal(err)
		}
		for _, dtype := range []compute.DType{compute.Float32, compute.BFloat16} {
			t.Run(fmt.Sprintf("%s/%s", e.Name(), dtype), func(t *testing.T) {
				folder, err := checkpoint.Dir(filepath.Join(root, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				a, c, err := lora.Open(folder)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				f := shipped(g.Base)
				cfg, _ := f.open(t)
				shapes, err := model.Adaptable(cfg)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Fit(shapes, a.Rank()); err != nil {
					t.Fatal(err)
				}
				s := loadShard(t, f, cpu.Options{Threads: 2, DType: dtype}, layers.Group{Size: 1})
				randomAdapter{a, model.FromCheckpoint(c)}.load(t, s.model, 1)
				tolerance := 1e-4
				if dtype == compute.BFloat16 {
					tolerance = 2 * g.BF16Error
				}
				s.adapter = 1
				checkGoldens(t, s, &g.goldens, nil, tolerance, dtype == compute.Float32)
			})
		}
	}
}

// TestAdaptersAllocateNothing wants a steady step with adapters to leave the Go heap alone.
func TestAdaptersAllocateNothing(t *testing.T) {
	for _, threads := range []int{1, 2} {
		f := shipped("llama-tiny")
		s := loadShard(t, f, cpu.Options{Threads: threads}, layers.Group{Size: 1})
		cfg, _ := f.open(t)
		b := decodeBatch(8, 64)
		for i := range uint32(6) {
			if i < 3 {
				a := newAdapter(t, cfg, uint64(i), func(string) bool { return true })
				a.load(t, s.model, 1+i)
			}
			b.Adapters = append(b.Adapters, compute.AdapterRows{Adapter: 1 + i%3, From: int32(i),
				To: int32(i) + 1})
		}
		step := func() {
			if err := forward(s.model, b, s.cache); err != nil {
				t.Fatal(err)
			}
		}
		step()
		if n := allocations(15, step); n != 0 {
			t.Errorf("%d threads: %d allocations in 15 steps", threads, n)
		}
	}
}

// TestNoAdapterOfPickedRows leaves out what is computed of some of a step's rows alone.
func TestNoAdapterOfPickedRows(t *testing.T) {
	raw, err := os.ReadFile("../../../testdata/variants/opt-post-norm/config.json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	shapes, err := model.Adaptable(c)
	if err != nil {
		t.Fatal(err)
	}
	has := func(module string) bool {
		return slices.ContainsFunc(shapes, func(s lora.Shape) bool {
			return strings.HasSuffix(s.Name, module)
		})
	}
	if !has("project_in") || has("project_out") {
		t.Errorf("adapters may stand beside %+v", shapes)
	}
}
