package model

import (
	"errors"
	"math"
	"strconv"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// gemma4Text is Gemma4ForCausalLM, the text model: Gemma 3's layers with normalised values and
// wider heads where there is no window. The small ones give each layer a row of a table for each
// token, and their upper layers read what lower ones keep; the others have keys that are values,
// too, and a mixture of experts beside each feed-forward block, or none. Defaults:
// configuration_gemma4.py.
func gemma4Text() *family {
	return &family{modelType: "gemma4_text", architecture: "Gemma4ForCausalLM",
		activationKey: "hidden_activation",
		defaults: Config{VocabSize: 262144, HiddenSize: 2304, IntermediateSize: 9216, Layers: 30,
			Heads: 8, KVHeads: 4, MaxPositions: 131072, NormEps: 1e-6,
			Activation: "gelu_pytorch_tanh", TieEmbeddings: true, BOS: 2, PAD: 0, EOS: []int{1},
			RopeTheta: 1e6},
		read:  func(f *checkpoint.Fields, c *Config, d Config) { readGemma4(f, c, d, 256, 512) },
		build: newGemma4,
		widths: func(c *Config) []width {
			g := c.Family.(*gemma4)
			list := []width{{"intermediate_size", c.IntermediateSize}}
			if g.Count > 0 {
				list = append(list, width{expertWidth, g.Inner})
			}
			return list
		},
		cache: func(c *Config, layer int) []compute.CacheLayer {
			if layer >= c.Family.(*gemma4).SharedFrom {
				return nil
			}
			h := gemma4Heads(c, layer)
			return []compute.CacheLayer{{Heads: h.KV, Dim: h.Dim, Window: c.window(layer)}}
		},
		undivided: func(c *Config) error {
			switch g := c.Family.(*gemma4); {
			case g.PerLayer > 0:
				return errors.New("layers are given rows of a table that the first stage has")
			case g.SharedFrom < c.Layers:
				return errors.New("layers read what layers of an earlier stage keep")
			}
			return nil
		}}
}

// gemma4Unified is Gemma4UnifiedForCausalLM: Gemma 4 without per-layer inputs and experts.
// Defaults: configuration_gemma4_unified.py.
func gemma4Unified() *family {
	fam := gemma4Text()
	fam.modelType, fam.architecture = "gemma4_unified_text", "Gemma4UnifiedForCausalLM"
	fam.defaults.MaxPositions = 262144
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readGemma4(f, c, d, 0, 1024)
		c.Family.(*gemma4).Wide = false
	}
	return fam
}

// gemma4 is what only Gemma 4 has.
type gemma4 struct {
	*experts
	LogitCap float64
	// Global are the heads of layers without a window.
	Global layers.Heads
	// KeysAreValues says that those have no module v_proj.
	KeysAreValues bool
	// PerLayer is how wide what each layer is given of a token is, 0 for nothing, of a table of
	// PerLayerVocabulary rows.
	PerLayer, PerLayerVocabulary int
	// SharedFrom is the first layer that reads what an earlier one keeps; Wide says that those have
	// feed-forward blocks twice as wide.
	SharedFrom int
	Wide       bool
}

// readGemma4 reads Gemma4TextConfig, with the defaults of the width of per-layer inputs and of
// windows.
func readGemma4(f *checkpoint.Fields, c *Config, d Config, perLayer, window int) {
	readAttention(f, c, d, 256)
	refuseBias(f)
	g := &gemma4{experts: &experts{Step: 1}, LogitCap: f.Number("final_logit_softcapping", 0, 0),
		KeysAreValues: f.Flag("attention_k_eq_v", false),
		Wide:          f.Flag("use_double_wide_mlp", false),
		PerLayer:      f.Nullable("hidden_size_per_layer_input", perLayer, 0, checkpoint.MaxDim)}
	c.Family = g
	g.PerLayerVocabulary = f.Integer("vocab_size_per_layer_input", 262144, 1, checkpoint.MaxDim)
	g.SharedFrom = c.Layers - f.Integer("num_kv_shared_layers", 0, 0, c.Layers-1)
	if f.Has("use_bidirectional_attention") {
		f.Only("use_bidirectional_attention", "vision") // of images alone
	}
	if f.Flag("enable_moe_block", false) {
		g.Count = f.Integer("num_experts", 128, 1, 1<<16)
		g.PerToken = f.Integer("top_k_experts", 8, 1, 1<<16)
		g.Inner = f.Integer("moe_intermediate_size", 704, 1, checkpoint.MaxDim)
		g.Normalise = true
		if g.PerToken > g.Count {
			f.Fail(checkpoint.ErrMalformed, "top_k_experts", "is %d of %d experts", g.PerToken,
				g.Count)
		}
	}
	readWindows(f, c, plainWindow(f, window), func(i int) bool { return (i+1)%6 != 0 })
	if f.Err() != nil {
		return
	}
	c.Windows[c.Layers-1] = 0 // whatever layer_types says
	g.readGlobal(f, c)
	for i := g.SharedFrom; i < c.Layers && f.Err() == nil; i++ {
		if g.keeper(c, i) < 0 {
			f.Fail(checkpoint.ErrMalformed, "num_kv_shared_layers",
				"is %d: no layer of its kind is before layer %d", c.Layers-g.SharedFrom, i)
		}
	}
}

