package model

// newLlama builds LlamaForCausalLM (Llama 2 and 3 and the many models of their shape).
func newLlama(s *stage) (architecture, error) {
	c := s.cfg
	return newDecoder(s, decoderOptions{qkvBias: c.QKVBias, outBias: c.OutBias, mlpBias: c.MLPBias})
}
