package gguf_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model/gguf"
	"github.com/eagleray/eagleray/internal/rank/model/gguf/gguftest"
)

// tiny is the metadata and the tensors of a model of llama.cpp's kind.
func tiny(change func(pairs map[string]any, tensors map[string]*gguftest.Tensor)) []byte {
	pairs := map[string]any{"general.architecture": "llama", "llama.block_count": uint32(1),
		"llama.embedding_length": uint32(64), "llama.attention.head_count": uint32(4),
		"llama.attention.head_count_kv": uint32(2), "llama.context_length": uint32(128),
		"llama.feed_forward_length": uint32(96), "llama.attention.layer_norm_rms_epsilon": float32(
			1e-5), "llama.rope.freq_base": float32(10000), "tokenizer.ggml.model": "gpt2",
		"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": []string{"a", "b", "ab", "<end>"},
		"tokenizer.ggml.token_type": []int32{1, 1, 1, 3}, "tokenizer.ggml.merges": []string{"a b"},
		"tokenizer.ggml.eos_token_id": uint32(3)}
	tensors := map[string]*gguftest.Tensor{}
	for name, dims := range map[string][]uint64{"token_embd.weight": {64, 4},
		"blk.0.attn_q.weight": {64, 64}, "blk.0.attn_k.weight": {64, 32},
		"output_norm.weight": {64}} {
		n := uint64(4)
		for _, d := range dims {
			n *= d
		}
		tensors[name] = &gguftest.Tensor{Name: name, Dims: dims, Data: make([]byte, n)}
	}
	if change != nil {
		change(pairs, tensors)
	}
	var list []gguftest.Pair
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		list = append(list, gguftest.Pair{Key: key, Value: pairs[key]})
	}
	var all []gguftest.Tensor
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		all = append(all, *tensors[name])
	}
	return gguftest.File(list, all)
}

func parse(t testing.TB, data []byte) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestValues reads every kind of value.
func TestValues(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("GGUF")
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a buffer takes all
	pair := func(key string, kind uint32, v ...any) {
		put(uint64(len(key)))
		b.WriteString(key)
		put(kind)
		for _, x := range v {
			put(x)
		}
	}
	put([]uint32{2})
	put([]uint64{0, 15})
	pair("u8", 0, uint8(200))
	pair("i8", 1, int8(-3))
	pair("u16", 2, uint16(60000))
	pair("i16", 3, int16(-30000))
	pair("u32", 4, uint32(4e9))
	pair("i32", 5, int32(-5))
	pair("f32", 6, float32(1e-5))
	pair("bool", 7, true)
	pair("text", 8, uint64(2), []byte("ab"))
	pair("texts", 9, uint32(8), uint64(2), uint64(1), []byte("x"), uint64(0))
	pair("nested", 9, uint32(9), uint64(1), uint32(4), uint64(2), uint32(1), uint32(2))
	pair("u64", 10, uint64(1<<63))
	pair("i64", 11, int64(-1<<62))
	pair("f64", 12, 2.5)
	pair("bools", 9, uint32(7), uint64(3), []byte{1, 0, 1})
	f := parse(t, b.Bytes())
	for key, want := range map[string]string{"u8": "200", "i8": "-3", "u16": "60000",
		"i16": "-30000", "u32": "4e+09", "i32": "-5", "bool": "true", "text": `"ab"`,
		"texts": "2 values of string", "nested": "1 values of array", "f64": "2.5",
		"i64": "-4.611686018427388e+18"} {
		if v, ok := f.Value(key); !ok || v.String() != want {
			t.Errorf("%s is %v, not %s", key, v, want)
		}
	}
	value := func(key string) gguf.Value { v, _ := f.Value(key); return v }
	if n, ok := value("i64").Integer(); !ok || n != -1<<62 {
		t.Errorf("i64 is %d, %v", n, ok)
	}
	if n, ok := value("u64").Integer(); ok {
		t.Errorf("2⁶³ is %d", n)
	}
	if n, ok := value("f64").Integer(); ok {
		t.Errorf("2.5 is %d", n)
	}
	if list, ok := value("texts").Texts(); !ok || !slices.Equal(list, []string{"x", ""}) {
		t.Errorf("texts are %q, %v", list, ok)
	}
	if list, ok := value("bools").Integers(); !ok || !slices.Equal(list, []int64{1, 0, 1}) {
		t.Errorf("bools are %v, %v", list, ok)
	}
	if _, ok := value("nested").Integers(); ok {
		t.Error("a list of lists has integers")
	}
	if len(f.Keys()) != 15 {
		t.Errorf("%d keys", len(f.Keys()))
	}
}

