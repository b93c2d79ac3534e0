package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// planned is sequences that are computed in random plans. The first two begin alike.
type planned struct {
	ids  [][]int32
	want [][][]float32 // logits of each position, computed alone and at once
}

// sharedTokens is how many tokens, of whole blocks, the first two sequences have in common.
const sharedTokens = 2 * blockSize

func plannedFor(t *testing.T, s *shard) *planned {
	y := &planned{ids: [][]int32{prompt(110), prompt(57), prompt(21)}}
	for q, ids := range y.ids {
		for i := range ids {
			ids[i] %= int32(s.vocab)
			if q > 0 && i >= sharedTokens || q == 2 {
				ids[i] = (ids[i]*31 + int32(q)) % int32(s.vocab)
			}
		}
		y.want = append(y.want, s.forward(t, 0, piece{tokens: ids}))
	}
	return y
}

// run computes the sequences by a plan: rows of some of them in each step, in pieces of any length,
// in blocks of any order; one of them is preempted now and then, and begins anew in others; the
// second goes on from the blocks of the first where these are there.
func (y *planned) run(t *testing.T, s *shard, rank int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	free := r.Perm(64)
	tables, done := make([][]int32, len(y.ids)), make([]int, len(y.ids))
	begin := func(q int) {
		for _, block := range tables[q] {
			if q != 1 || !slices.Contains(tables[0], block) {
				free = append(free, int(block))
			}
		}
		tables[q], done[q] = nil, 0
		if q == 1 && done[0] >= sharedTokens && r.IntN(2) == 0 {
			tables[q] = slices.Clone(tables[0][:sharedTokens/blockSize])
			done[q] = sharedTokens
		}
	}
	left := func() bool {
		return slices.ContainsFunc([]int{0, 1, 2}, func(q int) bool {
			return done[q] < len(y.ids[q])
		})
	}
	for step := 0; left(); step++ {
		b, rows := new(compute.Batch), 0
		var want [][]float32
		for _, q := range r.Perm(len(y.ids)) {
			if q > 0 && step > 0 && r.IntN(12) == 0 {
				begin(q)
			}
			n := min(len(y.ids[q])-done[q], []int{0, 1, 1, 6, 17, 70}[r.IntN(6)])
			for i := range n {
				p := done[q] + i
				if p/blockSize == len(tables[q]) {
					tables[q] = append(tables[q], int32(free[0]))
					free = free[1:]
				}
				b.Tokens = append(b.Tokens, y.ids[q][p])
				b.Position = append(b.Position, int32(p))
				b.Seq = append(b.Seq, int32(q))
				want = append(want, y.want[q][p])
			}
			done[q] += n
			rows += n
		}
		if rows == 0 {
			continue
		}
		s.place(b, tables)
		for q := range y.ids {
			b.States = append(b.States, int32(q))
		}
		if !s.compute(t, fmt.Sprintf("plan %d, step %d", seed, step), rank, b, want) {
			return
		}
	}
}

// place says where the rows of a batch are kept by layers of each group, which all have blocks of
// their own of each of those of the tables.
func (s *shard) place(b *compute.Batch, tables [][]int32) {
	b.Groups = max(1, len(s.factors))
	for g := range b.Groups {
		of := tables
		if b.Groups > 1 {
			of = make([][]int32, len(tables))
			for q, table := range tables {
				for _, block := range table {
					of[q] = append(of[q], (block*int32(b.Groups)+int32(g))*int32(s.factors[g]))
				}
			}
		}
		for i, p := range b.Position {
			b.Slots = append(b.Slots, of[b.Seq[i]][p/blockSize]*blockSize+p%blockSize)
		}
		b.Tables = append(b.Tables, of...)
	}
}

