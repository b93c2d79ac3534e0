package openai

import (
	"slices"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Examples of requests.
const (
	chatExample       = `{"messages":[{"role":"user","content":"What does os.Open do?"}]}`
	chatBatchExample  = `{"messages":[[{"role":"user","content":"What does os.Open do?"}]]}`
	completionExample = `{"prompt":"Package strings implements","max_tokens":16}`
	tokensExample     = `{"token_ids":[1,2,3],"sampling_params":{"max_tokens":16}}`
	tokenizeExample   = `{"prompt":"Package strings implements"}`
)

// Routes are those of the dialect.
func (s *API) Routes() []server.Route {
	list := []server.Route{
		server.Posted(s.Server, CompletionPath, generate.Bind(s.Service, decodeCompletion),
			s.completions, server.Doc{Summary: "Go on with a text", Answer: completionResponse{},
				Events: []any{completionChunk{}, wire.ErrorBody{}},
				Forms:  append(samplingForms(prompted), promptForms...)}, completionExample),
		server.Posted(s.Server, ChatPath, generate.Bind(s.Service, decodeChat),
			s.chatCompletions, server.Doc{Summary: "Answer a conversation", Answer: chatResponse{},
				Events: []any{chatChunk{}, wire.ErrorBody{}},
				Forms:  append(samplingForms(asked), chatForms...)}, chatExample),
		server.Posted(s.Server, ChatBatchPath, generate.Bind(s.Service, decodeChatBatch),
			s.chatBatch, server.Doc{Summary: "Answer many conversations", Answer: chatResponse{}},
			chatBatchExample),
		server.Posted(s.Server, TokensPath, generate.Bind(s.Service, decodeTokens),
			s.generateTokens, server.Doc{Summary: "Go on with token ids", Answer: tokensResponse{},
				Events: []any{tokensChunk{}, wire.ErrorBody{}}}, tokensExample),
	}
	for i := range list {
		list[i].Handler = server.Checked(s.Generates, s.Counted(list[i].Handler))
	}
	list = append(list,
		server.Route{Method: "GET", Path: "/v1/models", Handler: s.listModels,
			Doc: server.Doc{Summary: "List the names of the model", Answer: modelList{}}},
		server.Route{Method: "GET", Path: "/v1/models/{model...}", Handler: s.getModel,
			Doc: server.Doc{Summary: "Describe the model", Answer: modelCard{}}},
		server.Posted(s.Server, "/tokenize", generate.Bind(s.Service, decodeTokenize),
			s.tokenizeText, server.Doc{Summary: "Turn a text or a conversation into token ids",
				Answer: tokenized{}, Forms: slices.Concat(chatForms, promptForms)},
			tokenizeExample, chatExample),
		server.Posted(s.Server, "/detokenize", generate.Bind(s.Service, decodeDetokenize),
			s.detokenize, server.Doc{Summary: "Turn token ids into a text", Answer: detokenized{}},
			`{"tokens":[1,2,3]}`))
	if s.Model.Answers.TokenizerInfo {
		list = append(list, server.Route{Method: "GET", Path: "/tokenizer_info",
			Handler: s.tokenizerInfo,
			Doc: server.Doc{Summary: "Show the configuration of the tokenizer",
				Answer: map[string]any{}}})
	}
	return list
}
