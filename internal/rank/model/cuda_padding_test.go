package model_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// paddedSteps are how many sequences go on in each step after the first, which begins them all.
// Steps of 5 to 7 are one graph's, as are those of 3 and 4.
var paddedSteps = []int{7, 5, 6, 7, 3, 5, 3, 6, 4, 3}

// replayed is how many of them are done again, after two of each shape that warm up and one that is
// recorded.
const replayed = 4

// staged are the stages of a model on a device each, the first of which embeds tokens.
type staged struct {
	models  []*model.Model
	devices []*cuda.Device
	caches  []compute.Cache
	hidden  int
	vocab   int
}

func loadStages(t *testing.T, f fixture, drv *double.Driver, eager bool, stages int) *staged {
	t.Helper()
	cfg, weights := f.open(t)
	y := &staged{hidden: cfg.HiddenSize, vocab: cfg.VocabSize}
	for i := range stages {
		d := openCUDA(t, drv, eager)
		part := model.Stage{From: cfg.Layers * i / stages, To: cfg.Layers * (i + 1) / stages}
		m, err := model.Load(cfg, model.FromCheckpoint(weights), d,
			model.Options{Group: layers.Group{Size: 1}, Stage: part})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		c, err := d.NewCache(compute.CacheShape{
			Layers: model.CacheLayers(cfg, part.From, part.To, 1), Blocks: 64,
			BlockSize: blockSize, DType: compute.BFloat16, States: 8})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Free() })
		y.models, y.devices = append(y.models, m), append(y.devices, d)
		y.caches = append(y.caches, c)
	}
	return y
}

// forward computes a batch and returns the logits of all rows.
func (y *staged) forward(t *testing.T, b *compute.Batch) (logits [][]float32) {
	t.Helper()
	var all []int32
	for i, m := range y.models {
		if i == 0 {
			if err := m.Embed(b); err != nil {
				t.Fatal(err)
			}
		} else {
			hidden := m.Receive(b.Rows())
			if n := copy(hidden.Bytes(), y.models[i-1].Hidden().Bytes()); n !=
				4*b.Rows()*y.hidden {
				t.Fatalf("stage %d sends %d bytes of %d rows", i-1, n, b.Rows())
			}
			hidden.Memory.Filled()
		}
		if err := m.Layers(b, y.caches[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range b.Rows() {
		all = append(all, int32(i))
	}
	out, err := y.models[len(y.models)-1].Logits(all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		logits = append(logits, append([]float32(nil), out.Row(i)...))
	}
	return logits
}

// TestCUDAPadding computes steps of 3 to 7 sequences, whose rows are filled up to a graph's, and
// wants the bits of steps without graphs, in stages too, and experts to have counted the same rows;
// and that no row reads what was never written, or races.
func TestCUDAPadding(t *testing.T) {
	cases := []struct {
		fixture
		stages int
	}{{variant("qwen3-head128"), 1}, {variant("qwen3-head128"), 2}, {shipped("qwen3next-tiny"), 2},
		{shipped("mixtral-tiny"), 1}, {shipped("gemma2-tiny"), 2}, {shipped("deepseekv2-tiny"), 1}}
	if testing.Short() {
		cases = cases[:3]
	}
	checked := &double.Driver{Threads: 2, Check: true}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s, %d stages", c.dir, c.stages), func(t *testing.T) {
			padded := loadStages(t, c.fixture, checked, false, c.stages)
			eager := loadStages(t, c.fixture, onMachine, true, c.stages)
			both := func(name string, pieces []piece) {
				b := batch(pieces...)
				compareRows(t, name, padded.forward(t, b), eager.forward(t, b))
			}
			ids, done, computed := prompt(40), make([]int, 7), 0
			for i := range ids {
				ids[i] %= int32(eager.vocab)
			}
			var begin []piece
			for q := range done {
				done[q] = 3 + 2*q
				begin = append(begin, piece{seq: q, tokens: ids[:done[q]]})
				computed += done[q]
			}
			both("the first step", begin)
			for i, n := range paddedSteps {
				var rows []piece
				for q := range n {
					at := done[q]
					rows = append(rows, piece{seq: q, start: at, tokens: ids[at : at+1]})
					done[q]++
				}
				computed += n
				both(fmt.Sprintf("step %d, of %d rows", i, n), rows)
			}
			for i, d := range padded.devices {
				if n := d.Replays(); n != replayed {
					t.Errorf("stage %d: %d steps were replays, not %d", i, n, replayed)
				}
				loads := padded.models[i].ExpertLoads()
				if want := eager.models[i].ExpertLoads(); !reflect.DeepEqual(loads, want) {
					t.Errorf("stage %d: experts had rows %v, not %v", i, loads, want)
				}
				for _, l := range loads {
					sum := int64(0)
					for _, n := range l.Rows {
						sum += n
					}
					if sum == 0 || sum%int64(computed) != 0 {
						t.Errorf("layer %d: experts had %d rows of %d", l.Layer, sum, computed)
					}
				}
			}
		})
	}
}
