package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// family is all that is known of one family of models, in a file of its own.
type family struct {
	modelType    string
	architecture string // the causal language model's class, the bare model's of an encoder
	// encoder is Config.Encoder.
	encoder bool
	// activationKey names the activation in config.json, "" is hidden_act.
	activationKey string
	// renamed are the names that fields have here by those that the class has, its attribute_map.
	renamed map[string]string
	// defaults are those of transformers' configuration class, for the fields that readCommon and
	// read read.
	defaults Config
	// read reads what not every family has; d are the defaults. A field that changes what is
	// computed and that it does not know is to be refused by name.
	read func(f *checkpoint.Fields, c *Config, d Config)
	// build makes the layers of a stage.
	build func(s *stage) (architecture, error)
	// predict makes the layer of PredictorStage; nil where checkpoints have none.
	predict func(s *stage) (architecture, error)
	// head is that of a classifier; nil is a layer named score.
	head func(c *Config) []HeadLayer
	// widths are those that tensor parallel ranks divide, beside heads and vocabulary; nil is
	// intermediate_size alone.
	widths func(c *Config) []width
	// cache is what a layer of the whole model keeps, of each block that keeps something; nil is
	// keys and values of KVHeads heads of HeadDim, in the layer's window.
	cache func(c *Config, layer int) []compute.CacheLayer
	// undivided says why layers cannot be divided among stages; nil, or nil of it, is that they
	// can.
	undivided func(c *Config) error
}

// width is a number of features, by its name in config.json.
type width struct {
	name string
	n    int
}

// families are all there are, each in the file of its name.
func families() []*family {
	return []*family{llama(), mistral(), qwen2(), qwen3(), qwen3MoE(), opt(), gemma2(), gemma3(),
		phi3(), mixtral(), qwen2MoE(), granite(), cohere2(), smollm3(), glm4(), starcoder2(),
		gptNeoX(), olmo2(), olmo3(), glm4MoE(), gptOSS(), deepSeekV2(), deepSeekV3(), graniteMoE(),
		graniteMoEShared(), miniMaxM2(), qwen3Next(), qwen35(), qwen35MoE(), ernie45(), seedOSS(),
		exaone4(), olmoe(), gemma1(), cohere1(), glm(), glm4MoELite(), dots1(), ministral3(),
		gemma4Text(), gemma4Unified(), llama4(), ernie45MoE(), hunYuan(), hunYuanMoE(), hyV3(),
		mistral4(), exaoneMoE(), solarOpen(), flexOlmo(), afmoe(), graniteMoEHybrid(), nemotronH(),
		bamba(), falconH1(), gpt2(), phi(), falcon(), stableLM(), gptJ(), gptBigCode(), olmo(),
		nemotron(), arcee(), jais2(), helium(), internLM2(), internLM3(), iQuestCoder(), baichuan(),
		nanoChat(), vaultGemma(), hyperCLOVAX(), graniteSWA(), miniCPM(), miniCPM3(), mellum(),
		apertus(), lfm2(), lfm2MoE(), cohere2MoE(), phiMoE(), deepSeekV32(), glmMoEDSA(),
		persimmon(), bert(), roberta(), xlmRoberta(), modernBERT()}
}

func familiesByType() map[string]*family {
	all := map[string]*family{}
	for _, f := range families() {
		all[f.modelType] = f
	}
	return all
}

// family is that of a configuration that has been read, or was made by hand.
func (c *Config) family() (*family, error) {
	if h, ok := c.Family.(*eagleHead); ok {
		return h.family(), nil
	}
	for _, f := range families() {
		if f.architecture == c.Architecture {
			return f, nil
		}
	}
	return nil, fmt.Errorf("architecture %q is not supported (supported: %s)",
		strings.Join(c.Architectures, ", "), strings.Join(Architectures(), ", "))
}

// familyOf finds the family by model_type, else by architecture, and settles both fields.
func familyOf(c *Config) (*family, error) {
	all := familiesByType()
	for _, a := range c.Architectures {
		for name, fam := range all {
			has, classifies, headless := fam.has(a)
			if !has || c.Architecture != "" {
				continue
			}
			c.Architecture = fam.architecture
			if classifies {
				c.Classifier = &Classifier{}
			}
			c.Headless = headless
			if all[c.ModelType] == nil {
				c.ModelType = name
			}
		}
	}
	fam := all[c.ModelType]
	if fam == nil {
		known := strings.Join(slices.Sorted(maps.Keys(all)), ", ") + "; of a whole: " +
			strings.Join(slices.Sorted(maps.Keys(around)), ", ")
		return nil, fmt.Errorf("%w: model_type %s, architectures %s (known: %s; "+
			"eagleray compat models lists their architectures)", checkpoint.ErrUnsupported,
			checkpoint.Short(c.ModelType),
			checkpoint.Short(strings.Join(c.Architectures, ", ")), known)
	}
	if len(c.Architectures) == 0 {
		c.Architecture = fam.architecture
	}
	return fam, nil
}

// has tells whether a class of transformers' is the family's, whether it is a classifier, and
// whether it is a decoder without its head. An encoder is the same model under the head that
// predicts masked tokens, which is not computed.
func (f *family) has(class string) (has, classifies, headless bool) {
	base := f.architecture
	for _, end := range []string{"ForCausalLM", "LMHeadModel", "Model"} {
		base = strings.TrimSuffix(base, end)
	}
	// Gemma3TextForSequenceClassification is of Gemma3ForCausalLM.
	bare := func(end string) bool {
		name, ok := strings.CutSuffix(class, end)
		return ok && strings.TrimSuffix(name, "Text") == base
	}
	switch {
	case f.encoder && class == base+"ForMaskedLM":
		return true, false, false
	case bare("Model"):
		return true, false, !f.encoder
	case strings.EqualFold(class, f.architecture): // K-EXAONE's has other capitals
		return true, false, false
	}
	classifies = bare("ForSequenceClassification")
	return classifies, classifies, false
}

// readAttention reads what all families with rotary embedding have. A headDim of 0 stands for
// hidden_size divided by the number of heads, d.KVHeads of 0 for as many as there are heads.
func readAttention(f *checkpoint.Fields, c *Config, d Config, headDim int) {
	c.IntermediateSize = f.Integer("intermediate_size", d.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("rms_norm_eps", d.NormEps, 0)
	c.KVHeads = d.KVHeads
	if f.Has("num_key_value_heads") || c.KVHeads == 0 {
		c.KVHeads = f.Nullable("num_key_value_heads", c.Heads, 1, checkpoint.MaxDim)
	}
	if !f.Has("head_dim") && headDim != 0 {
		c.HeadDim = headDim
		return
	}
	readHeadDim(f, c)
}

// readHeadDim reads head_dim, by default hidden_size divided by the number of heads.
func readHeadDim(f *checkpoint.Fields, c *Config) {
	if f.Set("head_dim") {
		c.HeadDim = f.Integer("head_dim", 0, 1, checkpoint.MaxDim)
		return
	}
	if c.HiddenSize%c.Heads != 0 {
		f.Fail(checkpoint.ErrMalformed, "hidden_size",
			"is %d, not a multiple of %d attention heads", c.HiddenSize, c.Heads)
	}
	c.HeadDim = c.HiddenSize / c.Heads
}

// readBiasedAttention is readAttention with biases as attention_bias says.
func readBiasedAttention(f *checkpoint.Fields, c *Config, d Config, headDim int) {
	readAttention(f, c, d, headDim)
	c.QKVBias = f.Flag("attention_bias", false)
	c.OutBias = c.QKVBias
}
