package model

// newQwen2 builds Qwen2ForCausalLM (Qwen 2 and 2.5): query, key and value projections have biases.
func newQwen2(s *stage) (architecture, error) {
	return newDecoder(s, decoderOptions{qkvBias: s.cfg.QKVBias})
}
