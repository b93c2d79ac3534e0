package model

// newQwen2 builds Qwen2ForCausalLM (Qwen 2 and 2.5): query, key and value projections have biases.
func newQwen2(l *loader) (Model, error) {
	return newDecoder(l, decoderOptions{qkvBias: l.cfg.QKVBias})
}
