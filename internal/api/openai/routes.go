package openai

import (
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
)

// Routes are those of the dialect.
func (s *API) Routes() []server.Route {
	var list []server.Route
	add := func(method, path string, h server.Handler) {
		list = append(list, server.Route{Method: method, Path: path, Handler: h})
	}
	generates := func(h server.Handler) server.Handler {
		return server.Checked(s.Generates, s.Counted(h))
	}
	add("POST", CompletionPath, generates(server.Post(s.Server, generate.Bind(s.Service,
		decodeCompletion), s.completions)))
	add("POST", ChatPath, generates(server.Post(s.Server, generate.Bind(s.Service, decodeChat),
		s.chatCompletions)))
	add("POST", ChatBatchPath, generates(server.Post(s.Server, generate.Bind(s.Service,
		decodeChatBatch), s.chatBatch)))
	add("POST", TokensPath, generates(server.Post(s.Server, generate.Bind(s.Service, decodeTokens),
		s.generateTokens)))
	add("GET", "/v1/models", s.listModels)
	add("GET", "/v1/models/{model...}", s.getModel)
	add("POST", "/tokenize", server.Post(s.Server, generate.Bind(s.Service, decodeTokenize),
		s.tokenizeText))
	add("POST", "/detokenize", server.Post(s.Server, generate.Bind(s.Service, decodeDetokenize),
		s.detokenize))
	if s.Model.Answers.TokenizerInfo {
		add("GET", "/tokenizer_info", s.tokenizerInfo)
	}
	return list
}
