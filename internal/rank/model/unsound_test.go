package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// tampered is a source of which one tensor is missing, or has other bytes.
type tampered struct {
	layers.Source
	tensor string
	change func(data []byte) // nil removes it
}

func (s *tampered) alter(name string, open func() (checkpoint.Tensor, error)) (
	checkpoint.Tensor, error) {
	if name == s.tensor && s.change == nil {
		return checkpoint.Tensor{}, fmt.Errorf("tensor %q: %w", name, checkpoint.ErrMissing)
	}
	t, err := open()
	if name == s.tensor && err == nil {
		t.Data = slices.Clone(t.Data)
		s.change(t.Data)
	}
	return t, err
}

func (s *tampered) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	return s.alter(name, func() (checkpoint.Tensor, error) {
		return s.Source.Tensor(name, shape...)
	})
}

func (s *tampered) Stored(name string, dtype checkpoint.DType, shape ...int) (checkpoint.Tensor,
	error) {
	return s.alter(name, func() (checkpoint.Tensor, error) {
		return s.Source.Stored(name, dtype, shape...)
	})
}

func (s *tampered) Header(name string) (checkpoint.Tensor, bool) {
	if name == s.tensor && s.change == nil {
		return checkpoint.Tensor{}, false
	}
	return s.Source.Header(name)
}

// at puts bytes at a place.
func at(place int, with ...byte) func([]byte) {
	return func(data []byte) { copy(data[place:], with) }
}

// word puts a number of 32 bits at a place.
func word(i int, v uint32) func([]byte) {
	return func(data []byte) { binary.LittleEndian.PutUint32(data[4*i:], v) }
}

func jsonObject(text string) (v map[string]any) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