// TestMalformed breaks a file in each way, and wants the error to say how.
func TestMalformed(t *testing.T) {
	good := tiny(nil)
	parse(t, good)
	with := func(change func(pairs map[string]any, tensors map[string]*gguftest.Tensor)) []byte {
		return tiny(change)
	}
	at := func(pos int, b ...byte) []byte {
		data := bytes.Clone(good)
		copy(data[pos:], b)
		return data
	}
	in := func(what string, by int, b ...byte) []byte { // so many bytes after a text in the file
		return at(bytes.Index(good, []byte(what))+len(what)+by, b...)
	}
	huge := []byte{255, 255, 255, 255, 255, 255, 255, 127}
	for name, c := range map[string]struct {
		data        []byte
		want        string
		unsupported bool
	}{
		"empty":          {nil, `begins with ""`, false},
		"no magic":       {at(0, 'P', 'K'), `begins with "PKUF"`, false},
		"before GGUF":    {append([]byte("tjgg"), make([]byte, 100)...), "before GGUF", true},
		"version 1":      {at(4, 1), "version 1 of GGUF", true},
		"version 4":      {at(4, 4), "version 4 of GGUF", true},
		"big-endian":     {at(4, 0, 0, 0, 3), "big-endian", true},
		"tensors":        {at(8, huge...), "9223372036854775807 tensors in the", false},
		"pairs":          {at(16, huge...), "9223372036854775807 pairs of metadata in", false},
		"key":            {at(24, huge...), "a name of 9223372036854775807 bytes", false},
		"kind":           {in("llama.block_count", 0, 77), "values of kind 77", true},
		"text length":    {in("general.architecture", 4, huge...), "the file ends after", false},
		"array length":   {in("tokenizer.ggml.merges", 8, huge...), "elements in the", false},
		"array kind":     {in("tokenizer.ggml.merges", 4, 99), "values of kind 99", true},
		"dimensions":     {in("token_embd.weight", 0, 9), "9 dimensions, more than 4", false},
		"dimension":      {in("token_embd.weight", 4, huge...), "a dimension of 92233", false},
		"dimension 0":    {in("token_embd.weight", 4, 0), "a dimension of 0", false},
		"type":           {in("token_embd.weight", 20, 99), "tensors of type 99", true},
		"type by name":   {in("token_embd.weight", 20, 16), "tensors of type IQ2_XXS", true},
		"rows of blocks": {in("token_embd.weight", 20, 12), "not whole blocks of 256 (Q4_", false},
		"offset":         {in("token_embd.weight", 24, 1), "is not a multiple of 32", false},
		"tensor outside": {in("token_embd.weight", 24, 224, 255, 255, 255, 255, 255, 255,
			127), "is outside any file", false},
		"tensor far away": {in("token_embd.weight", 24, 0, 0, 0, 1), "the file ends after", false},
		"tensors overlap": {in("token_embd.weight", 24, make([]byte, 8)...), "is already that of",
			false},
		"cut header": {good[:300], "the file ends after 300 of at least", false},
		"cut data":   {good[:len(good)-1], "it was cut off, download or copy it again", false},
		"alignment": {with(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
			pairs["general.alignment"] = uint32(24)
		}), "general.alignment is 24", false},
		"tensor twice": {with(func(_ map[string]any, tensors map[string]*gguftest.Tensor) {
			tensors["output_norm.weight"].Name = "token_embd.weight"
		}), `tensor "token_embd.weight" occurs twice`, false},
	} {
		f, err := gguf.Parse(c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			errors.Is(err, gguf.ErrUnsupported) != c.unsupported {
			t.Errorf("%s: %v, %v; want %q", name, f != nil, err, c.want)
		}
	}
	for n := range len(good) {
		if _, err := gguf.Parse(good[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are a file", n, len(good))
		}
	}
}

// TestKeyTwice has one key twice.
func TestKeyTwice(t *testing.T) {
	_, err := gguf.Parse(gguftest.File([]gguftest.Pair{{Key: "a", Value: uint32(1)},
		{Key: "a", Value: uint32(1)}}, nil))
	if err == nil || !strings.Contains(err.Error(), `key "a" occurs twice`) {
		t.Error(err)
	}
}

// TestConfig makes config.json, and wants metadata that contradicts tensors to be named.
func TestConfig(t *testing.T) {
	raw, err := parse(t, tiny(nil)).ConfigJSON()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"model_type": "llama", "hidden_size": 64.0,
		"num_hidden_layers": 1.0, "num_attention_heads": 4.0, "num_key_value_heads": 2.0,
		"head_dim": 16.0, "rms_norm_eps": 1e-5, "vocab_size": 4.0, "eos_token_id": 3.0,
		"tie_word_embeddings": true, "rope_interleave": true, "attention_bias": false} {
		if !reflect.DeepEqual(got[key], want) {
			t.Errorf("%s is %v, not %v", key, got[key], want)
		}
	}
	for key, c := range map[string]struct {
		value any
		want  string
	}{
		"general.architecture":           {"mamba", `general.architecture "mamba" (known: `},
		"general.type":                   {"adapter", `general.type is "adapter"`},
		"llama.embedding_length":         {uint32(32), "embedding_length is 32, but token_embd"},
		"llama.block_count":              {uint32(2), "block_count is 2, but the last block"},
		"llama.attention.head_count":     {uint32(8), "head_count_kv asks for 16 rows"},
		"llama.attention.head_count_kv":  {uint32(4), "head_count_kv asks for 64 rows"},
		"llama.attention.key_length":     {uint32(8), "head_count asks for 32 rows, of heads of 8"},
		"llama.attention.value_length":   {uint32(8), "value_length 8 beside key_length 16"},
		"llama.attention.causal":         {false, "causal is false"},
		"llama.context_length":           {"many", "context_length is"},
		"llama.feed_forward_length":      {[]int32{96, 64}, "differs from layer to layer"},
		"llama.rope.dimension_count":     {uint32(8), "rope.dimension_count is 8 of 16"},
		"llama.rope.scaling.type":        {"dynamic", `rope.scaling.type "dynamic"`},
		"tokenizer.ggml.tokens":          {[]string{"a"}, "has 1 tokens, but token_embd.weight 4"},
		"llama.attention.sliding_window": {uint32(8), ""}, // which the architecture has not
		"tokenizer.ggml.bos_token_id":    {uint32(math.MaxUint32), ""},
	} {
		f := parse(t, tiny(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
			pairs[key] = c.value
		}))
		_, err := f.ConfigJSON()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", key, err, c.want)
		}
	}
	for _, key := range []string{"general.architecture", "llama.context_length",
		"llama.block_count"} {
		f := parse(t, tiny(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
			delete(pairs, key)
		}))
		if _, err := f.ConfigJSON(); err == nil || !strings.Contains(err.Error(),
			key+" is missing") {
			t.Errorf("without %s: %v", key, err)
		}
	}
}

