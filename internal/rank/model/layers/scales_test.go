package layers

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// scaleTensor is one of float32.
func scaleTensor(shape []int, v ...float32) checkpoint.Tensor {
	var data []byte
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return raw(checkpoint.F32, shape, data...)
}

// TestCacheScales reads scales of a KV cache in every place where a checkpoint may have them, for
// each rank's heads.
func TestCacheScales(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		src    tensorsOf
		plain  bool // they are not wanted
		rank   int  // of two
		keys   []float32
		values []float32
		wrong  string
	}{
		"none": {src: tensorsOf{}},
		"compressed-tensors": {src: tensorsOf{"a.k_scale": scaleTensor([]int{1}, 0.5),
			"a.v_scale": scaleTensor([]int{1}, 0.25)}, keys: []float32{0.5, 0.5},
			values: []float32{0.25, 0.25}},
		"a number": {src: tensorsOf{"a.k_scale": scaleTensor([]int{}, 2)},
			keys: []float32{2, 2}},
		"by head": {src: tensorsOf{"a.v_scale": scaleTensor([]int{4, 1, 1}, 1, 2, 3, 4)}, rank: 1,
			values: []float32{3, 4}},
		"vLLM": {src: tensorsOf{"a.attn.k_scale": scaleTensor([]int{1}, 3)},
			keys: []float32{3, 3}},
		"ModelOpt": {src: tensorsOf{"a.k_proj.k_scale": scaleTensor([]int{}, 3),
			"a.v_proj.v_scale": scaleTensor([]int{}, 4)}, keys: []float32{3, 3},
			values: []float32{4, 4}},
		"Quark": {src: tensorsOf{"a.k_proj.output_scale": scaleTensor([]int{}, 3),
			"a.v_proj.output_scale": scaleTensor([]int{1}, 4)}, keys: []float32{3, 3},
			values: []float32{4, 4}},
		"one of both": {src: tensorsOf{"a.kv_scale": scaleTensor([]int{1}, 7)},
			keys: []float32{7, 7}, values: []float32{7, 7}},
		"not calibrated": {src: tensorsOf{"a.k_scale": scaleTensor([]int{1}, -1),
			"a.v_scale": scaleTensor([]int{1}, 0)}},
		"not wanted": {src: tensorsOf{"a.k_scale": scaleTensor([]int{3}, nan, 1, 1)}, plain: true},
		"of other heads": {src: tensorsOf{"a.k_scale": scaleTensor([]int{3}, 1, 1, 1)},
			wrong: `"a.k_scale"`},
		"not finite": {src: tensorsOf{"a.k_scale": scaleTensor([]int{1}, nan)},
			wrong: `"a.k_scale"`},
	} {
		d, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		l := NewLoader(d, Group{Rank: c.rank, Size: 2}, c.src, nil)
		if !c.plain {
			l.ScaleCache()
		}
		got := l.Attention("a.", 0, Heads{Query: 4, KV: 4, Dim: 16}, AttentionOptions{}).scales
		d.Close()
		if err := l.Err(); err != nil || c.wrong != "" {
			if err == nil || c.wrong == "" || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		want := compute.CacheScales{Keys: c.keys, Values: c.values}
		if !slices.Equal(got.Keys, want.Keys) || !slices.Equal(got.Values, want.Values) {
			t.Errorf("%s: %v, not %v", name, got, want)
		}
	}
}
