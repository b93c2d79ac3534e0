package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// roberta is RobertaModel: BERT with positions that begin after the padding token's, one type of
// tokens, and another head of classifiers. Defaults: configuration_roberta.py.
func roberta() *family { return robertaOf("roberta", "RobertaModel", 50265) }

// xlmRoberta is XLMRobertaModel, the same with a vocabulary of many languages. Defaults:
// configuration_xlm_roberta.py.
func xlmRoberta() *family { return robertaOf("xlm-roberta", "XLMRobertaModel", 30522) }

func robertaOf(modelType, architecture string, vocab int) *family {
	return &family{modelType: modelType, architecture: architecture, encoder: true,
		defaults: Config{VocabSize: vocab, HiddenSize: 768, IntermediateSize: 3072, Layers: 12,
			Heads: 12, MaxPositions: 512, NormEps: 1e-12, Activation: "gelu", TokenTypes: 2, BOS: 0,
			PAD: 1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBERT(f, c, d, "roberta.", true)
		},
		build: newBERT,
		head: func(c *Config) []HeadLayer {
			return []HeadLayer{
				{Module: "classifier.dense", Out: c.HiddenSize, In: c.HiddenSize, Bias: true,
					Activation: "tanh"},
				{Module: "classifier.out_proj", Out: len(c.Classifier.Labels), In: c.HiddenSize,
					Bias: true}}
		}}
}
