package open

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/gguf"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

const (
	qProj = "model.layers.0.self_attn.q_proj"
	down  = "model.layers.1.mlp.down_proj"
)

// change is what a test does to a file. of are its tensors, whose data are parts of it.
type change func(t *testing.T, file []byte, of map[string][]byte) []byte

// put puts bytes at a place of a tensor.
func put(tensor string, place int, with ...byte) change {
	return func(t *testing.T, file []byte, of map[string][]byte) []byte {
		if of[tensor] == nil {
			t.Fatalf("no tensor %s", tensor)
		}
		copy(of[tensor][place:], with)
		return file
	}
}

// swap puts bytes in the place of as many others, wherever they are.
func swap(old, with string) change {
	return func(t *testing.T, file []byte, _ map[string][]byte) []byte {
		if len(old) != len(with) || !bytes.Contains(file, []byte(old)) {
			t.Fatalf("no %q to be %q", old, with)
		}
		return bytes.ReplaceAll(file, []byte(old), []byte(with))
	}
}

// lose renames a tensor.
func lose(tensor string) change {
	return swap(`"`+tensor+`"`, `"`+tensor[:len(tensor)-1]+`_"`)
}

// after puts bytes behind a text.
func after(text string, with ...byte) change {
	return func(t *testing.T, file []byte, _ map[string][]byte) []byte {
		i := bytes.Index(file, []byte(text))
		if i < 0 {
			t.Fatalf("no %q", text)
		}
		copy(file[i+len(text):], with)
		return file
	}
}

// cut leaves so many bytes, or all but so many.
func cut(to int) change {
	return func(_ *testing.T, file []byte, _ map[string][]byte) []byte {
		if to < 0 {
			to += len(file)
		}
		return file[:to]
	}
}

