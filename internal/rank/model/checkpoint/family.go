package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// family is what is particular to one model_type.
type family struct {
	architecture  string // the causal language model's class
	activationKey string
	// defaults are those of transformers' configuration class, for the fields that readCommon and
	// readAttention read.
	defaults Config
	rotary   bool
	// read reads the fields that not every family has.
	read func(f *fields, c *Config, d Config)
	// window is the sliding window in use, 0 for none.
	window func(f *fields) int
	// sliding reports whether layer i has the window where layer_types does not say.
	sliding func(f *fields, i int) bool
}

// families returns the table by model_type. Sources of the defaults: transformers'
// configuration_llama.py, configuration_mistral.py, configuration_qwen2.py, configuration_qwen3.py,
// configuration_qwen3_moe.py and configuration_opt.py, releases 4.57 and 5.23, which agree.
func families() map[string]*family {
	return map[string]*family{
		"llama": {
			architecture: "LlamaForCausalLM", activationKey: "hidden_act", rotary: true,
			defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 11008,
				Layers: 32, Heads: 32, MaxPositions: 2048, RMSNormEps: 1e-6,
				Activation: "silu", BOS: 1, PAD: -1, EOS: []int{2}},
			read: readLlama, window: plainWindow(0), sliding: noLayer,
		},
		"mistral": {
			architecture: "MistralForCausalLM", activationKey: "hidden_act", rotary: true,
			defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 14336,
				Layers: 32, Heads: 32, KVHeads: 8, MaxPositions: 131072, RMSNormEps: 1e-6,
				Activation: "silu", BOS: 1, PAD: -1, EOS: []int{2}},
			read: readMistral, window: plainWindow(4096), sliding: everyLayer,
		},
		"qwen2": {
			architecture: "Qwen2ForCausalLM", activationKey: "hidden_act", rotary: true,
			defaults: qwenDefaults(), read: readQwen2, window: qwenWindow, sliding: upperLayers,
		},
		"qwen3": {
			architecture: "Qwen3ForCausalLM", activationKey: "hidden_act", rotary: true,
			defaults: qwenDefaults(), read: readQwen3, window: qwenWindow, sliding: upperLayers,
		},
		"qwen3_moe": {
			architecture: "Qwen3MoeForCausalLM", activationKey: "hidden_act", rotary: true,
			defaults: Config{VocabSize: 151936, HiddenSize: 2048, IntermediateSize: 6144,
				Layers: 24, Heads: 32, KVHeads: 4, MaxPositions: 32768, RMSNormEps: 1e-6,
				Activation: "silu", BOS: -1, PAD: -1},
			read: readQwen3MoE, window: qwenWindow, sliding: everyLayer,
		},
		"opt": {
			architecture: "OPTForCausalLM", activationKey: "activation_function",
			defaults: Config{VocabSize: 50272, HiddenSize: 768, Layers: 12, Heads: 12,
				MaxPositions: 2048, Activation: "relu", TieEmbeddings: true,
				BOS: 2, PAD: 1, EOS: []int{2}},
			read: readOPT, window: func(*fields) int { return 0 }, sliding: noLayer,
		},
	}
}

// qwenDefaults are those of Qwen2Config, which Qwen3Config shares.
func qwenDefaults() Config {
	return Config{VocabSize: 151936, HiddenSize: 4096, IntermediateSize: 22016, Layers: 32,
		Heads: 32, KVHeads: 32,
		MaxPositions: 32768, RMSNormEps: 1e-6, Activation: "silu", BOS: -1, PAD: -1}
}

// familyOf finds the family by model_type, else by architecture, and settles both fields.
func familyOf(c *Config) (*family, error) {
	all := families()
	for _, a := range c.Architectures {
		base, classifies := strings.CutSuffix(a, "ForSequenceClassification")
		for name, fam := range all {
			if fam.architecture != a && !(classifies && fam.architecture == base+"ForCausalLM") ||
				c.Architecture != "" {
				continue
			}
			c.Architecture = fam.architecture
			if classifies {
				c.Classifier = &Classifier{}
			}
			if all[c.ModelType] == nil {
				c.ModelType = name
			}
		}
	}
	fam := all[c.ModelType]
	if fam == nil {
		known := strings.Join(slices.Sorted(maps.Keys(all)), ", ")
		return nil, fmt.Errorf("%w: model_type %s, architectures %s (known: %s)", ErrUnsupported,
			short(c.ModelType), short(strings.Join(c.Architectures, ", ")), known)
	}
	if len(c.Architectures) == 0 {
		c.Architecture = fam.architecture
	}
	return fam, nil
}