// TestRecurrence reads which layers of Qwen3.5 have linear attention, and refuses more value heads
// than key heads: llama.cpp lays those of one key head apart.
func TestRecurrence(t *testing.T) {
	of := func(values uint32) *gguf.File {
		return parse(t, tiny(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
			for key, v := range maps.Clone(pairs) {
				if rest, ok := strings.CutPrefix(key, "llama."); ok {
					delete(pairs, key)
					pairs["qwen35."+rest] = v
				}
			}
			pairs["general.architecture"] = "qwen35"
			for key, n := range map[string]uint32{"group_count": 4, "time_step_rank": values,
				"state_size": 8, "inner_size": 8 * values, "conv_kernel": 4} {
				pairs["qwen35.ssm."+key] = n
			}
			pairs["qwen35.attention.recurrent_layers"] = []int32{1}
		}))
	}
	raw, err := of(4).ConfigJSON()
	var got map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &got)
	}
	if err != nil || got["linear_value_head_dim"] != 8.0 || got["linear_num_key_heads"] != 4.0 ||
		!reflect.DeepEqual(got["layer_types"], []any{"linear_attention"}) {
		t.Errorf("%v, %v", got, err)
	}
	_, err = of(8).ConfigJSON()
	if !errors.Is(err, gguf.ErrUnsupported) || !strings.Contains(err.Error(),
		"ssm.time_step_rank is 8: more value heads than 4 key heads") {
		t.Error(err)
	}
}

// TestRopeScaling wants a factor without a type to be linear scaling, by either of its names, as
// llama.cpp has it.
func TestRopeScaling(t *testing.T) {
	linear := map[string]any{"rope_type": "linear", "factor": 4.0}
	for _, c := range []struct {
		name  string
		pairs map[string]any
		want  any
	}{
		{"none", nil, nil},
		{"typed", map[string]any{"scaling.type": "linear", "scaling.factor": float32(4)}, linear},
		{"untyped", map[string]any{"scaling.factor": float32(4)}, linear},
		{"first name", map[string]any{"scale_linear": float32(4)}, linear},
		{"second name goes first", map[string]any{"scale_linear": float32(2),
			"scaling.factor": float32(4)}, linear},
		{"nothing", map[string]any{"scale_linear": float32(0)}, nil},
		{"switched off", map[string]any{"scaling.type": "none", "scaling.factor": float32(4)}, nil},
	} {
		raw, err := parse(t, tiny(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
			for key, v := range c.pairs {
				pairs["llama.rope."+key] = v
			}
		})).ConfigJSON()
		var got map[string]any
		if err == nil {
			err = json.Unmarshal(raw, &got)
		}
		if err != nil || !reflect.DeepEqual(got["rope_scaling"], c.want) {
			t.Errorf("%s: rope_scaling is %v, %v, not %v", c.name, got["rope_scaling"], err, c.want)
		}
	}
	const list = "rope_freqs.weight"
	_, err := parse(t, tiny(func(pairs map[string]any, tensors map[string]*gguftest.Tensor) {
		pairs["llama.rope.scale_linear"] = float32(4)
		tensors[list] = &gguftest.Tensor{Name: list, Dims: []uint64{8}, Data: make([]byte, 32)}
	})).ConfigJSON()
	if err == nil || !strings.Contains(err.Error(), list+" beside rope.scaling of type linear") {
		t.Error(err)
	}
}

