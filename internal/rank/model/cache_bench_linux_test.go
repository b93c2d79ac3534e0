package model_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// BenchmarkCacheDTypes decodes one token of one request behind a long context, in the shape of
// Qwen3-0.6B, on one thread, with KV caches of each type in turn. It reports the median of the
// processor's time, which others of the machine disturb less than the clock's.
func BenchmarkCacheDTypes(b *testing.B) {
	cfg, err := model.ReadConfig([]byte(`{"architectures":["Qwen3ForCausalLM"],
		"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,
		"num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"vocab_size":151936,
		"max_position_embeddings":40960,"rms_norm_eps":1e-6,"tie_word_embeddings":true,
		"rope_theta":1e6,"torch_dtype":"bfloat16","hidden_act":"silu"}`))
	if err != nil {
		b.Fatal(err)
	}
	d, err := cpu.New(cpu.Options{Threads: 1, DType: compute.BFloat16})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m, err := model.Load(cfg, model.Dummy(1), d, model.Options{Group: layers.Group{Size: 1}})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for _, positions := range []int{4096, 16384} {
		b.Run(fmt.Sprint(positions), func(b *testing.B) {
			types := []compute.DType{compute.BFloat16, compute.Int8, compute.E4M3}
			took := make([][]time.Duration, len(types))
			caches := make([]compute.Cache, len(types))
			for i, dtype := range types {
				caches[i] = filledCache(b, d, cfg, dtype, positions)
				defer caches[i].Free()
			}
			last := int32(positions - 1)
			batch := &compute.Batch{Tokens: []int32{1}, Slots: []int32{last},
				Position: []int32{last}, Seq: []int32{0}, Tables: [][]int32{nil}}
			for i := range positions / blockSize {
				batch.Tables[0] = append(batch.Tables[0], int32(i))
			}
			for b.Loop() {
				for i, c := range caches { // in turn
					began := threadTime(b)
					if err := forward(m, batch, c); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], threadTime(b)-began)
				}
			}
			for i, dtype := range types {
				slices.Sort(took[i])
				median := took[i][len(took[i])/2]
				b.ReportMetric(float64(median.Microseconds()), dtype.String()+"-µs")
			}
		})
	}
}

// threadTime is what this thread has had of a processor.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// filledCache is a cache of random keys and values.
func filledCache(b *testing.B, d *cpu.Device, cfg *model.Config, dtype compute.DType,
	positions int) compute.Cache {
	b.Helper()
	shape := compute.CacheShape{Layers: cfg.Cache(),
		Blocks: positions / blockSize, BlockSize: blockSize, DType: dtype}
	c, err := d.NewCache(shape)
	if err != nil {
		b.Fatal(err)
	}
	const rows = 256
	var kv compute.Tensor
	d.Resize(&kv, rows, cfg.KVHeads*cfg.HeadDim)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range kv.Floats() {
		kv.Floats()[i] = float32(r.NormFloat64())
	}
	slots := make([]int32, rows)
	for from := 0; from < positions; from += rows {
		for i := range slots {
			slots[i] = int32(from + i)
		}
		for layer := range shape.Layers {
			d.WriteCache(c, layer, kv.All(), kv.All(), compute.CacheScales{}, slots)
		}
	}
	return c
}
