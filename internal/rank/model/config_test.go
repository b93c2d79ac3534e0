package model

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

func readModelConfig(t *testing.T, model string) *Config {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../../testdata/models", model, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestModelConfigs(t *testing.T) {
	tests := map[string]Config{
		"go-std-tiny": {Architectures: []string{"Qwen3ForCausalLM"},
			Architecture: "Qwen3ForCausalLM", ModelType: "qwen3",
			VocabSize: 2048, HiddenSize: 256, IntermediateSize: 768, Layers: 4, Heads: 8,
			KVHeads: 4, HeadDim: 32, MaxPositions: 2048,
			NormEps: 1e-6, Activation: "silu", TieEmbeddings: true, RopeTheta: 10000,
			Rope:    Rope{Type: "default"},
			Windows: make([]int, 4), DType: "bfloat16", BOS: 2045, PAD: -1, EOS: []int{2047}},
		"llama-tiny": {Architectures: []string{"LlamaForCausalLM"},
			Architecture: "LlamaForCausalLM", ModelType: "llama",
			VocabSize: 1024, HiddenSize: 128, IntermediateSize: 352, Layers: 4, Heads: 8,
			KVHeads: 4, HeadDim: 16, MaxPositions: 512,
			NormEps: 1e-6, Activation: "silu", TieEmbeddings: true, RopeTheta: 500000,
			Rope: Rope{Type: "llama3", Factor: 8, OriginalMaxPositions: 64, LowFreqFactor: 1,
				HighFreqFactor: 4},
			Windows: make([]int, 4), DType: "bfloat16", BOS: 1, PAD: -1, EOS: []int{2}},
		"opt-tiny": {Architectures: []string{"OPTForCausalLM"}, Architecture: "OPTForCausalLM",
			ModelType: "opt",
			VocabSize: 1024, HiddenSize: 128, IntermediateSize: 512, Layers: 4, Heads: 8,
			KVHeads: 8, HeadDim: 16, MaxPositions: 512,
			NormEps: 1e-5, Activation: "relu", TieEmbeddings: true, Windows: make([]int, 4),
			QKVBias: true, OutBias: true, MLPBias: true,
			DType: "bfloat16", BOS: 2, PAD: 1, EOS: []int{2},
			Family: &optConfig{EmbeddingDim: 128, NormBefore: true, ElementwiseAffine: true}},
		"qwen2-tiny": {Architectures: []string{"Qwen2ForCausalLM"},
			Architecture: "Qwen2ForCausalLM", ModelType: "qwen2",
			VocabSize: 1024, HiddenSize: 128, IntermediateSize: 320, Layers: 4, Heads: 8,
			KVHeads: 4, HeadDim: 16, MaxPositions: 512,
			NormEps: 1e-6, Activation: "silu", RopeTheta: 1e6, Rope: Rope{Type: "default"},
			Windows: make([]int, 4),
			QKVBias: true, DType: "bfloat16", BOS: 1, PAD: -1, EOS: []int{2}},
		"qwen3-tiny": {Architectures: []string{"Qwen3ForCausalLM"},
			Architecture: "Qwen3ForCausalLM", ModelType: "qwen3",
			VocabSize: 1024, HiddenSize: 128, IntermediateSize: 384, Layers: 4, Heads: 8,
			KVHeads: 4, HeadDim: 32, MaxPositions: 512,
			NormEps: 1e-6, Activation: "silu", TieEmbeddings: true, RopeTheta: 1e6,
			Rope: Rope{Type: "default"}, Windows: make([]int, 4),
			DType: "bfloat16", BOS: 1, PAD: -1, EOS: []int{2}},
		"qwen3moe-tiny": {Architectures: []string{"Qwen3MoeForCausalLM"},
			Architecture: "Qwen3MoeForCausalLM", ModelType: "qwen3_moe",
			VocabSize: 1024, HiddenSize: 128, IntermediateSize: 384, Layers: 4, Heads: 8,
			KVHeads: 4, HeadDim: 32, MaxPositions: 512,
			NormEps: 1e-6, Activation: "silu", RopeTheta: 10000, Rope: Rope{Type: "default"},
			Windows: make([]int, 4),
			DType:   "bfloat16", BOS: 1, PAD: -1, EOS: []int{2},
			Family: &experts{Count: 8, Inner: 96, Step: 1,
				Routing: compute.Routing{PerToken: 2, Normalise: true}}},
	}
	for name, want := range tests {
		if got := readModelConfig(t, name); !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, *got, want)
		}
	}
}

// TestDefaults reads configurations that say nothing but the family, as transformers' classes
// without arguments.
func TestDefaults(t *testing.T) {
	windows := func(n, from, window int) []int {
		w := make([]int, n)
		for i := from; i < n; i++ {
			w[i] = window
		}
		return w
	}
	rope := Rope{Type: "default"}
	tests := map[string]Config{
		"llama": {Architecture: "LlamaForCausalLM", VocabSize: 32000, HiddenSize: 4096,
			IntermediateSize: 11008, Layers: 32, Heads: 32,
			KVHeads: 32, HeadDim: 128, MaxPositions: 2048, NormEps: 1e-6, Activation: "silu",
			RopeTheta: 1e4, Rope: rope,
			Windows: windows(32, 32, 0), BOS: 1, PAD: -1, EOS: []int{2}},
		"mistral": {Architecture: "MistralForCausalLM", VocabSize: 32000, HiddenSize: 4096,
			IntermediateSize: 14336, Layers: 32, Heads: 32,
			KVHeads: 8, HeadDim: 128, MaxPositions: 131072, NormEps: 1e-6, Activation: "silu",
			RopeTheta: 1e4, Rope: rope,
			SlidingWindow: 4096, Windows: windows(32, 0, 4096), BOS: 1, PAD: -1, EOS: []int{2}},
		"qwen2": {Architecture: "Qwen2ForCausalLM", VocabSize: 151936, HiddenSize: 4096,
			IntermediateSize: 22016, Layers: 32, Heads: 32,
			KVHeads: 32, HeadDim: 128, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu",
			RopeTheta: 1e4, Rope: rope,
			Windows: windows(32, 32, 0), QKVBias: true, BOS: -1, PAD: -1},
		"qwen3": {Architecture: "Qwen3ForCausalLM", VocabSize: 151936, HiddenSize: 4096,
			IntermediateSize: 22016, Layers: 32, Heads: 32,
			KVHeads: 32, HeadDim: 128, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu",
			RopeTheta: 1e4, Rope: rope,
			Windows: windows(32, 32, 0), BOS: -1, PAD: -1},
		"qwen3_moe": {Architecture: "Qwen3MoeForCausalLM", VocabSize: 151936, HiddenSize: 2048,
			IntermediateSize: 6144, Layers: 24, Heads: 32,
			KVHeads: 4, HeadDim: 64, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu",
			RopeTheta: 1e4, Rope: rope,
			Windows: windows(24, 24, 0), BOS: -1, PAD: -1,
			Family: &experts{Count: 128, Inner: 768, Routing: perToken(8), Step: 1}},
		"qwen3_next": {Architecture: "Qwen3NextForCausalLM", VocabSize: 151936, HiddenSize: 2048,
			IntermediateSize: 5632, Layers: 48, Heads: 16,
			KVHeads: 2, HeadDim: 256, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu",
			RopeTheta: 1e4, Rope: rope, RotaryDim: 64,
			Windows: windows(48, 48, 0), BOS: -1, PAD: -1,
			Family: &next{
				experts: &experts{Count: 512, Inner: 512, Shared: 512, Step: 1,
					Routing: compute.Routing{PerToken: 10, Normalise: true}},
				delta: layers.DeltaOptions{KeyHeads: 16, ValueHeads: 32, KeyDim: 128,
					ValueDim: 128, Kernel: 4, Eps: 1e-6},
				linear: slices.Repeat([]bool{true, true, true, false}, 12)}},
		"nemotron_h": {Architecture: "NemotronHForCausalLM", VocabSize: 131072, HiddenSize: 4096,
			IntermediateSize: 21504, Layers: 4, Heads: 32, KVHeads: 8, HeadDim: 128,
			MaxPositions: 4096, NormEps: 1e-5, Activation: "relu2", Windows: windows(4, 4, 0),
			BOS: 1, EOS: []int{2}, Family: &hybridNemotron{
				experts: &experts{Count: 8, Inner: 7688, Shared: 7688, Step: 1,
					Routing: compute.Routing{PerToken: 2, Normalise: true, Sigmoid: true,
						Groups: 1, TopGroups: 1, Best: 2, Factor: 1}},
				blocks: []nemotronLayer("ME*-"), hybrid: hybrid{
					mamba: layers.MambaOptions{Heads: 128, Dim: 64, Groups: 8, State: 128,
						Kernel: 4, Bias: true, Normed: true, Eps: 1e-5, Most: float32(math.Inf(1))},
					scans: []bool{true, false, false, false}}}},
		"falcon_h1": {Architecture: "FalconH1ForCausalLM", VocabSize: 128000, HiddenSize: 4096,
			IntermediateSize: 14336, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128,
			MaxPositions: 8192, NormEps: 1e-5, Activation: "silu", RopeTheta: 1e4, Rope: rope,
			Windows: windows(32, 32, 0), BOS: 1, EOS: []int{2}, Family: &hybridFalcon{
				embedding: 1, logits: 1, in: 1, out: 1, key: 1, mixed: 1, gate: 1, down: 1,
				hybrid: hybrid{scans: slices.Repeat([]bool{true}, 32),
					mamba: layers.MambaOptions{Heads: 128, Dim: 8, Groups: 1, State: 256,
						Kernel: 4, Bias: true, Eps: 1e-5, Most: float32(math.Inf(1)),
						Multipliers: [5]float32{1, 1, 1, 1, 1}}}}},
		"opt": {Architecture: "OPTForCausalLM", VocabSize: 50272, HiddenSize: 768,
			IntermediateSize: 3072, Layers: 12, Heads: 12,
			KVHeads: 12, HeadDim: 64, MaxPositions: 2048, NormEps: 1e-5, Activation: "relu",
			TieEmbeddings: true,
			Windows:       windows(12, 12, 0), QKVBias: true, OutBias: true, MLPBias: true, BOS: 2,
			PAD: 1, EOS: []int{2},
			Family: &optConfig{EmbeddingDim: 768, NormBefore: true, ElementwiseAffine: true}},
	}
	for family, want := range tests {
		want.ModelType = family
		c, err := ReadConfig([]byte(`{"model_type":"` + family + `"}`))
		if err != nil {
			t.Errorf("%s: %v", family, err)
			continue
		}
		if !reflect.DeepEqual(*c, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", family, *c, want)
		}
	}
}

