package model

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// decoder is the rotary decoder that most families share: in each layer attention and a
// feed-forward block, both added to the residual stream, with norms before them, after them, or
// both.
type decoder struct {
	*stage
	opt    decoderOptions
	tokens *layers.Embedding
	rotary []*layers.Rotary // those in use
	blocks []decoderBlock
	norm   norm
	head   *layers.Head
	// taps are layers, of this stage and of those before, of which tapped has the hidden states
	// before them; given is what other stages hand on of theirs.
	taps   []int
	tapped *layers.SideBySide
	given  layers.Tensor
}

type decoderBlock struct {
	attnNorm norm // of what attention reads; nil for none
	mixers   []mixed
	attnPost norm // of what attention adds; nil for none
	mlpNorm  norm
	mlp      feedForward // nil for none
	mlpPost  norm
}

// mixed is attention and what projects what it finds.
type mixed struct {
	attention
	out *layers.RowLinear
}

// attention returns what the rows of x find, and writes what it keeps of them to the cache.
type attention interface {
	Forward(x *layers.Tensor, b *compute.Batch, cache compute.Cache) (*layers.Tensor, error)
}

// mixer is what a layer has in the place of attention, or beside it: the module of its output
// projection, how wide what it returns is on all ranks, and whether that module has a bias.
type mixer struct {
	attention
	output string
	width  int
	bias   bool
	// multiplier is what its output is multiplied by; 0 is the residualMultiplier.
	multiplier float32
}

// projected is attention of queries, keys and values that x is projected to.
type projected struct {
	qkv  *layers.ColumnLinear
	attn *layers.Attention
}

func (y projected) Forward(x *layers.Tensor, b *compute.Batch,
	cache compute.Cache) (*layers.Tensor, error) {
	return y.attn.Forward(y.qkv.Forward(x), b, cache)
}

// norm returns x normalised, in memory that it shares with other norms.
type norm interface {
	Forward(x *layers.Tensor) *layers.Tensor
}

// feedForward adds its output for x to the residual stream, or returns it.
type feedForward = layers.Block

// decoderOptions are the points in which the families differ; the zero value is Llama.
type decoderOptions struct {
	// prefix is of all modules but the head, "" is "model."; embedding, norm and head are modules,
	// "" is embed_tokens, norm and lm_head.
	prefix, embedding, norm, head string
	// attention is the module of a layer's attention, "" is self_attn; output its projection, ""
	// is o_proj.
	attention, output string
	// attnNorm, attnPost, mlpNorm and mlpPost are the modules of a layer's norms: before attention,
	// of its output, before the feed-forward block, of its output; "" for none. All empty is
	// input_layernorm and post_attention_layernorm before the two.
	attnNorm, attnPost, mlpNorm, mlpPost string
	// newNorm makes a norm, nil is RMSNorm.
	newNorm func(s *stage, module string) norm
	// parallel says that both blocks read the residual stream as it is before the layer; without
	// mlpNorm they read the same norm of it.
	parallel bool

	qkv layers.QKVOptions // without Bias
	// mixer makes what a layer has in the place of attention of projected queries, keys and values,
	// given the options of that; nil, or one without an attention, is none.
	mixer func(s *stage, layer int, prefix string, o layers.AttentionOptions) mixer
	// beside makes what a layer has beside its attention: both read the same norm; nil is none.
	beside func(s *stage, layer int, prefix string) mixer
	// has says whether a layer has attention, and a feed-forward block; nil is both.
	has func(layer int) (attends, feeds bool)
	// attn completes the options of a layer's attention.
	attn func(layer int, o *layers.AttentionOptions)
	// rotaries makes the rotary embeddings, nil is one by Rope; rotaryOf is the number of a
	// layer's, -1 for none, nil is always the first.
	rotaries func(s *stage) ([]*layers.Rotary, error)
	rotaryOf func(layer int) int
	// activation is what gated blocks have; the zero value, ReLU, is SiLU.
	activation compute.Activation
	// fusedMLP is GatedMLPOptions.Fused.
	fusedMLP string
	// mlp makes the feed-forward block of a layer; nil is the gated one. ungated says that it has
	// an activation of its own.
	mlp     func(s *stage, layer int, prefix string) feedForward
	ungated bool

	// embeddingMultiplier and residualMultiplier multiply what is looked up, and what both blocks
	// add; 0 is 1.
	embeddingMultiplier, residualMultiplier float32
	logits                                  layers.HeadOptions
}

