package openai

import (
	"context"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// tokenizeRequest is the body of POST /tokenize: a prompt, or a conversation.
type tokenizeRequest struct {
	model string
	text  *string // nil for a conversation
	generate.Conversation
	// withText asks for the text of each token, whole for that of the prompt.
	addSpecial, withText, whole bool
}

func decodeTokenize(f *wire.Fields, m *generate.Model) (*tokenizeRequest, *wire.Error) {
	r := &tokenizeRequest{}
	r.model = tokenizing(f, m)
	r.withText = f.OptBool("return_token_strs", false)
	r.whole = f.OptBool("return_prompt", false)
	_, chat := f.Members["messages"]
	r.text = f.OptString("prompt")
	r.addSpecial = f.Boolean("add_special_tokens", !chat)
	switch {
	case chat && r.text != nil:
		f.Fail(wire.BadRequest("messages", "give `prompt` or `messages`, not both"))
	case chat:
		DecodeConversation(&r.Conversation, f, m, true)
	case r.text == nil:
		f.Fail(wire.BadRequest("prompt", "`prompt` or `messages` is required"))
	}
	return r, f.Err
}

// tokenizing reads the model of a request that needs its tokenizer.
func tokenizing(f *wire.Fields, m *generate.Model) string {
	if m.Tokenizer == nil {
		f.Fail(noTokenizer())
	}
	if name := f.OptString("model"); name != nil {
		return *name
	}
	return ""
}

func noTokenizer() *wire.Error { return wire.BadRequest("", "the server runs without a tokenizer") }

// tokenized is the answer of POST /tokenize.
type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs" null:"true"`
	Prompt      *string  `json:"prompt,omitempty"`
}

// tokenizeText answers POST /tokenize: a prompt or a conversation as token ids.
func (s *API) tokenizeText(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	req *tokenizeRequest) error {
	if _, bad := s.CheckModel(req.model); bad != nil {
		return bad
	}
	p, err := s.tokensOf(r.Context(), req)
	if err != nil {
		return err
	}
	ids := p.Prompt
	answer := tokenized{Count: len(ids), MaxModelLen: s.Model.MaxModelLen,
		Tokens: append([]int32{}, ids...)}
	if req.whole {
		answer.Prompt = &p.Text
	}
	if req.withText {
		answer.TokenStrs = []string{}
		for _, id := range ids {
			text, _ := s.Model.Tokenizer.Token(id)
			answer.TokenStrs = append(answer.TokenStrs, text)
		}
	}
	return s.WriteJSON(w, answer)
}

func (s *API) tokensOf(ctx context.Context, req *tokenizeRequest) (p generate.Prompt, err error) {
	if req.text == nil {
		p, bad := s.Render(ctx, &req.Conversation, &generate.Sampling{AddSpecial: req.addSpecial})
		if bad != nil {
			return p, bad
		}
		return p, nil
	}
	if most := max(s.MostBytes(), generate.LeastTokenized); len(*req.text) > most {
		return p, wire.BadRequest("prompt", "the prompt of %d bytes is longer than what is "+
			"tokenized (at most %d bytes)", len(*req.text), most)
	}
	p.Text = *req.text
	p.Prompt, err = s.Model.Tokenizer.EncodeUntil(ctx.Err, p.Text, req.addSpecial)
	return p, err
}

// detokenizeRequest is the body of POST /detokenize.
type detokenizeRequest struct {
	model       string
	ids         []int32
	skipSpecial bool
}

func decodeDetokenize(f *wire.Fields, m *generate.Model) (*detokenizeRequest, *wire.Error) {
	r := &detokenizeRequest{model: tokenizing(f, m)}
	if raw := f.Members["tokens"]; raw == nil || wire.IsNull(raw) {
		f.Fail(wire.BadRequest("tokens", "`tokens` is required"))
	}
	// A token may be a hundred times as long as its number.
	r.ids = f.Tokens("tokens", max(4*m.MaxModelLen, 65536), m.VocabSize)
	r.skipSpecial = f.OptBool("skip_special_tokens", false)
	return r, f.Err
}

// detokenize answers POST /detokenize: token ids as text, special tokens included unless
// skip_special_tokens is set.
func (s *API) detokenize(w http.ResponseWriter, _ *server.Request, _ *wire.Fields,
	req *detokenizeRequest) error {
	if _, bad := s.CheckModel(req.model); bad != nil {
		return bad
	}
	return s.WriteJSON(w, detokenized{s.Model.Tokenizer.Decode(req.ids, req.skipSpecial)})
}

// detokenized is the answer of POST /detokenize.
type detokenized struct {
	Prompt string `json:"prompt"`
}

// tokenizerInfo answers GET /tokenizer_info: what tokenizer_config.json says, and the chat template
// wherever it stands.
func (s *API) tokenizerInfo(w http.ResponseWriter, _ *server.Request) error {
	if s.Model.Tokenizer == nil {
		return noTokenizer()
	}
	c := s.Model.Tokenizer.Config()
	answer := make(map[string]any, len(c.Fields)+1)
	for name, value := range c.Fields {
		answer[name] = value
	}
	if template, ok := c.ChatTemplates["default"]; ok {
		answer["chat_template"] = template
	}
	return s.WriteJSON(w, answer)
}
