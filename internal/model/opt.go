package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// optPositionOffset is where OPT's table of learned positions begins.
const optPositionOffset = 2

// optLayerNormEps is the epsilon of PyTorch's LayerNorm, which OPT's config does not state.
const optLayerNormEps = 1e-5

// opt is OPTForCausalLM: learned positions, layer norms before or after each block, a two-matrix feed-forward
// block, and in some sizes embeddings narrower than the layers.
type opt struct {
	base
	layers    []optLayer
	positions *embedding
	// projectIn and projectOut are nil when the embeddings are as wide as the layers.
	projectIn, projectOut *gemm.Matrix
	// finalNorm is nil for models that normalise after each block.
	finalNorm  *layerNorm
	normBefore bool
	activation cpu.Activation
	heads, dim int // heads of this rank, and their size
	inner      int // feed-forward features of this rank

	narrow, qkv, att, ffn []float32
}

type optLayer struct {
	attnNorm, mlpNorm *layerNorm
	qkv, out          *gemm.Matrix
	qkvBias, outBias  []float32
	fc1, fc2          *gemm.Matrix
	fc1Bias, fc2Bias  []float32
}

type layerNorm struct{ weight, bias []float32 }

func newOPT(l *loader) (Model, error) {
	c := l.cfg
	m := &opt{normBefore: c.DoLayerNormBefore, heads: c.Heads / l.shard.Size, dim: c.HeadDim, inner: c.FFNDim / l.shard.Size}
	switch c.Activation {
	case "relu":
		m.activation = cpu.ReLU
	case "gelu":
		m.activation = cpu.GELU
	default:
		return nil, fmt.Errorf("activation_function %q is not supported (relu, gelu)", c.Activation)
	}
	// Checkpoints saved from the bare decoder lack the outer prefix.
	prefix := "model.decoder."
	if !l.src.Has(prefix+"embed_tokens.weight") && l.src.Has("decoder.embed_tokens.weight") {
		prefix = "decoder."
	}
	hidden, narrow := c.HiddenSize, c.WordEmbedProjDim
	if err := m.base.load(l, prefix+"embed_tokens.weight", "lm_head.weight", narrow, narrow); err != nil {
		return nil, err
	}
	var err error
	if m.positions, err = l.embedding(prefix+"embed_positions.weight", c.MaxPositions+optPositionOffset, hidden); err != nil {
		return nil, err
	}
	if narrow != hidden {
		if m.projectIn, err = l.column(whole(prefix+"project_in.weight", hidden, narrow)); err != nil {
			return nil, err
		}
		if m.projectOut, err = l.column(whole(prefix+"project_out.weight", narrow, hidden)); err != nil {
			return nil, err
		}
	}
	if c.DoLayerNormBefore && !c.RemoveFinalLayerNorm {
		if m.finalNorm, err = m.loadNorm(l, prefix+"final_layer_norm."); err != nil {
			return nil, err
		}
	}
	m.layers = make([]optLayer, c.Layers)
	for i := range m.layers {
		if err := m.loadLayer(l, &m.layers[i], fmt.Sprintf("%slayers.%d.", prefix, i)); err != nil {
			return nil, err
		}
	}
	m.base.final = m.finish
	return m, nil
}

func (m *opt) loadNorm(l *loader, prefix string) (*layerNorm, error) {
	n := l.cfg.HiddenSize
	if !l.cfg.LayerNormElementwiseAffine {
		return &layerNorm{weight: slices.Repeat([]float32{1}, n), bias: make([]float32, n)}, nil
	}
	w, err := l.fullVector(prefix+"weight", n)
	if err != nil {
		return nil, err
	}
	b, err := l.fullVector(prefix+"bias", n)
	return &layerNorm{weight: w, bias: b}, err
}

