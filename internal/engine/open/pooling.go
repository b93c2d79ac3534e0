package open

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/engine/open/sentence"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// Pooling is how a model that was started with --runner pooling makes vectors of texts.
type Pooling struct {
	// Type is what of the states of a text is pooled.
	Type step.Pooling
	// Normalize makes vectors of length 1.
	Normalize bool
	// Width is the number of elements of a vector, State that of a token's state in the model.
	Width, State int
	// Matryoshka lets requests ask for the first elements only: any number of them, or one of
	// Dimensions where there are any.
	Matryoshka bool
	Dimensions []int
	// Classifier are the tokens for "no" and "yes" of a model that scores pairs of texts by what it
	// would say; empty for others.
	Classifier []int32
	// Templated says that the chat template makes one prompt of two texts: it is a flag's.
	Templated bool
	// Qwen3Reranker asks as Qwen3-Reranker was trained.
	Qwen3Reranker bool
	// Dense are layers that a pooled state passes before it is the vector.
	Dense []*sentence.Dense
	// Prompts are put before texts, by the names that requests give them; DefaultPrompt is that of
	// texts without one, "" for none. Lower makes their letters small.
	Prompts       map[string]string
	DefaultPrompt string
	Lower         bool
	// PairTypes says that tokens of the second text of a pair have a type of their own.
	PairTypes bool
	// Classes is the head of a model that classifies texts; nil for one that embeds them.
	Classes *Classes
}

// poolerConfig is --pooler-config: vLLM's PoolerConfig, with the names of several of its versions.
type poolerConfig struct {
	PoolingType    *string `json:"pooling_type"`
	SeqPoolingType *string `json:"seq_pooling_type"`
	Normalize      *bool   `json:"normalize"`
	UseActivation  *bool   `json:"use_activation"`
}

// hfOverrides is --hf-overrides, but for what model.Override replaces. The architecture is the
// one of config.json, whatever it says.
type hfOverrides struct {
	IsMatryoshka         bool            `json:"is_matryoshka"`
	MatryoshkaDimensions []int           `json:"matryoshka_dimensions"`
	ClassifierFromToken  []string        `json:"classifier_from_token"`
	Qwen3Reranker        bool            `json:"is_original_qwen3_reranker"`
	Architectures        json.RawMessage `json:"architectures"`
}

// readPooling finds how the model pools: by the flags, else by the files that sentence-transformers
// keeps beside it, else by its last token, of an encoder by its first one, normalized.
func (r *resolver) readPooling() error {
	m, head := &r.Config.Model, r.Model.Classifier
	pools, kind := r.Model.Pools(), "a classifier"
	switch {
	case r.Model.Encoder:
		kind = "an encoder"
	case r.Model.Headless:
		kind = "a model without a head"
	}
	if pools && m.Runner == "generate" {
		return usage("--runner generate: %q is %s, it generates nothing", r.Info.Root, kind)
	}
	if m.Runner != "pooling" && !pools {
		if m.PoolerConfig != "" {
			return usage("--pooler-config %q is for --runner pooling", m.PoolerConfig)
		}
		delete(r.poolOverrides, "architectures") // which is config.json's, whatever it says
		if keys := slices.Sorted(maps.Keys(r.poolOverrides)); len(keys) > 0 {
			return usage("--hf-overrides: %s: of a model that generates the positions are "+
				"overridden (rope_scaling, rope_theta, rope_parameters, max_position_embeddings), "+
				"the rest is for --runner pooling", strings.Join(keys, ", "))
		}
		return nil
	}
	p := &Pooling{Type: step.PoolLast, Normalize: true, Width: r.Model.StateSize(),
		State:     r.Model.StateSize(),
		PairTypes: r.Model.TokenTypes > 1, Templated: m.ChatTemplate != ""}
	if r.Model.Encoder {
		p.Type = step.PoolCLS // vLLM's, too
	}
	most := 0
	if head != nil {
		p.Classes = &Classes{Labels: head.Labels, Activate: true, problem: head.ProblemType,
			identity: head.Identity}
		if head.Pooling == "mean" {
			p.Type = step.PoolMean
		}
	} else {
		var err error
		if most, err = r.readSentenceTransformer(p); err != nil {
			return fmt.Errorf("model %q: %w", r.Info.Root, err)
		}
	}
	if err := r.boundTexts(most); err != nil {
		return err
	}
	if err := p.configure(m.PoolerConfig); err != nil {
		return usage("--pooler-config: %w", err)
	}
	if err := r.override(p); err != nil {
		return usage("--hf-overrides: %w", err)
	}
	r.Info.Pooling = p
	return nil
}

// boundTexts lets texts have most tokens, 0 for what an encoder's tokenizer or the positions allow,
// unless the flags say how many.
func (r *resolver) boundTexts(most int) error {
	if r.Model.Encoder {
		most = cmp.Or(most, r.tokenizerLength())
	}
	if most > 0 && r.Config.Model.MaxModelLen == 0 {
		r.Info.MaxModelLen = min(r.Info.MaxModelLen, most)
	}
	if r.Model.Encoder {
		return r.checkEncoder()
	}
	return nil
}

// tokenizerLength is how many tokens of a text the tokenizer is for, 0 for any number.
func (r *resolver) tokenizerLength() int {
	if r.Info.Tokenizer == nil {
		return 0
	}
	return r.Info.Tokenizer.Config().ModelMaxLength
}