// copied is a copy of a fixture, changed.
func copied(t *testing.T, fixture string, do change, settings [2]string) (path string) {
	t.Helper()
	from, dir := filepath.Join("../../../testdata", fixture), t.TempDir()
	path, name := dir, "model.safetensors"
	if checkpoint.IsGGUF(fixture) {
		name = filepath.Base(fixture)
		from, path = filepath.Dir(from), filepath.Join(dir, name)
	} else {
		config, err := os.ReadFile(filepath.Join(from, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(config, []byte(settings[0])) {
			t.Fatalf("config.json has no %s", settings[0])
		}
		config = bytes.ReplaceAll(config, []byte(settings[0]), []byte(settings[1]))
		if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		t.Fatal(err)
	}
	if do != nil {
		file = do(t, file, tensorsOf(t, file))
	}
	if err := os.WriteFile(filepath.Join(dir, name), file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tensorsOf are the tensors of a file, by their names in it.
func tensorsOf(t *testing.T, file []byte) map[string][]byte {
	t.Helper()
	of := map[string][]byte{}
	if bytes.HasPrefix(file, []byte("GGUF")) {
		f, err := gguf.Parse(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, tensor := range f.Tensors {
			of[tensor.Name] = tensor.Data
		}
		return of
	}
	tensors, err := checkpoint.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, tensor := range tensors {
		of[name] = tensor.Data
	}
	return of
}

// TestUnsoundIsRefused wants what is wrong with quantised weights named by --check, and by a server
// before it starts a rank.
func TestUnsoundIsRefused(t *testing.T) {
	const (
		g4, actorder = "models/gptq-g128-tiny", "models/gptq-actorder-g32-tiny"
		nf4, mx      = "models/bnb-nf4-tiny", "models/gpt-oss-mxfp4-tiny"
		q40, q4K     = "gguf/qwen3-Q4_0/qwen3-Q4_0.gguf", "gguf/llama-Q4_K_M/llama-Q4_K_M.gguf"
		missing      = "no such tensor"
	)
	none := [2]string{}
	nan16, nan32 := []byte{0, 0x7e}, []byte{0, 0, 0xc0, 0x7f}
	nanBF, inf16 := []byte{0xc0, 0x7f}, []byte{0, 0xfc}
	tests := []struct {
		name, fixture string
		change        change
		settings      [2]string // what in config.json is replaced by what
		tp            int
		want          []string // nothing: it is sound
	}{
		{"", g4, nil, none, 1, nil},
		{"scales are missing", g4, lose(down + ".scales"), none, 1,
			[]string{down + ".scales", missing}},
		{"a scale is NaN", g4, put(down+".scales", 2*256, nan16...), none, 1,
			[]string{down + ".scales", "output feature 0, input features from 128 on, is NaN"}},
		{"a scale is infinite", g4, put(qProj+".scales", 2*5, inf16...), none, 1,
			[]string{qProj + ".scales", "output feature 5", "-Inf"}},
		{"zero points are missing", g4, lose(qProj + ".qzeros"), none, 1,
			[]string{qProj + ".qzeros", missing}},
		{"a zero point off the middle", g4, put(qProj+".qzeros", 0, 0x71), none, 1,
			[]string{qProj + ".qzeros", "zero point of output feature 0", "symmetric"}},
		{"all zero points off the middle", g4, swap("\x77\x77\x77\x77", "\x76\x77\x77\x77"), none,
			1, []string{".qzeros", "zero point of output feature 0", "-1 off the middle"}},
		{"groups of another size", g4, nil, [2]string{`"group_size": 128`, `"group_size": 64`}, 1,
			[]string{".qzeros", "[2 16]", "[4 16]"}},
		{"ranks divide groups", g4, nil, none, 4, nil},
		{"", actorder, nil, none, 1, nil},
		{"act order among ranks", actorder, nil, none, 2,
			[]string{"desc_act", "layouts of 2 ranks that work are PP 2"}},
		{"act order that only g_idx has", actorder, nil,
			[2]string{`"desc_act": true`, `"desc_act": false`}, 2,
			[]string{"desc_act", "layouts of 2 ranks that work are PP 2"}},
		{"a group that is not there", actorder, put(qProj+".g_idx", 12, 99), none, 1,
			[]string{qProj + ".g_idx", "input feature 3 is in group 99 of 8"}},
		{"", "models/awq-g64-tiny", nil, none, 1, nil},
		{"scales are missing", "models/awq-g64-tiny", lose(down + ".scales"), none, 1,
			[]string{down + ".scales", missing}},
		{"a scale is NaN", "models/awq-g64-tiny", put(qProj+".scales", 2, nan16...), none, 1,
			[]string{qProj + ".scales", "output feature 1", "NaN"}},
		{"", "models/ct-w4a16-tiny", nil, none, 1, nil},
		{"scales are missing", "models/ct-w4a16-tiny", lose(qProj + ".weight_scale"), none, 1,
			[]string{qProj + ".weight_scale", missing}},
		{"a scale is NaN", "models/ct-w4a16-tiny", put(down+".weight_scale", 0, nanBF...), none, 1,
			[]string{down + ".weight_scale", "output feature 0", "NaN"}},
		{"another shape", "models/ct-w4a16-tiny", put(qProj+".weight_shape", 0, 129), none, 1,
			[]string{qProj + ".weight_shape", "[129 256]", "[128 256]"}},
		{"", "models/ct-w8a8-tiny", nil, none, 1, nil},
		{"a scale is NaN", "models/ct-w8a8-tiny", put(down+".weight_scale", 14, nanBF...), none, 1,
			[]string{down + ".weight_scale", "output feature 7", "NaN"}},
		{"", "models/ct-fp8-dynamic-tiny", nil, none, 1, nil},
		{"scales are missing", "models/ct-fp8-dynamic-tiny", lose(down + ".weight_scale"), none, 1,
			[]string{down + ".weight_scale", missing}},
		{"", "models/fp8-block-tiny", nil, none, 1, nil},
		{"a scale is NaN", "models/fp8-block-tiny", put(down+".weight_scale_inv", 12, nan32...),
			none, 1, []string{down + ".weight_scale_inv", "output feature 128", "128 on", "NaN"}},
		{"scales are missing", "models/fp8-block-tiny", lose(qProj + ".weight_scale_inv"), none, 1,
			[]string{qProj + ".weight_scale_inv", missing}},
		{"", "models/fp8-static-tiny", nil, none, 1, nil},
		{"the scale is NaN", "models/fp8-static-tiny", put(qProj+".weight_scale", 0, nan32...),
			none, 1, []string{qProj + ".weight_scale", "NaN"}},
		{"", mx, nil, none, 1, nil},
		{"scales are missing", mx, lose("model.layers.2.mlp.experts.down_proj_scales"), none, 1,
			[]string{"model.layers.2.mlp.experts.down_proj_scales", missing}},
		{"a scale is NaN", mx, put("model.layers.3.mlp.experts.down_proj_scales", 2*3, 0xff), none,
			1, []string{"model.layers.3.mlp.experts.down_proj_scales", "output feature 3", "NaN"}},
		{"", nf4, nil, none, 1, nil},
		{"scales are missing", nf4, lose(qProj + ".weight.absmax"), none, 1,
			[]string{qProj + ".weight.absmax", missing}},
		{"scales of scales are missing", nf4, lose(qProj + ".weight.nested_absmax"), none, 1,
			[]string{qProj + ".weight.nested_absmax", missing}},
		{"a scale of scales is NaN", nf4, put(down+".weight.nested_absmax", 4, nan32...), none, 1,
			[]string{down + ".weight.absmax", "the scale of output feature 64", "NaN"}},
		{"a number is NaN", nf4, put(qProj+".weight.quant_map", 8, nan32...), none, 1,
			[]string{qProj + ".weight.quant_map", "element [2] is NaN"}},
		{"a norm is NaN", nf4, put("model.norm.weight", 2, nanBF...), none, 1,
			[]string{"model.norm.weight", "element [1] is NaN"}},
		{"another width", nf4, nil, [2]string{`"intermediate_size": 256`,
			`"intermediate_size": 512`}, 1, []string{"has shape"}},

		{"", q40, nil, none, 2, nil},
		{"", q4K, nil, none, 2, nil},
		{"a scale is NaN", q40, put("blk.1.ffn_down.weight", 18*9, nan16...), none, 1,
			[]string{down + ".weight", "element [1, 32] is NaN"}},
		{"a scale is infinite", q4K, put("blk.0.attn_q.weight", 144*3, inf16...), none, 1,
			[]string{qProj + ".weight", "element [3, 0] is", "which is no weight"}},
		{"an offset is NaN", q4K, put("blk.0.attn_q.weight", 144*3+2, nan16...), none, 1,
			[]string{qProj + ".weight", "element [3, 0] is NaN"}},
		{"an embedding is NaN", q40, put("token_embd.weight", 208, nan16...), none, 1,
			[]string{"model.embed_tokens.weight", "NaN"}},
		{"the last byte is missing", q40, cut(-40), none, 1, []string{"qwen3-Q4_0.gguf",
			"was cut off"}},
		{"the header is cut", q40, cut(300), none, 1, []string{"qwen3-Q4_0.gguf",
			"24 tensors in the 276 bytes that are left"}},
		{"nothing is left", q40, cut(0), none, 1, []string{"qwen3-Q4_0.gguf", `not with "GGUF"`}},
		{"another version", q40, after("GGUF", 9), none, 1, []string{"version 9 of GGUF"}},
		{"big-endian", q40, after("GGUF", 0, 0, 0, 3), none, 1, []string{"big-endian"}},
		{"a type that is not known", q40,
			after("blk.1.ffn_down.weight", typed(t, 2, 256, 256, 99)...), none, 1,
			[]string{"blk.1.ffn_down.weight", "type 99"}},
		{"a type that is not read", q40,
			after("blk.1.ffn_down.weight", typed(t, 2, 256, 256, 16)...), none, 1,
			[]string{"blk.1.ffn_down.weight", "IQ2_XXS"}},
		{"an architecture that is not known", q40, swap("qwen3.", "qwen9."), none, 1,
			[]string{"qwen3.", "missing"}},
		{"another width", q40, after("qwen3.feed_forward_length", 4, 0, 0, 0, 128, 0), none, 1,
			[]string{"mlp", "has shape [256 256]", "metadata asks for [128 256]"}},
		{"more layers", q40, after("qwen3.block_count", 4, 0, 0, 0, 9), none, 1,
			[]string{"qwen3.block_count is 9, but the last block that has tensors is 1"}},
		{"another number of heads", q40, after("qwen3.attention.head_count", 4, 0, 0, 0, 8), none,
			1, []string{"head_count asks for 256 rows, of heads of 32", "is [192 256]"}},
		{"a tensor is missing", q40, swap("blk.1.ffn_down.weight", "blk.1.ffn_dowm.weight"), none,
			1, []string{down + ".weight", missing}},
	}
	for _, tt := range tests {
		name := strings.TrimSpace(filepath.Base(tt.fixture) + " " + tt.name)
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Model.Path = copied(t, tt.fixture, tt.change, tt.settings)
			cfg.Model.SkipTokenizerInit, cfg.Parallel.CPUThreads = true, 1
			cfg.Parallel.TensorParallelSize = tt.tp
			opt := func() Options {
				cfg := cfg
				return Options{Config: &cfg,
					Bounds: func() memory.Bounds { return has(8<<30, 8<<30) }}
			}
			_, checked := Check(t.Context(), opt())
			s, opened := Resolve(t.Context(), opt())
			if s != nil {
				if err := s.Files.Release(); err != nil {
					t.Error(err)
				}
			}
			if model := (*ModelError)(nil); len(tt.want) > 0 && !errors.As(opened, &model) {
				t.Errorf("opening: %v is no error about the model", opened)
			}
			for where, err := range map[string]error{"--check": checked, "opening": opened} {
				if len(tt.want) == 0 {
					if err != nil {
						t.Errorf("%s: %v", where, err)
					}
					continue
				}
				if err == nil {
					t.Errorf("%s: no error", where)
					continue
				}
				for _, w := range tt.want {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%s: %q does not say %q", where, err, w)
					}
				}
			}
		})
	}
}

// typed is what a file of GGUF has of a tensor behind its name.
func typed(t *testing.T, dims uint32, inner, outer uint64, kind uint32) []byte {
	t.Helper()
	return slices.Concat(binary.LittleEndian.AppendUint32(nil, dims),
		binary.LittleEndian.AppendUint64(nil, inner), binary.LittleEndian.AppendUint64(nil, outer),
		binary.LittleEndian.AppendUint32(nil, kind))
}
