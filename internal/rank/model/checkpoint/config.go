package checkpoint

import (
	"fmt"
	"slices"
	"strings"
)

// Config is config.json: the shape of a model, with every default of transformers' configuration
// class filled in.
type Config struct {
	// Architectures is the list as written, such as ["LlamaForCausalLM"].
	Architectures []string
	// Architecture is the first of Architectures that belongs to a family read here, or the
	// family's causal language model where the file lists none; empty when the list holds only
	// others.
	Architecture string
	// Classifier is nil for a causal language model. A classifier has the architecture of one, and
	// its embedding where that has a head.
	Classifier *Classifier
	// ModelType is the family: llama, mistral, qwen2, qwen3, qwen3_moe or opt.
	ModelType string

	VocabSize        int
	HiddenSize       int
	IntermediateSize int // width of the dense feed-forward network; equal to FFNDim for opt
	Layers           int
	Heads            int
	KVHeads          int
	HeadDim          int
	MaxPositions     int

	RMSNormEps float64
	// LayerNormEps is for families with LayerNorm (opt, where it is not configurable), 0 for
	// others.
	LayerNormEps float64
	// Activation is silu, relu, gelu (the exact one) or gelu_tanh; other spellings of these are
	// normalised.
	Activation    string
	TieEmbeddings bool

	// RopeTheta and Rope describe the rotary embedding; Rope.Type is empty for a family without
	// one.
	RopeTheta float64
	Rope      Rope

	// SlidingWindow is the window of the layers that have one, 0 when no layer has.
	SlidingWindow int
	// Windows holds each layer's window: the query at position i sees the keys above i-window. 0
	// means all.
	Windows []int

	AttentionBias bool // the field attention_bias
	QKVBias       bool // whether the query, key and value projections have a bias
	OutBias       bool // whether the attention's output projection has one
	MLPBias       bool // whether the feed-forward projections have one

	// DType is bfloat16, float16, float32, or empty when the file does not say.
	DType string
	BOS   int   // -1 for none
	PAD   int   // -1 for none
	EOS   []int // none, one or several

	// Mixture of experts; Experts is 0 for a dense model.
	Experts             int
	ExpertsPerToken     int
	MoEIntermediateSize int
	DecoderSparseStep   int
	MLPOnlyLayers       []int
	NormTopK            bool

	// OPT only.
	FFNDim                     int
	WordEmbedProjDim           int
	DoLayerNormBefore          bool
	RemoveFinalLayerNorm       bool
	EnableBias                 bool
	LayerNormElementwiseAffine bool
}

// SparseLayer reports whether the feed-forward network of layer i is a mixture of experts.
func (c *Config) SparseLayer(i int) bool {
	return c.Experts > 0 && (i+1)%c.DecoderSparseStep == 0 && !slices.Contains(c.MLPOnlyLayers, i)
}

// ReadConfig reads config.json as transformers 4 writes it (rope_theta, rope_scaling, torch_dtype,
// num_experts) and as 5 does (rope_parameters, dtype, num_local_experts, layer_types). Absent
// fields have the defaults of transformers' configuration classes. An error names the field and its
// value; it wraps [ErrUnsupported] for what this engine does not do and [ErrMalformed] for what
// makes no sense.
func ReadConfig(raw []byte) (*Config, error) {
	f, err := readFields(raw)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	c, err := readConfig(f)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	return c, nil
}

func readConfig(f *fields) (*Config, error) {
	c := &Config{Architectures: f.texts("architectures"), ModelType: f.text("model_type", "")}
	if f.err != nil {
		return nil, f.err
	}
	fam, err := familyOf(c)
	if err != nil {
		return nil, err
	}
	refuse(f)
	readCommon(f, c, fam)
	if c.Classifier != nil {
		readClassifier(f, c.Classifier)
		c.TieEmbeddings = true
	}
	fam.read(f, c, fam.defaults)
	if f.err != nil {
		return nil, f.err
	}
	readRope(f, c, fam)
	readWindows(f, c, fam)
	checkDims(f, c)
	if f.err != nil {
		return nil, f.err
	}
	return c, nil
}

