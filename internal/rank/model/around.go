package model

import (
	"cmp"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// around are the model types of transformers that have a language model and, beside it, encoders of
// images, video or audio, which are left out: text is computed as without them. The value is the
// model type of what they have, "" for what their text_config says. Types whose encoders change how
// text is computed are not among them.
var around = map[string]string{"gemma3": "gemma3_text", "gemma4": "gemma4_text",
	"gemma4_unified": "gemma4_unified_text", "mistral3": "", "llava": "",
	"llava_next": "", "internvl": "", "voxtral": "", "llama4": "", "lfm2_vl": "",
	"kimi_k25": "deepseek_v3",
	"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe",
	"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}

// shared are the fields of the whole that hold for its language model, too, whatever text_config
// says of them.
var shared = []string{"tie_word_embeddings", "dtype", "torch_dtype", "bos_token_id", "pad_token_id",
	"eos_token_id", "quantization_config", "compression_config", "tie_embedding"}

// languageModel is the fields of the language model, and its model type, where f is of one of those
// that are around one; else f.
func languageModel(f *checkpoint.Fields, c *Config) *checkpoint.Fields {
	of, known := around[c.ModelType]
	for _, a := range c.Architectures {
		known = known && strings.HasSuffix(a, "ForConditionalGeneration")
	}
	if !known {
		return f
	}
	c.Around = c.ModelType
	text := f.Object("text_config")
	switch {
	case text != nil:
		text.Overlay(f, shared...)
	case of == "": // transformers has a default, which says nothing of what is stored
		f.Fail(checkpoint.ErrMalformed, "text_config", "is missing")
		return f
	default: // all in one, as Qwen2-VL was published
		text = f
		text.Has("vision_config")
	}
	inner := text.Text("model_type", "")
	c.ModelType, c.Architectures = cmp.Or(of, inner), nil
	text.Has("architectures")
	return text
}
