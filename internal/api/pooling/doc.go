// Package pooling answers requests for what a model pools of texts: embeddings, classes, scores and
// ranks.
package pooling