func newDecoder(s *stage, opt decoderOptions) (architecture, error) {
	m, err := decoderOf(s, opt)
	if err != nil {
		return nil, err
	}
	c, prefix := s.cfg, cmp.Or(opt.prefix, "model.")
	embedding := prefix + cmp.Or(opt.embedding, "embed_tokens")
	if s.first() {
		m.tokens = s.Embedding(embedding, c.VocabSize, c.HiddenSize)
	}
	if s.last() {
		m.head = s.lmHead(cmp.Or(opt.head, "lm_head"), embedding, c.HiddenSize, opt.logits)
		m.norm = m.opt.newNorm(s, prefix+cmp.Or(opt.norm, "norm"))
	}
	for i := s.From; i < s.To; i++ {
		s.Layer(i)
		m.blocks = append(m.blocks, m.block(i, fmt.Sprintf("%slayers.%d.", prefix, i)))
	}
	return m, s.Err()
}

// decoderOf is a decoder of a family without its layers.
func decoderOf(s *stage, opt decoderOptions) (*decoder, error) {
	computed := "gelu_tanh"
	if opt.activation == compute.ReLU {
		opt.activation, computed = compute.SiLU, "silu"
	}
	if s.cfg.Activation != computed && !opt.ungated {
		return nil, fmt.Errorf("hidden_act %q is not supported (%s)", s.cfg.Activation, computed)
	}
	if opt.attnNorm+opt.attnPost+opt.mlpNorm+opt.mlpPost == "" {
		opt.attnNorm, opt.mlpNorm = "input_layernorm", "post_attention_layernorm"
	}
	if opt.newNorm == nil {
		opt.newNorm = func(s *stage, module string) norm {
			return s.RMSNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps))
		}
	}
	if opt.rotaries == nil {
		opt.rotaries = oneRotary
	}
	m := &decoder{stage: s, opt: opt}
	var err error
	if m.rotary, err = opt.rotaries(s); err != nil {
		return nil, fmt.Errorf("rope: %w", err)
	}
	return m, nil
}

// oneRotary is the rotary embedding that Rope describes, none where it is empty.
func oneRotary(s *stage) ([]*layers.Rotary, error) {
	if s.cfg.Rope.Type == "" {
		return nil, nil
	}
	frequencies, scale, err := s.cfg.RopeFrequencies()
	if err != nil {
		return nil, err
	}
	return []*layers.Rotary{s.Rotary(frequencies, scale, s.cfg.MaxPositions)}, nil
}

func (m *decoder) block(layer int, prefix string) decoderBlock {
	c, opt := m.cfg, &m.opt
	attends, feeds := true, true
	if opt.has != nil {
		attends, feeds = opt.has(layer)
	}
	var y decoderBlock
	if attends {
		y.attnNorm = m.blockNorm(prefix, opt.attnNorm)
		y.attnPost = m.blockNorm(prefix, opt.attnPost)
		y.mixers = append(y.mixers, m.mixed(m.attends(layer, prefix)))
		if opt.beside != nil {
			y.mixers = append(y.mixers, m.mixed(opt.beside(m.stage, layer, prefix)))
		}
	}
	if !feeds {
		return y
	}
	y.mlpNorm, y.mlpPost = m.blockNorm(prefix, opt.mlpNorm), m.blockNorm(prefix, opt.mlpPost)
	if opt.mlp != nil {
		y.mlp = opt.mlp(m.stage, layer, prefix)
	} else {
		y.mlp = m.GatedMLP(prefix+"mlp.", c.HiddenSize, c.IntermediateSize, layers.GatedMLPOptions{
			Activation: opt.activation, Bias: c.MLPBias, Fused: opt.fusedMLP,
			Multiplier: opt.residualMultiplier})
	}
	return y
}

// mixed makes the projection of what a mixer finds.
func (m *decoder) mixed(mix mixer) mixed {
	return mixed{mix.attention, m.Row(mix.output, m.cfg.HiddenSize, mix.width,
		mix.bias).Scaled(cmp.Or(mix.multiplier, m.opt.residualMultiplier))}
}