// readGlobal reads the heads of layers without a window, and how they are turned.
func (g *gemma4) readGlobal(f *checkpoint.Fields, c *Config) {
	g.Global = layers.Heads{Query: c.Heads, KV: c.KVHeads,
		Dim: f.Integer("global_head_dim", 512, 2, checkpoint.MaxDim)}
	if kv := f.Nullable("num_global_key_value_heads", c.KVHeads, 1,
		checkpoint.MaxDim); g.KeysAreValues {
		g.Global.KV = kv
	}
	if each := f.Object("per_layer_config"); each != nil { // as transformers 5.24 writes both
		g.readEach(each, c)
		f.Adopt(each)
	}
	if f.Err() == nil && (g.Global.Dim%2 != 0 || c.Heads%g.Global.KV != 0) {
		f.Fail(checkpoint.ErrMalformed, "global_head_dim", "is %d, of %d key/value heads for %d",
			g.Global.Dim, g.Global.KV, c.Heads)
	}
	local := c.HeadDim
	c.HeadDim, c.LocalTheta = g.Global.Dim, 10000
	c.partialRotary(0.25)
	c.Rope = Rope{Type: "proportional", Factor: 1}
	readRopeOfLayers(f, c)
	c.HeadDim = local
}

// readEach reads the heads of each layer that has others than the configuration says: those of
// layers without a window are alike.
func (g *gemma4) readEach(each *checkpoint.Fields, c *Config) {
	plain, found := layers.Heads{Query: c.Heads, KV: c.KVHeads, Dim: c.HeadDim}, false
	for i := range c.Layers {
		h, key := plain, strconv.Itoa(i)
		if own := each.Object(key); own != nil {
			h.KV = own.Integer("num_key_value_heads", h.KV, 1, checkpoint.MaxDim)
			h.Dim = own.Integer("head_dim", h.Dim, 2, checkpoint.MaxDim)
			each.Adopt(own)
		}
		want := plain
		if c.Windows[i] == 0 {
			if !found {
				g.Global, found = h, true
			}
			want = g.Global
		}
		if h != want {
			each.Fail(checkpoint.ErrUnsupported, key, "has %d key/value heads of %d, where others "+
				"of its kind have %d of %d", h.KV, h.Dim, want.KV, want.Dim)
		}
	}
}

// gemma4Heads are the heads of a layer.
func gemma4Heads(c *Config, layer int) layers.Heads {
	if c.Windows[layer] == 0 {
		return c.Family.(*gemma4).Global
	}
	return layers.Heads{Query: c.Heads, KV: c.KVHeads, Dim: c.HeadDim}
}

// keeper is the layer whose keys and values a layer reads: itself, or the last of its kind that
// keeps some, -1 for none.
func (g *gemma4) keeper(c *Config, layer int) int {
	keeper := min(layer, g.SharedFrom-1)
	for keeper >= 0 && localLayer(c, keeper) != localLayer(c, layer) {
		keeper--
	}
	return keeper
}

