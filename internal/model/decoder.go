package model

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// decoder is the pre-norm rotary decoder that Llama, Mistral and the Qwen families share: in each layer a
// root-mean-square norm, attention with rotary positions and grouped key/value heads, a second norm and a
// feed-forward block, both added to the residual stream.
type decoder struct {
	base
	layers []decoderLayer
	rope   *rope
	norm   []float32
	eps    float32
	heads  int // of this rank
	kv     int // of this rank
	dim    int // of a head

	qkv, att, angles []float32
}

type decoderLayer struct {
	attnNorm, mlpNorm []float32
	qkv               *gemm.Matrix
	qkvBias           []float32
	qNorm, kNorm      []float32
	out               *gemm.Matrix
	outBias           []float32
	mlp               feedForward
	attn              attention.Args
}

// feedForward adds its output for rows rows of x ([rows][hidden]) to the residual stream.
type feedForward interface {
	forward(b *base, residual, x []float32, rows int) error
}

// decoderOptions are the points in which the families differ.
type decoderOptions struct {
	qkvBias, outBias, mlpBias bool
	headNorms                 bool
	// mlp loads the feed-forward block of a layer; nil is the gated one.
	mlp func(l *loader, layer int, prefix string) (feedForward, error)
}

func newDecoder(l *loader, opt decoderOptions) (Model, error) {
	c := l.cfg
	if c.Activation != "silu" {
		return nil, fmt.Errorf("hidden_act %q is not supported (silu)", c.Activation)
	}
	size := l.shard.Size
	m := &decoder{
		eps:   float32(c.RMSNormEps),
		heads: c.Heads / size,
		kv:    LocalKVHeads(c, size),
		dim:   c.HeadDim,
	}
	var err error
	if m.rope, err = newRope(c); err != nil {
		return nil, err
	}
	if err := m.base.load(l, "model.embed_tokens.weight", "lm_head.weight", c.HiddenSize, c.HiddenSize); err != nil {
		return nil, err
	}
	if m.norm, err = l.fullVector("model.norm.weight", c.HiddenSize); err != nil {
		return nil, err
	}
	m.layers = make([]decoderLayer, c.Layers)
	for i := range m.layers {
		if err := m.loadLayer(l, i, opt); err != nil {
			return nil, err
		}
	}
	m.base.final = func(dst, x []float32, rows int) { m.dev.RMSNorm(dst, x, m.norm, rows, m.eps) }
	return m, nil
}

func (m *decoder) loadLayer(l *loader, i int, opt decoderOptions) error {
	c := l.cfg
	y := &m.layers[i]
	prefix := fmt.Sprintf("model.layers.%d.", i)
	attn := prefix + "self_attn."
	y.attn = attention.Args{Heads: m.heads, KVHeads: m.kv, HeadDim: m.dim, Window: c.Windows[i],
		Scale: float32(1 / math.Sqrt(float64(m.dim)))}
	qDim, hidden := c.Heads*c.HeadDim, c.HiddenSize
	parts := func(kind string) []part {
		return []part{
			l.columnPart(attn+"q_proj."+kind, qDim, hidden),
			l.kvPart(attn+"k_proj."+kind, hidden),
			l.kvPart(attn+"v_proj."+kind, hidden),
		}
	}
	var err error
	if y.attnNorm, err = l.fullVector(prefix+"input_layernorm.weight", hidden); err != nil {
		return err
	}
	if y.mlpNorm, err = l.fullVector(prefix+"post_attention_layernorm.weight", hidden); err != nil {
		return err
	}
	if y.qkv, err = l.column(parts("weight")...); err != nil {
		return err
	}
	if opt.qkvBias {
		if y.qkvBias, err = l.biasParts(parts("bias")...); err != nil {
			return err
		}
	}
	if opt.headNorms {
		if y.qNorm, err = l.fullVector(attn+"q_norm.weight", m.dim); err != nil {
			return err
		}
		if y.kNorm, err = l.fullVector(attn+"k_norm.weight", m.dim); err != nil {
			return err
		}
	}
	if y.out, err = l.row(attn+"o_proj.weight", hidden, qDim); err != nil {
		return err
	}
	if opt.outBias {
		if y.outBias, err = l.fullVector(attn+"o_proj.bias", hidden); err != nil {
			return err
		}
	}
	if opt.mlp != nil {
		y.mlp, err = opt.mlp(l, i, prefix+"mlp.")
	} else {
		y.mlp, err = newGatedMLP(l, prefix+"mlp.", c.IntermediateSize, opt.mlpBias)
	}
	return err
}

