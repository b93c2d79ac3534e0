package model_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// onMachine is the driver that tests share: what it parsed, not its devices.
var onMachine = &double.Driver{Threads: 2}

// loadCUDA is loadShard on a CUDA device, the kernels of which a machine for PTX executes.
func loadCUDA(t testing.TB, f fixture, drv *double.Driver, g layers.Group) (*shard, *cuda.Device) {
	t.Helper()
	d := openCUDA(t, drv, false)
	return loadOn(t, d, f, g), d
}

func openCUDA(t testing.TB, drv *double.Driver, eager bool) *cuda.Device {
	t.Helper()
	return openCUDAIn(t, compute.BFloat16, drv, eager)
}

// openCUDAIn is a device that runs models in a type.
func openCUDAIn(t testing.TB, dtype compute.DType, drv *double.Driver, eager bool) *cuda.Device {
	t.Helper()
	opt := cuda.Options{Driver: drv, DType: dtype, Threads: 1, PTX: true, Eager: eager}
	if drv.NCCL != nil {
		opt.NCCL.Open = func() (driver.NCCL, error) { return drv.NCCL, nil }
	}
	d, err := cuda.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		if err := d.Err(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func loadOn(t testing.TB, d *cuda.Device, f fixture, g layers.Group) *shard {
	t.Helper()
	return loadOnIn(t, compute.BFloat16, d, f, g)
}

// loadOnIn loads a model that has keys and values in a type.
func loadOnIn(t testing.TB, dtype compute.DType, d *cuda.Device, f fixture,
	g layers.Group) *shard {
	t.Helper()
	cfg, weights := f.open(t)
	m, err := model.Load(cfg, model.FromCheckpoint(weights), d, model.Options{Group: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := d.NewCache(compute.CacheShape{Layers: model.CacheLayers(cfg, 0, cfg.Layers, g.Size),
		Blocks: 64, BlockSize: blockSize, DType: dtype, States: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	return &shard{model: m, cache: c, vocab: cfg.VocabSize}
}

// TestCUDA holds every family to transformers on a CUDA device: logits of the shortest prompt, and
// greedy tokens after it. As on CPUs that round activations to bfloat16, they may differ by twice
// what this causes in the reference itself, and so may a token where the best two are as near. In
// float32 all tokens are the same.
func TestCUDA(t *testing.T) {
	var launched [kernels.Count]uint64
	names, files := allNames, ggufs
	if testing.Short() {
		names = append(slices.Clone(fixtureNames), "gptq-actorder-g32-tiny", "fp8-block-tiny")
		files = ggufs[:1]
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			g := readGoldens(t, name)
			checkCUDA(t, compute.BFloat16, shipped(name), g, 2*g.BF16Error, &launched)
		})
	}
	for _, name := range []string{"qwen3-head128", "mistral-head64", "qwen2-window", "llama-bias",
		"lfm2"} {
		t.Run(name, func(t *testing.T) {
			g, _ := readVariant(t, name)
			checkCUDA(t, compute.BFloat16, variant(name), &g.goldens, 2*g.BF16, &launched)
		})
	}
	for _, name := range files {
		t.Run(name, func(t *testing.T) {
			f, golden := ggufModel(t, name)
			g := readGoldens(t, golden)
			checkCUDA(t, compute.BFloat16, f, g, 2*g.BF16Error, &launched)
		})
	}
	inFloat := names
	if testing.Short() {
		inFloat = []string{"llama-tiny", "qwen3moe-tiny", "deepseek-v3-tiny"}
	}
	for _, name := range inFloat {
		t.Run(name+" in float32", func(t *testing.T) {
			g := readGoldens(t, name)
			checkCUDA(t, compute.Float32, shipped(name), g, floatError, &launched)
		})
	}
	for _, name := range variantNames(t) {
		if lacking[name] != "" {
			continue
		}
		t.Run(name+" in float32", func(t *testing.T) {
			g, _ := readVariant(t, name)
			f := variant(name)
			if name == inChunks {
				checkChunks(t, f)
				return
			}
			checkCUDA(t, compute.Float32, f, &g.goldens, floatError, &launched)
		})
	}
	var unused []string
	for k, n := range launched {
		if n == 0 {
			unused = append(unused, kernels.ID(k).Name())
		}
	}
	t.Logf("%d of %d kernels launched; not: %v", len(launched)-len(unused), len(launched), unused)
}

// inChunks is a variant with attention in chunks, of chunkSize positions.
const (
	inChunks  = "llama4"
	chunkSize = 16
)

// checkChunks holds it to transformers where no sequence is longer than a chunk; others have an
// error.
func checkChunks(t *testing.T, f fixture) {
	g, full := readVariant(t, inChunks)
	ids, std := g.Prompts[0].IDs, g.Prompts[0].Std
	want := full[len(ids)]
	vocab := len(want) / len(ids)
	f.serve = chunkSize
	s := loadOnIn(t, compute.Float32, openCUDAIn(t, compute.Float32, onMachine, false), f,
		layers.Group{Size: 1})
	for i, row := range s.forward(t, 0, piece{tokens: ids[:chunkSize]}) {
		for j, v := range row {
			if off := math.Abs(float64(v-want[i*vocab+j])) / std; off > floatError {
				t.Fatalf("row %d: logit %d is off by %g std", i, j, off)
			}
		}
	}
	f.serve = chunkSize + 1
	d, err := cuda.New(cuda.Options{Driver: onMachine, DType: compute.Float32, Threads: 1,
		PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s = loadOnIn(t, compute.Float32, d, f, layers.Group{Size: 1})
	err = forward(s.model, batch(piece{tokens: ids}), s.cache)
	if err == nil || !strings.Contains(err.Error(), "in chunks of 16 positions") {
		t.Errorf("beyond a chunk: %v", err)
	}
}

// lacking are the variants that need what CUDA devices do not compute, and what that is.
var lacking = map[string]string{"apertus": "xielu is not computed on this device",
	"phimoe": "(SparseMixer) are not computed on this device",
	"olmo":   "clipped queries, keys and values are not computed on this device"}

// TestCUDARefuses wants a model that needs what CUDA devices lack to be refused by what it is.
func TestCUDARefuses(t *testing.T) {
	for name, want := range lacking {
		cfg, weights := variant(name).open(t)
		d := openCUDA(t, onMachine, true)
		_, err := model.Load(cfg, model.FromCheckpoint(weights), d,
			model.Options{Group: layers.Group{Size: 1}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("loading %s: %v", name, err)
		}
	}
}

// floatError is what logits in float32 may be off by, in standard deviations, as CPUs' may.
const floatError = 1e-4

func checkCUDA(t *testing.T, dtype compute.DType, f fixture, g *goldens, tolerance float64,
	launched *[kernels.Count]uint64) {
	d := openCUDAIn(t, dtype, onMachine, false)
	s := loadOnIn(t, dtype, d, f, layers.Group{Size: 1})
	p := g.Prompts[0]
	for _, q := range g.Prompts {
		if len(q.IDs) < len(p.IDs) {
			p = q
		}
	}
	rows := s.forward(t, 0, piece{tokens: p.IDs})
	last, worst := rows[len(rows)-1], 0.0
	for _, top := range p.Top {
		worst = max(worst, math.Abs(float64(last[int(top[0])])-top[1])/p.Std)
	}
	if !(worst <= tolerance) {
		t.Errorf("largest logit error is %.3g standard deviations, more than %.3g", worst,
			tolerance)
	}
	ids := slices.Clone(p.IDs)
	equal, greedy := 0, p.Greedy
	if testing.Short() {
		greedy = greedy[:10]
	}
	for k, want := range greedy {
		got := argmax(last)
		if got != want {
			if dtype == compute.Float32 || p.Margins[k] >= tolerance*p.Std {
				t.Errorf("greedy token %d is %d, not %d (margin %g)", k, got, want, p.Margins[k])
			}
			break
		}
		equal++
		ids = append(ids, got)
		last = s.forward(t, 0, piece{start: len(ids) - 1, tokens: ids[len(ids)-1:]})[0]
	}
	for k, n := range d.Launches() {
		launched[k] += n
	}
	if d.Replays() == 0 && equal > 4 {
		t.Error("no step was a graph's")
	}
	t.Logf("%d of %d tokens equal, largest error %.3g std (limit %.3g)", equal, len(greedy),
		worst, tolerance)
}

// TestCUDAEncoders holds encoders to transformers on a CUDA device, and wants the bits of a text
// alone of one beside others.
func TestCUDAEncoders(t *testing.T) {
	for _, name := range encoderNames {
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(encoders, name, "goldens.json"))
			if err != nil {
				t.Fatal(err)
			}
			g := new(encoderGoldens)
			if err := json.Unmarshal(raw, g); err != nil {
				t.Fatal(err)
			}
			s, _ := loadCUDA(t, encoder(name), onMachine, layers.Group{Size: 1})
			states := func(pieces ...piece) [][]float32 {
				b := batch(pieces...)
				x, err := encode([]*model.Model{s.model}, b)
				if err != nil {
					t.Fatal(err)
				}
				var rows [][]float32
				for i := range x.Rows {
					rows = append(rows, slices.Clone(x.Row(i)))
				}
				return rows
			}
			p := g.Prompts[0]
			alone := states(piece{tokens: p.IDs})
			worst, most := 0.0, 0.0
			for i, want := range p.CLS {
				worst = max(worst, math.Abs(float64(alone[0][i])-want))
				most = max(most, math.Abs(want))
			}
			if !(worst <= 2*g.BF16Error*most) {
				t.Errorf("largest error %.3g of %.3g, more than %.3g", worst, most,
					2*g.BF16Error*most)
			}
			t.Logf("largest error %.3g of %.3g (limit %.3g)", worst, most, 2*g.BF16Error*most)
			beside := states(piece{tokens: prompt(21)}, piece{seq: 1, tokens: p.IDs})
			compareRows(t, "beside another text", beside[21:], alone)
		})
	}
}

// TestCUDAReplayedStage has a stage between others compute steps that are a graph's: what it hands
// on, which the host reads where it filled in what came from the stage before, is that of launches
// one by one.
func TestCUDAReplayedStage(t *testing.T) {
	cfg, weights := shipped("llama-tiny").open(t)
	stage := model.Stage{From: 1, To: 3}
	var want [][]float32
	for _, eager := range []bool{true, false} {
		d := openCUDA(t, onMachine, eager)
		m, err := model.Load(cfg, model.FromCheckpoint(weights), d,
			model.Options{Group: layers.Group{Size: 1}, Stage: stage})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		c, err := d.NewCache(compute.CacheShape{Blocks: 4, BlockSize: blockSize,
			Layers: model.CacheLayers(cfg, stage.From, stage.To, 1), DType: compute.BFloat16})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Free() })
		for i := range 5 {
			x := m.Receive(1)
			for j := range x.Floats() {
				x.Floats()[j] = float32((i+j)%7) - 3
			}
			x.Memory.Filled()
			if err := m.Layers(batch(piece{0, i, []int32{1}}), c); err != nil {
				t.Fatal(err)
			}
			got := slices.Clone(m.Hidden().Floats())
			if eager {
				want = append(want, got)
			} else if !slices.Equal(got, want[i]) {
				t.Errorf("step %d, %d replays: another hidden state", i, d.Replays())
			}
		}
		if eager == (d.Replays() > 0) {
			t.Errorf("eager %v: %d steps were a graph's", eager, d.Replays())
		}
	}
}

// TestCUDAWarpGroups wants a prompt of many rows to have the same bits whether warp groups compute
// it or not: of quantised weights, with offsets and without, and of experts, whose rows are laid
// side by side for them.
func TestCUDAWarpGroups(t *testing.T) {
	for _, c := range []struct {
		name string
		rows int
		of   kernels.ID
	}{
		{"fp8-block-tiny", 66, kernels.GemmGroupsBF16Codes8},
		{"awq-g64-tiny", 66, kernels.SumInputsBF16},
		{"granitemoe-tiny", 88, kernels.OrderColumns},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, d := loadCUDA(t, shipped(c.name), onMachine, layers.Group{Size: 1})
			d.UseWarpGroups(false)
			want := s.forward(t, 0, piece{tokens: prompt(c.rows)})
			before := d.Launches()[c.of]
			d.UseWarpGroups(true)
			got := s.forward(t, 0, piece{tokens: prompt(c.rows)})
			compareRows(t, "by warp groups", got, want)
			if after := d.Launches()[c.of]; before > 0 || after == 0 {
				t.Errorf("%d launches of %s without warp groups, %d with them", before,
					c.of.Name(), after)
			}
		})
	}
}
