package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// modelCard is an entry of /v1/models.
type modelCard struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	OwnedBy     string            `json:"owned_by"`
	Root        string            `json:"root"`
	Parent      *string           `json:"parent"`
	MaxModelLen int               `json:"max_model_len"`
	Permission  []modelPermission `json:"permission"`
}

type modelPermission struct {
	ID                 string  `json:"id"`
	Object             string  `json:"object"`
	Created            int64   `json:"created"`
	AllowCreateEngine  bool    `json:"allow_create_engine"`
	AllowSampling      bool    `json:"allow_sampling"`
	AllowLogprobs      bool    `json:"allow_logprobs"`
	AllowSearchIndices bool    `json:"allow_search_indices"`
	AllowView          bool    `json:"allow_view"`
	AllowFineTuning    bool    `json:"allow_fine_tuning"`
	Organization       string  `json:"organization"`
	Group              *string `json:"group"`
	IsBlocking         bool    `json:"is_blocking"`
}

func (s *API) card(name string) modelCard {
	m := &s.model
	return modelCard{ID: name, Object: "model", Created: s.created, OwnedBy: "eagleray",
		Root: m.Root, MaxModelLen: m.MaxModelLen,
		Permission: []modelPermission{{ID: "modelperm-" + call.NewID(), Object: "model_permission",
			Created:       s.created,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*"}}}
}

// listModels answers GET /v1/models: one entry per served name.
func (s *API) listModels(w http.ResponseWriter, _ *server.Request) error {
	list := struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{Object: "list"}
	for _, name := range s.model.Names {
		list.Data = append(list.Data, s.card(name))
	}
	return s.WriteJSON(w, list)
}

// getModel answers GET /v1/models/{model...}.
func (s *API) getModel(w http.ResponseWriter, r *server.Request) error {
	name, bad := s.checkModel(r.PathValue("model"))
	if bad != nil {
		return bad
	}
	return s.WriteJSON(w, s.card(name))
}

// health answers 200 if and only if a one-token request would succeed now, else 503. The body is
// empty, or says which of several engines do not serve, a line for each, and which change of the
// engines is under way. With the parameter
// generate it asks the engine for that token, which needs a key.
func (s *API) health(w http.ResponseWriter, r *server.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.lim.HealthTimeout)
	defer cancel()
	err := s.opt.Engine.Healthy(ctx)
	if err == nil && r.URL.Query().Has("generate") {
		if !s.Admits(r) {
			return &wire.Error{Status: http.StatusUnauthorized, Message: "Unauthorized"}
		}
		err = s.oneToken(ctx)
	}
	if err == nil {
		if err := s.openStores(); err != nil {
			return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Expected: true,
				Message: "what is stored cannot be had yet: " + err.Error()}
		}
	}
	switch {
	case err == nil:
		return s.writeDegraded(ctx, w)
	case errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1,
			Message: "engine did not answer the health check within " +
				s.lim.HealthTimeout.Round(time.Millisecond).String()}
	case errors.Is(err, engine.ErrStopped):
		return wire.Draining()
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 1, Message: err.Error(),
		Expected: errors.Is(err, engine.ErrRecovering) || errors.Is(err, engine.ErrStalled) ||
			errors.Is(err, engine.ErrPaused)}
}

// openStores opens the stores where they are not open yet: a server that was handed its socket waits for the
// one before, which has them until it ends.
func (s *API) openStores() error {
	for _, kept := range []*store.Store{s.opt.Store, s.opt.Responses} {
		if kept == nil {
			continue
		}
		if err := kept.Open(); err != nil {
			return err
		}
	}
	return nil
}

// writeDegraded answers that a request would succeed.
func (s *API) writeDegraded(ctx context.Context, w http.ResponseWriter) error {
	var text strings.Builder
	if s.opt.Health != nil {
		for i, err := range s.opt.Health(ctx) {
			if err != nil {
				fmt.Fprintf(&text, "engine %d: %v\n", i, err)
			}
		}
	}
	if s.opt.Elastic != nil {
		if what := s.opt.Elastic.Scaling(); what != "" {
			text.WriteString(what + "\n")
		}
	}
	if text.Len() > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, text.String()) // who asked may have gone
	return nil
}

// oneToken asks the engine for a token.
func (s *API) oneToken(ctx context.Context) error {
	stream, err := s.opt.Engine.Submit(ctx, engine.OneToken())
	if err != nil {
		return err
	}
	defer stream.Close()
	_, err = stream.Next(ctx)
	return err
}