// Forward implements Model.
func (m *decoder) Forward(b *compute.Batch, cache *attention.Cache) error {
	rows := len(b.Tokens)
	qDim, kvDim := m.heads*m.dim, m.kv*m.dim
	ld := qDim + 2*kvDim
	m.base.begin(b.Tokens)
	m.qkv = grow(m.qkv, rows*ld)
	m.att = grow(m.att, rows*qDim)
	m.angles = grow(m.angles, rows*m.rope.width())
	m.rope.rows(m.angles, b.Position)

	for i := range m.layers {
		y := &m.layers[i]
		m.enter(i)
		m.dev.RMSNorm(m.h, m.x, y.attnNorm, rows, m.eps)
		m.dev.Linear(m.qkv, m.h, y.qkv, rows, y.qkvBias)
		m.dev.Heads(m.qkv, ld, rows, m.heads, m.dim, y.qNorm, m.eps, m.angles, m.rope.width())
		m.dev.Heads(m.qkv[qDim:], ld, rows, m.kv, m.dim, y.kNorm, m.eps, m.angles, m.rope.width())
		m.dev.WriteCache(cache, i, rows, m.qkv[qDim:], m.qkv[qDim+kvDim:], ld, b.Slots)
		m.dev.Attention(cache, i, b, y.attn, m.att, qDim, m.qkv, ld)
		if err := m.rowParallel(m.x, m.att, y.out, rows, y.outBias); err != nil {
			return err
		}
		m.dev.RMSNorm(m.h, m.x, y.mlpNorm, rows, m.eps)
		if err := y.mlp.forward(&m.base, m.x, m.h, rows); err != nil {
			return err
		}
	}
	return nil
}

// gatedMLP is down(silu(gate(x))·up(x)).
type gatedMLP struct {
	gateUp, down   *gemm.Matrix
	gateUpBias     []float32
	downBias       []float32
	width          int
	both, combined []float32
}

func newGatedMLP(l *loader, prefix string, width int, bias bool) (*gatedMLP, error) {
	hidden := l.cfg.HiddenSize
	y := &gatedMLP{width: width / l.shard.Size}
	parts := func(kind string) []part {
		return []part{
			l.columnPart(prefix+"gate_proj."+kind, width, hidden),
			l.columnPart(prefix+"up_proj."+kind, width, hidden),
		}
	}
	var err error
	if y.gateUp, err = l.column(parts("weight")...); err != nil {
		return nil, err
	}
	if y.down, err = l.row(prefix+"down_proj.weight", hidden, width); err != nil {
		return nil, err
	}
	if !bias {
		return y, nil
	}
	if y.gateUpBias, err = l.biasParts(parts("bias")...); err != nil {
		return nil, err
	}
	y.downBias, err = l.fullVector(prefix+"down_proj.bias", hidden)
	return y, err
}

func (y *gatedMLP) forward(b *base, residual, x []float32, rows int) error {
	y.both = grow(y.both, rows*2*y.width)
	y.combined = grow(y.combined, rows*y.width)
	b.dev.Linear(y.both, x, y.gateUp, rows, y.gateUpBias)
	b.dev.SiluMul(y.combined, y.both, rows, y.width)
	return b.rowParallel(residual, y.combined, y.down, rows, y.downBias)
}

// base is what every architecture has: the token embedding, the residual stream, the tensor parallel sum and
// the output head.
type base struct {
	loader   *loader
	dev      *cpu.Device
	comm     Comm
	onLayer  func(layer int, waiting bool)
	layer    int // at hand
	rank     int
	size     int
	vocab    int
	perRank  int // vocabulary entries of each rank, the last one's padded
	hidden   int
	embWidth int
	embed    *embedding
	head     *gemm.Matrix
	// final normalises rows of the residual stream into the input of the head.
	final func(dst, x []float32, rows int)

	// x is the residual stream of the last batch, h a layer's input; both [rows][hidden].
	x, h []float32
	tmp  []float32
	// picked and ready are the rows chosen for logits, before and after the final norm.
	picked, ready, part, gathered []float32
}

