// Package predictortest gives checkpoints a layer that predicts a token more, or makes heads of
// EAGLE-3, of random numbers, for tests.
package predictortest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Tensor is a tensor of float32, or of int64 where it has Integers.
type Tensor struct {
	Shape    []int
	Values   []float32
	Integers []int64
}

// Write makes a file of safetensors.
func Write(file string, tensors map[string]Tensor) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header, data := map[string]entry{}, []byte(nil)
	for name, t := range tensors {
		from := int64(len(data))
		for _, v := range t.Values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		dtype := "F32"
		for _, v := range t.Integers {
			dtype, data = "I64", binary.LittleEndian.AppendUint64(data, uint64(v))
		}
		header[name] = entry{dtype, t.Shape, [2]int64{from, int64(len(data))}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return os.WriteFile(file, append(append(b, text...), data...), 0o644)
}

// Options say what is added to a checkpoint.
type Options struct {
	Seed uint64
	// Copies has the layer have an embedding and a head of its own, as it is published.
	Copies bool
}

// Extend makes dir the checkpoint of a folder with a layer more. It goes on from the hidden state
// of a row more than from the token after it, and so guesses best where the model repeats a token.
func Extend(dir, base string, o Options) error {
	raw, err := os.ReadFile(filepath.Join(base, "config.json"))
	if err != nil {
		return err
	}
	c, err := model.ReadConfig(raw)
	if err != nil {
		return err
	}
	specs, err := model.Expected(c, model.PredictorStage(c))
	if err != nil {
		return err
	}
	folder, err := checkpoint.Dir(base)
	if err != nil {
		return err
	}
	weights, err := checkpoint.Open(folder)
	if err != nil {
		return err
	}
	defer weights.Close()
	added := map[string]Tensor{}
	rng := rand.New(rand.NewPCG(o.Seed, 5))
	for _, s := range specs {
		name := s.Name
		if weights.Has(name) {
			if !o.Copies {
				continue
			}
			block := fmt.Sprintf("model.layers.%d.", c.Layers)
			name = block + map[string]string{"model.embed_tokens.weight": "embed_tokens.weight",
				"lm_head.weight": "shared_head.head.weight"}[name]
		}
		added[name] = numbers(rng, s, weights)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	whole, err := os.ReadFile(filepath.Join(base, "model.safetensors"))
	if err != nil {
		return err
	}
	const first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	index := map[string]string{}
	for _, name := range weights.Names() {
		index[name] = first
	}
	for name := range added {
		index[name] = second
	}
	text, err := json.Marshal(map[string]any{"weight_map": index})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"config.json": raw, first: whole,
		"model.safetensors.index.json": text} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return Write(filepath.Join(dir, second), added)
}

// numbers are those of a tensor: copies of what the model has, norms near 1, and small ones.
func numbers(rng *rand.Rand, s checkpoint.Spec, weights *checkpoint.Checkpoint) Tensor {
	n := 1
	for _, dim := range s.Shape {
		n *= dim
	}
	t := Tensor{Shape: s.Shape, Values: make([]float32, n)}
	middle := 0.0
	if strings.HasSuffix(s.Name, "norm.weight") && !strings.HasPrefix(s.Name, "mtp.") {
		middle = 1
	}
	for i := range t.Values {
		t.Values[i] = float32(middle + 0.02*rng.NormFloat64())
	}
	if own, err := weights.Tensor(s.Name); err == nil {
		for i := range t.Values {
			t.Values[i] = math.Float32frombits(
				uint32(binary.LittleEndian.Uint16(own.Data[2*i:])) << 16)
		}
		weights.Release(own)
	}
	if strings.HasSuffix(s.Name, "eh_proj.weight") || s.Name == "mtp.fc.weight" {
		for row := range s.Shape[0] {
			t.Values[row*s.Shape[1]+s.Shape[0]+row]++
		}
	}
	return t
}

// Eagle3 makes dir a head of EAGLE-3 of the model of a folder, which is given the hidden states
// before three of its layers, and guesses each third token.
func Eagle3(dir, base string, seed uint64, taps []int) error {
	raw, err := os.ReadFile(filepath.Join(base, "config.json"))
	if err != nil {
		return err
	}
	of, err := model.ReadConfig(raw)
	if err != nil {
		return err
	}
	vocab := of.VocabSize / 3
	text, err := json.Marshal(map[string]any{"architectures": []string{"LlamaForCausalLMEagle3"},
		"model_type": "llama", "num_hidden_layers": 1, "hidden_size": of.HiddenSize,
		"intermediate_size": 2 * of.HiddenSize, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": of.VocabSize,
		"draft_vocab_size": vocab, "max_position_embeddings": 256, "rope_theta": 10000,
		"torch_dtype": "float16", "eagle_config": map[string]any{
			"eagle_aux_hidden_state_layer_ids": taps, "use_aux_hidden_state": true}})
	if err != nil {
		return err
	}
	c, err := model.ReadEagle3(text, of)
	if err != nil {
		return err
	}
	specs, err := model.Expected(c, model.PredictorStage(c))
	if err != nil {
		return err
	}
	tensors, rng := map[string]Tensor{}, rand.New(rand.NewPCG(seed, 6))
	for _, s := range specs {
		n := 1
		for _, dim := range s.Shape {
			n *= dim
		}
		t := Tensor{Shape: s.Shape, Values: make([]float32, n)}
		for i := range t.Values {
			t.Values[i] = float32(0.05 * rng.NormFloat64())
			if strings.HasSuffix(s.Name, "norm.weight") {
				t.Values[i]++
			}
		}
		if s.Name != "embed_tokens.weight" { // that is the model's
			tensors[s.Name] = t
		}
	}
	targets := Tensor{Shape: []int{vocab}}
	for i := range vocab {
		targets.Integers = append(targets.Integers, int64(2*i+2))
	}
	tensors["d2t"] = targets
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
		return err
	}
	return Write(filepath.Join(dir, "model.safetensors"), tensors)
}
