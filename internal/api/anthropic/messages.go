package anthropic

import (
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/output"
)

const (
	MessagesPath    = "/v1/messages"
	CountTokensPath = "/v1/messages/count_tokens"
)

// API answers requests in Anthropic's dialect.
type API struct {
	*server.Server
	*generate.Service
	created int64
}

// New makes the dialect. created is the Unix time that the list of models shows.
func New(srv *server.Server, service *generate.Service, created int64) *API {
	return &API{srv, service, created}
}

// example is that of a request.
const example = `{"max_tokens":64,"messages":[{"role":"user","content":"What does os.Open do?"}]}`

// Routes are those of the dialect.
func (s *API) Routes() []server.Route {
	list := []server.Route{
		server.Posted(s.Server, MessagesPath, generate.Bind(s.Service, decodeMessage),
			s.createMessage, server.Doc{Summary: "Answer a conversation", Answer: Message{},
				Events: events, Forms: forms}, example),
		server.Posted(s.Server, CountTokensPath, generate.Bind(s.Service, decodeCounted),
			s.countTokens, server.Doc{Summary: "Count the tokens of a conversation",
				Answer: counted{}, Forms: forms}, example),
	}
	for i := range list {
		list[i].Handler = server.Checked(s.Generates, s.Counted(list[i].Handler))
	}
	return append(list, server.Route{Method: http.MethodGet, Path: ModelsPath, Shape: &shape,
		Handler: s.listModels}, server.Route{Method: http.MethodGet,
		Path: ModelsPath + "/{model...}", Shape: &shape, Handler: s.getModel})
}

// createMessage answers POST /v1/messages, Anthropic's API.
func (s *API) createMessage(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *generate.Chat) error {
	g, err := s.StartChat(r.Context(), &r.Call, "msg_", req)
	f.Done()
	if err != nil {
		return err
	}
	defer g.CloseReaders()
	return s.answerMessage(w, r, g, req)
}

func (s *API) answerMessage(w http.ResponseWriter, r *server.Request, g *generate.Generation,
	req *generate.Chat) error {
	m := &Message{ID: g.ID, Model: g.Model}
	m.Usage.InputTokens = g.Usage().Prompt
	t := &Stream{M: m}
	out := s.Events(w)
	if req.Stream {
		t.Send = func(event []byte) error {
			out.Buf = append(out.Buf[:0], event...)
			return out.Send()
		}
	}
	err := t.Open()
	if err == nil {
		err = s.EachPart(r.Context(), g, req, func(p output.Part, _ []byte) error {
			return t.Part(p)
		})
	}
	if err == nil {
		err = g.Complete()
	}
	if err == nil {
		reason, sequence := messageEnd(&g.Choices[0])
		u := g.Usage()
		m.Metrics = g.Metrics(&req.Sampling)
		err = t.Close(reason, sequence, Usage{InputTokens: u.Prompt - u.Cached,
			CacheReadInputTokens: u.Cached, OutputTokens: u.Output})
	}
	switch {
	case err == nil && !req.Stream:
		return s.WriteJSON(w, m)
	case err == nil || !out.Started || errors.Is(err, server.ErrClientGone):
		return err
	}
	api := s.StatusOf(err)
	s.LogError(err, api, r.LogName())
	_, body := shape.Error(w.Header(), api.OnWire())
	out.Buf = shape.AppendEvent(out.Buf[:0], body)
	return out.Send()
}

// messageEnd says why a choice ended, in Anthropic's words.
func messageEnd(c *generate.Choice) (reason string, sequence *string) {
	switch {
	case c.Finish == sample.FinishLength:
		return "max_tokens", nil
	case c.StopString != "":
		return "stop_sequence", &c.StopString
	case c.Calls > 0:
		return "tool_use", nil
	}
	return "end_turn", nil
}

// countTokens answers POST /v1/messages/count_tokens.
func (s *API) countTokens(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	req *generate.Chat) error {
	if _, bad := s.CheckModel(req.Model); bad != nil {
		return bad
	}
	p, bad := s.Render(r.Context(), &req.Conversation, &req.Sampling)
	if bad != nil {
		return bad
	}
	return s.WriteJSON(w, counted{len(p.Prompt)})
}

// counted is the answer of POST /v1/messages/count_tokens.
type counted struct {
	InputTokens int `json:"input_tokens"`
}