func (m *opt) loadLayer(l *loader, y *optLayer, prefix string) error {
	c := l.cfg
	hidden, attn := c.HiddenSize, prefix+"self_attn."
	parts := func(kind string) []part {
		return []part{
			l.columnPart(attn+"q_proj."+kind, hidden, hidden),
			l.columnPart(attn+"k_proj."+kind, hidden, hidden),
			l.columnPart(attn+"v_proj."+kind, hidden, hidden),
		}
	}
	var err error
	if y.attnNorm, err = m.loadNorm(l, prefix+"self_attn_layer_norm."); err != nil {
		return err
	}
	if y.mlpNorm, err = m.loadNorm(l, prefix+"final_layer_norm."); err != nil {
		return err
	}
	if y.qkv, err = l.column(parts("weight")...); err != nil {
		return err
	}
	if y.out, err = l.row(attn+"out_proj.weight", hidden, hidden); err != nil {
		return err
	}
	if y.fc1, err = l.column(l.columnPart(prefix+"fc1.weight", c.FFNDim, hidden)); err != nil {
		return err
	}
	if y.fc2, err = l.row(prefix+"fc2.weight", hidden, c.FFNDim); err != nil {
		return err
	}
	if !c.EnableBias {
		return nil
	}
	if y.qkvBias, err = l.biasParts(parts("bias")...); err != nil {
		return err
	}
	if y.outBias, err = l.fullVector(attn+"out_proj.bias", hidden); err != nil {
		return err
	}
	if y.fc1Bias, err = l.biasParts(l.columnPart(prefix+"fc1.bias", c.FFNDim, hidden)); err != nil {
		return err
	}
	y.fc2Bias, err = l.fullVector(prefix+"fc2.bias", hidden)
	return err
}

// Forward implements Model.
func (m *opt) Forward(b *compute.Batch, cache *attention.Cache) error {
	rows := len(b.Tokens)
	qDim := m.heads * m.dim
	ld := 3 * qDim
	m.embedRows(b)
	m.qkv = grow(m.qkv, rows*ld)
	m.att = grow(m.att, rows*qDim)
	m.ffn = grow(m.ffn, rows*m.inner)
	args := attention.Args{Heads: m.heads, KVHeads: m.heads, HeadDim: m.dim, Scale: float32(1 / math.Sqrt(float64(m.dim)))}

	for i := range m.layers {
		y := &m.layers[i]
		m.enter(i)
		in := m.blockInput(y.attnNorm, rows)
		m.dev.Linear(m.qkv, in, y.qkv, rows, y.qkvBias)
		m.dev.WriteCache(cache, i, rows, m.qkv[qDim:], m.qkv[2*qDim:], ld, b.Slots)
		m.dev.Attention(cache, i, b, args, m.att, qDim, m.qkv, ld)
		if err := m.rowParallel(m.x, m.att, y.out, rows, y.outBias); err != nil {
			return err
		}
		m.blockOutput(y.attnNorm, rows)

		in = m.blockInput(y.mlpNorm, rows)
		m.dev.Linear(m.ffn, in, y.fc1, rows, y.fc1Bias)
		m.dev.Activate(m.activation, m.ffn, rows, m.inner)
		if err := m.rowParallel(m.x, m.ffn, y.fc2, rows, y.fc2Bias); err != nil {
			return err
		}
		m.blockOutput(y.mlpNorm, rows)
	}
	return nil
}

// embedRows fills the residual stream with token and position embeddings.
func (m *opt) embedRows(b *compute.Batch) {
	rows := len(b.Tokens)
	m.reserve(rows)
	if m.projectIn == nil {
		for i, id := range b.Tokens {
			m.embed.lookup(m.x[i*m.hidden:(i+1)*m.hidden], int(id))
		}
	} else {
		m.narrow = grow(m.narrow, rows*m.embWidth)
		for i, id := range b.Tokens {
			m.embed.lookup(m.narrow[i*m.embWidth:(i+1)*m.embWidth], int(id))
		}
		m.dev.Linear(m.x, m.narrow, m.projectIn, rows, nil)
	}
	for i, pos := range b.Position {
		m.positions.lookup(m.h[i*m.hidden:(i+1)*m.hidden], int(pos)+optPositionOffset)
	}
	m.dev.Add(m.x, m.h, rows, m.hidden)
}

// blockInput is what a block reads: the normalised residual stream in models that normalise before.
func (m *opt) blockInput(n *layerNorm, rows int) []float32 {
	if !m.normBefore {
		return m.x
	}
	m.dev.LayerNorm(m.h, m.x, n.weight, n.bias, rows, optLayerNormEps)
	return m.h
}

// blockOutput normalises the residual stream after a block in models that normalise after.
func (m *opt) blockOutput(n *layerNorm, rows int) {
	if m.normBefore {
		return
	}
	m.dev.LayerNorm(m.x, m.x, n.weight, n.bias, rows, optLayerNormEps)
}

// finish turns rows of the residual stream into the input of the head.
func (m *opt) finish(dst, x []float32, rows int) {
	if m.finalNorm != nil {
		m.dev.LayerNorm(x, x, m.finalNorm.weight, m.finalNorm.bias, rows, optLayerNormEps)
	}
	if m.projectOut != nil {
		m.dev.Linear(dst, x, m.projectOut, rows, nil)
		return
	}
	copy(dst, x[:rows*m.hidden])
}

var _ Model = (*opt)(nil)
var _ Model = (*decoder)(nil)
