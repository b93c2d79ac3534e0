// Package openai is the HTTP surface: OpenAI's completions and chat API as `vllm serve` speaks it,
// with vLLM's extra fields, tokenisation, health and metrics.
//
// A request goes through here once: authentication and limits (server.go, security.go), strict JSON
// (json.go, fields.go), the fields of each endpoint (sampling.go, completion_request.go,
// chat_request.go), tokens (prompt.go, render.go), resolved sampling parameters (params.go), the
// engine (generate.go), and back as one JSON document or a stream of server-sent events
// (completion.go, chat.go, events.go). Everything a client can get wrong is answered here with a
// 4xx that names the field; what reaches the engine is valid.
//
// Three policies differ from vLLM on purpose. Duplicate keys, lone surrogates and invalid UTF-8 are
// refused instead of being repaired. Fields that are known and not supported are refused by name
// unless their value is the neutral one. And the text of a special token inside a chat message is
// text: it does not become the control token (Options.SpecialTokensInContent restores vLLM's
// behaviour).
package openai
