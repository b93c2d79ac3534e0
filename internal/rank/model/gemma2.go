package model

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// gemma2 is Gemma2ForCausalLM: norms before and after both blocks, whose weights lack a 1, scaled
// embeddings, capped scores and logits, and a window in every other layer. Defaults:
// configuration_gemma2.py.
func gemma2() *family {
	return &family{modelType: "gemma2", architecture: "Gemma2ForCausalLM",
		activationKey: "hidden_activation",
		defaults: Config{VocabSize: 256000, HiddenSize: 2304, IntermediateSize: 9216, Layers: 26,
			Heads: 8, KVHeads: 4, MaxPositions: 8192, NormEps: 1e-6,
			Activation:    "gelu_pytorch_tanh",
			TieEmbeddings: true, BOS: 2, PAD: 0, EOS: []int{1}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 256)
			refuseBias(f)
			c.Family = readGemma(f, 50, 30)
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 4096), func(i int) bool { return i%2 == 0 })
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, gemmaOptions(s)) }}
}

// vaultGemma is VaultGemmaForCausalLM: Gemma 2's layers without the norms behind both blocks.
// Defaults: configuration_vaultgemma.py.
func vaultGemma() *family {
	fam := gemma2()
	fam.modelType, fam.architecture = "vaultgemma", "VaultGemmaForCausalLM"
	fam.build = func(s *stage) (architecture, error) {
		opt := gemmaOptions(s)
		opt.attnPost, opt.mlpPost = "", ""
		return newDecoder(s, opt)
	}
	return fam
}

// gemma is what Gemma's configurations have beside Llama's.
type gemma struct {
	// QueryScalar is what scores are divided by the root of.
	QueryScalar float64
	// ScoreCap and LogitCap are 0 for none.
	ScoreCap, LogitCap float64
}

func readGemma(f *checkpoint.Fields, scoreCap, logitCap float64) *gemma {
	g := &gemma{QueryScalar: f.Number("query_pre_attn_scalar", 256, 0)}
	g.ScoreCap = capOf(f, "attn_logit_softcapping", scoreCap)
	g.LogitCap = capOf(f, "final_logit_softcapping", logitCap)
	return g
}

// capOf reads what something is capped at; null is 0, for none.
func capOf(f *checkpoint.Fields, key string, def float64) float64 {
	if f.Has(key) {
		def = 0
	}
	return f.Number(key, def, 0)
}

func gemmaOptions(s *stage) decoderOptions {
	g := s.cfg.Family.(*gemma)
	return decoderOptions{
		attnNorm: "input_layernorm", attnPost: "post_attention_layernorm",
		mlpNorm: "pre_feedforward_layernorm", mlpPost: "post_feedforward_layernorm",
		newNorm: shiftedNorm,
		attn: func(_ int, o *layers.AttentionOptions) {
			o.Scale = float32(math.Pow(g.QueryScalar, -0.5))
			o.Cap = float32(g.ScoreCap)
		},
		activation:          compute.GELUTanh,
		embeddingMultiplier: float32(math.Sqrt(float64(s.cfg.HiddenSize))),
		logits:              layers.HeadOptions{Cap: float32(g.LogitCap)},
	}
}

// shiftedNorm is RMSNorm with weights that the checkpoint has without the 1 that is added to each.
func shiftedNorm(s *stage, module string) norm {
	return s.ShiftedRMSNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps))
}

// refuseBias refuses attention_bias in families whose published models have none.
func refuseBias(f *checkpoint.Fields) {
	if f.Flag("attention_bias", false) {
		f.Fail(checkpoint.ErrUnsupported, "attention_bias", "is true")
	}
}
