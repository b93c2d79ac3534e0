package model

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// decoder is the decoder that all families share: in each layer attention and a feed-forward block,
// both added to the residual stream, with norms before them, after them, or both.
type decoder struct {
	*stage
	opt       decoderOptions
	tokens    *layers.Embedding
	embedNorm norm
	positions *layers.Embedding // nil for none
	// projectIn and projectOut are nil when the embeddings are as wide as the layers.
	projectIn, projectOut *layers.Linear
	narrow                layers.Tensor    // [rows][width of the embeddings]
	rotary                []*layers.Rotary // those in use
	temperature           *layers.Rotary   // among them, nil for none
	blocks                []decoderBlock
	norm                  norm // nil for none
	head                  *layers.Head
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
	end      func(x *layers.Tensor) // nil for none
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
	// prefix is of all modules but the head, "" is "model."; embedding, layers, norm and head are
	// modules, "" is embed_tokens, layers, norm and lm_head. unnormed says that there is no norm.
	prefix, embedding, layers, norm, head string
	unnormed                              bool
	// positions is the module of a table of learned positions, of which the first is at offset; ""
	// is none, and heads are turned instead.
	positions string
	offset    int
	// narrow is how wide embeddings are, between which and the layers project_in and project_out
	// stand; 0 is as wide as the layers.
	narrow int
	// attention is the module of a layer's attention, "" is self_attn; output its projection, ""
	// is o_proj.
	attention, output string
	// attnNorm, attnPost, mlpNorm and mlpPost are the modules of a layer's norms: before attention,
	// of its output, before the feed-forward block, of its output; "" for none. All empty is
	// input_layernorm and post_attention_layernorm before the two.
	attnNorm, attnPost, mlpNorm, mlpPost string
	// newNorm makes a norm, nil is RMSNorm. embedNorm is the module of that of what is looked up,
	// "" for none.
	newNorm   func(s *stage, module string) norm
	embedNorm string
	// sums says that attnPost and mlpPost are of the residual stream after what they follow was
	// added to it.
	sums bool
	// parallel says that both blocks read the residual stream as it is before the layer; without
	// mlpNorm they read the same norm of it.
	parallel bool

	// heads are those of a layer, nil is those of the configuration.
	heads func(layer int) layers.Heads
	qkv   layers.QKVOptions // without Bias
	// project completes qkv for a layer.
	project func(layer int, o *layers.QKVOptions)
	// keeper is the layer whose keys and values a layer reads, nil is always itself.
	keeper func(layer int) int
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
	// plainMLP are the modules of feed-forward blocks of two matrices, between which is the
	// activation that the configuration names; none are gated ones.
	plainMLP [2]string
	// xielu is the module of the activation of those, where it has numbers of its own.
	xielu string
	// mlp makes the feed-forward block of a layer, nil is one of the above. ungated says that it
	// has an activation of its own.
	mlp     func(s *stage, layer int, prefix string) feedForward
	ungated bool
	// end makes what changes the hidden state after both blocks of a layer, nil is nothing.
	end func(s *stage, layer int, prefix string) func(x *layers.Tensor)
	// embedded is called with the embeddings of a step's tokens.
	embedded func(x *layers.Tensor, tokens []int32)

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
	embedding, hidden := prefix+cmp.Or(opt.embedding, "embed_tokens"), c.HiddenSize
	width := cmp.Or(opt.narrow, hidden)
	if width != hidden {
		s.Own(width)
	}
	if s.first() {
		m.tokens = s.Embedding(embedding, c.VocabSize, width)
		m.embedNorm = m.blockNorm(prefix, opt.embedNorm)
		if opt.positions != "" {
			m.positions = s.Embedding(prefix+opt.positions, c.MaxPositions+opt.offset, hidden)
		}
		if width != hidden {
			m.projectIn = s.Linear(prefix+"project_in", hidden, width)
		}
	}
	if s.last() {
		m.head = s.lmHead(cmp.Or(opt.head, "lm_head"), embedding, width, opt.logits)
		if width != hidden {
			m.projectOut = s.PickedLinear(prefix+"project_out", width, hidden)
		}
		if !opt.unnormed {
			m.norm = m.opt.newNorm(s, prefix+cmp.Or(opt.norm, "norm"))
		}
	}
	for i := s.From; i < s.To; i++ {
		s.Layer(i)
		m.blocks = append(m.blocks, m.block(i, fmt.Sprintf("%s%s.%d.", prefix,
			cmp.Or(opt.layers, "layers"), i)))
	}
	return m, s.Err()
}

