package model

// newQwen3 builds Qwen3ForCausalLM: each query and key head is normalised before it is rotated.
func newQwen3(s *stage) (architecture, error) {
	c := s.cfg
	return newDecoder(s, decoderOptions{qkvBias: c.QKVBias, outBias: c.OutBias, headNorms: true})
}
