package model

import (
	"slices"
	"strconv"

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
	c.ProblemType = f.Text("problem_type", "")
	kinds := []string{"", "single_label_classification", "multi_label_classification", "regression"}
	if !slices.Contains(kinds, c.ProblemType) {
		f.Fail(checkpoint.ErrUnsupported, "problem_type", "is %s", checkpoint.Short(c.ProblemType))
	}
}