// checkEncoder refuses flags that ask of an encoder what only a model with a KV cache does.
func (r *resolver) checkEncoder() error {
	c := r.Config
	switch tokens := c.Schedule.MaxNumBatchedTokens; {
	case c.Parallel.Layout().Sizes().PCP > 1:
		return usage("--prefill-context-parallel-size %d: all tokens of a text see each other in "+
			"%q, whose rows are not divided among ranks", c.Parallel.PrefillContextParallelSize,
			r.Info.Root)
	case c.Transfer.Role != "":
		return usage("--kv-transfer-config: %q is an encoder, which has no KV cache", r.Info.Root)
	case tokens < r.Info.MaxModelLen &&
		tokens != config.Default().Schedule.MaxNumBatchedTokens:
		return usage("--max-num-batched-tokens %d is less than the %d tokens of the longest text "+
			"(--max-model-len), and %q computes a text in one step", tokens, r.Info.MaxModelLen,
			r.Info.Root)
	}
	return nil
}

// readSentenceTransformer reads what sentence-transformers keeps beside the model, and how many
// tokens of a text it reads, 0 for as many as the model.
func (r *resolver) readSentenceTransformer(p *Pooling) (most int, err error) {
	if r.dir == "" {
		return 0, nil
	}
	m, err := sentence.Read(r.dir, r.Model.StateSize())
	if err != nil || m == nil {
		return 0, err
	}
	p.Type, p.Normalize, p.Dense = m.Pooling, m.Normalize, m.Dense
	if n := len(p.Dense); n > 0 {
		p.Width = p.Dense[n-1].Out
	}
	p.Prompts, p.DefaultPrompt, p.Lower = m.Prompts, m.Default, m.Lower
	return cmp.Or(m.MaxLength, r.tokenizerLength()), nil
}

// configure applies --pooler-config.
func (p *Pooling) configure(text string) error {
	if text == "" {
		return nil
	}
	var c poolerConfig
	if err := decodeStrict(text, &c); err != nil {
		return err
	}
	kind := c.SeqPoolingType
	if kind == nil {
		kind = c.PoolingType
	}
	if kind != nil {
		switch strings.ToUpper(*kind) {
		case step.PoolLast.String():
			p.Type = step.PoolLast
		case step.PoolMean.String():
			p.Type = step.PoolMean
		case step.PoolCLS.String():
			p.Type = step.PoolCLS
		default:
			return fmt.Errorf("pooling_type %q is not one of LAST, MEAN, CLS", *kind)
		}
	}
	if p.Classes != nil {
		if c.Normalize != nil {
			return errors.New("normalize is for embeddings: a classifier has use_activation")
		}
		if c.UseActivation != nil {
			p.Classes.Activate = *c.UseActivation
		}
		return nil
	}
	for _, n := range []*bool{c.Normalize, c.UseActivation} {
		if n != nil {
			p.Normalize = *n
		}
	}
	return nil
}

// override applies what --hf-overrides says of pooling.
func (r *resolver) override(p *Pooling) error {
	text, err := json.Marshal(r.poolOverrides)
	if err != nil {
		return err
	}
	var o hfOverrides
	if err := decodeStrict(string(text), &o); err != nil {
		return err
	}
	if p.Classes != nil && (o.IsMatryoshka || o.Qwen3Reranker || len(o.MatryoshkaDimensions) > 0 ||
		len(o.ClassifierFromToken) > 0) {
		return fmt.Errorf("%q is a classifier, of which nothing is overridden", r.Info.Root)
	}
	if r.Model.Encoder && (o.Qwen3Reranker || len(o.ClassifierFromToken) > 0) {
		return fmt.Errorf("%q is an encoder, which says no token", r.Info.Root)
	}
	p.Matryoshka = o.IsMatryoshka || len(o.MatryoshkaDimensions) > 0
	for _, d := range o.MatryoshkaDimensions {
		if d < 1 || d > p.Width {
			return fmt.Errorf("matryoshka_dimensions: %d is not within 1 to %d", d, p.Width)
		}
	}
	p.Dimensions, p.Qwen3Reranker = o.MatryoshkaDimensions, o.Qwen3Reranker
	if len(o.ClassifierFromToken) == 0 {
		return nil
	}
	if len(o.ClassifierFromToken) != 2 {
		return fmt.Errorf("classifier_from_token has %d tokens, it takes the one for no and the "+
			"one for yes", len(o.ClassifierFromToken))
	}
	if r.Info.Tokenizer == nil {
		return errors.New("classifier_from_token needs a tokenizer")
	}
	for _, text := range o.ClassifierFromToken {
		ids := r.Info.Tokenizer.Encode(text, false)
		if len(ids) != 1 {
			return fmt.Errorf("classifier_from_token: %q is %d tokens of the model, not one", text,
				len(ids))
		}
		p.Classifier = append(p.Classifier, ids[0])
	}
	return nil
}

// Vector is what is answered of a pooled state, before it is normalized.
func (p *Pooling) Vector(v []float32) ([]float32, error) {
	for _, d := range p.Dense {
		var err error
		if v, err = d.Of(v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func decodeStrict(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("there is more than one JSON value")
	}
	return nil
}
