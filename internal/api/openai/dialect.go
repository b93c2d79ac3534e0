package openai

import (
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// completionsAPI answers requests in OpenAI's dialect: chat, completions, models and tokens.
type completionsAPI struct {
	*server.Server
	*Service
	cfg *config.Server
	// created is the Unix time that the list of models shows.
	created int64
}

func (s *completionsAPI) routes() []server.Route {
	var list []server.Route
	add := func(method, path string, h server.Handler) {
		list = append(list, server.Route{Method: method, Path: path, Handler: h})
	}
	generates := func(h server.Handler) server.Handler {
		return server.Checked(s.Generates, s.Counted(h))
	}
	add("POST", completionPath, generates(server.Post(s.Server, Bind(s.Service, decodeCompletion), s.completions)))
	add("POST", chatPath, generates(server.Post(s.Server, Bind(s.Service, decodeChat), s.chatCompletions)))
	add("POST", chatBatchPath, generates(server.Post(s.Server, Bind(s.Service, decodeChatBatch), s.chatBatch)))
	add("POST", tokensPath, generates(server.Post(s.Server, Bind(s.Service, decodeTokens), s.generateTokens)))
	add("GET", "/v1/models", s.listModels)
	add("GET", "/v1/models/{model...}", s.getModel)
	add("POST", "/tokenize", server.Post(s.Server, Bind(s.Service, decodeTokenize), s.tokenizeText))
	add("POST", "/detokenize", server.Post(s.Server, Bind(s.Service, decodeDetokenize), s.detokenize))
	if s.model.answers.TokenizerInfo {
		add("GET", "/tokenizer_info", s.tokenizerInfo)
	}
	return list
}