// decoderOf is a decoder of a family without its layers.
func decoderOf(s *stage, opt decoderOptions) (*decoder, error) {
	if err := opt.activate(s.cfg); err != nil {
		return nil, err
	}
	if opt.attnNorm+opt.attnPost+opt.mlpNorm+opt.mlpPost == "" {
		opt.attnNorm, opt.mlpNorm = "input_layernorm", "post_attention_layernorm"
	}
	if opt.newNorm == nil {
		opt.newNorm = func(s *stage, module string) norm {
			return s.RMSNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps))
		}
	}
	m := &decoder{stage: s, opt: opt}
	if opt.positions != "" {
		return m, nil
	}
	if opt.rotaries == nil {
		opt.rotaries = oneRotary
	}
	var err error
	if m.rotary, err = opt.rotaries(s); err != nil {
		return nil, fmt.Errorf("rope: %w", err)
	}
	if t := &s.cfg.Temperature; t.Rise != 0 {
		m.temperature = s.Temperature(s.cfg.HeadDim, t.At, s.cfg.MaxPositions)
		m.rotary = append(m.rotary, m.temperature)
	}
	return m, nil
}

// activate settles the activation of feed-forward blocks.
func (o *decoderOptions) activate(c *Config) (err error) {
	if o.ungated {
		return nil
	}
	if o.xielu != "" {
		if c.Activation != "xielu" {
			return fmt.Errorf("hidden_act %q is not supported (xielu)", c.Activation)
		}
		return nil
	}
	if o.plainMLP[0] != "" {
		o.activation, err = plainActivation(c)
		return err
	}
	computed := "gelu_tanh"
	if o.activation == compute.ReLU {
		o.activation, computed = compute.SiLU, "silu"
	}
	if c.Activation != computed {
		return fmt.Errorf("hidden_act %q is not supported (%s)", c.Activation, computed)
	}
	return nil
}

// plainActivation is that of a feed-forward block without a gate.
func plainActivation(c *Config) (compute.Activation, error) {
	switch c.Activation {
	case "relu":
		return compute.ReLU, nil
	case "relu2":
		return compute.ReLU2, nil
	case "gelu":
		return compute.GELU, nil
	case "gelu_tanh":
		return compute.GELUTanh, nil
	}
	return 0, fmt.Errorf("activation %q is not supported (relu, relu2, gelu, gelu_tanh)",
		c.Activation)
}

// oneRotary is the rotary embedding that Rope describes, none where it is empty.
func oneRotary(s *stage) ([]*layers.Rotary, error) {
	if s.cfg.Rope.Type == "" {
		return nil, nil
	}
	return rotariesOf(s, s.cfg)
}

// rotariesOf are the rotary embeddings that the Rope of each configuration describes.
func rotariesOf(s *stage, configs ...*Config) (list []*layers.Rotary, err error) {
	for _, c := range configs {
		frequencies, scale, err := c.RopeFrequencies()
		if err != nil {
			return nil, err
		}
		list = append(list, s.Rotary(frequencies, scale, c.MaxPositions))
	}
	return list, nil
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
		y.mixers = append(y.mixers, m.mixed(m.attends(layer, prefix), y.attnPost))
		if opt.beside != nil {
			y.mixers = append(y.mixers, m.mixed(opt.beside(m.stage, layer, prefix), y.attnPost))
		}
	}
	if !feeds {
		return y
	}
	y.mlpNorm, y.mlpPost = m.blockNorm(prefix, opt.mlpNorm), m.blockNorm(prefix, opt.mlpPost)
	switch first, second := opt.plainMLP[0], opt.plainMLP[1]; {
	case opt.mlp != nil:
		y.mlp = opt.mlp(m.stage, layer, prefix)
	case first != "":
		mlp := m.MLP(prefix+first, prefix+second, c.HiddenSize, c.IntermediateSize, opt.activation,
			c.MLPBias)
		if opt.xielu != "" {
			mlp.XIELU(m.Loader, prefix+opt.xielu)
		}
		y.mlp = mlp
	default:
		o := layers.GatedMLPOptions{Activation: opt.activation, Bias: c.MLPBias,
			Fused: opt.fusedMLP}
		if y.mlpPost == nil {
			o.Multiplier = opt.residualMultiplier
		}
		y.mlp = m.GatedMLP(prefix+"mlp.", c.HiddenSize, c.IntermediateSize, o)
	}
	if opt.end != nil {
		y.end = opt.end(m.stage, layer, prefix)
	}
	return y
}