// TestUnsoundQuantised wants every reason for which a quantised checkpoint cannot be loaded named
// in the tensor's own terms, and all but those that only its numbers show before anything is
// loaded.
func TestUnsoundQuantised(t *testing.T) {
	const q, down = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
	for _, tc := range []struct {
		name, fixture string
		config        string // another quantization_config
		tensor        string
		change        func([]byte)
		late          bool
		want          []string
	}{
		{"scales", "gptq-g128-tiny", "", down + ".scales", nil, false,
			[]string{down + ".scales", "no such tensor"}},
		{"zero points", "awq-g64-tiny", "", q + ".qzeros", nil, false,
			[]string{q + ".qzeros", "no such tensor"}},
		{"scales of blocks", "fp8-block-tiny", "", q + ".weight_scale_inv", nil, false,
			[]string{q + ".weight_scale_inv", "no such tensor"}},
		{"scale of a tensor", "fp8-static-tiny", "", q + ".weight_scale", nil, false,
			[]string{q + ".weight_scale", "no such tensor"}},
		{"packed scales", "ct-w4a16-tiny", "", q + ".weight_scale", nil, false,
			[]string{q + ".weight_scale", "no such tensor"}},
		{"numbers", "bnb-nf4-tiny", "", q + ".weight.quant_map", nil, false,
			[]string{q + ".weight.quant_map", "no such tensor"}},
		{"scales of scales", "bnb-nf4-tiny", "", q + ".weight.nested_absmax", nil, false,
			[]string{q + ".weight.nested_absmax", "no such tensor"}},
		{"order", "gptq-actorder-g32-tiny", "", q + ".g_idx", nil, false,
			[]string{q + ".g_idx", "no such tensor"}},
		{"order of packed ones", "ct-w4a16-tiny", `{"quant_method":"compressed-tensors","format":` +
			`"pack-quantized","config_groups":{"a":{"targets":["Linear"],"weights":{"num_bits":4,` +
			`"group_size":64,"strategy":"group","actorder":"group"}}}}`, "", nil, false,
			[]string{q + ".weight_g_idx", "no such tensor"}},
		{"missing state", "bnb-nf4-tiny", "", q + ".weight.quant_state.bitsandbytes__nf4", nil,
			false, []string{q + ".weight.quant_state.bitsandbytes__nf4", "no such tensor"}},
		{"group", "gptq-g128-tiny", `{"quant_method":"gptq","bits":4,"group_size":64}`, "", nil,
			false, []string{q + ".qzeros", "[2 16]", "[4 16]"}},
		{"bits", "gptq-g128-tiny", `{"quant_method":"gptq","bits":8,"group_size":128}`, "", nil,
			false, []string{q + ".qweight", "[32 128]", "[64 128]"}},
		{"block", "fp8-block-tiny", `{"quant_method":"fp8","weight_block_size":[64,128]}`, "", nil,
			false, []string{q + ".weight_scale_inv", "[1 2]", "[2 2]"}},
		{"method", "fp8-static-tiny", `{"quant_method":"awq"}`, "", nil, false,
			[]string{q + ".qweight", "no such tensor"}},
		{"shape", "ct-w4a16-tiny", "", q + ".weight_shape", at(0, 129), false,
			[]string{q + ".weight_shape", "[129 256]", "[128 256]"}},
		{"group out of range", "gptq-actorder-g32-tiny", "", q + ".g_idx", word(3, 99), false,
			[]string{q + ".g_idx", "input feature 3 is in group 99 of 8"}},
		{"group below 0", "gptq-actorder-g32-tiny", "", q + ".g_idx", word(3, 1<<32-1), false,
			[]string{q + ".g_idx", "input feature 3 is in group -1 of 8"}},
		{"uneven groups", "gptq-actorder-g32-tiny", "", q + ".g_idx",
			func(data []byte) { clear(data[:128]) }, false,
			[]string{q + ".g_idx", "input features, not 32"}},
		{"state", "bnb-nf4-tiny", "", q + ".weight.quant_state.bitsandbytes__nf4", at(0, '['),
			false, []string{q + ".weight.quant_state.bitsandbytes__nf4", "malformed"}},
		{"infinite scale", "gptq-g128-tiny", "", down + ".scales", at(2*256, 0, 0x7c), true,
			[]string{down + ".scales", "output feature 0, input features from 128 on"}},
		{"scale that is NaN", "ct-fp8-dynamic-tiny", "", down + ".weight_scale",
			at(2*7, 0xc0, 0x7f), true, []string{down + ".weight_scale", "output feature 7", "NaN"}},
		{"weight that is NaN", "fp8-block-tiny", "", down + ".weight", at(256*3+5, 0x7f), true,
			[]string{down + ".weight", "element [3 5] is NaN"}},
		{"power of two that is NaN", "gpt-oss-mxfp4-tiny", "",
			"model.layers.0.mlp.experts.down_proj_scales", at(2*3, 0xff), true,
			[]string{"model.layers.0.mlp.experts.down_proj_scales", "output feature 3", "NaN"}},
		{"zero point", "gptq-g128-tiny", "", q + ".qzeros", at(0, 0x71), true,
			[]string{q + ".qzeros", "zero point of output feature 0", "-6 off the middle"}},
		{"number that is NaN", "bnb-nf4-tiny", "", q + ".weight.quant_map",
			word(2, 0x7fc00000), false, []string{q + ".weight.quant_map", "element [2] is NaN"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			change := map[string]any{}
			if tc.config != "" {
				change["quantization_config"] = jsonObject(tc.config)
			}
			cfg, weights := openChanged(t, tc.fixture, change)
			src := &tampered{model.FromCheckpoint(weights), tc.tensor, tc.change}
			g := layers.Group{Size: 1}
			_, err := model.ReadBytes(cfg, src, g, model.Stage{})
			if tc.late {
				if err != nil {
					t.Fatal(err)
				}
				var m *model.Model
				m, err = model.Load(cfg, src, newDevice(t), model.Options{Group: g})
				if err == nil {
					m.Close()
				}
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

// TestActOrderIsNotDivided wants input features in an order of groups refused before anything is
// loaded where ranks divide them, with a layout that works.
func TestActOrderIsNotDivided(t *testing.T) {
	cfg, weights := shipped("gptq-actorder-g32-tiny").open(t)
	err := model.CheckLayout(cfg, layout.Layout{TP: 2})
	if err == nil || !strings.Contains(err.Error(), "desc_act") ||
		!strings.Contains(err.Error(), "layouts of 2 ranks that work are") {
		t.Errorf("error %v", err)
	}
	if err := model.CheckLayout(cfg, layout.Layout{TP: 1, PP: 2}); err != nil {
		t.Error(err)
	}
	// What the configuration says nothing of is seen in the tensor.
	cfg, _ = openChanged(t, "gptq-actorder-g32-tiny", map[string]any{
		"quantization_config": jsonObject(`{"quant_method":"gptq","bits":4,"group_size":32}`)})
	_, err = model.ReadBytes(cfg, model.FromCheckpoint(weights), layers.Group{Size: 2},
		model.Stage{})
	if err == nil || !strings.Contains(err.Error(), "o_proj") ||
		!strings.Contains(err.Error(), "--tensor-parallel-size 1") {
		t.Errorf("error %v", err)
	}
}
