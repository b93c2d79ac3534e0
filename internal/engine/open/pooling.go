package open

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// Pooling is how a model that was started with --runner pooling makes vectors of texts.
type Pooling struct {
	// Type is PoolLast or PoolMean.
	Type step.Pooling
	// Normalize makes vectors of length 1.
	Normalize bool
	// Width is the number of elements of a vector.
	Width int
	// Matryoshka lets requests ask for the first elements only: any number of them, or one of
	// Dimensions where there are any.
	Matryoshka bool
	Dimensions []int
	// Classifier are the tokens for "no" and "yes" of a model that scores pairs of texts by what it
	// would say; empty for others.
	Classifier []int32
	// Qwen3Reranker asks as Qwen3-Reranker was trained.
	Qwen3Reranker bool
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

// hfOverrides is --hf-overrides. The architecture is the one of config.json, whatever it says.
type hfOverrides struct {
	IsMatryoshka         bool            `json:"is_matryoshka"`
	MatryoshkaDimensions []int           `json:"matryoshka_dimensions"`
	ClassifierFromToken  []string        `json:"classifier_from_token"`
	Qwen3Reranker        bool            `json:"is_original_qwen3_reranker"`
	Architectures        json.RawMessage `json:"architectures"`
}

// readPooling finds how the model pools: by the flags, else by the files that sentence-transformers
// keeps beside it, else by its last token, normalized.
func (r *resolver) readPooling() error {
	m, head := &r.Config.Model, r.Model.Classifier
	if head != nil && m.Runner == "generate" {
		return &config.UsageError{Err: fmt.Errorf("--runner generate: %q is a classifier, it "+
			"generates nothing", r.Info.Root)}
	}
	if m.Runner != "pooling" && head == nil {
		if m.PoolerConfig != "" || m.HFOverrides != "" && m.HFOverrides != "{}" {
			return &config.UsageError{Err: errors.New(
				"--pooler-config and --hf-overrides are for --runner pooling")}
		}
		return nil
	}
	p := &Pooling{Type: step.PoolLast, Normalize: true, Width: r.Model.HiddenSize}
	if head != nil {
		p.Classes = &Classes{Labels: head.Labels, Activate: true, problem: head.ProblemType,
			width: p.Width}
	} else if err := r.readSentenceTransformer(p); err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	if err := p.configure(m.PoolerConfig); err != nil {
		return &config.UsageError{Err: fmt.Errorf("--pooler-config: %w", err)}
	}
	if err := r.override(p, m.HFOverrides); err != nil {
		return &config.UsageError{Err: fmt.Errorf("--hf-overrides: %w", err)}
	}
	r.Info.Pooling = p
	return nil
}

// readSentenceTransformer reads the pooling module of sentence-transformers, which has a folder of
// its own.
func (r *resolver) readSentenceTransformer(p *Pooling) error {
	if r.dir == "" {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(r.dir, "1_Pooling", "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c struct {
		Last bool `json:"pooling_mode_lasttoken"`
		Mean bool `json:"pooling_mode_mean_tokens"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("1_Pooling/config.json: %w", err)
	}
	switch {
	case c.Last == c.Mean:
		return errors.New("1_Pooling/config.json: neither the last token nor the mean is pooled, " +
			"or both are")
	case c.Mean:
		p.Type = step.PoolMean
	}
	_, err = os.Stat(filepath.Join(r.dir, "2_Normalize"))
	p.Normalize = err == nil
	return nil
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
		default:
			return fmt.Errorf("pooling_type %q is not one of LAST, MEAN", *kind)
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

// override applies --hf-overrides.
func (r *resolver) override(p *Pooling, text string) error {
	if text == "" {
		return nil
	}
	var o hfOverrides
	if err := decodeStrict(text, &o); err != nil {
		return err
	}
	if p.Classes != nil && (o.IsMatryoshka || o.Qwen3Reranker || len(o.MatryoshkaDimensions) > 0 ||
		len(o.ClassifierFromToken) > 0) {
		return fmt.Errorf("%q is a classifier, of which nothing is overridden", r.Info.Root)
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
