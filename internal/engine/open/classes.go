package open

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Classes is a head over classes, transformers' …ForSequenceClassification. The driver applies it
// to the vectors that the ranks pool: it is as small as they are.
type Classes struct {
	// Labels are the names of the classes.
	Labels []string
	// Activate makes logits probabilities, unless a request says otherwise.
	Activate bool

	problem string
	width   int
	weight  []float32 // [classes][width]
}

// NewClasses returns a head of a weight [classes][width]; problem is config.json's problem_type.
func NewClasses(labels []string, problem string, weight []float32) *Classes {
	return &Classes{Labels: labels, Activate: true, problem: problem,
		width: len(weight) / max(1, len(labels)), weight: weight}
}

// Of returns the values of the classes for a pooled vector of the model: logits, or with activate
// what the problem makes of them. One class, and each of several labels, has a probability of its
// own (sigmoid); else they share one (softmax); a regression's are as they are.
func (c *Classes) Of(v []float32, activate bool) ([]float32, error) {
	if len(v) != c.width {
		return nil, fmt.Errorf("a pooled vector has %d elements, the classifier is for %d", len(v),
			c.width)
	}
	logits := make([]float64, len(c.Labels))
	for i := range logits {
		row := c.weight[i*c.width:][:c.width]
		for j, x := range v {
			logits[i] += float64(x) * float64(row[j])
		}
	}
	if activate {
		c.activate(logits)
	}
	values := make([]float32, len(logits))
	for i, x := range logits {
		values[i] = float32(x)
	}
	return values, nil
}

func (c *Classes) activate(logits []float64) {
	switch {
	case c.problem == "regression":
	case c.problem == "multi_label_classification", len(logits) == 1:
		for i, x := range logits {
			logits[i] = 1 / (1 + math.Exp(-x))
		}
	default:
		top, sum := slices.Max(logits), 0.0
		for i, x := range logits {
			logits[i] = math.Exp(x - top)
			sum += logits[i]
		}
		for i := range logits {
			logits[i] /= sum
		}
	}
}

// readClasses loads the head of a classifier.
func (r *resolver) readClasses() error {
	p := r.Info.Pooling
	if p == nil || p.Classes == nil {
		return nil
	}
	const name = "score.weight"
	c := p.Classes
	shape := []int{len(c.Labels), c.width}
	weights, err := r.classWeights(checkpoint.Spec{Name: name, Shape: shape})
	if err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	defer weights.Close()
	t, err := weights.Tensor(name)
	if err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	if !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("model %q: tensor %q has shape %v, but config.json asks for %v",
			r.Info.Root, name, t.Shape, shape)
	}
	if c.weight, err = float32s(t); err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	return nil
}

// classWeights is the checkpoint, or one of random weights.
func (r *resolver) classWeights(head checkpoint.Spec) (*checkpoint.Checkpoint, error) {
	if r.Config.Model.LoadFormat == "dummy" {
		return checkpoint.Dummy([]checkpoint.Spec{head}, 0, checkpoint.F32)
	}
	return checkpoint.Open(r.folder)
}

// float32s are the elements of a tensor.
func float32s(t checkpoint.Tensor) ([]float32, error) {
	list := make([]float32, t.Elements())
	switch t.DType {
	case checkpoint.BF16:
		half.DecodeBF16(list, t.Data)
	case checkpoint.F16:
		half.DecodeF16(list, t.Data)
	case checkpoint.F32:
		half.DecodeF32(list, t.Data)
	default:
		return nil, fmt.Errorf("tensor %q: dtype %s cannot be a weight", t.Name, t.DType)
	}
	return list, nil
}
