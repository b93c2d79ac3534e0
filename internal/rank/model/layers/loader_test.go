package layers_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// lacking is a source of dummy weights without one of the tensors. It counts what is held of it.
type lacking struct {
	layers.Source
	without string
	asked   []string
	held    int
}

var errLost = errors.New("lost")

func (s *lacking) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	s.asked = append(s.asked, name)
	if name == s.without {
		return checkpoint.Tensor{}, errLost
	}
	s.held++
	return s.Source.Tensor(name, shape...)
}

func (s *lacking) Release(t checkpoint.Tensor) {
	s.held--
	s.Source.Release(t)
}

// TestFirstErrorStays makes layers of each kind from sources that lack a tensor: nothing is read
// after it, Err is about it, and Free leaves nothing held.
func TestFirstErrorStays(t *testing.T) {
	const hidden, inner = 32, 64
	heads := layers.Heads{Query: 4, KV: 2, Dim: 8}
	d, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	load := func(src layers.Source) (*layers.Loader, error) {
		l := layers.NewLoader(d, layers.Group{Size: 1}, src, nil)
		l.Embedding("embed", 50, hidden)
		l.RMSNorm("rms", hidden, 1e-6)
		l.LayerNorm("norm", hidden, 1e-5, layers.WeightAndBias)
		l.QKV("attn.", heads, hidden, layers.QKVOptions{Bias: true})
		l.Attention("attn.", 0, heads, layers.AttentionOptions{HeadNorms: true,
			Rotary: l.Rotary([]float32{1, 0.5}, 1, 100)})
		l.Row("attn.out", hidden, hidden, true)
		l.GatedMLP("gated.", hidden, inner, layers.GatedMLPOptions{Activation: compute.SiLU,
			Bias: true})
		l.MLP("first", "second", hidden, inner, compute.ReLU, true)
		l.Mixture("moe.", hidden, layers.MixtureOptions{Experts: 2, Inner: inner,
			Routing: compute.Routing{PerToken: 1}})
		l.Linear("project", hidden, hidden)
		l.Head("embed", 50, hidden, layers.HeadOptions{})
		return l, l.Err()
	}
	whole := &lacking{Source: model.Dummy(1)}
	l, err := load(whole)
	if err != nil {
		t.Fatal(err)
	}
	if whole.held != 1 {
		t.Errorf("%d tensors are held beside the embedding's", whole.held-1)
	}
	l.Free()
	if whole.held != 0 || len(whole.asked) != 33 {
		t.Errorf("%d tensors are held of %d: %v", whole.held, len(whole.asked), whole.asked)
	}
	for i, name := range whole.asked[:len(whole.asked)-1] { // the head's is the embedding's again
		src := &lacking{Source: model.Dummy(1), without: name}
		l, err := load(src)
		l.Free()
		if !errors.Is(err, errLost) || src.held != 0 || len(src.asked) != i+1 {
			t.Errorf("without %s: %v; %d tensors held, asked for %v",
				name, err, src.held, src.asked)
		}
	}
}

// TestUnitRows has a head whose rows are divided by their lengths: as one whose rows are so stored.
func TestUnitRows(t *testing.T) {
	const vocab, in = 9, 16
	stored, unit := make([]float32, vocab*in), make([]float32, vocab*in)
	for row := range vocab {
		var sum float64
		for i := range in {
			stored[row*in+i] = float32((row+2)*(i%5) - 3*row)
			sum += float64(stored[row*in+i]) * float64(stored[row*in+i])
		}
		for i := range in {
			unit[row*in+i] = stored[row*in+i] / float32(math.Sqrt(sum))
		}
	}
	d := device(t)
	x := new(layers.Tensor)
	d.Resize(x, 2, in)
	for i := range x.Floats() {
		x.Floats()[i] = float32(i%7) - 2.5
	}
	x.Memory.Filled()
	logits := func(rows []float32, opt layers.HeadOptions) []float32 {
		h := checkpoint.Tensor{Name: "h.weight", DType: checkpoint.F32, Shape: []int{vocab, in}}
		for _, v := range rows {
			h.Data = binary.LittleEndian.AppendUint32(h.Data, math.Float32bits(v))
		}
		l := layers.NewLoader(d, layers.Group{Size: 1}, inMemory(h), nil)
		y, err := l.Head("h", vocab, in, opt).Forward(x)
		if err = cmp.Or(l.Err(), err); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(y.Floats())
	}
	want, got := logits(unit, layers.HeadOptions{}), logits(stored,
		layers.HeadOptions{UnitRows: true})
	for i := range want {
		if math.Abs(float64(want[i]-got[i])) > 1e-5 {
			t.Errorf("logit %d is %v, not %v", i, got[i], want[i])
		}
	}
}
