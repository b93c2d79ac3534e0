package model

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// encoder is what encoders share: embeddings that are normalised, and layers of attention in both
// directions and a feed-forward block. Each block is normalised after it was added to what it read
// (BERT), or reads a norm of it (ModernBERT, which has a norm of the last layer's output as well).
type encoder struct {
	*stage
	tokens           *layers.Embedding
	positions, types *layers.Embedding // nil for none
	offset           int               // of the first position in its table
	embedNorm        *layers.LayerNorm
	rotary           []*layers.Rotary // those in use
	blocks           []encoderBlock
	before           bool
	finalNorm        *layers.LayerNorm // nil for none

	untyped []int32 // zeros, where the batch has no types
}

// encoderBlock is a layer. A norm of nil is none.
type encoderBlock struct {
	attnNorm *layers.LayerNorm
	qkv      *layers.ColumnLinear
	attn     *layers.TwoWayAttention
	out      *layers.RowLinear
	mlpNorm  *layers.LayerNorm
	mlp      feedForward
}

func (m *encoder) embed(x *layers.Tensor, b *compute.Batch) {
	m.tokens.Lookup(x, b.Tokens)
	if m.types != nil {
		m.types.Add(x, m.typesOf(b), 0)
	}
	if m.positions != nil {
		m.positions.Add(x, b.Position, m.offset)
	}
	m.embedNorm.InPlace(x)
}

// typesOf are the types of the batch's tokens: all 0 where the model knows one alone.
func (m *encoder) typesOf(b *compute.Batch) []int32 {
	if len(b.Types) > 0 && m.cfg.TokenTypes > 1 {
		return b.Types
	}
	for len(m.untyped) < b.Rows() {
		m.untyped = append(m.untyped, 0)
	}
	return m.untyped[:b.Rows()]
}

func (m *encoder) forward(x *layers.Tensor, b *compute.Batch, _ compute.Cache) error {
	for _, r := range m.rotary {
		r.Prepare(b.Position)
	}
	for i := range m.blocks {
		y := &m.blocks[i]
		m.Enter(m.From + i)
		attended := y.attn.Forward(y.qkv.Forward(m.read(y.attnNorm, x)), b)
		if err := y.out.Add(x, attended); err != nil {
			return err
		}
		m.added(y.attnNorm, x)
		if err := y.mlp.Add(x, m.read(y.mlpNorm, x)); err != nil {
			return err
		}
		m.added(y.mlpNorm, x)
	}
	return nil
}

// read is what a block reads of the residual stream.
func (m *encoder) read(n *layers.LayerNorm, x *layers.Tensor) *layers.Tensor {
	if n == nil || !m.before {
		return x
	}
	return n.Forward(x)
}

// added normalises the residual stream after a block was added to it.
func (m *encoder) added(n *layers.LayerNorm, x *layers.Tensor) {
	if n != nil && !m.before {
		n.InPlace(x)
	}
}

func (m *encoder) logits(*layers.Tensor) (*layers.Tensor, error) {
	return nil, errors.New("an encoder has no logits")
}

func (m *encoder) final(x *layers.Tensor) *layers.Tensor {
	if m.finalNorm == nil {
		return x
	}
	return m.finalNorm.Forward(x)
}

// encoderHeads reads the heads of an encoder, each of which has keys and values of its own.
func encoderHeads(f *checkpoint.Fields, c *Config) {
	c.KVHeads = c.Heads
	if c.HiddenSize%c.Heads != 0 {
		f.Fail(checkpoint.ErrMalformed, "hidden_size",
			"is %d, not a multiple of %d attention heads", c.HiddenSize, c.Heads)
		return
	}
	c.HeadDim = c.HiddenSize / c.Heads
}

// refuseDecoder refuses what makes something else of a model that is an encoder.
func refuseDecoder(f *checkpoint.Fields) {
	for _, key := range []string{"is_decoder", "add_cross_attention"} {
		if f.Flag(key, false) {
			f.Fail(checkpoint.ErrUnsupported, key, "is true")
		}
	}
	const key = "position_embedding_type"
	if kind := f.Text(key, "absolute"); kind != "absolute" {
		f.Fail(checkpoint.ErrUnsupported, key, "is %s", checkpoint.Short(kind))
	}
}

// bertConfig is what models with BERT's layers have.
type bertConfig struct {
	// Prefix is of the modules of a checkpoint that has a head as well.
	Prefix string
	// Offset is where the table of learned positions begins.
	Offset int
}

// readBERT reads BertConfig, of which RobertaConfig differs by its defaults and by where positions
// begin: where a padding token's would be, and one.
func readBERT(f *checkpoint.Fields, c *Config, d Config, prefix string, padded bool) {
	refuseDecoder(f)
	encoderHeads(f, c)
	c.IntermediateSize = f.Integer("intermediate_size", d.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("layer_norm_eps", d.NormEps, 0)
	c.TokenTypes = f.Integer("type_vocab_size", d.TokenTypes, 1, checkpoint.MaxDim)
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	own := &bertConfig{Prefix: prefix}
	if padded {
		own.Offset = c.PAD + 1
		if c.MaxPositions -= own.Offset; c.MaxPositions < 1 {
			f.Fail(checkpoint.ErrMalformed, "max_position_embeddings",
				"leaves no position after the %d that padding has", own.Offset)
		}
	}
	c.Family = own
}

// newBERT builds BERT, and what has its layers.
func newBERT(s *stage) (architecture, error) {
	c, own := s.cfg, s.cfg.Family.(*bertConfig)
	activation, err := plainActivation(c)
	if err != nil {
		return nil, err
	}
	const words = "embeddings.word_embeddings"
	prefix := own.Prefix
	if !s.Has(prefix+words+".weight") && s.Has(words+".weight") {
		prefix = ""
	}
	norm := func(module string) *layers.LayerNorm {
		return s.LayerNorm(prefix+module, c.HiddenSize, float32(c.NormEps), layers.WeightAndBias)
	}
	m := &encoder{stage: s, offset: own.Offset}
	if s.first() {
		m.tokens = s.Embedding(prefix+words, c.VocabSize, c.HiddenSize)
		m.positions = s.Embedding(prefix+"embeddings.position_embeddings",
			c.MaxPositions+own.Offset, c.HiddenSize)
		m.types = s.Embedding(prefix+"embeddings.token_type_embeddings", c.TokenTypes,
			c.HiddenSize)
		m.embedNorm = norm("embeddings.LayerNorm")
	}
	heads := layers.Heads{Query: c.Heads, KV: c.Heads, Dim: c.HeadDim}
	for i := s.From; i < s.To; i++ {
		layer := fmt.Sprintf("encoder.layer.%d.", i)
		at := prefix + layer
		m.blocks = append(m.blocks, encoderBlock{
			qkv: s.QKV(at+"attention.self.", heads, c.HiddenSize, layers.QKVOptions{Bias: true,
				Modules: [...]string{"query", "key", "value"}}),
			attn:     s.TwoWayAttention(heads, 0, nil),
			out:      s.Row(at+"attention.output.dense", c.HiddenSize, c.HiddenSize, true),
			attnNorm: norm(layer + "attention.output.LayerNorm"),
			mlp: s.MLP(at+"intermediate.dense", at+"output.dense", c.HiddenSize,
				c.IntermediateSize, activation, true),
			mlpNorm: norm(layer + "output.LayerNorm"),
		})
	}
	return m, s.Err()
}
