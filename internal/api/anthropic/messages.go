package anthropic

import (
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/call"
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

// anthropicID is the header that names a request in Anthropic's API.
const anthropicID = "Request-Id"

// API answers requests in Anthropic's dialect.
type API struct {
	*server.Server
	*generate.Service
}

// New makes the dialect.
func New(srv *server.Server, service *generate.Service) *API { return &API{srv, service} }

// example is that of a request.
const example = `{"max_tokens":64,"messages":[{"role":"user","content":"What does os.Open do?"}]}`

// Routes are those of the dialect.
func (s *API) Routes() []server.Route {
	list := []server.Route{
		server.Posted(s.Server, MessagesPath, generate.Bind(s.Service, decodeMessage),
			s.createMessage, server.Doc{Summary: "Answer a conversation", Answer: Message{},
				Events: true}, example),
		server.Posted(s.Server, CountTokensPath, generate.Bind(s.Service, decodeCounted),
			s.countTokens, server.Doc{Summary: "Count the tokens of a conversation",
				Answer: counted{}}, example),
	}
	for i := range list {
		list[i].Handler = server.Checked(s.Generates, s.Counted(list[i].Handler))
		list[i].Shape = &anthropic
	}
	return list
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
	s.LogError(err, api)
	out.Buf = append(out.Buf[:0], "event: error\ndata: "...)
	out.Buf = appendAnthropic(out.Buf, api.OnWire(), w.Header().Get(anthropicID))
	out.Buf = append(out.Buf, "\n\n"...)
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

// anthropicKind is the error's class in Anthropic's words.
func anthropicKind(e *wire.Error) string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestTimeout:
		return "timeout_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if e.Status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}

// errorBody is the error object of Anthropic's API.
type errorBody struct {
	Type      string      `json:"type"`
	Error     errorDetail `json:"error"`
	RequestID string      `json:"request_id"`
}

type errorDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// appendAnthropic writes an errorBody.
func appendAnthropic(b []byte, e *wire.Error, id string) []byte {
	b = wire.AppendString(append(b, `{"type":"error","error":{"type":`...), anthropicKind(e))
	b = wire.AppendString(append(b, `,"message":`...), wire.ClipTo(e.Message, wire.MaxMessage))
	b = wire.AppendString(append(b, `},"request_id":`...), id)
	return append(b, '}')
}

// anthropic is the shape of Anthropic's API: its requests have names, and its errors a form of
// their own.
var anthropic = server.Shape{
	Begin: func(w http.ResponseWriter) { w.Header().Set(anthropicID, "req_"+call.NewID()) },
	Fail: func(w http.ResponseWriter, e *wire.Error) {
		server.WriteError(w, e, appendAnthropic(nil, e, w.Header().Get(anthropicID)))
	},
	Error: errorBody{},
}
