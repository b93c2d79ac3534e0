package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// bert is BertModel, and BertForMaskedLM and BertForSequenceClassification around it: learned
// positions, two types of tokens, norms after each block. Defaults: configuration_bert.py.
func bert() *family {
	return &family{modelType: "bert", architecture: "BertModel", encoder: true,
		defaults: Config{VocabSize: 30522, HiddenSize: 768, IntermediateSize: 3072, Layers: 12,
			Heads: 12, MaxPositions: 512, NormEps: 1e-12, Activation: "gelu", TokenTypes: 2,
			BOS: -1, PAD: 0},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBERT(f, c, d, "bert.", false)
		},
		build: newBERT,
		head: func(c *Config) []HeadLayer {
			return []HeadLayer{
				{Module: "bert.pooler.dense", Out: c.HiddenSize, In: c.HiddenSize, Bias: true,
					Activation: "tanh"},
				{Module: "classifier", Out: len(c.Classifier.Labels), In: c.HiddenSize, Bias: true}}
		}}
}
