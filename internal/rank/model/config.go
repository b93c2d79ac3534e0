package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Config is config.json: the shape of a model, with every default of transformers' configuration
// class filled in.
type Config struct {
	// Architectures is the list as written, such as ["LlamaForCausalLM"].
	Architectures []string
	// Architecture is the first of Architectures that belongs to a family here, or the family's
	// causal language model where the file lists none; empty when the list holds only others.
	Architecture string
	// Classifier is nil for a causal language model. A classifier has the architecture of one, and
	// its embedding where that has a head.
	Classifier *Classifier
	// Headless says that a decoder was stored without its head: it can only be pooled.
	Headless bool
	// Encoder says that all tokens of a text see each other: it is computed in one step, there is
	// no KV cache, and no token follows. TokenTypes is how many types its tokens may have.
	Encoder    bool
	TokenTypes int
	// ModelType is the family's.
	ModelType string
	// Around is the model type of the whole that the model is the language model of, "" for none.
	Around string
	// Family is what only the family knows, or a few: its own type, nil for none.
	Family any

	VocabSize        int
	HiddenSize       int
	IntermediateSize int // width of the dense feed-forward network
	Layers           int
	Heads            int
	KVHeads          int
	HeadDim          int
	MaxPositions     int

	// NormEps is the epsilon of the norms.
	NormEps float64
	// Activation is silu, relu, relu2, gelu (the exact one), gelu_tanh or xielu; other spellings of
	// these are normalised.
	Activation    string
	TieEmbeddings bool

	// RopeTheta and Rope describe the rotary embedding; Rope.Type is empty for a family without
	// one.
	RopeTheta float64
	Rope      Rope
	// LocalTheta is RopeTheta of the layers with a window, where these are not scaled.
	LocalTheta float64
	// RotaryDim is how many dimensions of a head are turned; 0 is all.
	RotaryDim int
	// Interleaved says that they are turned in pairs of neighbours where the family turns halves:
	// the rows of queries and keys are stored so.
	Interleaved bool

	// SlidingWindow is the window of the layers that have one, 0 when no layer has.
	SlidingWindow int
	// Windows holds each layer's window: the query at position i sees the keys above i-window. 0
	// means all. Chunked says that it is a chunk: the keys are those from its last multiple on.
	Windows []int
	Chunked bool
	// Selected is how many positions attention selects of a longer context, 0 where it attends to
	// all. Contexts are as long at most: what would be selected is not computed.
	Selected int
	// served is the longest sequence that is served, 0 for not known (Serve).
	served int
	// Temperature is what queries are multiplied by.
	Temperature Temperature

	QKVBias bool // whether the query, key and value projections have a bias
	OutBias bool // whether the attention's output projection has one
	MLPBias bool // whether the feed-forward projections have one

	// Scheme is what weights of the layers' modules are stored and multiplied as; nil is plain.
	Scheme layers.Scheme
	// Quantization is how they are stored, nil for plainly.
	Quantization *Quantization
	// DType is bfloat16, float16, float32, or empty when the file does not say.
	DType string
	BOS   int   // -1 for none
	PAD   int   // -1 for none
	EOS   []int // none, one or several
}

// ReadConfig reads config.json as transformers 4 writes it (rope_theta, rope_scaling, torch_dtype,
// num_experts) and as 5 does (rope_parameters, dtype, num_local_experts, layer_types). Absent
// fields have the defaults of transformers' configuration classes. An error names the field and its
// value; it wraps [checkpoint.ErrUnsupported] for what this engine does not do and
// [checkpoint.ErrMalformed] for what makes no sense.
func ReadConfig(raw []byte) (*Config, error) {
	f, err := checkpoint.ReadFields(raw)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	c, err := readConfig(f)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	return c, nil
}

func readConfig(f *checkpoint.Fields) (*Config, error) {
	c := &Config{Architectures: f.Texts("architectures"), ModelType: f.Text("model_type", "")}
	if f.Err() != nil {
		return nil, f.Err()
	}
	if f = languageModel(f, c); f.Err() != nil {
		return nil, f.Err()
	}
	fam, err := familyOf(c)
	if err != nil {
		return nil, err
	}
	f.Rename(fam.renamed)
	return readFamily(f, c, fam)
}

// readFamily reads all else, as a family has it.
func readFamily(f *checkpoint.Fields, c *Config, fam *family) (*Config, error) {
	refuse(f, c, fam)
	readCommon(f, c, fam)
	c.Encoder = fam.encoder
	if c.Classifier != nil {
		readClassifier(f, c.Classifier)
	}
	if c.Classifier != nil || c.Headless {
		c.TieEmbeddings = true // there is no other head
	}
	c.RopeTheta = fam.defaults.RopeTheta
	fam.read(f, c, fam.defaults)
	if f.Err() != nil {
		return nil, f.Err()
	}
	if c.Windows == nil {
		c.Windows = make([]int, c.Layers)
	}
	checkDims(f, c)
	refuseUnknown(f, c)
	if f.Err() != nil {
		return nil, f.Err()
	}
	return c, nil
}