func newGemma4(s *stage) (architecture, error) {
	c, g := s.cfg, s.cfg.Family.(*gemma4)
	var inputs *layers.PerLayerInputs
	root := float32(math.Sqrt(float64(c.HiddenSize)))
	if g.PerLayer > 0 {
		inputs = s.PerLayerInputs("model.", layers.PerLayerOptions{
			Vocabulary: g.PerLayerVocabulary, Layers: c.Layers, Hidden: c.HiddenSize,
			Width: g.PerLayer, Scale: 1 / root,
			TableScale: float32(math.Sqrt(float64(g.PerLayer))), Eps: float32(c.NormEps)})
	}
	opt := decoderOptions{
		attnNorm: "input_layernorm", attnPost: "post_attention_layernorm",
		mlpNorm: "pre_feedforward_layernorm", mlpPost: "post_feedforward_layernorm",
		heads: func(layer int) layers.Heads { return gemma4Heads(c, layer) },
		project: func(layer int, o *layers.QKVOptions) {
			o.QueryAlone = layer >= g.SharedFrom
			if g.KeysAreValues && c.Windows[layer] == 0 {
				o.Modules = [...]string{"q_proj", "k_proj", "k_proj"}
			}
		},
		keeper: func(layer int) int { return g.keeper(c, layer) },
		attn: func(layer int, o *layers.AttentionOptions) {
			o.Scale, o.HeadNorms, o.ValueNorms = 1, true, true
			o.Shared = layer >= g.SharedFrom
		},
		rotaries:   gemma4Rotaries,
		rotaryOf:   func(layer int) int { return localLayer(c, layer) },
		activation: compute.GELUTanh,
		mlp: func(s *stage, layer int, prefix string) feedForward {
			return g.feedForward(s, layer, prefix)
		},
		end: func(s *stage, layer int, prefix string) func(x *layers.Tensor) {
			scalar := s.Scalar(prefix + "layer_scalar")
			if inputs == nil {
				return func(x *layers.Tensor) { s.Multiply(x, scalar) }
			}
			input := s.PerLayerInput(inputs, prefix, layer, c.HiddenSize)
			return func(x *layers.Tensor) {
				input.Add(x)
				s.Multiply(x, scalar)
			}
		},
		embeddingMultiplier: root,
		logits:              layers.HeadOptions{Cap: float32(g.LogitCap)},
	}
	if inputs != nil {
		opt.embedded = inputs.Prepare
	}
	if g.Count > 0 {
		opt.mlpNorm = "" // see gemma4Mixture
	}
	return newDecoder(s, opt)
}

// gemma4Rotaries are globalAndLocal of unlike heads.
func gemma4Rotaries(s *stage) ([]*layers.Rotary, error) {
	global, local := *s.cfg, localRope(s.cfg)
	global.HeadDim, local.RotaryDim = s.cfg.Family.(*gemma4).Global.Dim, 0
	return rotariesOf(s, &global, local)
}

// feedForward is the feed-forward block of a layer.
func (g *gemma4) feedForward(s *stage, layer int, prefix string) feedForward {
	c, width := s.cfg, s.cfg.IntermediateSize
	if g.Wide && layer >= g.SharedFrom {
		width *= 2
	}
	dense := s.GatedMLP(prefix+"mlp.", c.HiddenSize, width,
		layers.GatedMLPOptions{Activation: compute.GELUTanh})
	if g.Count == 0 {
		return dense
	}
	eps := float32(c.NormEps)
	norm := func(module string) *layers.RMSNorm {
		return s.RMSNorm(prefix+module, c.HiddenSize, eps)
	}
	o := layers.MixtureOptions{Experts: g.Count, Inner: g.Inner, Routing: g.Routing,
		Gating: compute.Gating{Activation: compute.GELUTanh}, Stacked: stacked(s, prefix),
		Router: "router.proj", Factors: "router.per_expert_scale",
		RouterReads: s.ScaledRMSNorm(prefix+"router.scale", c.HiddenSize, eps,
			float32(1/math.Sqrt(float64(c.HiddenSize)))),
		ExpertsRead: norm("pre_feedforward_layernorm_2")}
	s.Own(c.HiddenSize)
	return &gemma4Mixture{stage: s, dense: dense, experts: s.Mixture(prefix, c.HiddenSize, o),
		before: norm("pre_feedforward_layernorm"), after: norm("post_feedforward_layernorm_1"),
		afterExperts: norm("post_feedforward_layernorm_2")}
}

// gemma4Mixture is a mixture of experts beside a feed-forward block, with norms before and after
// each.
type gemma4Mixture struct {
	*stage
	dense                       feedForward
	experts                     *layers.Mixture
	before, after, afterExperts norm
	sum                         layers.Tensor
}

// Forward implements feedForward.
func (y *gemma4Mixture) Forward(x *layers.Tensor) (*layers.Tensor, error) {
	out, err := y.dense.Forward(y.before.Forward(x))
	if err != nil {
		return nil, err
	}
	y.Resize(&y.sum, x.Rows, x.Width)
	y.Copy(&y.sum, y.after.Forward(out))
	if out, err = y.experts.Forward(x); err != nil {
		return nil, err
	}
	y.AddTo(&y.sum, y.afterExperts.Forward(out))
	return &y.sum, nil
}

// Add implements feedForward.
func (y *gemma4Mixture) Add(residual, x *layers.Tensor) error {
	out, err := y.Forward(x)
	if err == nil {
		y.AddTo(residual, out)
	}
	return err
}
