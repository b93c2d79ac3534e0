package layouts

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestCheckpointScales runs a model whose checkpoint has scales for its KV cache, one for each
// head of the keys and one for all of the values: they count, and every layout gives the same bits.
func TestCheckpointScales(t *testing.T) {
	m := tiny()
	m.cacheDType, m.folder = "fp8_e4m3", withScales(t, m.path())
	w := drawOn(3, m)
	want := reference(t, w)
	n := count{layouts: map[string]int{}, backends: map[string]int{}}
	for _, text := range []string{"tp=2,pp=2,batch=mixed,chunk=8", "tp=4,pcp=2,batch=mixed"} {
		c, err := parseCell(text)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, w, c, want, &n)
	}
	w.model.cacheDType = "fp8_per_token_head"
	if firstDifference(reference(t, w), want) == "" {
		t.Error("the checkpoint's scales make no difference")
	}
}

// withScales is a copy of a model's folder whose layers have scales as llm-compressor writes them.
func withScales(t *testing.T, folder string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(to, "model.safetensors")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Layers  int `json:"num_hidden_layers"`
		KVHeads int `json:"num_key_value_heads"`
	}
	text, err := os.ReadFile(filepath.Join(to, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(old)
	header, data := map[string]any{}, old[8+size:]
	if err := json.Unmarshal(old[8:8+size], &header); err != nil {
		t.Fatal(err)
	}
	for layer := range config.Layers {
		for name, shape := range map[string][]int{"k_scale": {config.KVHeads, 1, 1},
			"v_scale": {1}} {
			begin := len(data)
			for i := range shape[0] {
				data = binary.LittleEndian.AppendUint32(data,
					math.Float32bits(float32(layer+i+1)/512))
			}
			header[fmt.Sprintf("model.layers.%d.self_attn.%s", layer, name)] = map[string]any{
				"dtype": "F32", "shape": shape, "data_offsets": []int{begin, len(data)}}
		}
	}
	described, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	whole := binary.LittleEndian.AppendUint64(nil, uint64(len(described)))
	whole = append(append(whole, described...), data...)
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}
