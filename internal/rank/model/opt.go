package model

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// optPositionOffset is where OPT's table of learned positions begins.
const optPositionOffset = 2

// opt is OPTForCausalLM: learned positions, layer norms before or after each block, a two-matrix
// feed-forward block, and in some sizes embeddings narrower than the layers. Defaults:
// configuration_opt.py.
func opt() *family {
	return &family{modelType: "opt", architecture: "OPTForCausalLM",
		activationKey: "activation_function",
		defaults: Config{VocabSize: 50272, HiddenSize: 768, Layers: 12, Heads: 12,
			MaxPositions: 2048, Activation: "relu", TieEmbeddings: true, BOS: 2, PAD: 1,
			EOS: []int{2}},
		read: readOPT, build: newOPT,
		widths: func(c *Config) []width { return []width{{"ffn_dim", c.IntermediateSize}} }}
}

// optConfig is what only OPT has.
type optConfig struct {
	EmbeddingDim         int // width of the embeddings
	NormBefore           bool
	RemoveFinalLayerNorm bool
	ElementwiseAffine    bool
}

func (o *optConfig) stateSize() int { return o.EmbeddingDim }

// readOPT reads OPTConfig. The epsilon of its LayerNorms is PyTorch's default: the class has no
// field for it.
func readOPT(f *checkpoint.Fields, c *Config, _ Config) {
	c.NormEps = 1e-5
	c.KVHeads = c.Heads
	if c.HiddenSize%c.Heads != 0 {
		f.Fail(checkpoint.ErrMalformed, "hidden_size",
			"is %d, not a multiple of %d attention heads", c.HiddenSize, c.Heads)
	}
	c.HeadDim = c.HiddenSize / c.Heads
	c.IntermediateSize = f.Integer("ffn_dim", 3072, 1, checkpoint.MaxDim)
	c.QKVBias = f.Flag("enable_bias", true)
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	c.Family = &optConfig{
		EmbeddingDim:         f.Nullable("word_embed_proj_dim", c.HiddenSize, 1, checkpoint.MaxDim),
		NormBefore:           f.Flag("do_layer_norm_before", true),
		RemoveFinalLayerNorm: f.Flag("_remove_final_layer_norm", false),
		ElementwiseAffine:    f.Flag("layer_norm_elementwise_affine", true)}
	readWindows(f, c, 0, noLayer)
}

// optModel is a stage of it.
type optModel struct {
	*stage
	own               *optConfig
	tokens, positions *layers.Embedding
	// projectIn and projectOut are nil when the embeddings are as wide as the layers.
	projectIn, projectOut *layers.Linear
	blocks                []optBlock
	// finalNorm is nil for models that normalise after each block.
	finalNorm *layers.LayerNorm
	head      *layers.Head

	narrow layers.Tensor // [rows][width of the embeddings]
}

type optBlock struct {
	attnNorm *layers.LayerNorm
	qkv      *layers.ColumnLinear
	attn     *layers.Attention
	out      *layers.RowLinear
	mlpNorm  *layers.LayerNorm
	mlp      *layers.MLP
}

func newOPT(s *stage) (architecture, error) {
	c := s.cfg
	activation, err := plainActivation(c)
	if err != nil {
		return nil, err
	}
	// Checkpoints saved from the bare decoder lack the outer prefix.
	prefix := "model.decoder."
	if !s.Has(prefix+"embed_tokens.weight") && s.Has("decoder.embed_tokens.weight") {
		prefix = "decoder."
	}
	m := &optModel{stage: s, own: c.Family.(*optConfig)}
	hidden, narrow := c.HiddenSize, m.own.EmbeddingDim
	s.Own(narrow)
	if s.first() {
		m.tokens = s.Embedding(prefix+"embed_tokens", c.VocabSize, narrow)
		positions := c.MaxPositions + optPositionOffset
		m.positions = s.Embedding(prefix+"embed_positions", positions, hidden)
		if narrow != hidden {
			m.projectIn = s.Linear(prefix+"project_in", hidden, narrow)
		}
	}
	if s.last() {
		m.head = s.lmHead("lm_head", prefix+"embed_tokens", narrow, layers.HeadOptions{})
		if narrow != hidden {
			m.projectOut = s.PickedLinear(prefix+"project_out", narrow, hidden)
		}
		if m.own.NormBefore && !m.own.RemoveFinalLayerNorm {
			m.finalNorm = m.layerNorm(prefix + "final_layer_norm")
		}
	}
	for i := s.From; i < s.To; i++ {
		m.blocks = append(m.blocks, m.block(i, fmt.Sprintf("%slayers.%d.", prefix, i), activation))
	}
	return m, s.Err()
}