// mixed makes the projection of what a mixer finds, which post normalises unless it is nil.
func (m *decoder) mixed(mix mixer, post norm) mixed {
	out := m.Row(mix.output, m.cfg.HiddenSize, mix.width, mix.bias)
	if post == nil {
		out.Scaled(cmp.Or(mix.multiplier, m.opt.residualMultiplier))
	}
	return mixed{mix.attention, out}
}

// attends makes the attention of a layer, or what it has in its place.
func (m *decoder) attends(layer int, prefix string) mixer {
	c, opt := m.cfg, &m.opt
	heads := layers.Heads{Query: c.Heads, KV: c.KVHeads, Dim: c.HeadDim}
	if opt.heads != nil {
		heads = opt.heads(layer)
	}
	o := layers.AttentionOptions{Window: c.window(layer), Chunked: c.Chunked,
		Temperature: m.temperature, Eps: float32(c.NormEps)}
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
		if opt.project != nil {
			opt.project(layer, &qkv)
		}
		kept := layer
		if opt.keeper != nil {
			kept = opt.keeper(layer)
		}
		if c.Interleaved {
			qkv.Interleaved = cmp.Or(c.RotaryDim, c.HeadDim)
		}
		if o.Rotary == nil {
			qkv.Interleaved = 0
		}
		attn := prefix + cmp.Or(opt.attention, "self_attn") + "."
		mix = mixer{attention: projected{m.QKV(attn, heads, c.HiddenSize, qkv),
			m.Attention(attn, m.cached(kept), heads, o)},
			output: attn + cmp.Or(opt.output, "o_proj"), width: heads.Query * heads.Dim,
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
	if m.projectIn == nil {
		m.tokens.Lookup(x, b.Tokens)
	} else {
		m.tokens.Lookup(&m.narrow, b.Tokens)
		m.projectIn.Forward(x, &m.narrow)
	}
	if f := m.opt.embeddingMultiplier; f != 0 {
		m.Multiply(x, f)
	}
	if m.opt.embedded != nil {
		m.opt.embedded(x, b.Tokens)
	}
	if m.embedNorm != nil {
		m.Copy(x, m.embedNorm.Forward(x))
	}
	if m.positions != nil {
		m.positions.Add(x, b.Position, m.opt.offset)
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
	if err := m.add(x, y.mlp, read, y.mlpPost); err != nil {
		return err
	}
	if y.end != nil {
		y.end(x)
	}
	return nil
}

// add adds a block's output for what it reads to x. Unless post is nil, it normalises that output,
// or the sum.
func (m *decoder) add(x *layers.Tensor, block layers.Block, read *layers.Tensor, post norm) error {
	if post == nil || m.opt.sums {
		err := block.Add(x, read)
		if n, ok := post.(*layers.LayerNorm); ok && err == nil {
			n.InPlace(x)
		}
		return err
	}
	out, err := block.Forward(read)
	if err != nil {
		return err
	}
	out = post.Forward(out)
	if f := m.opt.residualMultiplier; f != 0 {
		m.Multiply(out, f)
	}
	m.AddTo(x, out)
	return nil
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

func (m *decoder) final(x *layers.Tensor) *layers.Tensor {
	x = normed(m.norm, x)
	if m.projectOut != nil {
		m.projectOut.Forward(&m.narrow, x)
		x = &m.narrow
	}
	return x
}
