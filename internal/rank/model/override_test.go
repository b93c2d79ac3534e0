package model

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestOverride reads what was overridden as if the file had said it.
func TestOverride(t *testing.T) {
	const start = `{"model_type":"llama","vocab_size":32,"hidden_size":64,"intermediate_size":64,` +
		`"num_hidden_layers":1,"num_attention_heads":2,`
	const yarn = `{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":512}`
	for _, tt := range []struct{ file, overrides, want string }{
		{`"max_position_embeddings":512}`, `{"max_position_embeddings":2048}`,
			`"max_position_embeddings":2048}`},
		{`"rope_theta":5e5}`, `{"rope_theta":1e6}`, `"rope_theta":1e6}`},
		{`"rope_theta":5e5,"rope_scaling":null}`, `{"rope_scaling":` + yarn + `}`,
			`"rope_theta":5e5,"rope_scaling":` + yarn + `}`},
		{`"rope_theta":5e5,"rope_scaling":` + yarn + `}`, `{"rope_scaling":null}`,
			`"rope_theta":5e5}`},
		{`"rope_theta":5e5,"rope_scaling":{"rope_type":"linear","factor":2}}`,
			`{"rope_parameters":{"rope_type":"linear","factor":8}}`,
			`"rope_theta":5e5,"rope_scaling":{"rope_type":"linear","factor":8}}`},
		// transformers 5 has both in one object: the base is not lost.
		{`"rope_parameters":{"rope_type":"default","rope_theta":5e5}}`,
			`{"rope_scaling":` + yarn + `}`, `"rope_theta":5e5,"rope_scaling":` + yarn + `}`},
		{`"rope_parameters":{"rope_type":"default","rope_theta":5e5}}`,
			`{"rope_scaling":` + yarn + `,"rope_theta":7e5}`,
			`"rope_theta":7e5,"rope_scaling":` + yarn + `}`},
		{`"rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":5e5}}`,
			`{"rope_theta":7e5}`,
			`"rope_theta":7e5,"rope_scaling":{"rope_type":"linear","factor":2}}`},
		{`"rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":5e5}}`,
			`{"rope_scaling":null}`, `"rope_theta":5e5}`},
		{`"rope_parameters":{"rope_type":"default","rope_theta":5e5}}`, `{}`,
			`"rope_theta":5e5}`},
	} {
		var overrides map[string]json.RawMessage
		if err := json.Unmarshal([]byte(tt.overrides), &overrides); err != nil {
			t.Fatal(err)
		}
		raw, err := Override([]byte(start+tt.file), overrides)
		if err != nil {
			t.Fatalf("%s with %s: %v", tt.file, tt.overrides, err)
		}
		got, err := ReadConfig(raw)
		if err != nil {
			t.Fatalf("%s with %s: %v", tt.file, tt.overrides, err)
		}
		want, err := ReadConfig([]byte(start + tt.want))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s with %s: %+v, want %+v", tt.file, tt.overrides, got, want)
		}
	}
	layers := start + `"rope_parameters":{"full_attention":{},"sliding_attention":{}}}`
	for overrides, want := range map[string]string{
		`{"vocab_size":1}`:   "vocab_size is not one of max_position_embeddings",
		`{"rope_theta":1e6}`: "give rope_parameters as a whole",
	} {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(overrides), &members); err != nil {
			t.Fatal(err)
		}
		if _, err := Override([]byte(layers), members); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", overrides, err, want)
		}
	}
}
