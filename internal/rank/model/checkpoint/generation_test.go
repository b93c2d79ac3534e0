package checkpoint

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerationConfig(t *testing.T) {
	g, err := ReadGenerationConfig([]byte(`{"bos_token_id":5,"eos_token_id":[1,2],"pad_token_id":null,"do_sample":true,"temperature":0.6,"top_p":0.95,
		"top_k":20,"min_p":0,"repetition_penalty":1.05,"presence_penalty":1.5,"frequency_penalty":-1,"skip_special_tokens":false,"max_new_tokens":2048,"max_length":20,"transformers_version":"4.51.0"}`))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(g)
	const want = `{"BOS":[5],"EOS":[1,2],"PAD":-1,"DoSample":true,"Temperature":0.6,"TopP":0.95,"MinP":0,"RepetitionPenalty":1.05,"PresencePenalty":1.5,"FrequencyPenalty":-1,"TopK":20,"MaxTokens":2048,"SkipSpecial":false,"MinNewTokens":null}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, name := range models {
		raw, err := os.ReadFile(filepath.Join(modelDir(name), "generation_config.json"))
		if err != nil {
			t.Fatal(err)
		}
		if g, err := ReadGenerationConfig(raw); err != nil || len(g.EOS) == 0 {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

func TestGenerationConfigErrors(t *testing.T) {
	for raw, want := range map[string]string{
		`[]`:                          "malformed",
		`{"temperature":-1}`:          "temperature is -1, outside",
		`{"top_p":1.5}`:               "top_p is 1.5",
		`{"min_p":"x"}`:               "min_p is",
		`{"repetition_penalty":0}`:    "repetition_penalty is 0",
		`{"top_k":-2}`:                "top_k is -2",
		`{"presence_penalty":2.5}`:    "presence_penalty is 2.5, outside -2 to 2",
		`{"frequency_penalty":-3}`:    "frequency_penalty is -3, outside -2 to 2",
		`{"skip_special_tokens":2}`:   "skip_special_tokens is 2",
		`{"max_new_tokens":-5}`:       "max_new_tokens is -5",
		`{"do_sample":1}`:             "do_sample is 1",
		`{"eos_token_id":{"a":"b"}}`:  "eos_token_id is",
		`{"eos_token_id":4294967296}`: "eos_token_id is 4294967296",
	} {
		_, err := ReadGenerationConfig([]byte(raw))
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "generation_config.json: ") {
			t.Errorf("%s: error %v, want %q", raw, err, want)
		}
	}
}

func FuzzReadGenerationConfig(f *testing.F) {
	f.Add([]byte(`{"model_type":"qwen3_moe","eos_token_id":[1],"mlp_only_layers":[1]}`))
	f.Fuzz(func(t *testing.T, raw []byte) { _, _ = ReadGenerationConfig(raw) })
}