// readAttention reads what all families with rotary embedding have. A headDim of 0 stands for
// hidden_size divided by the number of heads, d.KVHeads of 0 for as many as there are heads.
func readAttention(f *fields, c *Config, d Config, headDim int) {
	c.IntermediateSize = f.integer("intermediate_size", d.IntermediateSize, 1, maxDim)
	c.RMSNormEps = f.number("rms_norm_eps", d.RMSNormEps, 0)
	c.KVHeads = d.KVHeads
	if f.has("num_key_value_heads") || c.KVHeads == 0 {
		c.KVHeads = f.nullable("num_key_value_heads", c.Heads, 1, maxDim)
	}
	if !f.has("head_dim") && headDim != 0 {
		c.HeadDim = headDim
		return
	}
	readHeadDim(f, c)
}

// readHeadDim reads head_dim, by default hidden_size divided by the number of heads.
func readHeadDim(f *fields, c *Config) {
	if f.set("head_dim") {
		c.HeadDim = f.integer("head_dim", 0, 1, maxDim)
		return
	}
	if c.HiddenSize%c.Heads != 0 {
		f.fail(ErrMalformed, "hidden_size", "is %d, not a multiple of %d attention heads",
			c.HiddenSize, c.Heads)
	}
	c.HeadDim = c.HiddenSize / c.Heads
}

func readLlama(f *fields, c *Config, d Config) {
	readAttention(f, c, d, 0)
	c.AttentionBias = f.flag("attention_bias", false)
	c.QKVBias, c.OutBias = c.AttentionBias, c.AttentionBias
	c.MLPBias = f.flag("mlp_bias", false)
}

func readMistral(f *fields, c *Config, d Config) {
	readAttention(f, c, d, 0)
}

func readQwen2(f *fields, c *Config, d Config) {
	readAttention(f, c, d, 0)
	c.QKVBias = true
}

func readQwen3(f *fields, c *Config, d Config) {
	readAttention(f, c, d, 128)
	c.AttentionBias = f.flag("attention_bias", false)
	c.QKVBias, c.OutBias = c.AttentionBias, c.AttentionBias
}

func readQwen3MoE(f *fields, c *Config, d Config) {
	readAttention(f, c, d, 0)
	c.AttentionBias = f.flag("attention_bias", false)
	c.QKVBias, c.OutBias = c.AttentionBias, c.AttentionBias
	c.Experts = f.integer("num_experts", 128, 0, 1<<16)
	if f.has("num_local_experts") {
		local := f.integer("num_local_experts", 0, 0, 1<<16)
		if f.has("num_experts") && c.Experts != local {
			f.fail(ErrMalformed, "num_local_experts", "is %d, but num_experts is %d", local,
				c.Experts)
		}
		c.Experts = local
	}
	c.ExpertsPerToken = f.integer("num_experts_per_tok", 8, 1, 1<<16)
	c.MoEIntermediateSize = f.integer("moe_intermediate_size", 768, 1, maxDim)
	c.DecoderSparseStep = f.integer("decoder_sparse_step", 1, 1, maxDim)
	c.MLPOnlyLayers = f.ids("mlp_only_layers", nil)
	c.NormTopK = f.flag("norm_topk_prob", false)
}

// readOPT reads OPTConfig. The epsilon of its LayerNorms is PyTorch's default: the class has no
// field for it.
func readOPT(f *fields, c *Config, _ Config) {
	c.LayerNormEps = 1e-5
	c.KVHeads = c.Heads
	if c.HiddenSize%c.Heads != 0 {
		f.fail(ErrMalformed, "hidden_size", "is %d, not a multiple of %d attention heads",
			c.HiddenSize, c.Heads)
	}
	c.HeadDim = c.HiddenSize / c.Heads
	c.FFNDim = f.integer("ffn_dim", 3072, 1, maxDim)
	c.IntermediateSize = c.FFNDim
	c.WordEmbedProjDim = f.nullable("word_embed_proj_dim", c.HiddenSize, 1, maxDim)
	c.DoLayerNormBefore = f.flag("do_layer_norm_before", true)
	c.RemoveFinalLayerNorm = f.flag("_remove_final_layer_norm", false)
	c.EnableBias = f.flag("enable_bias", true)
	c.QKVBias, c.OutBias, c.MLPBias = c.EnableBias, c.EnableBias, c.EnableBias
	c.LayerNormElementwiseAffine = f.flag("layer_norm_elementwise_affine", true)
}

// plainWindow reads sliding_window; null and 0 mean none.
func plainWindow(def int) func(f *fields) int {
	return func(f *fields) int {
		if !f.has("sliding_window") {
			return def
		}
		return f.nullable("sliding_window", 0, 0, maxDim)
	}
}

// qwenWindow is plainWindow behind the switch use_sliding_window.
func qwenWindow(f *fields) int {
	if !f.flag("use_sliding_window", false) {
		return 0
	}
	return plainWindow(4096)(f)
}

func noLayer(*fields, int) bool    { return false }
func everyLayer(*fields, int) bool { return true }

// upperLayers holds from max_window_layers on.
func upperLayers(f *fields, i int) bool {
	return i >= f.integer("max_window_layers", 28, 0, maxDim)
}
