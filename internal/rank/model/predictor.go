package model

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// PredictorStage is the stage behind the last one: the layer that predicts a token more than the
// model does (multi-token prediction, DeepSeek-V3, https://arxiv.org/abs/2412.19437, 2.2). Its
// Receive is filled with what Final has of the model's rows, and the batch has in the place of each
// row's token the one after it. Its logits are those of the token after that; from its hidden state
// and that token it goes on to the next one.
func PredictorStage(c *Config) Stage { return Stage{From: c.Layers, To: c.Layers + 1} }

// predictor is a decoder of one layer, whose input is made of a token and a hidden state:
// W·[norm(embedding); norm(hidden)].
type predictor struct {
	*decoder
	input  *beside
	join   *layers.Linear
	normed bool
}

// beside is a norm of a hidden state, beside that of a token's embedding.
type beside struct {
	embedded      layers.Tensor
	token, hidden norm
	both          *layers.SideBySide
}

// newBeside makes one of norms of both. What is embedded is looked up in each step.
func newBeside(s *stage, token, hidden norm) *beside {
	return &beside{token: token, hidden: hidden, both: s.SideBySide(2, s.cfg.HiddenSize)}
}

// Forward implements norm.
func (y *beside) Forward(x *layers.Tensor) *layers.Tensor {
	y.both.Begin(x.Rows)
	y.both.Put(0, y.token.Forward(&y.embedded))
	y.both.Put(1, y.hidden.Forward(x))
	return &y.both.Tensor
}

// predictorModules are what a checkpoint calls the modules of a predictor.
type predictorModules struct {
	// embedding, head and norm are what they are of a model; block is the prefix of the layer.
	embedding, head, norm, block string
	// tokenNorm, hiddenNorm and join are what its input is made with.
	tokenNorm, hiddenNorm, join string
	// normed says that it goes on from its hidden state after the norm.
	normed bool
}

// nextModules are those of a layer that follows the model's as one more: DeepSeek's and GLM's. It
// has copies of the embedding and of the head, which some leave out.
func nextModules(s *stage) predictorModules {
	block := fmt.Sprintf("model.layers.%d.", s.cfg.Layers)
	m := predictorModules{embedding: "model.embed_tokens", head: "lm_head",
		norm: block + "shared_head.norm", block: block,
		tokenNorm: block + "enorm", hiddenNorm: block + "hnorm", join: block + "eh_proj"}
	if own := block + ownEmbedding; s.Has(own + ".weight") {
		m.embedding = own
	}
	if own := block + ownHead; s.Has(own + ".weight") {
		m.head = own
	}
	return m
}

// What the copies of the embedding and of the head are called in a predictor's layer.
const ownEmbedding, ownHead = "embed_tokens", "shared_head.head"

// isCopy says that a tensor of the name is such a copy.
func isCopy(c *Config, name string) bool {
	block := fmt.Sprintf("model.layers.%d.", c.Layers)
	return name == block+ownEmbedding+".weight" || name == block+ownHead+".weight"
}

func newPredictor(s *stage, opt decoderOptions, m predictorModules) (architecture, error) {
	d, err := decoderOf(s, opt)
	if err != nil {
		return nil, err
	}
	width := s.cfg.HiddenSize
	d.tokens = s.Embedding(m.embedding, s.cfg.VocabSize, width)
	d.head = s.lmHead(m.head, m.embedding, width, d.opt.logits)
	d.norm = d.opt.newNorm(s, m.norm)
	s.Layer(s.From)
	d.blocks = []decoderBlock{d.block(s.From, m.block)}
	s.Own(width)
	input := newBeside(s, d.opt.newNorm(s, m.tokenNorm), d.opt.newNorm(s, m.hiddenNorm))
	return &predictor{decoder: d, input: input, join: s.Outside(m.join, width, 2*width),
		normed: m.normed}, s.Err()
}

func (m *predictor) forward(x *layers.Tensor, b *compute.Batch, cache compute.Cache) error {
	m.tokens.Lookup(&m.input.embedded, b.Tokens)
	m.join.Forward(x, m.input.Forward(x))
	if err := m.decoder.forward(x, b, cache); err != nil || !m.normed {
		return err
	}
	m.Copy(x, m.norm.Forward(x))
	return nil
}

func (m *predictor) logits(x *layers.Tensor) (*layers.Tensor, error) {
	return m.head.Forward(m.final(x))
}

func (m *predictor) final(x *layers.Tensor) *layers.Tensor {
	if m.normed {
		return x
	}
	return m.norm.Forward(x)
}
