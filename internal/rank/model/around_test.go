package model

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

const textConfig = `"vocab_size":32,"hidden_size":64,"intermediate_size":64,` +
	`"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2`

// TestAround reads the language model of a whole as it reads the same model by itself.
func TestAround(t *testing.T) {
	for _, tt := range []struct{ whole, alone string }{
		{`"model_type":"mistral3","architectures":["Mistral3ForConditionalGeneration"],
			"torch_dtype":"bfloat16","vision_config":{"hidden_size":8},
			"text_config":{"model_type":"mistral","architectures":["X"],` + textConfig + `}`,
			`"model_type":"mistral","torch_dtype":"bfloat16",` + textConfig},
		// What the whole says goes before.
		{`"model_type":"gemma3","eos_token_id":[1,7],"tie_word_embeddings":false,
			"text_config":{"tie_word_embeddings":true,"eos_token_id":1,` + textConfig + `}`,
			`"model_type":"gemma3_text","eos_token_id":[1,7],"tie_word_embeddings":false,` +
				textConfig},
		// Qwen2-VL as it was published, and as transformers 5 writes it.
		{`"model_type":"qwen2_vl","rope_scaling":{"type":"mrope","mrope_section":[8,4,4]},
			"vision_config":{"depth":1},"image_token_id":5,` + textConfig,
			`"model_type":"qwen2",` + textConfig},
		{`"model_type":"qwen2_5_vl","text_config":{"model_type":"qwen2_5_vl_text",
			"rope_parameters":{"rope_type":"default","mrope_section":[8,4,4]},` + textConfig + `}`,
			`"model_type":"qwen2",` + textConfig},
	} {
		got, err := ReadConfig([]byte("{" + tt.whole + "}"))
		if err != nil {
			t.Errorf("%s: %v", tt.whole, err)
			continue
		}
		want, err := ReadConfig([]byte("{" + tt.alone + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if got.Around == "" {
			t.Errorf("%s is a model by itself", tt.whole)
		}
		got.Around = ""
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v, want\n%+v", tt.whole, got, want)
		}
	}
}

// TestAroundRefused refuses a whole of which the language model is not known.
func TestAroundRefused(t *testing.T) {
	for _, tt := range []struct {
		config, want string
		kind         error
	}{
		{`"model_type":"mistral3"`, "text_config is missing", checkpoint.ErrMalformed},
		{`"model_type":"llava","text_config":{"model_type":"rwkv",` + textConfig + `}`,
			`model_type "rwkv"`, checkpoint.ErrUnsupported},
		{`"model_type":"paligemma","text_config":{"model_type":"gemma",` + textConfig + `}`,
			`model_type "paligemma"`, checkpoint.ErrUnsupported},
		{`"model_type":"gemma3","architectures":["Gemma3ForSequenceClassification"],
			"text_config":{` + textConfig + `}`, "text_config is", checkpoint.ErrUnsupported},
		{`"model_type":"gemma3","text_config":{"new_option":3,` + textConfig + `}`,
			"text_config.new_option is 3", checkpoint.ErrUnsupported},
	} {
		_, err := ReadConfig([]byte("{" + tt.config + "}"))
		if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.config, err)
		}
	}
}

// TestAroundOverride overrides what text_config says.
func TestAroundOverride(t *testing.T) {
	raw, err := Override([]byte(`{"model_type":"gemma3","text_config":{`+textConfig+`}}`),
		map[string]json.RawMessage{"max_position_embeddings": json.RawMessage("77")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig(raw)
	if err != nil || c.MaxPositions != 77 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestAroundPlain finds modules that are not quantised by the names that the whole has for them.
func TestAroundPlain(t *testing.T) {
	const module, other = "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"
	for _, list := range []string{
		`"quant_method":"fp8","modules_to_not_convert":["model.language_model.layers.0.mlp.gate"]`,
		`"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"a":{
			"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel"}}},
			"ignore":["language_model.model.layers.0.mlp.gate"]`,
		`"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"a":{
			"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel"}}},
			"ignore":["re:model\\.language_model\\.layers\\.0\\..*"]`,
	} {
		c, err := ReadConfig([]byte(`{"model_type":"gemma3","quantization_config":{` + list +
			`},"text_config":{` + textConfig + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		if c.Quantization.of(module) != nil || c.Quantization.of(other) == nil {
			t.Errorf("%s: %v, %v", list, c.Quantization.of(module), c.Quantization.of(other))
		}
	}
}

// TestMinistralTemperature has queries grow with their position from the pre-training length on.
func TestMinistralTemperature(t *testing.T) {
	const head = `{"model_type":"ministral3","max_position_embeddings":512,` + textConfig +
		`,"rope_parameters":{"rope_type":"yarn","factor":4,"rope_theta":1e6,` +
		`"original_max_position_embeddings":128`
	for tail, rise := range map[string]float64{`,"llama_4_scaling_beta":0.1}}`: 0.1, `}}`: 0} {
		c, err := ReadConfig([]byte(head + tail))
		if want := (Temperature{Rise: rise, Step: 128}); err != nil || c.Temperature != want ||
			c.Temperature.At(127) != 1 || c.Temperature.At(256) != 1+rise*math.Log(3) {
			t.Errorf("%s: %+v, %v", tail, c, err)
		}
	}
}

// TestLatentRotary turns the part of a head that is for it, whatever partial_rotary_factor of 1 is
// said of, as GLM-4.7-Flash has it.
func TestLatentRotary(t *testing.T) {
	const latent = `{"model_type":"glm4_moe_lite",` + textConfig
	c, err := ReadConfig([]byte(latent + `,"partial_rotary_factor":1.0}`))
	if err != nil || c.RotaryDim != 64 || c.HeadDim != 256 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err = ReadConfig([]byte(latent + `,"partial_rotary_factor":0.5}`)); err == nil {
		t.Error("half of a head is turned")
	}
}