// TestCUDACacheGroups has layers with windows in groups of their own: random plans of one rank and
// of two have the bits of sequences alone in a cache of one group.
func TestCUDACacheGroups(t *testing.T) {
	fixtures := []fixture{shipped("gemma2-tiny"), shipped("gpt-oss-tiny")}
	if testing.Short() {
		fixtures = fixtures[:1]
	}
	for _, f := range fixtures {
		t.Run(filepath.Base(f.dir), func(t *testing.T) {
			cfg, _ := f.open(t)
			groups := compute.GroupsOf(cfg.Cache(), 1024, blockSize, compute.BFloat16)
			if groups.Count() < 2 {
				t.Fatal("one group")
			}
			one, d := loadCUDA(t, f, onMachine, layers.Group{Size: 1})
			grouped := func(d *cuda.Device, s *shard, size int) *shard {
				shape := compute.CacheShape{BlockSize: blockSize, Blocks: 64 * groups.Count(),
					DType:  compute.BFloat16,
					Layers: model.GroupedLayers(cfg, 0, cfg.Layers, size, groups)}
				c, err := d.NewCache(shape)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Free() })
				made := &shard{model: s.model, cache: c, vocab: s.vocab}
				for g := range groups.Count() {
					made.factors = append(made.factors, shape.Factor(g))
				}
				return made
			}
			y := plannedFor(t, one)
			y.run(t, grouped(d, one, 1), 0, 1)
			eachRank(t, f, divided{size: 2, way: overPeers},
				func(r int, s *shard, d *cuda.Device) { y.run(t, grouped(d, s, 2), r, 2) })
		})
	}
}

// compute computes a batch, and wants the logits of its rows on the first rank; false says that it
// failed.
func (s *shard) compute(t *testing.T, name string, rank int, b *compute.Batch,
	want [][]float32) bool {
	if err := forward(s.model, b, s.cache); err != nil {
		t.Errorf("%s, rank %d: %v", name, rank, err)
		return false
	}
	all := make([]int32, b.Rows())
	for i := range all {
		all[i] = int32(i)
	}
	logits, err := s.model.Logits(all)
	if err == nil && (rank > 0 || len(all) == 0) {
		err = s.model.Finish()
	}
	if err != nil {
		t.Errorf("%s, rank %d: %v", name, rank, err)
		return false
	}
	var got [][]float32
	for i := range all {
		if rank == 0 {
			got = append(got, logits.Row(i))
		}
	}
	if rank == 0 {
		compareRows(t, name, got, want)
	}
	return true
}

// plannedFixtures are of attention by tensor cores and without, with windows, experts and latents.
var plannedFixtures = []fixture{variant("qwen3-head128"), variant("mistral-head64"),
	shipped("mixtral-tiny"), shipped("gemma2-tiny"), shipped("deepseekv2-tiny")}

// TestCUDAPlans computes sequences in random plans, and wants the bits of each computed alone.
func TestCUDAPlans(t *testing.T) {
	plans := 40
	if testing.Short() {
		plans = 2
	}
	fixtures := slices.Concat(plannedFixtures[:3], wide(t), plannedFixtures[3:])
	if testing.Short() {
		fixtures = fixtures[:5]
	}
	run := func(dtype compute.DType, f fixture, plans int) {
		t.Run(fmt.Sprintf("%s in %v", filepath.Base(f.dir), dtype), func(t *testing.T) {
			d := openCUDAIn(t, dtype, onMachine, false)
			s := loadOnIn(t, dtype, d, f, layers.Group{Size: 1})
			y := plannedFor(t, s)
			for seed := range plans {
				y.run(t, s, 0, uint64(seed))
			}
		})
	}
	for _, f := range fixtures {
		run(compute.BFloat16, f, plans)
	}
	run(compute.Float32, fixtures[0], max(1, plans/10))
	if !testing.Short() {
		run(compute.Float32, shipped("mixtral-tiny"), max(1, plans/10))
	}
}

// How the ranks of a test sum, as Comm.Way begins.
const (
	overPeers = "over peer memory"
	byNCCL    = "by NCCL "
	byHosts   = "through the host: "
)

// apart is onMachine with devices that do not reach each other's memory, and with NCCL.
var apart = &double.Driver{Threads: 2, Apart: true, NCCL: new(double.NCCL)}

// divided is how the ranks of a test divide a model: they sum in a way, and have whole experts, of
// which so many have copies, or a share of each.
type divided struct {
	size      int
	way       string
	eager     bool
	whole     bool
	redundant int
}

func (l divided) String() string {
	experts := ""
	if l.whole {
		experts = fmt.Sprintf(", whole experts and %d copies", l.redundant)
	}
	return fmt.Sprintf("by %d, %s, eager %v%s", l.size, l.way, l.eager, experts)
}