func TestReadConfigFields(t *testing.T) {
	tests := []struct {
		name, raw string
		get       func(c *Config) any
		want      any
	}{
		{"family by architecture", `{"architectures":["LlamaForCausalLM"],"model_type":"own"}`,
			func(c *Config) any { return c.ModelType }, "llama"},
		{"model_type goes before architecture",
			`{"architectures":["LlamaForCausalLM"],"model_type":"mistral"}`,
			func(c *Config) any { return c.ModelType }, "mistral"},
		{"first known architecture",
			`{"architectures":["Own","Qwen2ForCausalLM","LlamaForCausalLM"],"model_type":"qwen2"}`,
			func(c *Config) any { return c.Architecture }, "Qwen2ForCausalLM"},
		{"no known architecture",
			`{"architectures":["Qwen3ForTokenClassification"],"model_type":"qwen3"}`,
			func(c *Config) any { return c.Architecture }, ""},
		{"classifier", `{"architectures":["Qwen3ForSequenceClassification"],"model_type":"qwen3"}`,
			func(c *Config) any { return c.Architecture }, "Qwen3ForCausalLM"},
		{"classifier of a text model",
			`{"architectures":["Gemma3TextForSequenceClassification"],"model_type":"gemma3_text"}`,
			func(c *Config) any { return [...]any{c.Architecture, c.Classifier != nil} },
			[...]any{"Gemma3ForCausalLM", true}},
		{"classifier without labels", `{"architectures":["OPTForSequenceClassification"]}`,
			func(c *Config) any { return *c.Classifier }, Classifier{Labels: []string{"LABEL_0",
				"LABEL_1"}}},
		{"labels", `{"architectures":["LlamaForSequenceClassification"],"id2label":{"1":"good","0":"bad","2":"so"},"problem_type":"multi_label_classification"}`, func(c *Config) any { return *c.Classifier }, Classifier{Labels: []string{"bad", "good", "so"}, ProblemType: "multi_label_classification"}},
		{"number of labels", `{"architectures":["LlamaForSequenceClassification"],"num_labels":1}`,
			func(c *Config) any { return len(c.Classifier.Labels) }, 1},
		{"whole number with a point", `{"model_type":"llama","vocab_size":1e3}`,
			func(c *Config) any { return c.VocabSize }, 1000},
		{"mistral without window", `{"model_type":"mistral","sliding_window":null}`,
			func(c *Config) any { return c.SlidingWindow }, 0},
		{"mistral of own width", `{"model_type":"mistral","hidden_size":5120,"head_dim":128}`,
			func(c *Config) any { return c.HeadDim }, 128},
		{"mistral kv heads null", `{"model_type":"mistral","num_key_value_heads":null}`,
			func(c *Config) any { return c.KVHeads }, 32},
		{"llama kv heads", `{"model_type":"llama","num_key_value_heads":8}`,
			func(c *Config) any { return c.KVHeads }, 8},
		{"llama head_dim null", `{"model_type":"llama","head_dim":null,"hidden_size":2048}`,
			func(c *Config) any { return c.HeadDim }, 64},
		{"llama ignores a window", `{"model_type":"llama","sliding_window":100}`,
			func(c *Config) any { return c.SlidingWindow }, 0},
		{"qwen3 head_dim null", `{"model_type":"qwen3","head_dim":null,"hidden_size":2048}`,
			func(c *Config) any { return c.HeadDim }, 64},
		{"qwen window switched off",
			`{"model_type":"qwen2","sliding_window":100,"use_sliding_window":false}`,
			func(c *Config) any { return c.SlidingWindow }, 0},
		{"qwen window in upper layers",
			`{"model_type":"qwen2","sliding_window":100,"use_sliding_window":true,"num_hidden_layers":4,"max_window_layers":3}`, func(c *Config) any { return c.Windows }, []int{0, 0, 0, 100}},
		{"qwen default window",
			`{"model_type":"qwen3","use_sliding_window":true,"num_hidden_layers":2,"max_window_layers":1}`, func(c *Config) any { return c.Windows }, []int{0, 4096}},
		{"moe window in every other lower layer",
			`{"model_type":"qwen2_moe","sliding_window":100,"use_sliding_window":true,"num_hidden_layers":5,"max_window_layers":4}`, func(c *Config) any { return c.Windows }, []int{100, 0, 100, 0, 0}},
		{"moe window in every layer",
			`{"model_type":"qwen3_moe","sliding_window":100,"use_sliding_window":true,"num_hidden_layers":2,"max_window_layers":1}`, func(c *Config) any { return c.Windows }, []int{100, 100}},
		{"chunks of the layers that turn heads", `{"model_type":"llama4_text","num_hidden_layers":4,"attention_chunk_size":100}`, func(c *Config) any { return c.Windows }, []int{100, 100, 100, 0}},
		{"layers without experts", `{"model_type":"llama4_text","num_hidden_layers":4,"interleave_moe_layer_step":2,"no_rope_layers":[]}`, func(c *Config) any { return routed(c).Dense }, []int{0, 2}},
		{"a base that alpha stretches", `{"model_type":"hunyuan_v1_dense","head_dim":4,"rope_theta":100,"rope_scaling":{"type":"dynamic","alpha":10.0,"factor":1.0}}`,
			func(c *Config) any { return c.RopeTheta }, 10000.0},
		{"experts of each layer", `{"model_type":"hunyuan_v1_moe","num_experts":8,"num_hidden_layers":2,"moe_topk":[3,3]}`, func(c *Config) any { return routed(c).PerToken }, 3},
		{"layers with experts", `{"model_type":"ernie4_5_moe","num_hidden_layers":6,"moe_layer_start_index":2,"moe_layer_interval":2,"moe_layer_end_index":4}`, func(c *Config) any { return routed(c).Dense }, []int{0, 1, 2, 4, 5}},
		{"K-EXAONE's class", `{"architectures":["ExaoneMoEForCausalLM"],"num_hidden_layers":8}`,
			func(c *Config) any { return c.ModelType }, "exaone_moe"},
		{"temperature by number", `{"model_type":"llama4_text","num_hidden_layers":4,"attn_temperature_tuning":4}`, func(c *Config) any { return c.Temperature.At(8191) },
			1 + 0.1*math.Ln2},
		{"layer_types", `{"model_type":"qwen3","sliding_window":100,"use_sliding_window":true,"num_hidden_layers":3,"layer_types":["sliding_attention","full_attention","sliding_attention"]}`, func(c *Config) any { return c.Windows }, []int{100, 0, 100}},
		{"llama with layer_types",
			`{"model_type":"llama","sliding_window":100,"num_hidden_layers":2,"layer_types":["sliding_attention","full_attention"]}`, func(c *Config) any { return c.Windows }, []int{100, 0}},
		{"window seen by no layer",
			`{"model_type":"qwen3","use_sliding_window":true,"num_hidden_layers":2}`,
			func(c *Config) any { return c.SlidingWindow }, 0},
		{"dtype before torch_dtype",
			`{"model_type":"llama","dtype":"float32","torch_dtype":"float16"}`,
			func(c *Config) any { return c.DType }, "float32"},
		{"torch prefix", `{"model_type":"llama","torch_dtype":"torch.float16"}`,
			func(c *Config) any { return c.DType }, "float16"},
		{"list of eos", `{"model_type":"llama","eos_token_id":[128001,128008]}`,
			func(c *Config) any { return c.EOS }, []int{128001, 128008}},
		{"eos null", `{"model_type":"llama","eos_token_id":null}`,
			func(c *Config) any { return c.EOS }, []int(nil)},
		{"bos null", `{"model_type":"llama","bos_token_id":null}`,
			func(c *Config) any { return c.BOS }, -1},
		{"pad -1", `{"model_type":"llama","pad_token_id":-1}`, func(c *Config) any { return c.PAD },
			-1},
		{"silu by its other name", `{"model_type":"llama","hidden_act":"swish"}`,
			func(c *Config) any { return c.Activation }, "silu"},
		{"gelu by tanh", `{"model_type":"llama","hidden_act":"gelu_pytorch_tanh"}`,
			func(c *Config) any { return c.Activation }, "gelu_tanh"},
		{"local experts", `{"model_type":"qwen3_moe","num_local_experts":16}`,
			func(c *Config) any { return c.Family.(*experts).Count }, 16},
		{"mlp only layers null", `{"model_type":"qwen3_moe","mlp_only_layers":null}`,
			func(c *Config) any { return c.Family.(*experts).Dense }, []int(nil)},
		{"llama biases", `{"model_type":"llama","attention_bias":true,"mlp_bias":true}`,
			func(c *Config) any { return [...]bool{c.QKVBias, c.OutBias, c.MLPBias} },
			[...]bool{true, true, true}},
		{"opt of 350m", `{"model_type":"opt","hidden_size":1024,"num_attention_heads":16,"word_embed_proj_dim":512,"do_layer_norm_before":false}`, func(c *Config) any { o := c.Family.(*optConfig); return [...]any{o.EmbeddingDim, o.NormBefore} }, [...]any{512, false}},
		{"no quantization", `{"model_type":"llama","quantization_config":null}`,
			func(c *Config) any { return c.ModelType }, "llama"},

		{"rope_theta of 4", `{"model_type":"llama","rope_theta":500000}`,
			func(c *Config) any { return c.RopeTheta }, 500000.0},
		{"rope_theta of 5", `{"model_type":"llama","rope_parameters":{"rope_theta":1e6,"rope_type":"default"}}`, func(c *Config) any { return c.RopeTheta }, 1e6},
		{"inner rope_theta goes first",
			`{"model_type":"llama","rope_theta":5,"rope_parameters":{"rope_theta":7}}`,
			func(c *Config) any { return c.RopeTheta }, 7.0},
		{"rope_scaling goes first",
			`{"model_type":"llama","rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"default"}}`, func(c *Config) any { return c.Rope.Type }, "linear"},
		{"dynamic scaling, up to where it begins", `{"model_type":"llama",` +
			`"rope_scaling":{"type":"dynamic","factor":2,"original_max_position_embeddings":512}}`,
			func(c *Config) any { return [...]any{c.Rope, c.MaxPositions} },
			[...]any{Rope{Type: "default"}, 512}},
		{"empty rope_scaling", `{"model_type":"llama","rope_scaling":{},"rope_parameters":{"rope_type":"linear","factor":2}}`, func(c *Config) any { return c.Rope.Type }, "linear"},
		{"linear, legacy key", `{"model_type":"llama","rope_scaling":{"type":"linear","factor":4}}`,
			func(c *Config) any { return c.Rope }, Rope{Type: "linear", Factor: 4}},
		{"both keys agree", `{"model_type":"llama","rope_scaling":{"type":"linear","rope_type":"linear","factor":4}}`, func(c *Config) any { return c.Rope.Type }, "linear"},
		{"yarn defaults", `{"model_type":"qwen3","rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":32768}}`, func(c *Config) any { return c.Rope },
			Rope{Type: "yarn", Factor: 4, OriginalMaxPositions: 32768, BetaFast: 32, BetaSlow: 1,
				Truncate: true}},
		{"yarn in full", `{"model_type":"qwen3","rope_parameters":{"rope_type":"yarn","rope_theta":10000,"factor":40,"original_max_position_embeddings":4096,"beta_fast":16,"beta_slow":2,"mscale":1,"mscale_all_dim":0.707,"attention_factor":1.5,"truncate":false}}`,
			func(c *Config) any { return c.Rope },
			Rope{Type: "yarn", Factor: 40, OriginalMaxPositions: 4096, BetaFast: 16, BetaSlow: 2,
				MScale: 1, MScaleAllDim: .707, AttentionFactor: 1.5}},
		{"yarn by the model's length",
			`{"model_type":"qwen3","max_position_embeddings":1000,"rope_scaling":{"type":"yarn","factor":null,"original_max_position_embeddings":250,"beta_fast":0}}`, func(c *Config) any { return c.Rope }, Rope{Type: "yarn", Factor: 4, OriginalMaxPositions: 250, BetaFast: 32, BetaSlow: 1, Truncate: true}},
		{"gpt2 as the Hub has it", `{"activation_function":"gelu_new",` +
			`"architectures":["GPT2LMHeadModel"],"attn_pdrop":0.1,"bos_token_id":50256,` +
			`"embd_pdrop":0.1,"eos_token_id":50256,"initializer_range":0.02,` +
			`"layer_norm_epsilon":1e-05,"model_type":"gpt2","n_ctx":1024,"n_embd":1280,` +
			`"n_head":20,"n_layer":36,"n_positions":1024,"resid_pdrop":0.1,` +
			`"summary_activation":null,"summary_first_dropout":0.1,` +
			`"summary_proj_to_labels":true,"summary_type":"cls_index","summary_use_proj":true,` +
			`"task_specific_params":{"text-generation":{"do_sample":true,"max_length":50}},` +
			`"vocab_size":50257}`, func(c *Config) any {
			return [...]int{c.HiddenSize, c.Layers, c.Heads, c.HeadDim, c.IntermediateSize}
		}, [...]int{1280, 36, 20, 64, 5120}},
		{"falcon 7b as the Hub has it", `{"alibi":false,` +
			`"apply_residual_connection_post_layernorm":false,` +
			`"architectures":["FalconForCausalLM"],"attention_dropout":0.0,"bias":false,` +
			`"bos_token_id":11,"eos_token_id":11,"hidden_dropout":0.0,"hidden_size":4544,` +
			`"initializer_range":0.02,"layer_norm_epsilon":1e-05,"model_type":"falcon",` +
			`"multi_query":true,"new_decoder_architecture":false,"num_attention_heads":71,` +
			`"num_hidden_layers":32,"parallel_attn":true,"torch_dtype":"bfloat16",` +
			`"vocab_size":65024}`, func(c *Config) any {
			return [...]int{c.KVHeads, c.HeadDim, c.IntermediateSize,
				c.Family.(*falconConfig).Norms}
		}, [...]int{1, 64, 18176, 1}},
		{"falcon 2 as the Hub has it", `{"activation":"gelu","alibi":false,` +
			`"architectures":["FalconForCausalLM"],"bias":false,"ff_factor":4,` +
			`"ffn_hidden_size":16384,"hidden_size":4096,"max_position_embeddings":8192,` +
			`"model_type":"falcon","multi_query":true,"new_decoder_architecture":true,` +
			`"num_attention_heads":32,"num_hidden_layers":60,"num_kv_heads":8,` +
			`"num_ln_in_parallel_attn":1,"parallel_attn":true,"rope_theta":500042.0}`,
			func(c *Config) any {
				return [...]int{c.KVHeads, c.Family.(*falconConfig).Norms}
			}, [...]int{8, 1}},
		{"internlm 2.5 as the Hub has it", `{"architectures":["InternLM2ForCausalLM"],` +
			`"attn_implementation":"eager","auto_map":{"AutoConfig":` +
			`"configuration_internlm2.InternLM2Config"},"bias":false,"bos_token_id":1,` +
			`"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,` +
			`"intermediate_size":14336,"max_position_embeddings":32768,` +
			`"model_type":"internlm2","num_attention_heads":32,"num_hidden_layers":32,` +
			`"num_key_value_heads":8,"pad_token_id":2,"pretraining_tp":1,"rms_norm_eps":1e-05,` +
			`"rope_scaling":{"factor":2.0,"type":"dynamic"},"rope_theta":1000000,` +
			`"tie_word_embeddings":false,"torch_dtype":"bfloat16","use_cache":true,` +
			`"vocab_size":92544}`, func(c *Config) any {
			return [...]any{c.KVHeads, c.QKVBias, c.MaxPositions, c.RopeTheta, c.Rope.Type}
		}, [...]any{8, false, 32768, 1e6, "default"}},
		{"minicpm as the Hub has it", `{"architectures":["MiniCPMForCausalLM"],` +
			`"dim_model_base":256,"hidden_act":"silu","hidden_size":2304,` +
			`"initializer_range":0.1,"intermediate_size":5760,"max_position_embeddings":4096,` +
			`"num_attention_heads":36,"num_hidden_layers":40,"num_key_value_heads":36,` +
			`"rms_norm_eps":1e-05,"rope_scaling":null,"scale_depth":1.4,"scale_emb":12,` +
			`"vocab_size":122753}`, func(c *Config) any {
			m := *c.Family.(*multipliers)
			return [...]any{m.Embedding, m.Logits, int(1e6 * m.Residual), c.TieEmbeddings}
		}, [...]any{12.0, 9.0, 221359, true}},
		{"a head's class is not a headless one", `{"architectures":["GPT2LMHeadModel"]}`,
			func(c *Config) any { return c.Headless }, false},
		{"a headless one", `{"architectures":["GPT2Model"]}`,
			func(c *Config) any { return c.Headless }, true},
		{"opt's narrow states", `{"model_type":"opt","hidden_size":1024,"num_attention_heads":16,` +
			`"word_embed_proj_dim":512}`, func(c *Config) any { return c.StateSize() }, 512},
		{"glm4 has biases by default", `{"model_type":"glm4"}`,
			func(c *Config) any { return c.QKVBias }, true},
		{"all of a head is turned, where it is a part by default",
			`{"model_type":"glm4","partial_rotary_factor":1.0}`,
			func(c *Config) any { return c.RotaryDim }, 128},
		{"all of a head, as transformers 5 writes it",
			`{"model_type":"gpt_neox","rope_parameters":{"partial_rotary_factor":1.0}}`,
			func(c *Config) any { return c.RotaryDim }, 96},
		{"olmo3 of 4", `{"model_type":"olmo3","rope_theta":7}`,
			func(c *Config) any { return [...]float64{c.RopeTheta, c.LocalTheta} },
			[...]float64{7, 7}},
		{"olmo3 of 5", `{"model_type":"olmo3","rope_parameters":{"full_attention":{"rope_type":"linear","factor":2,"rope_theta":7},"sliding_attention":{"rope_type":"default","rope_theta":5}}}`, func(c *Config) any { return [...]any{c.Rope, c.RopeTheta, c.LocalTheta} },
			[...]any{Rope{Type: "linear", Factor: 2}, 7.0, 5.0}},
		{"norms of latents have an epsilon of their own",
			`{"model_type":"deepseek_v3","rms_norm_eps":0.5}`,
			func(c *Config) any { return c.Family.(*deepSeek).latent.Eps }, float32(1e-6)},
		{"e4m3 by torch's name", `{"model_type":"minimax_m2","quantization_config":{` +
			`"activation_scheme":"dynamic","fmt":"float8_e4m3fn","quant_method":"fp8",` +
			`"weight_block_size":[128,128],"modules_to_not_convert":["gate",` +
			`"e_score_correction_bias","lm_head"]}}`,
			func(c *Config) any { return c.Scheme.(layers.Stored).Of("w1") },
			layers.Scaled{Float: true, Scale: ".weight_scale_inv", Rows: 128, Cols: 128}},
		{"scales of longrope", `{"model_type":"phimoe","num_attention_heads":1024,` +
			`"rope_scaling":{"type":"longrope","short_factor":[1,1],"long_factor":[2,3],` +
			`"short_mscale":1.5,"long_mscale":1.2,"original_max_position_embeddings":4096}}`,
			func(c *Config) any {
				_, long, _ := c.RopeFrequencies()
				c.Serve(4096)
				_, short, _ := c.RopeFrequencies()
				return [...]float64{long, short}
			}, [...]float64{1.2, 1.5}},
		{"what DeepSeek V3.2 selects", `{"model_type":"deepseek_v32"}`, func(c *Config) any {
			e := routed(c)
			return [...]any{c.Selected, c.MaxPositions, e.Dense, e.Groups, e.TopGroups, e.Factor}
		}, [...]any{2048, 163840, []int{0, 1, 2}, 8, 4, float32(2.5)}},
		{"GLM-5 as the Hub has it", `{"architectures":["GlmMoeDsaForCausalLM"],` +
			`"attention_bias":false,"ep_size":1,"eos_token_id":[154820,154827,154829],` +
			`"first_k_dense_replace":3,"head_dim":64,"hidden_act":"silu","hidden_size":6144,` +
			`"index_head_dim":128,"index_n_heads":32,"index_topk":2048,` +
			`"indexer_rope_interleave":true,"intermediate_size":12288,"kv_lora_rank":512,` +
			`"max_position_embeddings":202752,"model_type":"glm_moe_dsa",` +
			`"moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":1,` +
			`"n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,` +
			`"num_attention_heads":64,"num_experts_per_tok":8,"num_hidden_layers":78,` +
			`"num_key_value_heads":64,"num_nextn_predict_layers":1,"q_lora_rank":2048,` +
			`"qk_head_dim":256,"qk_nope_head_dim":192,"qk_rope_head_dim":64,` +
			`"rms_norm_eps":1e-05,"rope_interleave":true,` +
			`"rope_parameters":{"rope_theta":1000000,"rope_type":"default"},` +
			`"routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_group":1,` +
			`"topk_method":"noaux_tc","v_head_dim":256,"vocab_size":154880}`,
			func(c *Config) any {
				return [...]any{c.Selected, c.RotaryDim, c.RopeTheta, len(routed(c).Dense)}
			}, [...]any{2048, 64, 1e6, 3}},
		{"Baichuan's first head", `{"architectures":["BaiChuanForCausalLM"]}`,
			func(c *Config) any { return c.Family.(*layers.HeadOptions).UnitRows }, false},
		{"Baichuan 2 as the Hub has it", `{"architectures":["BaichuanForCausalLM"],` +
			`"auto_map":{"AutoConfig":"configuration_baichuan.BaichuanConfig"},` +
			`"tokenizer_class":"BaichuanTokenizer","bos_token_id":1,"eos_token_id":2,` +
			`"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,` +
			`"intermediate_size":11008,"max_position_embeddings":4096,` +
			`"model_max_length":4096,"model_type":"baichuan","num_attention_heads":32,` +
			`"num_hidden_layers":32,"pad_token_id":0,"rms_norm_eps":1e-06,` +
			`"_from_model_config":true,"tie_word_embeddings":false,"torch_dtype":"bfloat16",` +
			`"transformers_version":"4.29.2","use_cache":true,"vocab_size":125696}`,
			func(c *Config) any { return c.Family.(*layers.HeadOptions).UnitRows }, true},
		{"turned without a window", `{"model_type":"cohere2_moe","num_hidden_layers":6,` +
			`"first_k_dense_replace":2}`, func(c *Config) any {
			return [...]any{c.Windows, c.Family.(*cohereExperts).turned, c.HeadDim}
		}, [...]any{[]int{0, 0, 4096, 4096, 4096, 0}, []int{1, 1, 1, 1, 1, 0}, 128}},
		{"original length beside",
			`{"model_type":"llama","original_max_position_embeddings":64,"rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":32}}`, func(c *Config) any { return c.Rope.OriginalMaxPositions }, 64},
		{"original length absent",
			`{"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":2,"low_freq_factor":1,"high_freq_factor":4}}`, func(c *Config) any { return c.Rope.OriginalMaxPositions }, 2048},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := ReadConfig([]byte(tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			if got := tt.get(c); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %#v, want %#v", got, tt.want)
			}
		})
	}
}