// refuse reports fields of any family that change what the weights or the arithmetic are.
func refuse(f *fields) {
	for _, key := range []string{"quantization_config", "compression_config"} {
		if !f.set(key) {
			continue
		}
		method := "method unknown"
		if q := f.object(key); q != nil {
			method = "quant_method " + short(q.text("quant_method", "unknown"))
		}
		f.fail(ErrUnsupported, key, "(%s)", method)
	}
	for _, key := range []string{"is_encoder_decoder", "use_mrope"} {
		if f.flag(key, false) {
			f.fail(ErrUnsupported, key, "is true")
		}
	}
}

func readCommon(f *fields, c *Config, fam *family) {
	d := fam.defaults
	c.VocabSize = f.integer("vocab_size", d.VocabSize, 1, maxDim)
	c.HiddenSize = f.integer("hidden_size", d.HiddenSize, 1, maxDim)
	c.Layers = f.integer("num_hidden_layers", d.Layers, 1, 1<<16)
	c.Heads = f.integer("num_attention_heads", d.Heads, 1, maxDim)
	c.MaxPositions = f.integer("max_position_embeddings", d.MaxPositions, 1, maxDim)
	c.Activation = readActivation(f, fam.activationKey, d.Activation)
	c.TieEmbeddings = f.flag("tie_word_embeddings", d.TieEmbeddings)
	c.DType = readDTypeName(f)
	c.BOS = f.id("bos_token_id", d.BOS)
	c.PAD = f.id("pad_token_id", d.PAD)
	c.EOS = f.ids("eos_token_id", slices.Clone(d.EOS))
}

// readActivation normalises the name: transformers has several for the same function.
func readActivation(f *fields, key, def string) string {
	switch name := f.text(key, def); name {
	case "silu", "swish":
		return "silu"
	case "relu":
		return "relu"
	case "gelu", "gelu_python":
		return "gelu"
	case "gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh":
		return "gelu_tanh"
	default:
		f.fail(ErrUnsupported, key, "is %s", short(name))
		return ""
	}
}

func readDTypeName(f *fields) string {
	for _, key := range []string{"dtype", "torch_dtype"} {
		if !f.set(key) {
			continue
		}
		name := strings.TrimPrefix(f.text(key, ""), "torch.")
		if !slices.Contains([]string{"bfloat16", "float16", "float32"}, name) {
			f.fail(ErrUnsupported, key, "is %s", short(name))
		}
		return name
	}
	return ""
}

// readWindows resolves sliding_window, use_sliding_window, max_window_layers and layer_types to a
// window per layer.
func readWindows(f *fields, c *Config, fam *family) {
	window := fam.window(f)
	types := f.texts("layer_types")
	if types != nil && len(types) != c.Layers {
		f.fail(ErrMalformed, "layer_types", "has %d entries for %d layers", len(types), c.Layers)
	}
	if f.err != nil {
		return
	}
	c.Windows = make([]int, c.Layers)
	for i := range c.Windows {
		sliding := fam.sliding(f, i)
		if types != nil {
			switch types[i] {
			case "full_attention", "attention":
				sliding = false
			case "sliding_attention":
				sliding = true
			default:
				f.fail(ErrUnsupported, "layer_types", "has %s", short(types[i]))
				return
			}
		}
		if !sliding {
			continue
		}
		if window == 0 && types != nil {
			f.fail(ErrMalformed, "layer_types",
				"has sliding_attention, but no sliding window is in use")
			return
		}
		c.Windows[i] = window
		c.SlidingWindow = window
	}
}

func checkDims(f *fields, c *Config) {
	if c.Heads%c.KVHeads != 0 {
		f.fail(ErrMalformed, "num_attention_heads", "is %d, not a multiple of %d key/value heads",
			c.Heads, c.KVHeads)
	}
	if c.HeadDim%2 != 0 {
		f.fail(ErrMalformed, "head_dim", "is %d, which is odd", c.HeadDim)
	}
	if c.Heads*c.HeadDim > maxDim {
		f.fail(ErrMalformed, "head_dim", "is %d for %d heads, which is too large", c.HeadDim,
			c.Heads)
	}
	if c.ExpertsPerToken > c.Experts {
		f.fail(ErrMalformed, "num_experts_per_tok", "is %d of %d experts", c.ExpertsPerToken,
			c.Experts)
	}
	for _, i := range c.MLPOnlyLayers {
		if i >= c.Layers {
			f.fail(ErrMalformed, "mlp_only_layers", "names layer %d of %d", i, c.Layers)
		}
	}
}
