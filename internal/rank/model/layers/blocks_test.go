package layers_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/gguf"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// random is a tensor of blocks with random codes and small scales.
func random(r *rand.Rand, name string, kind gguf.Type, rows, cols int) checkpoint.Tensor {
	data := make([]byte, rows*cols/kind.Block()*kind.Bytes())
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	scales := map[gguf.Type][]int{gguf.Q8_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q4K: {0, 2},
		gguf.Q6K: {208}}[kind]
	for at := 0; at < len(data); at += kind.Bytes() {
		for _, s := range scales {
			binary.LittleEndian.PutUint16(data[at+s:], half.ToF16(float32(r.NormFloat64()/64)))
		}
	}
	return checkpoint.Tensor{Name: name, DType: checkpoint.Quantised, Blocks: kind,
		Shape: []int{rows, cols}, Data: data}
}

// plain is the tensor's numbers in float32.
func plain(t checkpoint.Tensor) checkpoint.Tensor {
	v := make([]float32, t.Elements())
	t.Blocks.Decode(v, t.Data)
	t.Data = nil
	for _, x := range v {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(x))
	}
	t.DType = checkpoint.F32
	return t
}

// ggufs is the scheme of a file of GGUF.
var ggufs = layers.Stored{Of: func(string) layers.Format { return layers.GGUF{} }, Outside: true}

func inMemory(tensors ...checkpoint.Tensor) layers.Source {
	return model.FromCheckpoint(checkpoint.InMemory("memory", tensors,
		func() error { return nil }))
}

// alone is a rank that others answer nothing.
type alone struct{}

func (alone) Begin() (enqueued bool, err error)            { return false, nil }
func (alone) AllReduce(*layers.Tensor) error               { return nil }
func (alone) Gather(dst, x *layers.Tensor, root int) error { return nil }
func (alone) AllGather(dst, x *layers.Tensor) error        { return nil }
func device(t *testing.T) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 2, DType: compute.Float32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// TestBlocks multiplies by tensors of blocks, alike, unlike, and beside plain ones, by columns that
// begin within a group, and looks rows up: all as by the numbers that they stand for.
func TestBlocks(t *testing.T) {
	const hidden, inner, rows = 256, 96, 3
	heads := layers.Heads{Query: 4, KV: 2, Dim: 16}
	r := rand.New(rand.NewPCG(1, 2))
	tensors := []checkpoint.Tensor{random(r, "same.q_proj.weight", gguf.Q4K, 64, hidden),
		random(r, "same.k_proj.weight", gguf.Q4K, 32, hidden),
		random(r, "same.v_proj.weight", gguf.Q6K, 32, hidden),
		random(r, "mixed.q_proj.weight", gguf.Q8_0, 64, hidden),
		random(r, "mixed.k_proj.weight", gguf.Q4_1, 32, hidden),
		random(r, "mixed.v_proj.weight", gguf.Q6K, 32, hidden),
		random(r, "down.weight", gguf.Q8_0, 40, inner),
		random(r, "embed.weight", gguf.Q6K, 50, hidden)}
	numbers := make([]checkpoint.Tensor, len(tensors))
	for i, x := range tensors {
		numbers[i] = plain(x)
	}
	tensors[4] = numbers[4] // beside two of blocks
	d := device(t)
	compute := func(src layers.Source, rank, size int) (out []float32) {
		l := layers.NewLoader(d, layers.Group{Rank: rank, Size: size, Comm: alone{}}, src, nil)
		defer l.Free()
		l.Use(ggufs)
		qkv := []*layers.ColumnLinear{l.QKV("same.", heads, hidden, layers.QKVOptions{}),
			l.QKV("mixed.", heads, hidden, layers.QKVOptions{Interleaved: 16})}
		down := l.Row("down", 40, inner, false)
		table, head := l.Embedding("embed", 50, hidden), l.Head("embed", 50, hidden,
			layers.HeadOptions{})
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		var x, y layers.Tensor
		d.Resize(&x, rows, hidden)
		for i := range x.Floats() {
			x.Floats()[i] = float32(i%17)/8 - 1
		}
		for _, layer := range qkv {
			out = append(out, layer.Forward(&x).Floats()...)
		}
		logits, err := head.Forward(&x)
		if err != nil {
			t.Fatal(err)
		}
		if size == 1 {
			out = append(out, logits.Floats()...)
		}
		d.Resize(&y, rows, inner/size)
		for i := range y.Floats() {
			y.Floats()[i] = float32(i%13)/4 - 1
		}
		sum, err := down.Forward(&y)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, sum.Floats()...)
		table.Lookup(&x, []int32{49, 0, 7})
		return append(out, x.Floats()...)
	}
	for _, size := range []int{1, 2} {
		for rank := range size {
			got, want := compute(inMemory(tensors...), rank, size), compute(inMemory(numbers...),
				rank, size)
			if len(got) != len(want) {
				t.Fatalf("%d numbers, not %d", len(got), len(want))
			}
			for i, v := range want {
				if off := math.Abs(float64(got[i] - v)); off > 1e-3*(1+math.Abs(float64(v))) {
					t.Fatalf("rank %d of %d: number %d is %v, not %v", rank, size, i, got[i], v)
				}
			}
		}
	}
}

// TestBlocksNotFinite names the element of a tensor whose scale is infinite.
func TestBlocksNotFinite(t *testing.T) {
	x := random(rand.New(rand.NewPCG(1, 2)), "w.weight", gguf.Q8_0, 4, 64)
	at := x.Size(64)*2 + x.Size(32) // row 2, the second block
	binary.LittleEndian.PutUint16(x.Data[at:], 0x7c00)
	x.Data[at+2] = 1
	l := layers.NewLoader(device(t), layers.Group{Size: 1}, inMemory(x), nil)
	defer l.Free()
	l.Use(ggufs)
	l.Linear("w", 4, 64)
	bad := (*layers.NotFinite)(nil)
	if err := l.Err(); !errors.As(err, &bad) || bad.Tensor != "w.weight" ||
		bad.Err.Error() != "element [2, 32] is +Inf, which is no weight" {
		t.Error(err)
	}
	strict := layers.NewLoader(device(t), layers.Group{Size: 1}, inMemory(x), nil)
	defer strict.Free()
	strict.Strict()
	strict.Embedding("w", 4, 64)
	if err := strict.Err(); !errors.As(err, &bad) {
		t.Errorf("a table: %v", err)
	}
}
