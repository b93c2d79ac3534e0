package model_test

import (
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// TestFootprint loads every share of every architecture, in every type, and compares what was
// mapped with what was said before: not less, and next to nothing more.
func TestFootprint(t *testing.T) {
	types := []compute.DType{compute.BFloat16, compute.Float16, compute.Float32}
	if testing.Short() {
		types = types[:1]
	}
	for _, name := range allNames {
		for _, dtype := range types {
			for _, l := range []layout.Layout{{}, {TP: 2}, {TP: 4}, {PP: 2}, {TP: 2, PP: 2}} {
				c, ckpt := shipped(name).open(t)
				l = l.Sizes()
				if model.CheckLayout(c, l) != nil {
					continue
				}
				src := model.FromCheckpoint(ckpt)
				for stage := range l.PP {
					s := model.Stage{From: stage * c.Layers / l.PP, To: (stage +
						1) * c.Layers / l.PP}
					f, err := model.Weigh(c, src, model.Use{Planner: cpu.Planner{DType: dtype},
						Layout: l, Stage: s,
						Rows: 64, MaxLen: 256})
					if err != nil {
						t.Fatal(err)
					}
					for rank := range l.TP {
						d, err := cpu.New(cpu.Options{Threads: 1, DType: dtype})
						if err != nil {
							t.Fatal(err)
						}
						before := offheap.InUse()
						m, err := model.Load(c, src, d,
							model.Options{Group: layers.Group{Rank: rank, Size: l.TP}, Stage: s})
						if err != nil {
							t.Fatal(err)
						}
						// Pages are counted whole: a tiny model has a matrix in each.
						if took := offheap.InUse() - before; took > f.Packed ||
							took < f.Packed*6/10 && f.Packed > 1<<20 {
							t.Errorf("%s, %v, %v, stage %d, rank %d: %d bytes were mapped, %d "+
								"were planned", name, dtype, l, stage, rank, took, f.Packed)
						}
						m.Close()
						d.Close()
					}
				}
				ckpt.Close()
			}
		}
	}
}

// TestFootprintOfTensors wants what is held of a source at a time to be a few of its largest
// tensors, however many parts are read of one.
func TestFootprintOfTensors(t *testing.T) {
	for _, name := range allNames {
		c, ckpt := shipped(name).open(t)
		var largest int64
		for _, tensor := range ckpt.Names() {
			if x, err := ckpt.Tensor(tensor); err == nil {
				largest = max(largest, int64(len(x.Data)))
				ckpt.Release(x)
			}
		}
		f, err := model.Weigh(c, model.FromCheckpoint(ckpt), model.Use{Planner: cpu.Planner{},
			Stage: model.Stage{To: c.Layers}, Rows: 8, MaxLen: 64})
		if err != nil {
			t.Fatal(err)
		}
		if f.Tensors > 4*largest {
			t.Errorf("%s: %d bytes are held at a time, and the largest tensor has %d", name,
				f.Tensors, largest)
		}
	}
}

// TestFootprintOfSteps computes steps of as many rows as was said, at the end of the longest
// sequences, and compares what is on the heap then with what was said before.
func TestFootprintOfSteps(t *testing.T) {
	const rows, context = 200, 320
	for _, name := range allNames {
		t.Run(name, func(t *testing.T) {
			c, ckpt := shipped(name).open(t)
			f, err := model.Weigh(c, model.FromCheckpoint(ckpt), model.Use{Planner: cpu.Planner{},
				Stage: model.Stage{To: c.Layers},
				Rows:  rows, MaxLen: context})
			if err != nil {
				t.Fatal(err)
			}
			ckpt.Close()
			threads := 2
			end := min(context, c.MaxPositions)
			s := loadShard(t, shipped(name), cpu.Options{Threads: threads},
				layers.Group{Size: 1})
			tokens, chosen := make([]int32, rows), make([]int32, rows)
			for i := range chosen {
				tokens[i], chosen[i] = int32(i), int32(i)
			}
			b := batch(piece{start: end - rows, tokens: tokens})
			before := heap()
			if err := forward(s.model, b, s.cache); err != nil {
				t.Fatal(err)
			}
			if _, err := s.model.Logits(chosen); err != nil {
				t.Fatal(err)
			}
			took := heap() - before
			// What buffers have beside, as they grow, is counted by memory.Rank.
			planned := (f.Activations + f.Vectors + f.PerThread*int64(threads)) * 5 / 4
			if took > planned {
				t.Errorf("%d bytes are on the heap, %d were planned", took, planned)
			}
			t.Logf("%d of %d", took, planned)
			runtime.KeepAlive(s)
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFootprintOfAdapters loads adapters of the largest rank beside all weights, and compares what
// they take with what was planned for them: for panels of 32 rows, of which AVX2 has half.
func TestFootprintOfAdapters(t *testing.T) {
	const rank = 8
	for _, name := range []string{"llama-tiny", "qwen3moe-tiny", "deepseek-v3-tiny"} {
		for _, tp := range []int{1, 2} {
			c, ckpt := shipped(name).open(t)
			src := model.FromCheckpoint(ckpt)
			stage := model.Stage{To: c.Layers}
			weigh := func(adapters int) int64 {
				f, err := model.Weigh(c, src, model.Use{Planner: cpu.Planner{},
					Layout: layout.Layout{TP: tp}, Stage: stage, Rows: 8, MaxLen: 64,
					Adapters: adapters, AdapterRank: rank})
				if err != nil {
					t.Fatal(err)
				}
				return f.Packed
			}
			planned := weigh(2) - weigh(0)
			s := loadShard(t, shipped(name), cpu.Options{Threads: 1}, layers.Group{Size: tp})
			before := offheap.InUse()
			for id := range uint32(2) {
				newAdapterOf(t, c, uint64(id), rank, func(string) bool { return true }).load(t,
					s.model, id+1)
			}
			if took := offheap.InUse() - before; took > planned || took < planned/4 {
				t.Errorf("%s, TP %d: %d bytes were mapped, %d were planned", name, tp, took,
					planned)
			}
			ckpt.Close()
		}
	}
}
