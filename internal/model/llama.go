package model

// newLlama builds LlamaForCausalLM (Llama 2 and 3 and the many models of their shape).
func newLlama(l *loader) (Model, error) {
	c := l.cfg
	return newDecoder(l, decoderOptions{qkvBias: c.QKVBias, outBias: c.OutBias, mlpBias: c.MLPBias})
}