// StateSize is how wide the hidden states are that heads read, and that are pooled.
func (c *Config) StateSize() int {
	if f, ok := c.Family.(interface{ stateSize() int }); ok {
		return f.stateSize()
	}
	return c.HiddenSize
}

// window is how far back a layer sees, 0 for all: a window that no sequence outgrows is none.
func (c *Config) window(layer int) int {
	if layer >= len(c.Windows) { // none in a configuration made by hand
		return 0
	}
	w, longest := c.Windows[layer], c.served
	if longest == 0 && c.Rope.Type == "default" {
		longest = c.MaxPositions
	}
	if longest > 0 && w >= longest {
		return 0
	}
	return w
}

// Chunk is how many positions chunks have that layers attend in, 0 where no sequence outgrows one.
func (c *Config) Chunk() int {
	for i := range c.Windows {
		if n := c.window(i); n > 0 && c.Chunked {
			return n
		}
	}
	return 0
}

// refuse reports fields of any family that change what the weights or the arithmetic are.
func refuse(f *checkpoint.Fields, c *Config, fam *family) {
	readQuantization(f, c, fam, "quantization_config", "unknown")
	if c.Quantization == nil {
		readQuantization(f, c, fam, "compression_config", "compressed-tensors")
	}
	for _, key := range []string{"is_encoder_decoder", "use_mrope"} {
		if f.Flag(key, false) {
			f.Fail(checkpoint.ErrUnsupported, key, "is true")
		}
	}
}

func readCommon(f *checkpoint.Fields, c *Config, fam *family) {
	d := fam.defaults
	c.VocabSize = f.Integer("vocab_size", d.VocabSize, 1, checkpoint.MaxDim)
	c.HiddenSize = f.Integer("hidden_size", d.HiddenSize, 1, checkpoint.MaxDim)
	c.Layers = f.Integer("num_hidden_layers", d.Layers, 1, 1<<16)
	c.Heads = f.Integer("num_attention_heads", d.Heads, 1, checkpoint.MaxDim)
	c.MaxPositions = f.Integer("max_position_embeddings", d.MaxPositions, 1, checkpoint.MaxDim)
	c.Activation = readActivation(f, cmp.Or(fam.activationKey, "hidden_act"), d.Activation)
	c.TieEmbeddings = f.Flag("tie_word_embeddings", d.TieEmbeddings)
	c.DType = readDTypeName(f)
	c.BOS = f.ID("bos_token_id", d.BOS)
	c.PAD = f.ID("pad_token_id", d.PAD)
	c.EOS = f.IDs("eos_token_id", slices.Clone(d.EOS))
}

// readActivation normalises the name: transformers has several for the same function.
func readActivation(f *checkpoint.Fields, key, def string) string {
	switch name := f.Text(key, def); name {
	case "silu", "swish":
		return "silu"
	case "relu", "relu2", "xielu":
		return name
	case "gelu", "gelu_python":
		return "gelu"
	case "gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh":
		return "gelu_tanh"
	default:
		f.Fail(checkpoint.ErrUnsupported, key, "is %s", checkpoint.Short(name))
		return ""
	}
}

func readDTypeName(f *checkpoint.Fields) string {
	for _, key := range []string{"dtype", "torch_dtype"} {
		if !f.Set(key) {
			continue
		}
		name := strings.TrimPrefix(f.Text(key, ""), "torch.")
		if !slices.Contains([]string{"bfloat16", "float16", "float32"}, name) {
			f.Fail(checkpoint.ErrUnsupported, key, "is %s", checkpoint.Short(name))
		}
		return name
	}
	return ""
}

func checkDims(f *checkpoint.Fields, c *Config) {
	if c.Heads%c.KVHeads != 0 {
		f.Fail(checkpoint.ErrMalformed, "num_attention_heads",
			"is %d, not a multiple of %d key/value heads", c.Heads, c.KVHeads)
	}
	if c.HeadDim%2 != 0 {
		f.Fail(checkpoint.ErrMalformed, "head_dim", "is %d, which is odd", c.HeadDim)
	}
	if c.Heads*c.HeadDim > checkpoint.MaxDim {
		f.Fail(checkpoint.ErrMalformed, "head_dim", "is %d for %d heads, which is too large",
			c.HeadDim, c.Heads)
	}
}