// alive answers GET /livez with 200 unless the engine has failed for good: a server that recovers,
// loads or drains is not to be restarted.
func (s *API) alive(w http.ResponseWriter, r *server.Request) error {
	if err := s.opt.Engine.Healthy(r.Context()); errors.Is(err, engine.ErrFailed) {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// version answers GET /version.
func (s *API) version(w http.ResponseWriter, _ *server.Request) error {
	return s.WriteJSON(w, map[string]string{"version": s.opt.Version})
}

// showLoad answers GET /load: generation requests in flight.
func (s *API) showLoad(w http.ResponseWriter, _ *server.Request) error {
	return s.WriteJSON(w, map[string]int64{"server_load": s.InFlight()})
}

// tokenizeRequest is the body of POST /tokenize: a prompt, or a conversation.
type tokenizeRequest struct {
	model string
	text  *string // nil for a conversation
	conversation
	// withText asks for the text of each token, whole for that of the prompt.
	addSpecial, withText, whole bool
}

func decodeTokenize(f *wire.Fields, m *model) (*tokenizeRequest, *wire.Error) {
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
		r.decodeConversation(f, m)
	case r.text == nil:
		f.Fail(wire.BadRequest("prompt", "`prompt` or `messages` is required"))
	}
	return r, f.Err
}

// tokenizing reads the model of a request that needs its tokenizer.
func tokenizing(f *wire.Fields, m *model) string {
	if m.Tokenizer == nil {
		f.Fail(noTokenizer())
	}
	if name := f.OptString("model"); name != nil {
		return *name
	}
	return ""
}

func noTokenizer() *wire.Error { return wire.BadRequest("", "the server runs without a tokenizer") }

// tokenizeText answers POST /tokenize: a prompt or a conversation as token ids.
func (s *API) tokenizeText(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	req *tokenizeRequest) error {
	if _, bad := s.checkModel(req.model); bad != nil {
		return bad
	}
	p, err := s.tokensOf(r.Context(), req)
	if err != nil {
		return err
	}
	ids := p.Prompt
	answer := struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int32  `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
		Prompt      *string  `json:"prompt,omitempty"`
	}{Count: len(ids), MaxModelLen: s.model.MaxModelLen, Tokens: append([]int32{}, ids...)}
	if req.whole {
		answer.Prompt = &p.text
	}
	if req.withText {
		answer.TokenStrs = []string{}
		for _, id := range ids {
			text, _ := s.model.Tokenizer.Token(id)
			answer.TokenStrs = append(answer.TokenStrs, text)
		}
	}
	return s.WriteJSON(w, answer)
}

func (s *API) tokensOf(ctx context.Context, req *tokenizeRequest) (p prompt, err error) {
	if req.text == nil {
		p, bad := s.render(ctx, &req.conversation, &sampling{addSpecial: req.addSpecial})
		if bad != nil {
			return p, bad
		}
		return p, nil
	}
	if most := max(s.mostBytes(), leastTokenized); len(*req.text) > most {
		return p, wire.BadRequest("prompt", "the prompt of %d bytes is longer than what is "+
			"tokenized (at most %d bytes)", len(*req.text), most)
	}
	p.text = *req.text
	p.Prompt, err = s.model.Tokenizer.EncodeUntil(ctx.Err, p.text, req.addSpecial)
	return p, err
}

// detokenizeRequest is the body of POST /detokenize.
type detokenizeRequest struct {
	model       string
	ids         []int32
	skipSpecial bool
}

func decodeDetokenize(f *wire.Fields, m *model) (*detokenizeRequest, *wire.Error) {
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
	if _, bad := s.checkModel(req.model); bad != nil {
		return bad
	}
	return s.WriteJSON(w, map[string]string{"prompt": s.model.Tokenizer.Decode(req.ids, req.skipSpecial)})
}

// tokenizerInfo answers GET /tokenizer_info: what tokenizer_config.json says, and the chat template
// wherever it stands.
func (s *API) tokenizerInfo(w http.ResponseWriter, _ *server.Request) error {
	if s.model.Tokenizer == nil {
		return noTokenizer()
	}
	c := s.model.Tokenizer.Config()
	answer := make(map[string]any, len(c.Fields)+1)
	for name, value := range c.Fields {
		answer[name] = value
	}
	if template, ok := c.ChatTemplates["default"]; ok {
		answer["chat_template"] = template
	}
	return s.WriteJSON(w, answer)
}