func TestReadConfigErrors(t *testing.T) {
	llama := func(rest string) string { return `{"model_type":"llama",` + rest + `}` }
	tests := []struct {
		name, raw string
		kind      error
		want      string
	}{
		{"not JSON", `{`, checkpoint.ErrMalformed, "config.json: malformed"},
		{"empty", ``, checkpoint.ErrMalformed, "config.json: malformed"},
		{"null", `null`, checkpoint.ErrMalformed, "not an object"},
		{"list", `[]`, checkpoint.ErrMalformed, "config.json: malformed"},
		{"deep", strings.Repeat(`{"a":`, 100000), checkpoint.ErrMalformed,
			"config.json: malformed"},
		{"alibi", `{"model_type":"falcon","alibi":true}`, checkpoint.ErrUnsupported,
			"alibi is true"},
		{"clipped to nothing", `{"model_type":"olmo","clip_qkv":-8.0}`, checkpoint.ErrMalformed,
			"clip_qkv is -8"},
		{"biases by distance", `{"model_type":"baichuan","hidden_size":5120,` +
			`"num_attention_heads":40,"architectures":["BaichuanForCausalLM"]}`,
			checkpoint.ErrUnsupported, "hidden_size is 5120"},
		{"bases of layers", `{"model_type":"granite_swa","layer_rope_theta":[0,10000]}`,
			checkpoint.ErrMalformed, "layer_rope_theta has 2 entries for 24 layers"},
		{"biases that differ", `{"model_type":"internlm3","qkv_bias":true}`,
			checkpoint.ErrUnsupported, "bias is false, but qkv_bias is true"},
		{"a field by the name that it has", `{"model_type":"gpt2","n_embd":-1}`,
			checkpoint.ErrMalformed, "n_embd is -1"},
		{"family", `{"model_type":"rwkv","architectures":["RwkvForCausalLM"]}`,
			checkpoint.ErrUnsupported,
			`model_type "rwkv", architectures "RwkvForCausalLM" (known: `},
		{"nothing", `{}`, checkpoint.ErrUnsupported, `model_type ""`},
		{"architectures is text", `{"architectures":"LlamaForCausalLM"}`, checkpoint.ErrMalformed,
			"architectures is"},
		{"keys are matched exactly", llama(`"Hidden_Size":64`), checkpoint.ErrUnsupported,
			`Hidden_Size is 64`},
		{"unknown option", llama(`"clip_qkv":8`), checkpoint.ErrUnsupported,
			`clip_qkv is 8, which is no option of llama that is known`},
		{"another family's", llama(`"residual_multiplier":0.5,"initializer_range":0.02`),
			checkpoint.ErrUnsupported, `residual_multiplier is 0.5`},
		{"quantized", llama(`"quantization_config":{"quant_method":"aqlm","bits":2}`),
			checkpoint.ErrUnsupported, `quantization_config (quant_method "aqlm"; auto-round, awq, `},
		{"label missing", `{"architectures":["LlamaForSequenceClassification"],"id2label":{"0":"a","2":"b"}}`, checkpoint.ErrMalformed, `id2label has 2 labels, and none for class 1`},
		{"label", `{"architectures":["LlamaForSequenceClassification"],"id2label":{"0":1}}`,
			checkpoint.ErrMalformed, `id2label.0`},
		{"problem", `{"architectures":["LlamaForSequenceClassification"],"problem_type":"ranking"}`,
			checkpoint.ErrUnsupported, `problem_type is "ranking"`},
		{"bits", llama(`"quantization_config":{"quant_method":"gptq","bits":3}`),
			checkpoint.ErrUnsupported, `quantization_config.bits is 3; 4 8 are read`},
		{"group of none", llama(`"quantization_config":{"quant_method":"gptq","group_size":0}`),
			checkpoint.ErrMalformed, `quantization_config.group_size is 0`},
		{"group below", llama(`"quantization_config":{"quant_method":"awq","group_size":-2}`),
			checkpoint.ErrMalformed, `quantization_config.group_size is -2`},
		{"marlin", llama(`"quantization_config":{"quant_method":"gptq","checkpoint_format":"marlin"}`),
			checkpoint.ErrUnsupported, `checkpoint_format is "marlin"`},
		{"rules", llama(`"quantization_config":{"quant_method":"gptq","dynamic":{"-:.*":{},"+:a":{"bits":8}}}`),
			checkpoint.ErrUnsupported, `quantization_config.dynamic.+:a is of other bits`},
		{"packing", llama(`"quantization_config":{"quant_method":"auto-round","packing_format":"mlx"}`),
			checkpoint.ErrUnsupported, `packing_format is "mlx"`},
		{"bits of a module", llama(`"quantization_config":{"quant_method":"auto-round","extra_config":{"a":{"bits":16},"b":{"bits":8}}}`),
			checkpoint.ErrUnsupported, `extra_config.b is of other bits`},
		{"floats of auto-round", llama(`"quantization_config":{"quant_method":"auto-round","data_type":"mx_fp"}`),
			checkpoint.ErrUnsupported, `data_type is "mx_fp"`},
		{"algorithm", llama(`"quantization_config":{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}`),
			checkpoint.ErrUnsupported, `quant_algo is "W4A8_AWQ"`},
		{"torchao of four bits", llama(`"quantization_config":{"quant_method":"torchao","quant_type":{"default":{"_type":"Int4WeightOnlyConfig"}}}`),
			checkpoint.ErrUnsupported, `quantization_config.quant_type is "Int4WeightOnlyConfig"; int8 and float8`},
		{"torchao of modules", llama(`"quantization_config":{"quant_method":"torchao","quant_type":{"_type":"FqnToConfig"}}`),
			checkpoint.ErrUnsupported, `quantization_config.quant_type is ""; int8`},
		{"turned inputs", llama(`"quantization_config":{"quant_method":"gptq","rotation":"hadamard"}`),
			checkpoint.ErrUnsupported, `quantization_config.rotation is "hadamard"`},
		{"gemv", llama(`"quantization_config":{"quant_method":"awq","version":"gemv"}`),
			checkpoint.ErrUnsupported, `quantization_config.version is "gemv"; gemm is read`},
		{"no zero points", llama(`"quantization_config":{"quant_method":"awq","zero_point":false}`),
			checkpoint.ErrUnsupported, `quantization_config.zero_point is false`},
		{"bits of awq", llama(`"quantization_config":{"quant_method":"awq","w_bit":8}`),
			checkpoint.ErrUnsupported, `quantization_config.w_bit is 8`},
		{"activations", llama(`"quantization_config":{"quant_method":"fp8","activation_scheme":"x"}`),
			checkpoint.ErrUnsupported, `activation_scheme is "x"`},
		{"one block", llama(`"quantization_config":{"quant_method":"fp8","weight_block_size":[128]}`),
			checkpoint.ErrMalformed, `weight_block_size is [128]`},
		{"attention by an index", llama(
			`"num_hidden_layers":1,"layer_types":["indexed_attention"]`),
			checkpoint.ErrUnsupported, `layer_types`},
		{"three experts of a row", `{"model_type":"phimoe","num_experts_per_tok":3}`,
			checkpoint.ErrUnsupported, "num_experts_per_tok is 3"},
		{"half a block", llama(`"quantization_config":{"quant_method":"fp8","weight_block_size":[128,0.5]}`),
			checkpoint.ErrMalformed, `weight_block_size is [128 0.5]`},
		{"e5m2", llama(`"quantization_config":{"quant_method":"fp8","fmt":"e5m2"}`),
			checkpoint.ErrUnsupported, `quantization_config.fmt is "e5m2"`},
		{"fp5", llama(`"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"fp5"}`),
			checkpoint.ErrUnsupported, `bnb_4bit_quant_type is "fp5"`},
		{"storage", llama(`"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_storage":"bfloat16"}`),
			checkpoint.ErrUnsupported, `bnb_4bit_quant_storage is "bfloat16"`},
		{"no bits", llama(`"quantization_config":{"quant_method":"bitsandbytes"}`),
			checkpoint.ErrMalformed, `load_in_4bit is false`},
		{"no object", llama(`"quantization_config":[]`),
			checkpoint.ErrMalformed, `quantization_config is []`},
		{"bits packed", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":2,"group_size":32}}}}`),
			checkpoint.ErrUnsupported, `config_groups.g.weights.type is int of 2 bits in format pack-quantized`},
		{"strategy", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"strategy":"tensor_group","group_size":16}}}}`),
			checkpoint.ErrUnsupported, `weights.strategy is tensor_group in format pack-quantized`},
		{"strategy that is not known", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"strategy":"token"}}}}`),
			checkpoint.ErrUnsupported, `weights.strategy is "token"`},
		{"four bits without a number for all", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"float","group_size":16}}}}`),
			checkpoint.ErrUnsupported, `weights.strategy is group in format nvfp4-pack-quantized`},
		{"four bits of a channel", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"float","strategy":"channel"}}}}`),
			checkpoint.ErrUnsupported, `weights.strategy is channel of floats of 4 bits`},
		{"group that is missing", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"strategy":"group"}}}}`),
			checkpoint.ErrMalformed, `weights.group_size is -1 of the strategy group`},
		{"class", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["LlamaMLP"],"weights":{"num_bits":4,"group_size":32}}}}`),
			checkpoint.ErrUnsupported, `config_groups.g.targets has "LlamaMLP"`},
		{"lookahead", llama(`"quantization_config":{"quant_method":"compressed-tensors","ignore":["re:(?!x)"],"format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32}}}}`),
			checkpoint.ErrUnsupported, `quantization_config.ignore has "re:(?!x)"`},
		{"cache of four bits", llama(`"quantization_config":{"quant_method":"compressed-tensors","kv_cache_scheme":{"num_bits":4},"format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32}}}}`),
			checkpoint.ErrUnsupported, `kv_cache_scheme.num_bits is 4`},
		{"transform", llama(`"quantization_config":{"quant_method":"compressed-tensors","transform_config":{"a":1},"format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32}}}}`),
			checkpoint.ErrUnsupported, `quantization_config.transform_config is {"a":1}`},
		{"sparse", llama(`"quantization_config":{"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"},"format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32}}}}`),
			checkpoint.ErrUnsupported, `sparsity_config.format is "sparse-24-bitmask"`},
		{"order", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32,"actorder":"x"}}}}`),
			checkpoint.ErrUnsupported, `weights.actorder is "x"`},
		{"dynamic weights", llama(`"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":32,"dynamic":true}}}}`),
			checkpoint.ErrUnsupported, `weights.dynamic is true`},
		{"quantised encoder", `{"model_type":"bert","quantization_config":{"quant_method":"gptq"}}`,
			checkpoint.ErrUnsupported, "quantization_config of bert"},
		{"compressed", llama(`"compression_config":{}`), checkpoint.ErrMalformed,
			`compression_config.config_groups are missing`},
		{"encoder", llama(`"is_encoder_decoder":true`), checkpoint.ErrUnsupported,
			"is_encoder_decoder is true"},
		{"mrope", `{"model_type":"qwen2","use_mrope":true}`, checkpoint.ErrUnsupported,
			"use_mrope is true"},
		{"activation", llama(`"hidden_act":"mish"`), checkpoint.ErrUnsupported,
			`hidden_act is "mish"`},
		{"opt activation", `{"model_type":"opt","activation_function":"tanh"}`,
			checkpoint.ErrUnsupported,
			`activation_function is "tanh"`},
		{"dtype", llama(`"torch_dtype":"float8_e4m3fn"`), checkpoint.ErrUnsupported,
			`torch_dtype is "float8_e4m3fn"`},
		{"layers", llama(`"num_hidden_layers":-1`), checkpoint.ErrMalformed,
			"num_hidden_layers is -1, outside 1 to 65536"},
		{"many layers", llama(`"num_hidden_layers":1000000000`), checkpoint.ErrMalformed,
			"num_hidden_layers is 1000000000"},
		{"no width", llama(`"hidden_size":0`), checkpoint.ErrMalformed, "hidden_size is 0"},
		{"giant width", llama(`"hidden_size":2147483649`), checkpoint.ErrMalformed,
			"hidden_size is 2147483649"},
		{"beyond int64", llama(`"hidden_size":99999999999999999999`), checkpoint.ErrMalformed,
			"hidden_size is 99999999999999999999 where a whole number"},
		{"fraction", llama(`"hidden_size":64.5`), checkpoint.ErrMalformed,
			"hidden_size is 64.5 where a whole number"},
		{"width null", llama(`"hidden_size":null`), checkpoint.ErrMalformed,
			"hidden_size is null where a whole number"},
		{"width text", llama(`"hidden_size":"64"`), checkpoint.ErrMalformed,
			`hidden_size is "64" where`},
		{"heads do not divide", llama(`"hidden_size":100,"num_attention_heads":8`),
			checkpoint.ErrMalformed, "hidden_size is 100, not a multiple of 8"},
		{"opt heads do not divide",
			`{"model_type":"opt","hidden_size":100,"num_attention_heads":8}`,
			checkpoint.ErrMalformed, "hidden_size is 100, not a multiple of 8"},
		{"kv heads do not divide", llama(`"num_attention_heads":8,"num_key_value_heads":3`),
			checkpoint.ErrMalformed, "num_attention_heads is 8, not a multiple of 3"},
		{"no kv heads", llama(`"num_key_value_heads":0`), checkpoint.ErrMalformed,
			"num_key_value_heads is 0"},
		{"odd head", llama(`"head_dim":15`), checkpoint.ErrMalformed,
			"head_dim is 15, which is odd"},
		{"giant heads", llama(
			`"num_attention_heads":65536,"num_key_value_heads":1,"head_dim":65536`),
			checkpoint.ErrMalformed, "head_dim is 65536 for 65536 heads"},
		{"epsilon", llama(`"rms_norm_eps":0`), checkpoint.ErrMalformed, "rms_norm_eps is 0"},
		{"number out of range", llama(`"rms_norm_eps":1e999`), checkpoint.ErrMalformed,
			"rms_norm_eps is 1e999"},
		{"flag", llama(`"attention_bias":"yes"`), checkpoint.ErrMalformed,
			`attention_bias is "yes"`},
		{"eos text", llama(`"eos_token_id":"</s>"`), checkpoint.ErrMalformed, "eos_token_id is"},
		{"eos negative", llama(`"eos_token_id":[2,-1]`), checkpoint.ErrMalformed,
			"eos_token_id is [2,-1]"},
		{"eos nested", llama(`"eos_token_id":[[2]]`), checkpoint.ErrMalformed,
			"eos_token_id is [[2]]"},
		{"experts per token", `{"model_type":"qwen3_moe","num_experts":4,"num_experts_per_tok":8}`,
			checkpoint.ErrMalformed, "num_experts_per_tok is 8 of 4"},
		{"experts contradict", `{"model_type":"qwen3_moe","num_experts":4,"num_local_experts":8}`,
			checkpoint.ErrMalformed, "num_local_experts is 8, but num_experts is 4"},
		{"sparse step", `{"model_type":"qwen3_moe","decoder_sparse_step":0}`,
			checkpoint.ErrMalformed, "decoder_sparse_step is 0"},
		{"mlp only layer", `{"model_type":"qwen3_moe","num_hidden_layers":2,"mlp_only_layers":[0,2]}`, checkpoint.ErrMalformed, "mlp_only_layers names layer 2 of 2"},
		{"window negative", `{"model_type":"mistral","sliding_window":-1}`, checkpoint.ErrMalformed,
			"sliding_window is -1"},
		{"layer types short", `{"model_type":"qwen3","num_hidden_layers":2,"layer_types":["full_attention"]}`, checkpoint.ErrMalformed, "layer_types has 1 entries for 2 layers"},
		{"no full attention", `{"model_type":"qwen3_next","num_hidden_layers":1,"layer_types":["linear_attention"]}`, checkpoint.ErrUnsupported, "layer_types has no full_attention"},
		{"two-way attention", `{"model_type":"gemma4_text","use_bidirectional_attention":"all"}`, checkpoint.ErrUnsupported, `use_bidirectional_attention is "all"`},
		{"heads of one layer", `{"model_type":"gemma4_text","num_hidden_layers":12,"per_layer_config":{"5":{"head_dim":512},"11":{"head_dim":256}}}`, checkpoint.ErrUnsupported, "per_layer_config.11 has 4 key/value heads of 256, where others of its kind have 4 of 512"},
		{"heads in a window", `{"model_type":"gemma4_text","num_hidden_layers":12,"per_layer_config":{"1":{"num_key_value_heads":2}}}`, checkpoint.ErrUnsupported, "per_layer_config.1 has 2 key/value heads of 256"},
		{"nothing shared", `{"model_type":"gemma4_text","num_hidden_layers":6,"num_kv_shared_layers":2}`, checkpoint.ErrMalformed, "num_kv_shared_layers is 2: no layer of its kind is before layer 5"},
		{"all shared", `{"model_type":"gemma4_text","num_hidden_layers":6,"num_kv_shared_layers":6}`, checkpoint.ErrMalformed, "num_kv_shared_layers is 6, outside 0 to 5"},
		{"more experts than there are", `{"model_type":"gemma4_text","enable_moe_block":true,"num_experts":4,"top_k_experts":5}`, checkpoint.ErrMalformed, "top_k_experts is 5 of 4 experts"},
		{"layer type of Qwen3-Next", `{"model_type":"qwen3_next","num_hidden_layers":1,"layer_types":["sliding_attention"]}`, checkpoint.ErrUnsupported, `layer_types has "sliding_attention"`},
		{"window of Qwen3-Next", `{"model_type":"qwen3_next","use_sliding_window":true}`, checkpoint.ErrUnsupported, "use_sliding_window is true"},
		{"gate of Qwen3-Next", `{"model_type":"qwen3_next","attn_output_gate":false}`, checkpoint.ErrUnsupported, "attn_output_gate is false"},
		{"Granite 4 without attention", `{"model_type":"granitemoehybrid"}`, checkpoint.ErrUnsupported, "layer_types has no attention"},
		{"Granite 4's positions", `{"model_type":"granitemoehybrid","position_embedding_type":"alibi"}`, checkpoint.ErrUnsupported, `position_embedding_type is "alibi"`},
		{"Mamba's heads", `{"model_type":"bamba","mamba_n_heads":96}`, checkpoint.ErrMalformed, "mamba_n_heads is 96, of 85, for 8192 features"},
		{"Mamba's groups", `{"model_type":"bamba","mamba_n_groups":3}`, checkpoint.ErrMalformed, "mamba_n_heads is 128, not a multiple of 3 groups"},
		{"Mamba's steps", `{"model_type":"bamba","time_step_limit":[1,0]}`, checkpoint.ErrMalformed, "time_step_limit is [1,0] where two numbers in order are expected"},
		{"Bamba's heads", `{"model_type":"bamba","attn_layer_indices":[1],"attn_rotary_emb":128}`, checkpoint.ErrUnsupported, "attn_rotary_emb is 128 of 128 dimensions"},
		{"Nemotron-H's pattern", `{"model_type":"nemotron_h","num_hidden_layers":3,"hybrid_override_pattern":"M*"}`, checkpoint.ErrMalformed, "hybrid_override_pattern has 2 entries for 3 layers"},
		{"Nemotron-H's blocks", `{"model_type":"nemotron_h","hybrid_override_pattern":"M*|"}`, checkpoint.ErrUnsupported, `hybrid_override_pattern has "|"`},
		{"Nemotron-H without attention", `{"model_type":"nemotron_h","hybrid_override_pattern":"M-"}`, checkpoint.ErrUnsupported, "hybrid_override_pattern has no *"},
		{"Nemotron-H's window", `{"model_type":"nemotron_h","sliding_window":8}`, checkpoint.ErrUnsupported, "sliding_window is 8"},
		{"Falcon-H1's norm", `{"model_type":"falcon_h1","mamba_rms_norm":true,"mamba_norm_before_gate":true}`, checkpoint.ErrUnsupported, "mamba_norm_before_gate is true"},
		{"Falcon-H1's multipliers", `{"model_type":"falcon_h1","mlp_multipliers":[1]}`, checkpoint.ErrMalformed, "mlp_multipliers has 1 entries, not 2"},
		{"Falcon-H1's bias", `{"model_type":"falcon_h1","mlp_bias":true,"mlp_multipliers":[2,1]}`, checkpoint.ErrUnsupported, "mlp_bias is true"},
		{"value heads", `{"model_type":"qwen3_next","linear_num_value_heads":24}`, checkpoint.ErrMalformed, "linear_num_value_heads is 24, not a multiple of 16 key heads"},
		{"layer type", `{"model_type":"qwen3","num_hidden_layers":1,"layer_types":["linear_attention"]}`, checkpoint.ErrUnsupported, `layer_types has "linear_attention"`},
		{"layer type without window",
			`{"model_type":"qwen3","num_hidden_layers":1,"layer_types":["sliding_attention"]}`,
			checkpoint.ErrMalformed, "no window is in use"},

		{"rope type", llama(`"rope_scaling":{"rope_type":"xpos","factor":2}`),
			checkpoint.ErrUnsupported,
			`rope_scaling.rope_type is "xpos"`},
		{"rope type, its first name", llama(`"rope_scaling":{"type":"xpos","factor":2}`),
			checkpoint.ErrUnsupported,
			`rope_type is "xpos"`},
		{"rope types contradict",
			llama(`"rope_scaling":{"type":"linear","rope_type":"yarn","factor":2}`),
			checkpoint.ErrMalformed,
			`rope_scaling.type is "linear", but rope_type is "yarn"`},
		{"rope list", llama(`"rope_scaling":[]`), checkpoint.ErrMalformed,
			"rope_scaling is [] where an object"},
		{"rope per layer type",
			llama(`"rope_parameters":{"full_attention":{"rope_type":"default"}}`),
			checkpoint.ErrUnsupported, "rope_parameters.full_attention"},
		{"rope partial", llama(`"rope_parameters":{"partial_rotary_factor":0.5}`),
			checkpoint.ErrUnsupported, "rope_parameters.partial_rotary_factor is 0.5"},
		{"rope partial beside", llama(`"partial_rotary_factor":0.5`), checkpoint.ErrUnsupported,
			"partial_rotary_factor is 0.5"},
		{"rope theta", llama(`"rope_theta":0`), checkpoint.ErrMalformed, "rope_theta is 0"},
		{"linear without factor", llama(`"rope_scaling":{"type":"linear"}`),
			checkpoint.ErrMalformed, "rope_scaling.factor is missing"},
		{"factor negative", llama(`"rope_scaling":{"type":"linear","factor":-2}`),
			checkpoint.ErrMalformed, "rope_scaling.factor is -2"},
		{"llama3 without low", llama(
			`"rope_scaling":{"rope_type":"llama3","factor":8,"high_freq_factor":4}`),
			checkpoint.ErrMalformed, "rope_scaling.low_freq_factor is missing"},
		{"llama3 swapped", llama(
			`"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":3}`), checkpoint.ErrMalformed, "high_freq_factor is 3, below"},
		{"yarn betas", llama(
			`"rope_scaling":{"rope_type":"yarn","factor":8,"beta_fast":1,"beta_slow":32}`),
			checkpoint.ErrMalformed, "beta_fast is 1, below beta_slow 32"},
		{"yarn original", llama(
			`"rope_scaling":{"rope_type":"yarn","factor":8,"original_max_position_embeddings":0}`),
			checkpoint.ErrMalformed, "original_max_position_embeddings is 0"},
		{"yarn mscale", llama(`"rope_scaling":{"rope_type":"yarn","factor":8,"mscale":-0.5}`),
			checkpoint.ErrMalformed, "mscale"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := ReadConfig([]byte(tt.raw))
			if err == nil {
				t.Fatalf("read as %+v", c)
			}
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) ||
				!strings.HasPrefix(err.Error(), "config.json: ") {
				t.Errorf("error %q, want %q with %q", err, tt.kind, tt.want)
			}
		})
	}
}

func TestSparseLayer(t *testing.T) {
	c, err := ReadConfig([]byte(
		`{"model_type":"qwen3_moe","num_hidden_layers":6,"decoder_sparse_step":2,"mlp_only_layers":[3]}`))
	if err != nil {
		t.Fatal(err)
	}
	var sparse []int
	for i := range c.Layers {
		if c.Family.(*experts).sparse(i) {
			sparse = append(sparse, i)
		}
	}
	if !slices.Equal(sparse, []int{1, 5}) {
		t.Errorf("sparse layers %v", sparse)
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(
		`{"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}}`))
	f.Add([]byte(
		`{"model_type":"qwen3","rope_parameters":{"rope_type":"yarn","factor":4,"rope_theta":1e300},"layer_types":["full_attention"],"num_hidden_layers":1}`))
	f.Add([]byte(`{"model_type":"qwen3_moe","eos_token_id":[1],"mlp_only_layers":[1]}`))
	f.Add([]byte(`{"model_type":"opt","hidden_size":1e5}`))
	for _, name := range []string{"gptq-actorder-g32-tiny", "awq-g64-tiny", "ct-w4a16-tiny",
		"fp8-block-tiny", "bnb-nf4-tiny"} {
		raw, err := os.ReadFile(filepath.Join("../../../testdata/models", name, "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ReadConfig(raw)
		if err != nil {
			if !errors.Is(err, checkpoint.ErrMalformed) && !errors.Is(err,
				checkpoint.ErrUnsupported) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		if c.Heads < 1 || c.KVHeads < 1 || c.Heads%c.KVHeads != 0 || c.HeadDim < 2 ||
			c.HeadDim%2 != 0 || len(c.Windows) != c.Layers || c.Layers < 1 || c.HiddenSize < 1 ||
			c.VocabSize < 1 || c.IntermediateSize < 1 || c.MaxPositions < 1 {
			t.Fatalf("implausible: %+v", c)
		}
		if c.Quantization != nil && (c.ModelType == "llama" || c.ModelType == "qwen3") {
			// Whatever does not fit is an error.
			_, _ = ReadBytes(c, Shapes(), layers.Group{Size: 1}, Stage{To: 1})
			_ = c.Quantise("gptq")
		}
		if c.Rope.Type == "" || c.HeadDim > 4096 {
			return
		}
		inv, scale, err := c.RopeFrequencies()
		if err == nil && (len(inv) != c.HeadDim/2 || !(scale > 0)) {
			t.Fatalf("%d frequencies of head dimension %d, factor %v: %+v", len(inv), c.HeadDim,
				scale, c)
		}
	})
}