// TestNamed divides experts, and takes from norms what the converter added.
func TestNamed(t *testing.T) {
	values := func(v ...float32) (b []byte) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		return b
	}
	f := parse(t, gguftest.File([]gguftest.Pair{{Key: "general.architecture", Value: "gemma2"}},
		[]gguftest.Tensor{
			{Name: "blk.7.post_ffw_norm.weight", Dims: []uint64{3}, Data: values(1.5, 1, -2)},
			{Name: "blk.0.ffn_up_exps.weight", Dims: []uint64{1, 2, 2}, Data: values(1, 2, 3, 4)},
			{Name: "something.else", Dims: []uint64{1}, Data: values(9)}}))
	list, err := f.Named(f.Tensors)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range list {
		got = append(got, fmt.Sprintf("%s %v %x", x.Name, x.Shape, x.Data))
	}
	want := []string{
		fmt.Sprintf("model.layers.7.post_feedforward_layernorm.weight [3] %x", values(.5, 0, -3)),
		fmt.Sprintf("model.layers.0.mlp.experts.0.up_proj.weight [2 1] %x", values(1, 2)),
		fmt.Sprintf("model.layers.0.mlp.experts.1.up_proj.weight [2 1] %x", values(3, 4)),
		fmt.Sprintf("something.else [1] %x", values(9))}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nnot %q", got, want)
	}
}

// TestTokenizerErrors names what is not known of a tokenizer.
func TestTokenizerErrors(t *testing.T) {
	for key, c := range map[string]struct {
		value any
		want  string
	}{
		"tokenizer.ggml.model":      {"rwkv", `tokenizer.ggml.model "rwkv"`},
		"tokenizer.ggml.pre":        {"viking", `tokenizer.ggml.pre "viking"`},
		"tokenizer.ggml.tokens":     {[]string{"a", "b", "a", "c"}, `tokens has "a" twice`},
		"tokenizer.ggml.token_type": {[]int32{1}, "token_type is 1 values of int32 for 4 tokens"},
		"tokenizer.ggml.merges":     {uint32(1), "merges is missing, or no list"},
	} {
		f := parse(t, tiny(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
			pairs[key] = c.value
		}))
		if _, err := f.Tokenizer(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", key, err, c.want)
		}
	}
	f := parse(t, tiny(func(pairs map[string]any, _ map[string]*gguftest.Tensor) {
		pairs["tokenizer.ggml.eos_token_id"] = uint32(4)
	}))
	if _, err := f.GenerationConfig(); err == nil || !strings.Contains(err.Error(),
		"eos_token_id is 4, none of 4 tokens") {
		t.Error(err)
	}
}

// FuzzParse parses anything, and makes of it what can be made.
func FuzzParse(f *testing.F) {
	f.Add(tiny(nil))
	headers, err := filepath.Glob("../../../../testdata/gguf/converted/*.gguf")
	if err != nil || len(headers) == 0 {
		f.Fatalf("%d headers, %v", len(headers), err)
	}
	for _, path := range headers[:4] {
		raw, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		for _, x := range file.Tensors {
			if x.Offset < 0 || x.Offset+len(x.Data) > len(data) {
				t.Fatalf("tensor %q is at %d, %d bytes, of %d", x.Name, x.Offset, len(x.Data),
					len(data))
			}
		}
		for _, key := range file.Keys() {
			v, _ := file.Value(key)
			_ = v.String()
			v.Texts()
			v.Integers()
			v.Floats()
			v.Integer()
		}
		for _, f := range []func() ([]byte, error){file.ConfigJSON, file.Tokenizer,
			file.TokenizerConfig, file.GenerationConfig} {
			if raw, err := f(); err == nil && len(raw) == 0 {
				t.Fatal("an empty file")
			}
		}
		// An error is as good as tensors.
		_, _ = file.Named(file.Tensors)
	})
}