// eachRank runs ranks with a device each.
func eachRank(t *testing.T, f fixture, l divided,
	run func(rank int, s *shard, d *cuda.Device)) {
	t.Helper()
	size, way := l.size, l.way
	var ranks sync.WaitGroup
	for r, g := range together(t, size) {
		drv := onMachine
		if way == byNCCL {
			drv = apart
		}
		d := openCUDA(t, drv, l.eager)
		place := layers.Group{Rank: r, Size: size, Comm: layers.OnHost{Group: g}}
		if l.whole {
			place.Experts = &layers.ExpertGroup{Share: r, Shares: size, Redundant: l.redundant}
		}
		comm := d.NewComm(r, size, place.Comm, g)
		if way != byHosts {
			place.Comm = comm
		}
		s := loadOn(t, d, f, place)
		ranks.Go(func() {
			if way != byHosts {
				if err := comm.Connect(t.Context().Done()); err != nil ||
					!strings.HasPrefix(comm.Way(), way) {
					t.Errorf("rank %d: %v, %s", r, err, comm.Way())
					return
				}
				defer comm.Leave()
			}
			run(r, s, d)
			if err := s.model.Finish(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ranks.Wait()
}

// TestCUDALayouts computes a sequence by several ranks, and wants the bits of one.
func TestCUDALayouts(t *testing.T) {
	int4 := shipped("qwen3moe-tiny")
	int4.quantization = "int4"
	int8 := shipped("llama-tiny")
	int8.quantization = "int8"
	fixtures := []fixture{shipped("llama-tiny"), shipped("qwen3moe-tiny"), shipped("olmo2-tiny"),
		int4}
	if !testing.Short() {
		fixtures = append(fixtures, int8)
		for _, name := range []string{"gptq-g128-tiny", "ct-w8a8-tiny", "fp8-static-tiny",
			"bnb-nf4-tiny", "gpt-oss-mxfp4-tiny"} {
			fixtures = append(fixtures, shipped(name))
		}
	}
	for i, f := range fixtures {
		f = f.shallow()
		cfg, _ := f.open(t)
		ids := prompt(40)
		one, _ := loadCUDA(t, f, onMachine, layers.Group{Size: 1})
		want := one.forward(t, 0, piece{tokens: ids})
		for _, size := range []int{2, 4} {
			for _, way := range []string{byHosts, overPeers, byNCCL} {
				if cfg.Heads%size != 0 ||
					testing.Short() && (size == 4 || i > 0 && way != overPeers) {
					continue
				}
				name := fmt.Sprintf("%s %s by %d, %s", f.dir, f.quantization, size, way)
				t.Run(name, func(t *testing.T) {
					eachRank(t, f, divided{size: size, way: way},
						func(r int, s *shard, _ *cuda.Device) {
							if rows := s.forward(t, r, piece{tokens: ids}); r == 0 {
								compareRows(t, "ranks", rows, want)
							}
						})
				})
			}
		}
	}
}

// TestCUDAPlansOfRanks computes sequences in random plans by several ranks, over peer memory, with
// graphs and without, and by NCCL, with graphs, and wants the bits of each computed alone by one.
func TestCUDAPlansOfRanks(t *testing.T) {
	plans, fixtures := 6, []fixture{variant("qwen3-head128"), shipped("qwen3moe-tiny"),
		shipped("gemma2-tiny"), shipped("deepseekv2-tiny")}
	if testing.Short() {
		plans, fixtures = 1, fixtures[:1]
	}
	for _, f := range fixtures {
		one, _ := loadCUDA(t, f, onMachine, layers.Group{Size: 1})
		y := plannedFor(t, one)
		for _, size := range []int{2, 4} {
			for _, m := range []struct {
				way   string
				eager bool
			}{{overPeers, false}, {overPeers, true}, {byNCCL, false}} {
				if testing.Short() && (size == 4 || m.eager) {
					continue
				}
				name := fmt.Sprintf("%s by %d, %s, eager %v", f.dir, size, m.way, m.eager)
				t.Run(name, func(t *testing.T) {
					run := func(r int, s *shard, d *cuda.Device) {
						for seed := range plans {
							y.run(t, s, r, uint64(seed))
						}
						if replays := d.Replays(); m.eager == (replays > 0) && plans > 1 {
							t.Errorf("rank %d: %d steps were graphs'", r, replays)
						}
					}
					eachRank(t, f, divided{size: size, way: m.way, eager: m.eager}, run)
				})
			}
		}
	}
}

// TestCUDAWholeExperts computes sequences in random plans by ranks that hold whole experts, and
// wants the bits of each computed alone by one.
func TestCUDAWholeExperts(t *testing.T) {
	int4 := shipped("qwen3moe-tiny")
	int4.quantization = "int4"
	fixtures := []fixture{shipped("qwen3moe-tiny"), shipped("gpt-oss-mxfp4-tiny"),
		shipped("deepseek-v3-tiny"), shipped("granitemoeshared-tiny"), int4}
	ways := []divided{{2, overPeers, false, true, 0}, {2, byHosts, true, true, 0},
		{2, byNCCL, false, true, 2}, {4, overPeers, false, true, 4}, {4, overPeers, true, true, 0},
		{4, byNCCL, true, true, 0}}
	plans := 3
	if testing.Short() {
		plans, fixtures, ways = 1, fixtures[:2], ways[:1]
	}
	for _, f := range fixtures {
		f = f.shallow()
		one, _ := loadCUDA(t, f, onMachine, layers.Group{Size: 1})
		y := plannedFor(t, one)
		for _, l := range ways {
			t.Run(fmt.Sprintf("%s %s %s", f.dir, f.quantization, l), func(t *testing.T) {
				eachRank(t, f, l, func(r int, s *shard, d *cuda.Device) {
					for seed := range plans {
						y.run(t, s, r, uint64(seed))
					}
					graphs := !l.eager && l.way != byHosts
					if replays := d.Replays(); graphs != (replays > 0) && plans > 1 {
						t.Errorf("rank %d: %d steps were graphs'", r, replays)
					}
				})
			})
		}
	}
}

// relative is how far rows are from others, beside how large these are, by their squares.
func relative(rows, others [][]float32) float64 {
	off, all := 0.0, 0.0
	for i, row := range others {
		for j, v := range row {
			off += math.Pow(float64(rows[i][j]-v), 2)
			all += math.Pow(float64(v), 2)
		}
	}
	return math.Sqrt(off / all)
}

// TestCUDACacheTypes keeps keys and values as codes of a byte: random plans of one rank and of two
// have the bits of sequences alone, and logits are near those of 16 bits.
func TestCUDACacheTypes(t *testing.T) {
	fixtures := append(wide(t), shipped("llama-tiny"), shipped("deepseek-v3-tiny"),
		shipped("gemma2-tiny"), variant("mistral-head64"), variant("qwen3-head128"))
	types := []compute.DType{compute.Int8, compute.E4M3}
	if testing.Short() {
		fixtures, types = fixtures[len(fixtures)-1:], types[:1]
	}
	for _, f := range fixtures {
		name := filepath.Base(f.dir)
		cfg, _ := f.open(t)
		one, d := loadCUDA(t, f, onMachine, layers.Group{Size: 1})
		plain := plannedFor(t, one)
		for _, dtype := range types {
			t.Run(fmt.Sprintf("%s %v", name, dtype), func(t *testing.T) {
				cached := func(d *cuda.Device, s *shard, size int) *shard {
					c, err := d.NewCache(compute.CacheShape{BlockSize: blockSize, Blocks: 64,
						Layers: model.CacheLayers(cfg, 0, cfg.Layers, size), DType: dtype})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { c.Free() })
					return &shard{model: s.model, cache: c, vocab: s.vocab}
				}
				s := cached(d, one, 1)
				y := plannedFor(t, s)
				for q := range y.want {
					off := relative(y.want[q], plain.want[q])
					t.Logf("logits of sequence %d are off by %.3g of what they are", q, off)
					if off == 0 || off > 0.2 {
						t.Errorf("logits of sequence %d are off by %g", q, off)
					}
				}
				y.run(t, s, 0, 1)
				eachRank(t, f, divided{size: 2, way: overPeers},
					func(r int, s *shard, d *cuda.Device) { y.run(t, cached(d, s, 2), r, 2) })
			})
		}
	}
}
