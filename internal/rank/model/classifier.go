package model

import (
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Classifier is what config.json says of a model whose head is over classes in the place of tokens,
// transformers' …ForSequenceClassification.
type Classifier struct {
	// Labels are the names of the classes, in their order.
	Labels []string
	// ProblemType is single_label_classification, multi_label_classification, regression, or empty
	// when the file does not say.
	ProblemType string
	// Identity says that logits are the values of the classes, whatever the problem is: the
	// activation that sentence-transformers writes for a cross-encoder.
	Identity bool
	// Pooling is what of the hidden states the head reads: cls or mean, by default the first token
	// of an encoder and the last one of others.
	Pooling string
}

// HeadLayer is one of the layers of a classifier's head: a linear one, then an activation, then a
// LayerNorm.
type HeadLayer struct {
	// Module has the weight, [Out][In], and the bias, if there is one.
	Module  string
	Out, In int
	Bias    bool
	// Activation is tanh, gelu, gelu_tanh, relu, silu, or empty for none.
	Activation string
	// Norm is the module of the LayerNorm, "" for none, NormBias whether it has a bias.
	Norm     string
	NormBias bool
	NormEps  float64
}

// Head are the layers of the head of a classifier, in their order.
func Head(c *Config) ([]HeadLayer, error) {
	fam, err := c.family()
	if err != nil {
		return nil, err
	}
	if fam.head == nil {
		return []HeadLayer{{Module: "score", Out: len(c.Classifier.Labels), In: c.StateSize()}}, nil
	}
	return fam.head(c), nil
}

// maxClasses bounds the number of classes.
const maxClasses = 1 << 16

// readClassifier reads the classes. transformers writes id2label unless there are two without
// names.
func readClassifier(f *checkpoint.Fields, c *Classifier) {
	if labels := f.Object("id2label"); labels != nil && labels.Len() > 0 {
		for i := range min(labels.Len(), maxClasses+1) {
			key := strconv.Itoa(i)
			if !labels.Has(key) {
				f.Fail(checkpoint.ErrMalformed, "id2label", "has %d labels, and none for class %d",
					labels.Len(), i)
				return
			}
			c.Labels = append(c.Labels, labels.Text(key, ""))
		}
		f.Adopt(labels)
	} else {
		for i := range f.Integer("num_labels", 2, 1, maxClasses) {
			c.Labels = append(c.Labels, "LABEL_"+strconv.Itoa(i))
		}
	}
	if len(c.Labels) > maxClasses {
		f.Fail(checkpoint.ErrUnsupported, "id2label", "has more than %d labels", maxClasses)
	}
	readCrossEncoder(f, c)
	c.ProblemType = f.Text("problem_type", "")
	kinds := []string{"", "single_label_classification", "multi_label_classification", "regression"}
	if !slices.Contains(kinds, c.ProblemType) {
		f.Fail(checkpoint.ErrUnsupported, "problem_type", "is %s", checkpoint.Short(c.ProblemType))
	}
}

// readCrossEncoder reads which activation sentence-transformers applies to scores, by its names in
// several versions.
func readCrossEncoder(f *checkpoint.Fields, c *Classifier) {
	const now, before = "activation_fn", "sbert_ce_default_activation_function"
	kind := f.Text(before, "")
	if own := f.Object("sentence_transformers"); own != nil {
		kind = own.Text(now, kind)
		f.Adopt(own)
	}
	switch name := kind[strings.LastIndexByte(kind, '.')+1:]; name {
	case "Identity":
		c.Identity = true
	case "", "Sigmoid":
	default:
		f.Fail(checkpoint.ErrUnsupported, now, "is %s", checkpoint.Short(kind))
	}
}

// Pools says that a model generates nothing: it classifies, is an encoder, or has no head.
func (c *Config) Pools() bool { return c.Classifier != nil || c.Encoder || c.Headless }
