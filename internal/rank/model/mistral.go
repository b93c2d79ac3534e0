package model

// newMistral builds MistralForCausalLM: Llama's layers without biases, each attending to a sliding
// window when the config has one.
func newMistral(s *stage) (architecture, error) {
	return newDecoder(s, decoderOptions{})
}
