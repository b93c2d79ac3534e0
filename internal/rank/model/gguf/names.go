package gguf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// usualModules are the modules of a layer, by their names in llama.cpp
// (gguf-py/gguf/tensor_mapping.py).
var usualModules = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
	"attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj",
	"attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
	"attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
	"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	"ffn_gate_inp":       "mlp.gate",
	"ffn_gate_inp_shexp": "mlp.shared_expert_gate",
	"ffn_gate_shexp":     "mlp.shared_expert.gate_proj",
	"ffn_up_shexp":       "mlp.shared_expert.up_proj",
	"ffn_down_shexp":     "mlp.shared_expert.down_proj",
}

// expertModules are those that llama.cpp stores of all experts together, by their names within one.
var expertModules = map[string]string{"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj",
	"ffn_down_exps": "down_proj"}

// headModules are those that are stored of all heads together.
var headModules = map[string]string{"attn_k_b": "k_b_proj.", "attn_v_b": "v_b_proj."}

// headNorms are norms of heads, one for each, which are stored together.
var headNorms = map[string]string{"attn_q_norm": "self_attn.q_layernorm.norms.",
	"attn_k_norm": "self_attn.k_layernorm.norms."}

// wholeTensors have no weight or bias in their name.
var wholeTensors = map[string]string{"attn_sinks": "self_attn.sinks",
	"exp_probs_b": "mlp.gate.e_score_correction_bias"}

// recurrentTensors are those of a recurrence that no module has.
var recurrentTensors = map[string]string{"ssm_a": "linear_attn.A_log",
	"ssm_dt.bias": "linear_attn.dt_bias"}

// mixtralNames are those of Mixtral's experts, and its router's.
var mixtralNames = map[string]string{"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}

// topModules are those outside layers.
var topModules = map[string]string{"token_embd": "model.embed_tokens",
	"output_norm": "model.norm", "output": "lm_head", "token_embd_norm": "model.embedding_norm"}

// block is the number of a tensor's layer, and the rest of its name.
func block(name string) (layer int, rest string, ok bool) {
	rest, ok = strings.CutPrefix(name, "blk.")
	if !ok {
		return 0, "", false
	}
	number, rest, ok := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	return layer, rest, ok && err == nil && layer >= 0
}

// Join adds the tensors of the other files of a model that is split: the first has all metadata.
func (f *File) Join(other *File) { f.Tensors = append(f.Tensors, other.Tensors...) }

// Named are tensors of the model, in this file or another one of it, by the names and in the shapes
// that transformers' models have: experts one by one, and norms without what the converter added.
func (f *File) Named(tensors []Tensor) (list []Tensor, err error) {
	arch, d, err := f.dialect()
	if err != nil {
		return nil, err
	}
	c := &config{File: f, arch: arch}
	n, _ := c.integer("expert_count")
	mixtral := arch == "llama" && n > 0
	for _, t := range tensors {
		for _, one := range d.named(t, mixtral) {
			undo := func(v float64) float64 { return v - 1 }
			if strings.HasSuffix(one.Name, ".A_log") {
				undo = func(v float64) float64 { return math.Log(-v) }
			} else if !d.shifted || !strings.HasSuffix(one.Name, "norm.weight") ||
				strings.HasSuffix(one.Name, "linear_attn.norm.weight") {
				undo = nil
			}
			if undo != nil {
				if one.Data, err = undone(&t, undo); err != nil {
					return nil, err
				}
			}
			list = append(list, one)
		}
	}
	return list, nil
}

// named is a tensor under its name in transformers, or the experts that it is of.
func (d *dialect) named(t Tensor, mixtral bool) []Tensor {
	dot := strings.LastIndexByte(t.Name, '.')
	if dot < 0 {
		return []Tensor{t}
	}
	base, kind := t.Name[:dot], t.Name[dot:] // ".weight" or ".bias"
	if layer, rest, ok := block(t.Name); ok && recurrentTensors[rest] != "" {
		t.Name = fmt.Sprintf("model.layers.%d.%s", layer, recurrentTensors[rest])
		return []Tensor{t}
	}
	layer, module, ok := block(base)
	if !ok {
		if name := cmp.Or(d.modules[base], topModules[base]); name != "" {
			t.Name = name + kind
		}
		return []Tensor{t}
	}
	prefix := fmt.Sprintf("%s.%d.", cmp.Or(d.layers, "model.layers"), layer)
	if one := expertModules[module]; one != "" && len(t.Shape) > 1 {
		under, names := cmp.Or(d.experts, "mlp.experts."), d.names
		if mixtral {
			under, names = "block_sparse_moe.experts.", mixtralNames
		}
		return experts(t, prefix+under, cmp.Or(names[one], one)+kind)
	}
	if one := headModules[module]; one != "" && len(t.Shape) == 3 {
		return experts(t, prefix+"self_attn."+one, kind[1:])
	}
	name := usualModules[module]
	if own := d.modules[module]; own != "" {
		name = own
	}
	switch {
	case len(t.Shape) == 2 && headNorms[module] != "":
		return experts(t, prefix+headNorms[module], kind[1:])
	case wholeTensors[module] != "":
		t.Name = prefix + cmp.Or(d.modules[module], wholeTensors[module])
		return []Tensor{t}
	case name == "":
		return []Tensor{t}
	case mixtral && module == "ffn_gate_inp":
		name = "block_sparse_moe.gate"
	case module == "ffn_gate_inp_shexp" && len(t.Shape) == 1:
		t.Shape = []int{1, t.Shape[0]}
	case (module == "ssm_conv1d" || module == "shortconv.conv") && len(t.Shape) == 2:
		t.Shape = []int{t.Shape[0], 1, t.Shape[1]}
	}
	t.Name = prefix + name + kind
	return []Tensor{t}
}

// experts are the tensors of experts that are stored together, the outermost dimension being
// theirs.
func experts(t Tensor, prefix, suffix string) []Tensor {
	count := t.Shape[0]
	size := len(t.Data) / count
	list := make([]Tensor, count)
	for e := range list {
		list[e] = Tensor{Name: prefix + strconv.Itoa(e) + "." + suffix, Type: t.Type,
			Shape: slices.Clone(t.Shape[1:]), Data: t.Data[e*size : (e+1)*size : (e+1)*size],
			Offset: t.Offset + e*size}
	}
	return list
}

// undone is a tensor with what the converter made of each number undone.
func undone(t *Tensor, undo func(v float64) float64) ([]byte, error) {
	if t.Type != F32 {
		return nil, fmt.Errorf("%w: tensor %s of type %v, not F32", ErrUnsupported, short(t.Name),
			t.Type)
	}
	data := make([]byte, len(t.Data))
	for i := 0; i+4 <= len(data); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(t.Data[i:]))
		binary.LittleEndian.PutUint32(data[i:], math.Float32bits(float32(undo(float64(v)))))
	}
	return data, nil
}
