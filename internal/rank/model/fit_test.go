package model_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// TestCheckLayout wants the reason why a model cannot have a layout, and those it can have instead.
func TestCheckLayout(t *testing.T) {
	plain := model.Config{Architecture: "LlamaForCausalLM", Layers: 4, Heads: 8, KVHeads: 4,
		IntermediateSize: 352,
		VocabSize:        1024}
	next, _ := shipped("qwen3next-tiny").open(t)
	perLayer, _ := variant("gemma4-small").open(t)
	threeGroups, err := model.ReadConfig([]byte(`{"model_type":"granitemoehybrid",
		"hidden_size":24,"mamba_n_heads":24,"mamba_n_groups":3,"num_hidden_layers":2,
		"num_attention_heads":6,"layer_types":["mamba","attention"]}`))
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(c *model.Config)) *model.Config {
		c := plain
		change(&c)
		return &c
	}
	for _, c := range []struct {
		model    *model.Config
		asked    layout.Layout
		reason   string // "" where it fits
		instead  string
		ofStages bool
	}{
		{model: &plain, asked: layout.Layout{}},
		{model: &plain, asked: layout.Layout{TP: 8, PP: 4, PCP: 3}},
		{model: with(func(c *model.Config) { c.KVHeads = 1 }), asked: layout.Layout{TP: 8}},
		{model: &plain, asked: layout.Layout{TP: 3},
			reason: "tensor parallel size 3 does not divide the 8 chunks that every sum between " +
				"ranks has", instead: "layouts of 3 ranks that work are PP 3"},
		{model: &plain, asked: layout.Layout{TP: 16}, reason: "does not divide the 8 chunks",
			instead: "layouts of 16 ranks that work are TP 8 × PP 2, TP 4 × PP 4"},
		{model: &plain, asked: layout.Layout{TP: 3, PP: 2}, reason: "does not divide the 8 chunks",
			instead: "layouts of 6 ranks that work are TP 2 × PP 3"},
		{model: &plain, asked: layout.Layout{TP: 5}, reason: "does not divide the 8 chunks",
			instead: "no layout of 5 ranks works, the nearest ones that do are TP 4, TP 2 × PP " +
				"2, PP 4"},
		{model: &plain, asked: layout.Layout{TP: 3, PCP: 2}, reason: "does not divide the 8 chunks",
			instead: "layouts of 6 ranks that work are PP 3 × PCP 2"},
		{model: next, asked: layout.Layout{PP: 2, PCP: 2},
			reason: "keeps a state that each row has of the one before: 2 ranks cannot divide a " +
				"prompt",
			instead: "layouts of 4 ranks that work are PP 4, TP 2 × PP 2"},
		{model: perLayer, asked: layout.Layout{TP: 2, PP: 2}, ofStages: true,
			reason: "Gemma4ForCausalLM cannot be divided among 2 pipeline stages: layers are " +
				"given rows of a table that the first stage has",
			instead: "layouts of 4 ranks that work are TP 4"},
		{model: next, asked: layout.Layout{TP: 4},
			reason:  "linear_num_key_heads 2 cannot be divided among tensor parallel size 4",
			instead: "layouts of 4 ranks that work are TP 2 × PP 2, PP 4"},
		{model: threeGroups, asked: layout.Layout{TP: 2},
			reason:  "mamba_n_groups 3 cannot be divided among tensor parallel size 2",
			instead: "layouts of 2 ranks that work are PP 2"},
		{model: &plain, asked: layout.Layout{PP: 5}, ofStages: true,
			reason: "each of 5 pipeline stages needs a layer, and the model has 4",
			instead: "no layout of 5 ranks works, the nearest ones that do are PP 4, " +
				"TP 2 × PP 2, TP 4"},
		{model: &plain, asked: layout.Layout{TP: 2, PP: 8}, ofStages: true,
			reason:  "each of 8 pipeline stages",
			instead: "layouts of 16 ranks that work are TP 4 × PP 4, TP 8 × PP 2"},
		{model: with(func(c *model.Config) { c.Heads, c.KVHeads = 6, 6 }),
			asked:  layout.Layout{TP: 4},
			reason: "6 attention heads cannot be divided among tensor parallel size 4",
			instead: "layouts of 4 ranks that work are TP 2 × PP 2, " +
				"PP 4"},
		{model: with(func(c *model.Config) { c.Heads, c.KVHeads = 12, 3 }),
			asked:   layout.Layout{TP: 2},
			reason:  "3 key/value heads cannot be divided among tensor parallel size 2",
			instead: "layouts of 2 ranks that work are PP 2"},
		{model: with(func(c *model.Config) { c.IntermediateSize = 33 }),
			asked:   layout.Layout{TP: 2},
			reason:  "intermediate_size 33 cannot be divided among tensor parallel size 2",
			instead: "layouts of 2 ranks that work are PP 2"},
		{model: with(func(c *model.Config) {
			c.Architecture, c.IntermediateSize, c.Layers = "OPTForCausalLM", 33, 1
		}),
			asked:   layout.Layout{TP: 2},
			reason:  "ffn_dim 33 cannot be divided among tensor parallel size 2",
			instead: "no layout of 2 ranks works, the nearest ones that do are TP 1"},
		{model: with(func(c *model.Config) { c.VocabSize = 20 }),
			asked:   layout.Layout{TP: 8},
			reason:  "vocab_size 20 cannot be divided among tensor parallel size 8",
			instead: "layouts of 8 ranks that work are "},
	} {
		err := model.CheckLayout(c.model, c.asked)
		var m *model.Misfit
		switch {
		case c.reason == "":
			if err != nil {
				t.Errorf("%v: %v", c.asked, err)
			}
			continue
		case !errors.As(err, &m) || !strings.Contains(m.Err.Error(), c.reason) ||
			!strings.Contains(err.Error(), m.Err.Error()+": "+c.instead) || m.Stages != c.ofStages:
			t.Errorf("%v: %v; want %q and %q", c.asked, err, c.reason, c.instead)
			continue
		case strings.Contains(c.instead,
			"the nearest") != (m.Nearest[0].World() != c.asked.World()):
			t.Errorf("%v: %v", c.asked, m.Nearest)
		}
		for _, l := range m.Nearest {
			if err := model.CheckLayout(c.model, l); err != nil {
				t.Errorf("%v is offered instead of %v: %v", l, c.asked, err)
			}
		}
	}
}
