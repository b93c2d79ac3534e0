package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// eagleHead is the numbers of a head of EAGLE-3 (https://arxiv.org/abs/2503.01840), in the layout
// of SpecForge and vLLM.
type eagleHead struct {
	// vocab is how many tokens it may guess, taps are the layers of the model before which it is
	// given the hidden states.
	vocab int
	taps  []int
}

// Taps are the layers of the model before which an EAGLE-3 head is given the hidden states; nil for
// what is none.
func (c *Config) Taps() []int {
	if h, ok := c.Family.(*eagleHead); ok {
		return h.taps
	}
	return nil
}

// eagleNames are how configurations call a head.
var eagleNames = []string{"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"}

// ReadEagle3 reads the config.json of an EAGLE-3 head of the model of target. Its errors are as
// those of ReadConfig.
func ReadEagle3(raw []byte, target *Config) (*Config, error) {
	f, err := checkpoint.ReadFields(raw)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	h := new(eagleHead)
	c := &Config{Architectures: f.Texts("architectures"), ModelType: f.Text("model_type", "")}
	if f.Err() == nil && (len(c.Architectures) != 1 || c.ModelType != "llama" ||
		!slices.Contains(eagleNames, c.Architectures[0])) {
		return nil, fmt.Errorf("config.json: %w: architectures %q of model_type %q are no head "+
			"of EAGLE-3", checkpoint.ErrUnsupported, c.Architectures, c.ModelType)
	}
	c.Architecture = eagleNames[0]
	c, err = readFamily(f, c, h.reads(target))
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	c.Family = h
	return c, nil
}

// reads is the family that reads a head's configuration.
func (h *eagleHead) reads(target *Config) *family {
	fam := llama()
	read := fam.read
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		read(f, c, d)
		n := target.Layers
		h.vocab = f.Nullable("draft_vocab_size", c.VocabSize, 1, c.VocabSize)
		h.taps = []int{2, n / 2, n - 3}
		e := f.Object("eagle_config")
		if e != nil {
			if ids := e.IDs("eagle_aux_hidden_state_layer_ids", nil); len(ids) > 0 {
				h.taps = ids
			}
			if !e.Flag("use_aux_hidden_state", true) {
				f.Fail(checkpoint.ErrUnsupported, "eagle_config", "has no use_aux_hidden_state")
			}
			f.Adopt(e)
		}
		if f.Flag("norm_before_residual", false) {
			f.Fail(checkpoint.ErrUnsupported, "norm_before_residual", "is true")
		}
		if c.Layers != 1 {
			f.Fail(checkpoint.ErrUnsupported, "num_hidden_layers", "is %d, not 1", c.Layers)
		}
		for _, w := range []struct {
			key      string
			own, has int
		}{{"hidden_size", c.HiddenSize, target.HiddenSize},
			{"target_hidden_size", f.Integer("target_hidden_size", target.HiddenSize, 1,
				checkpoint.MaxDim), target.HiddenSize},
			{"vocab_size", c.VocabSize, target.VocabSize}} {
			if w.own != w.has {
				f.Fail(checkpoint.ErrUnsupported, w.key, "is %d, that of the model is %d", w.own,
					w.has)
			}
		}
		if t := h.taps; len(t) != 3 || t[0] < 0 || t[0] >= t[1] || t[1] >= t[2] || t[2] >= n {
			f.Fail(checkpoint.ErrUnsupported, "eagle_aux_hidden_state_layer_ids",
				"are %v of a model of %d layers: three are read, one after the other", t, n)
		}
	}
	return fam
}

// family builds a head, which is the stage behind a model's.
func (h *eagleHead) family() *family {
	fam := llama()
	fam.architecture, fam.build, fam.predict = eagleNames[0], nil, buildEagle
	return fam
}

// headEmbedding is the module of a head's embedding.
const headEmbedding = "embed_tokens"

// eagle is a decoder of one layer, whose attention reads a token beside a hidden state. That is one
// of its own, or made of three of the model's.
type eagle struct {
	*decoder
	input   *beside
	fc      *layers.Linear
	reduced layers.Tensor
	// targets are the model's tokens by the head's own; nil where they are the same.
	targets []int32
	all     layers.Tensor
}

func buildEagle(s *stage) (architecture, error) {
	c, h := s.cfg, s.cfg.Family.(*eagleHead)
	width := c.HiddenSize
	d, err := decoderOf(s, decoderOptions{mlpNorm: "post_attention_layernorm",
		mixer: func(s *stage, layer int, prefix string, o layers.AttentionOptions) mixer {
			heads := layers.Heads{Query: c.Heads, KV: c.KVHeads, Dim: c.HeadDim}
			attn := prefix + "self_attn."
			qkv := s.QKV(attn, heads, 2*width, layers.QKVOptions{Bias: c.QKVBias})
			return mixer{attention: projected{qkv, s.Attention(attn, s.cached(layer), heads, o)},
				output: attn + "o_proj", width: c.Heads * c.HeadDim, bias: c.OutBias}
		}})
	if err != nil {
		return nil, err
	}
	const block = "midlayer."
	m := &eagle{decoder: d}
	d.tokens = s.Embedding(headEmbedding, c.VocabSize, width)
	d.head = s.Head("lm_head", h.vocab, width, layers.HeadOptions{})
	d.norm = d.opt.newNorm(s, "norm")
	s.Layer(s.From)
	d.blocks = []decoderBlock{d.block(s.From, block)}
	m.input = newBeside(s, d.opt.newNorm(s, block+"input_layernorm"),
		d.opt.newNorm(s, block+"hidden_norm"))
	d.blocks[0].attnNorm = m.input
	m.fc = s.Linear("fc", width, len(h.taps)*width)
	s.Own(2*width + c.VocabSize)
	return m, m.readTargets(h.vocab)
}

// readTargets reads which of the model's tokens the head guesses: d2t has how much larger the
// number of each is there. Without it they are the first ones.
func (m *eagle) readTargets(vocab int) error {
	if vocab == m.cfg.VocabSize {
		return m.Err()
	}
	more := make([]int64, vocab)
	if m.Has("d2t") {
		copy(more, m.Integers("d2t", vocab))
	}
	for i, n := range more {
		if n < -int64(i) || n >= int64(m.cfg.VocabSize-i) {
			return fmt.Errorf("tensor %q has token %d be one that is %d further, of %d", "d2t", i,
				n, m.cfg.VocabSize)
		}
		m.targets = append(m.targets, int32(i)+int32(n))
	}
	return m.Err()
}

// reduce makes one hidden state of three.
func (m *eagle) reduce(features *layers.Tensor) *layers.Tensor {
	m.fc.Forward(&m.reduced, features)
	return &m.reduced
}

func (m *eagle) forward(x *layers.Tensor, b *compute.Batch, cache compute.Cache) error {
	m.tokens.Lookup(&m.input.embedded, b.Tokens)
	return m.decoder.forward(x, b, cache)
}

// logits are those of the model's tokens: those that the head cannot guess have none.
func (m *eagle) logits(x *layers.Tensor) (*layers.Tensor, error) {
	own, err := m.decoder.logits(x)
	if err != nil || m.targets == nil {
		return own, err
	}
	m.Resize(&m.all, own.Rows, m.cfg.VocabSize)
	for i := range own.Rows {
		to := m.all.Row(i)
		for j := range to {
			to[j] = float32(math.Inf(-1))
		}
		for j, v := range own.Row(i) {
			to[m.targets[j]] = v
		}
	}
	m.all.Memory.Filled()
	return &m.all, nil
}