// load opens the embedding table and packs this rank's share of the output head. headWidth is the number of
// the head's input features.
func (b *base) load(l *loader, embedName, headName string, embWidth, headWidth int) error {
	c := l.cfg
	*b = base{loader: l, dev: l.dev, comm: l.shard.Comm, onLayer: l.shard.OnLayer, rank: l.shard.Rank, size: l.shard.Size,
		vocab: c.VocabSize, hidden: c.HiddenSize, embWidth: embWidth}
	var err error
	if b.embed, err = l.embedding(embedName, c.VocabSize, embWidth); err != nil {
		return err
	}
	if c.TieEmbeddings {
		headName = embedName
	}
	b.perRank = vocabularyShare(c, b.size)
	p := whole(headName, c.VocabSize, headWidth)
	p.rowLo = b.rank * b.perRank
	p.rowHi = min(p.rowLo+b.perRank, c.VocabSize)
	b.head, err = l.column(p)
	return err
}

// enter publishes that the rank computes a layer.
func (b *base) enter(layer int) {
	b.layer = layer
	b.onLayer(layer, false)
}

// allReduce sums x over the ranks, publishing the wait.
func (b *base) allReduce(x []float32) error {
	if b.size == 1 {
		return nil
	}
	b.onLayer(b.layer, true)
	err := b.comm.AllReduce(x)
	b.onLayer(b.layer, false)
	return err
}

// begin looks up the embeddings of a batch into the residual stream.
func (b *base) begin(tokens []int32) {
	b.reserve(len(tokens))
	for i, id := range tokens {
		b.embed.lookup(b.x[i*b.hidden:(i+1)*b.hidden], int(id))
	}
}

func (b *base) reserve(rows int) {
	b.x = grow(b.x, rows*b.hidden)
	b.h = grow(b.h, rows*b.hidden)
}

// rowParallel adds x·Wᵀ + bias, summed over the ranks, to the residual stream. The bits do not depend on the
// number of ranks: chunks, then ranks, are summed as one tree before anything is added.
func (b *base) rowParallel(residual, x []float32, m *gemm.Matrix, rows int, bias []float32) error {
	if b.size == 1 && bias == nil {
		b.dev.LinearAdd(residual, x, m, rows)
		return nil
	}
	b.tmp = grow(b.tmp, rows*m.N())
	b.dev.Linear(b.tmp, x, m, rows, nil)
	if err := b.allReduce(b.tmp[:rows*m.N()]); err != nil {
		return err
	}
	if bias != nil {
		b.dev.AddBias(b.tmp, bias, rows)
	}
	b.dev.Add(residual, b.tmp, rows, m.N())
	return nil
}

// Logits implements Model.
func (b *base) Logits(dst []float32, rows []int32) error {
	n := len(rows)
	if n == 0 {
		return nil
	}
	b.picked = grow(b.picked, n*b.hidden)
	b.ready = grow(b.ready, n*max(b.hidden, b.embWidth))
	for i, r := range rows {
		copy(b.picked[i*b.hidden:(i+1)*b.hidden], b.x[int(r)*b.hidden:])
	}
	b.final(b.ready, b.picked, n)
	if b.size == 1 {
		b.dev.Linear(dst, b.ready, b.head, n, nil)
		return nil
	}
	// Every rank sends rows of the same length; the last one's are padded.
	b.part = grow(b.part, n*b.perRank)
	if b.head.N() == b.perRank {
		b.dev.Linear(b.part, b.ready, b.head, n, nil)
	} else {
		b.tmp = grow(b.tmp, n*b.head.N())
		b.dev.Linear(b.tmp, b.ready, b.head, n, nil)
		for i := range n {
			copy(b.part[i*b.perRank:], b.tmp[i*b.head.N():(i+1)*b.head.N()])
		}
	}
	if b.rank != 0 {
		return b.comm.Gather(nil, b.part[:n*b.perRank], 0)
	}
	b.gathered = grow(b.gathered, b.size*n*b.perRank)
	if err := b.comm.Gather(b.gathered[:b.size*n*b.perRank], b.part[:n*b.perRank], 0); err != nil {
		return err
	}
	for i := range n {
		for r := range b.size {
			at := r * b.perRank
			width := min(b.perRank, b.vocab-at)
			copy(dst[i*b.vocab+at:i*b.vocab+at+width], b.gathered[(r*n+i)*b.perRank:])
		}
	}
	return nil
}

// Close implements Model.
func (b *base) Close() { b.loader.free() }

// grow returns s with at least n elements, keeping its memory when it is large enough. Contents are not kept.
func grow(s []float32, n int) []float32 {
	if cap(s) >= n {
		return s[:n]
	}
	return make([]float32, n+n/4)[:n]
}
