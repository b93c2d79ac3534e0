package checkpoint

import "testing"

func TestLanguageModel(t *testing.T) {
	for name, want := range map[string]string{
		"language_model.model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
		"model.language_model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
		"language_model.lm_head.weight":                    "lm_head.weight",
		"model.norm.weight":                                "model.norm.weight",
	} {
		if got := LanguageModel(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]bool{"visual.merger.mlp.0.weight": true,
		"model.visual.blocks.0.norm1.weight": true, "vision_tower.x": true,
		"multi_modal_projector.linear_1.weight": true, "model.layers.0.visual.weight": false,
		"lm_head.weight": false} {
		if OfEncoder(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
