package open

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/engine/open/sentence"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Classes is a head over classes, transformers' …ForSequenceClassification. The driver applies it
// to the vectors that the ranks pool: it is as small as they are.
type Classes struct {
	// Labels are the names of the classes.
	Labels []string
	// Activate makes logits probabilities, unless a request says otherwise.
	Activate bool

	problem  string
	identity bool
	// head are its layers.
	head []*sentence.Dense
}

// NewClasses returns a head of a weight [classes][width]; problem is config.json's problem_type.
func NewClasses(labels []string, problem string, weight []float32) *Classes {
	n := max(1, len(labels))
	return &Classes{Labels: labels, Activate: true, problem: problem,
		head: []*sentence.Dense{{In: len(weight) / n, Out: n, Weight: weight}}}
}

// Of returns the values of the classes for a pooled vector of the model: logits, or with activate
// what the problem makes of them. One class, and each of several labels, has a probability of its
// own (sigmoid); else they share one (softmax); a regression's are as they are, and those of a
// cross-encoder that says so.
func (c *Classes) Of(v []float32, activate bool) ([]float32, error) {
	for _, layer := range c.head {
		var err error
		if v, err = layer.Of(v); err != nil {
			return nil, fmt.Errorf("classifier: %w", err)
		}
	}
	if activate {
		c.activate(v)
	}
	return v, nil
}

func (c *Classes) activate(logits []float32) {
	switch {
	case c.identity, c.problem == "regression":
	case c.problem == "multi_label_classification", len(logits) == 1:
		for i, x := range logits {
			logits[i] = float32(1 / (1 + math.Exp(-float64(x))))
		}
	default:
		top, sum := float64(slices.Max(logits)), 0.0
		for _, x := range logits {
			sum += math.Exp(float64(x) - top)
		}
		for i, x := range logits {
			logits[i] = float32(math.Exp(float64(x)-top) / sum)
		}
	}
}

// readClasses loads the head of a classifier.
func (r *resolver) readClasses() error {
	p := r.Info.Pooling
	if p == nil || p.Classes == nil {
		return nil
	}
	layers, err := model.Head(r.Model)
	if err == nil {
		p.Classes.head, err = r.readHead(layers)
	}
	if err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	return nil
}

// readHead reads layers from the checkpoint, or makes them random.
func (r *resolver) readHead(layers []model.HeadLayer) (head []*sentence.Dense, err error) {
	weights, err := r.headWeights(layers)
	if err != nil {
		return nil, err
	}
	defer weights.Close()
	vector := func(name string, n int, there bool) (v []float32) {
		if there && err == nil {
			v, err = sentence.Tensor(weights, name, n)
		}
		return v
	}
	for _, x := range layers {
		d := &sentence.Dense{In: x.In, Out: x.Out, Activation: x.Activation, NormEps: x.NormEps}
		if err == nil {
			d.Weight, err = sentence.Tensor(weights, x.Module+".weight", x.Out, x.In)
		}
		d.Bias = vector(x.Module+".bias", x.Out, x.Bias)
		d.Norm = vector(x.Norm+".weight", x.Out, x.Norm != "")
		d.NormBias = vector(x.Norm+".bias", x.Out, x.NormBias)
		head = append(head, d)
	}
	return head, err
}

// headWeights is the checkpoint, or one of random weights.
func (r *resolver) headWeights(layers []model.HeadLayer) (*checkpoint.Checkpoint, error) {
	if r.Config.Model.LoadFormat != "dummy" {
		return checkpoint.Open(r.folder)
	}
	var all []checkpoint.Spec
	for _, x := range layers {
		all = append(all, checkpoint.Spec{Name: x.Module + ".weight", Shape: []int{x.Out, x.In}},
			checkpoint.Spec{Name: x.Module + ".bias", Shape: []int{x.Out}})
		if x.Norm != "" {
			all = append(all, checkpoint.Spec{Name: x.Norm + ".weight", Shape: []int{x.Out}},
				checkpoint.Spec{Name: x.Norm + ".bias", Shape: []int{x.Out}})
		}
	}
	return checkpoint.Dummy(all, 0, checkpoint.F32)
}
