package weights

import "testing"

func TestPasses(t *testing.T) {
	const tied, beside = true, true
	for _, tt := range []struct {
		name         string
		tied, beside bool
		want         bool
	}{
		{"model.layers.0.self_attn.rotary_emb.inv_freq", false, false, true},
		{"model.layers.0.self_attn.indexer.k_norm.bias", false, false, true},
		{"lm_head.weight", tied, false, true},
		{"lm_head.weight", false, false, false},
		{"language_model.lm_head.weight", tied, beside, true},
		{"model.visual.blocks.0.norm1.weight", false, beside, true},
		{"model.visual.blocks.0.norm1.weight", false, false, false},
		{"model.language_model.norm.weight", false, beside, false},
	} {
		if got := Passes(tt.name, tt.tied, tt.beside); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

// TestFind finds a model's tensor under the names that a whole has for it, and under those of a
// model without a head.
func TestFind(t *testing.T) {
	const name = "model.norm.weight"
	b := &Builder{expected: map[string]*incoming{name: {}}}
	for _, other := range []string{name, "norm.weight", "model.language_model.norm.weight",
		"language_model.model.norm.weight"} {
		if b.find(other) == nil {
			t.Errorf("%s is not found", other)
		}
	}
	if b.find("visual.norm.weight") != nil {
		t.Error("an encoder's norm is the model's")
	}
}