func (m *optModel) block(layer int, prefix string, activation compute.Activation) optBlock {
	c := m.cfg
	hidden, heads := c.HiddenSize, layers.Heads{Query: c.Heads, KV: c.Heads, Dim: c.HeadDim}
	attn := prefix + "self_attn."
	return optBlock{
		attnNorm: m.layerNorm(prefix + "self_attn_layer_norm"),
		mlpNorm:  m.layerNorm(prefix + "final_layer_norm"),
		qkv:      m.QKV(attn, heads, hidden, layers.QKVOptions{Bias: c.QKVBias}),
		attn:     m.Attention(attn, layer-m.From, heads, layers.AttentionOptions{}),
		out:      m.Row(attn+"out_proj", hidden, hidden, c.QKVBias),
		mlp: m.MLP(prefix+"fc1", prefix+"fc2", hidden, c.IntermediateSize, activation,
			c.QKVBias),
	}
}

func (m *optModel) layerNorm(module string) *layers.LayerNorm {
	affine := layers.NotAffine
	if m.own.ElementwiseAffine {
		affine = layers.WeightAndBias
	}
	return m.LayerNorm(module, m.cfg.HiddenSize, float32(m.cfg.NormEps), affine)
}

func (m *optModel) embed(x *layers.Tensor, b *compute.Batch) {
	if m.projectIn == nil {
		m.tokens.Lookup(x, b.Tokens)
	} else {
		m.tokens.Lookup(&m.narrow, b.Tokens)
		m.projectIn.Forward(x, &m.narrow)
	}
	m.positions.Add(x, b.Position, optPositionOffset)
}

func (m *optModel) forward(x *layers.Tensor, b *compute.Batch, cache compute.Cache) error {
	for i := range m.blocks {
		y := &m.blocks[i]
		m.Enter(m.From + i)
		qkv := y.qkv.Forward(m.before(y.attnNorm, x))
		attended, err := y.attn.Forward(qkv, b, cache)
		if err != nil {
			return err
		}
		if err := y.out.Add(x, attended); err != nil {
			return err
		}
		m.after(y.attnNorm, x)
		if err := y.mlp.Add(x, m.before(y.mlpNorm, x)); err != nil {
			return err
		}
		m.after(y.mlpNorm, x)
	}
	return nil
}

// before is what a block reads: the residual stream, normalised in models that normalise before.
func (m *optModel) before(n *layers.LayerNorm, x *layers.Tensor) *layers.Tensor {
	if !m.own.NormBefore {
		return x
	}
	return n.Forward(x)
}

// after normalises the residual stream after a block in models that normalise after.
func (m *optModel) after(n *layers.LayerNorm, x *layers.Tensor) {
	if !m.own.NormBefore {
		n.InPlace(x)
	}
}

func (m *optModel) logits(x *layers.Tensor) (*layers.Tensor, error) {
	return m.head.Forward(m.final(x))
}

func (m *optModel) final(x *layers.Tensor) *layers.Tensor {
	if m.finalNorm != nil {
		x = m.finalNorm.Forward(x)
	}
	if m.projectOut != nil {
		m.projectOut.Forward(&m.narrow, x)
		x = &m.narrow
	}
	return x
}