// attends makes the attention of a layer, or what it has in its place.
func (m *decoder) attends(layer int, prefix string) mixer {
	c, opt := m.cfg, &m.opt
	heads := layers.Heads{Query: c.Heads, KV: c.KVHeads, Dim: c.HeadDim}
	o := layers.AttentionOptions{Window: c.window(layer), Eps: float32(c.NormEps)}
	turned := 0
	if opt.rotaryOf != nil {
		turned = opt.rotaryOf(layer)
	}
	if turned >= 0 && turned < len(m.rotary) {
		o.Rotary = m.rotary[turned]
	}
	if opt.attn != nil {
		opt.attn(layer, &o)
	}
	var mix mixer
	if opt.mixer != nil {
		mix = opt.mixer(m.stage, layer, prefix, o)
	}
	if mix.attention == nil {
		qkv := opt.qkv
		qkv.Bias = c.QKVBias
		if c.Interleaved {
			qkv.Interleaved = cmp.Or(c.RotaryDim, c.HeadDim)
		}
		if o.Rotary == nil {
			qkv.Interleaved = 0
		}
		attn := prefix + cmp.Or(opt.attention, "self_attn") + "."
		mix = mixer{attention: projected{m.QKV(attn, heads, c.HiddenSize, qkv),
			m.Attention(attn, m.cached(layer), heads, o)},
			output: attn + cmp.Or(opt.output, "o_proj"), width: c.Heads * c.HeadDim,
			bias: c.OutBias}
	}
	return mix
}

// blockNorm makes the norm of a module, nil for "".
func (m *decoder) blockNorm(prefix, module string) norm {
	if module == "" {
		return nil
	}
	return m.opt.newNorm(m.stage, prefix+module)
}

func (m *decoder) embed(x *layers.Tensor, b *compute.Batch) {
	m.tokens.Lookup(x, b.Tokens)
	if f := m.opt.embeddingMultiplier; f != 0 {
		m.Multiply(x, f)
	}
}

func (m *decoder) forward(x *layers.Tensor, b *compute.Batch, cache compute.Cache) error {
	for _, r := range m.rotary {
		r.Prepare(b.Position)
	}
	if m.given.Width > 0 {
		m.tapped.Put(0, &m.given)
	}
	for i := range m.blocks {
		m.Enter(m.From + i)
		if at := slices.Index(m.taps, m.From+i); at >= 0 {
			m.tapped.Put(at, x)
		}
		if err := m.layer(&m.blocks[i], x, b, cache); err != nil {
			return err
		}
	}
	return nil
}

// tap has the decoder keep the hidden states before some layers: those of the stages so far.
func (m *Model) tap(taps []int) error {
	d, ok := m.arch.(*decoder)
	width := m.stage.cfg.HiddenSize
	if !ok || slices.ContainsFunc(taps, func(i int) bool {
		return i < 0 || i >= m.stage.cfg.Layers
	}) {
		return fmt.Errorf("%s cannot give the hidden states before layers %v",
			m.stage.cfg.Architecture, taps)
	}
	before, _ := slices.BinarySearch(taps, d.From)
	soFar, _ := slices.BinarySearch(taps, d.To)
	if soFar == 0 {
		return nil
	}
	d.taps, d.tapped = taps[:soFar], m.stage.SideBySide(soFar, width)
	d.given.Width = before * width
	m.stage.Own(d.given.Width)
	return nil
}

// tapping is the decoder that keeps hidden states before some of its layers, nil for none.
func (m *Model) tapping() *decoder {
	if d, ok := m.arch.(*decoder); ok && len(d.taps) > 0 {
		return d
	}
	return nil
}

func (m *decoder) layer(y *decoderBlock, x *layers.Tensor, b *compute.Batch,
	cache compute.Cache) error {
	var read *layers.Tensor
	if y.mixers != nil {
		read = normed(y.attnNorm, x)
	}
	for i, mix := range y.mixers {
		attended, err := mix.Forward(read, b, cache)
		if err != nil {
			return err
		}
		if m.opt.parallel && y.mlpNorm != nil && i == len(y.mixers)-1 {
			read = y.mlpNorm.Forward(x)
		}
		if err := m.add(x, mix.out, attended, y.attnPost); err != nil {
			return err
		}
	}
	if y.mlp == nil {
		return nil
	}
	if !m.opt.parallel {
		read = normed(y.mlpNorm, x)
	}
	return m.add(x, y.mlp, read, y.mlpPost)
}

// add adds a block's output for what it reads to x, normalised if post is not nil.
func (m *decoder) add(x *layers.Tensor, block layers.Block, read *layers.Tensor, post norm) error {
	if post == nil {
		return block.Add(x, read)
	}
	out, err := block.Forward(read)
	if err == nil {
		m.AddTo(x, post.Forward(out))
	}
	return err
}

// normed is x normalised, x itself without a norm.
func normed(n norm, x *layers.Tensor) *layers.Tensor {
	if n == nil {
		return x
	}
	return n.Forward(x)
}

func (m *decoder) logits(x *layers.Tensor) (*layers.Tensor, error) {
	return m.head.Forward(m.final(x))
}

func (m *decoder) final(x *layers.Tensor) *layers.Tensor { return m.norm.Forward(x) }
