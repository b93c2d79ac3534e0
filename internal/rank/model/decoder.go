package model

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// decoder is the pre-norm rotary decoder that Llama, Mistral and the Qwen families share: in each
// layer a root-mean-square norm, attention with rotary positions and grouped key/value heads, a
// second norm and a feed-forward block, both added to the residual stream.
type decoder struct {
	*stage
	tokens *layers.Embedding
	rotary *layers.Rotary
	blocks []decoderBlock
	norm   *layers.RMSNorm
	head   *layers.Head
}

type decoderBlock struct {
	attnNorm *layers.RMSNorm
	qkv      *layers.ColumnLinear
	attn     *layers.Attention
	out      *layers.RowLinear
	mlpNorm  *layers.RMSNorm
	mlp      feedForward
}

// feedForward adds its output for x to the residual stream.
type feedForward interface {
	Add(residual, x *layers.Tensor) error
}

// decoderOptions are the points in which the families differ.
type decoderOptions struct {
	// headNorms says that each query and key head is normalised.
	headNorms bool
	// mlp makes the feed-forward block of a layer; nil is the gated one.
	mlp func(s *stage, layer int, prefix string) feedForward
}

func newDecoder(s *stage, opt decoderOptions) (architecture, error) {
	c := s.cfg
	if c.Activation != "silu" {
		return nil, fmt.Errorf("hidden_act %q is not supported (silu)", c.Activation)
	}
	frequencies, scale, err := c.RopeFrequencies()
	if err != nil {
		return nil, fmt.Errorf("rope: %w", err)
	}
	eps := float32(c.NormEps)
	m := &decoder{stage: s, rotary: s.Rotary(frequencies, scale, c.MaxPositions)}
	if s.first() {
		m.tokens = s.Embedding("model.embed_tokens", c.VocabSize, c.HiddenSize)
	}
	if s.last() {
		m.head = s.lmHead("model.embed_tokens", c.HiddenSize)
		m.norm = s.RMSNorm("model.norm", c.HiddenSize, eps)
	}
	for i := s.From; i < s.To; i++ {
		m.blocks = append(m.blocks, m.block(i, eps, opt))
	}
	return m, s.Err()
}

func (m *decoder) block(layer int, eps float32, opt decoderOptions) decoderBlock {
	c := m.cfg
	hidden, heads := c.HiddenSize, layers.Heads{Query: c.Heads, KV: c.KVHeads, Dim: c.HeadDim}
	prefix := fmt.Sprintf("model.layers.%d.", layer)
	attn := prefix + "self_attn."
	y := decoderBlock{
		attnNorm: m.RMSNorm(prefix+"input_layernorm", hidden, eps),
		mlpNorm:  m.RMSNorm(prefix+"post_attention_layernorm", hidden, eps),
		qkv:      m.QKV(attn, heads, hidden, c.QKVBias),
		attn: m.Attention(attn, layer-m.From, heads, layers.AttentionOptions{
			Window: c.Windows[layer], Rotary: m.rotary, HeadNorms: opt.headNorms, Eps: eps}),
		out: m.Row(attn+"o_proj", hidden, c.Heads*c.HeadDim, c.OutBias),
	}
	if opt.mlp != nil {
		y.mlp = opt.mlp(m.stage, layer, prefix+"mlp.")
	} else {
		y.mlp = m.GatedMLP(prefix+"mlp.", hidden, c.IntermediateSize, c.MLPBias)
	}
	return y
}

func (m *decoder) embed(x *layers.Tensor, b *compute.Batch) { m.tokens.Lookup(x, b.Tokens) }

func (m *decoder) forward(x *layers.Tensor, b *compute.Batch, cache *layers.Cache) error {
	m.rotary.Prepare(b.Position)
	for i := range m.blocks {
		y := &m.blocks[i]
		m.Enter(m.From + i)
		qkv := y.qkv.Forward(y.attnNorm.Forward(x))
		attended, err := y.attn.Forward(qkv, b, cache)
		if err != nil {
			return err
		}
		if err := y.out.Add(x, attended); err != nil {
			return err
		}
		if err := y.mlp.Add(x, y.mlpNorm.Forward(x)); err != nil {
			return err
		}
	}
	return nil
}

func (m *decoder) logits(dst []float32, x *layers.Tensor) error {
	return m.head.Forward(dst, m.final(x))
}

func (m *decoder) final(x *layers.Tensor) *layers.Tensor { return m.norm.Forward(x) }
