package checkpoint

import (
	"slices"
	"strconv"
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
func readClassifier(f *fields, c *Classifier) {
	if labels := f.object("id2label"); labels != nil && len(labels.raw) > 0 {
		for i := range min(len(labels.raw), maxClasses+1) {
			key := strconv.Itoa(i)
			if !labels.has(key) {
				f.fail(ErrMalformed, "id2label", "has %d labels, and none for class %d",
					len(labels.raw), i)
				return
			}
			c.Labels = append(c.Labels, labels.text(key, ""))
		}
		if f.err == nil {
			f.err = labels.err
		}
	} else {
		for i := range f.integer("num_labels", 2, 1, maxClasses) {
			c.Labels = append(c.Labels, "LABEL_"+strconv.Itoa(i))
		}
	}
	if len(c.Labels) > maxClasses {
		f.fail(ErrUnsupported, "id2label", "has more than %d labels", maxClasses)
	}
	c.ProblemType = f.text("problem_type", "")
	kinds := []string{"", "single_label_classification", "multi_label_classification", "regression"}
	if !slices.Contains(kinds, c.ProblemType) {
		f.fail(ErrUnsupported, "problem_type", "is %s", short(c.ProblemType))
	}
}
