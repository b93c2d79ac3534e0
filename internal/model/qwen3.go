package model

// newQwen3 builds Qwen3ForCausalLM: each query and key head is normalised before it is rotated.
func newQwen3(l *loader) (Model, error) {
	c := l.cfg
	return newDecoder(l, decoderOptions{qkvBias: c.QKVBias, outBias: c.OutBias, headNorms: true})
}
