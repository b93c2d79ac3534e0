// Package api is the HTTP surface: OpenAI's API as `vllm serve` speaks it, with vLLM's extra
// fields, Anthropic's Messages, OpenAI's Responses, files and batches, health and metrics.
//
// A request goes through here once. The transport (package server) takes it in: keys, limits,
// strict JSON. A dialect (packages openai, anthropic, responses, pooling) reads its fields into a
// typed request; package generate checks that against the model, makes the prompt, resolves the
// sampling parameters and submits it to the engine; the dialect writes what comes back, as one JSON
// document or a stream of server-sent events. Everything a client can get wrong is answered here
// with a 4xx that names the field; what reaches the engine is valid. This package puts the parts
// together.
//
// Three policies differ from vLLM on purpose. Duplicate keys, lone surrogates and invalid UTF-8 are
// refused instead of being repaired. Fields that are known and not supported are refused by name
// unless their value is the neutral one. And the text of a special token inside a chat message is
// text: it does not become the control token (Options.SpecialTokensInContent restores vLLM's
// behaviour).
package api
