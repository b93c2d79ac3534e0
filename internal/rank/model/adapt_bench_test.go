package model_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// BenchmarkAdapters is a step of 16 requests that decode with a few layers as wide as those of a
// model of half a billion weights: of none, of one and of eight adapters of rank 16. The shortest
// step is what others of the machine disturb least.
func BenchmarkAdapters(b *testing.B) {
	cfg, err := model.ReadConfig([]byte(`{"architectures":["Qwen2ForCausalLM"],
		"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_hidden_layers":4,
		"num_attention_heads":14,"num_key_value_heads":2,"vocab_size":512,
		"max_position_embeddings":4096,"rms_norm_eps":1e-6,"tie_word_embeddings":true,
		"torch_dtype":"bfloat16","hidden_act":"silu"}`))
	if err != nil {
		b.Fatal(err)
	}
	d, err := cpu.New(cpu.Options{Threads: 2, DType: compute.BFloat16})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	m, err := model.Load(cfg, model.Dummy(1), d, model.Options{Group: layers.Group{Size: 1}})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for id := range uint32(8) {
		a := newAdapterOf(b, cfg, uint64(id), 16, func(string) bool { return true })
		began := time.Now()
		a.load(b, m, id+1)
		b.Logf("adapter %d of %d MB as float32 was made in %v", id, a.Bytes(4)>>20,
			time.Since(began))
	}
	c, err := d.NewCache(compute.CacheShape{Layers: cfg.Cache(),
		Blocks: 64, BlockSize: blockSize, DType: compute.BFloat16})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Free()
	kinds := []int{0, 1, 8}
	shortest := make([]time.Duration, len(kinds))
	var batches []*compute.Batch
	for k, adapters := range kinds {
		batch := new(compute.Batch)
		for i := range int32(16) {
			batch.Tokens = append(batch.Tokens, i)
			batch.Slots = append(batch.Slots, i*4*blockSize)
			batch.Position, batch.Seq = append(batch.Position, 0), append(batch.Seq, i)
			batch.Tables = append(batch.Tables, []int32{4 * i})
			if adapters > 0 {
				batch.Adapters = append(batch.Adapters, compute.AdapterRows{
					Adapter: 1 + uint32(i)%uint32(adapters), From: i, To: i + 1})
			}
		}
		shortest[k] = time.Hour
		batches = append(batches, batch)
	}
	for b.Loop() {
		for k, batch := range batches { // in turn
			began := time.Now()
			if err := forward(m, batch, c); err != nil {
				b.Fatal(err)
			}
			shortest[k] = min(shortest[k], time.Since(began))
		}
	}
	for k, adapters := range kinds {
		b.ReportMetric(float64(shortest[k].Microseconds()), fmt.Sprintf("µs-with-%d", adapters))
	}
}
