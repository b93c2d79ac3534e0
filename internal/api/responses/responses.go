package responses

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Options configure the Responses API.
type Options struct {
	// Store keeps responses; nil keeps none.
	Store *store.Store
	// Log receives failures to keep one.
	Log *slog.Logger
	// MaxBackground is how many there may be in the background, 0 for any number; MaxConversation
	// the bytes of a conversation that a request goes on from.
	MaxBackground   int
	MaxConversation int64
}

// API answers requests of the Responses API. Close ends those in the background.
type API struct {
	*server.Server
	*generate.Service
	opt  Options
	live liveResponses
}

// New makes the dialect.
func New(srv *server.Server, service *generate.Service, o Options) *API {
	return &API{Server: srv, Service: service, opt: o,
		live: liveResponses{limit: o.MaxBackground}}
}

// Routes are those of the dialect.
func (s *API) Routes() []server.Route {
	return []server.Route{
		{Method: "POST", Path: ResponsesPath,
			Handler: server.Checked(s.Generates, s.createResponse)},
		{Method: "GET", Path: ResponsesPath + "/{id}", Handler: s.getResponse},
		{Method: "DELETE", Path: ResponsesPath + "/{id}", Handler: s.deleteResponse},
		{Method: "POST", Path: ResponsesPath + "/{id}/cancel", Handler: s.cancelResponse},
		{Method: "GET", Path: ResponsesPath + "/{id}/input_items", Handler: s.responseInput},
	}
}

// createResponse answers POST /v1/responses.
func (s *API) createResponse(w http.ResponseWriter, r *server.Request) error {
	begun := time.Now()
	leave, err := s.Enter(r, server.Answered)
	if err != nil {
		return err
	}
	defer leave()
	f, err := s.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer f.Done()
	req, bad := decodeResponse(f, &s.Model)
	if bad == nil {
		bad = s.finishResponse(r, req)
	}
	if bad != nil {
		return bad
	}
	s.LogUnknown(f)
	if !req.record.Background {
		r, cancel, err := server.Deadline(r, req.Timeout, begun)
		if err != nil {
			return err
		}
		defer cancel()
		g, err := s.startResponse(r, req)
		f.Done()
		if err != nil {
			return err
		}
		defer g.CloseReaders()
		return s.foreground(w, r, g, req)
	}
	if bad := r.Pin(); bad != nil {
		return bad
	}
	live, err := s.startBackground(r, req, begun)
	f.Done()
	if err != nil {
		return err
	}
	if req.Stream {
		return s.follow(w, r, live, 0)
	}
	return s.WriteRaw(w, string(live.object()))
}

// finishResponse finds what a request goes on from.
func (s *API) finishResponse(r *server.Request, req *responseRequest) *wire.Error {
	if s.opt.Store == nil || r.Row {
		who := "this server keeps"
		if r.Row {
			who = "rows of a batch keep"
		}
		for field, given := range map[string]bool{"store": req.storeGiven && req.record.Store,
			"background": req.record.Background, "previous_response_id": req.previous != ""} {
			if given {
				return wire.BadRequest(field, "`%s` is not supported: %s nothing", field, who)
			}
		}
		req.record.Store = false
	}
	var history []generate.Item
	if req.previous != "" {
		var bad *wire.Error
		if history, bad = s.history(r.Owner, req.previous); bad != nil {
			return bad
		}
	}
	req.converse(history)
	return nil
}

// startResponse submits a request, and fills in what is known of the response then.
func (s *API) startResponse(r *server.Request, req *responseRequest) (*generate.Generation, error) {
	req.Polled = req.record.Background
	g, err := s.StartChat(r.Context(), &r.Call, "resp_", req.Chat)
	if err != nil {
		return nil, err
	}
	rec, params := &req.record, &g.Prompts[0].Params
	// Who knows the id of a response may go on from it: it is none that a client chose.
	g.ID = r.Origin.ItemID("resp_")
	rec.ID, rec.CreatedAt, rec.Model = g.ID, g.Created, g.Model
	rec.Temperature, rec.TopP = shortest(params.Temperature), shortest(params.TopP)
	return g, nil
}

// responseStream makes the response of a generation. send takes its events, nil for none.
func (s *API) responseStream(r *server.Request, req *responseRequest,
	send func([]byte) error) *Stream {
	t := &Stream{R: &req.record, NewID: r.Origin.ItemID, Send: send}
	if req.record.Store {
		owner, input := r.Owner, req.inputList()
		req.input = nil
		t.Final = func(rec *Response) {
			if err := s.storeResponse(owner, rec, input); err != nil {
				// The answer is worth more than its record: the client is told that there is none.
				s.opt.Log.Error("response is not stored", "id", rec.ID, "error", err)
				rec.Store = false
			}
		}
	}
	return t
}

// responder takes an answer: a response, or one that others look at meanwhile.
type responder interface {
	Part(p output.Part, logprobs []byte) error
	Close(End) error
}

// respond fills a response with what the model answers.
func (s *API) respond(ctx context.Context, g *generate.Generation, req *responseRequest,
	t responder) error {
	if err := s.EachPart(ctx, g, req.Chat, t.Part); err != nil {
		return err
	}
	if err := g.Complete(); err != nil {
		return err
	}
	u := g.Usage()
	return t.Close(End{Cut: g.Choices[0].Finish == sample.FinishLength, At: time.Now().Unix(),
		Metrics: g.Metrics(&req.Sampling),
		Usage: Usage{InputTokens: u.Prompt, OutputTokens: u.Output,
			TotalTokens:         u.Prompt + u.Output,
			InputTokensDetails:  InputDetails{CachedTokens: u.Cached},
			OutputTokensDetails: OutputDetails{ReasoningTokens: u.Reasoning}}})
}

// foreground answers with a response, at once or with its events.
func (s *API) foreground(w http.ResponseWriter, r *server.Request, g *generate.Generation,
	req *responseRequest) error {
	if !req.Stream {
		t := s.responseStream(r, req, nil)
		if err := t.Open(); err != nil {
			return err
		}
		if err := s.respond(r.Context(), g, req, t); err != nil {
			return err
		}
		return s.WriteJSON(w, t.R)
	}
	out := s.Events(w)
	t := s.responseStream(r, req, func(event []byte) error {
		out.Buf = append(out.Buf[:0], event...)
		return out.Send()
	})
	err := t.Open()
	if err == nil {
		err = s.respond(r.Context(), g, req, t)
	}
	if err == nil || errors.Is(err, server.ErrClientGone) || r.Context().Err() == context.Canceled {
		return err
	}
	return t.Fail(s.responseError(err))
}

// responseError is an error as a response shows it.
func (s *API) responseError(err error) Error {
	api := s.StatusOf(err)
	s.LogError(err, api)
	return Error{Code: "server_error",
		Message: wire.ClipTo(api.OnWire().Message, wire.MaxMessage)}
}

// getResponse answers GET /v1/responses/{id}: the response, or with stream=true its events after
// starting_after.
func (s *API) getResponse(w http.ResponseWriter, r *server.Request) error {
	owner, id := r.Owner, r.PathValue("id")
	query := r.URL.Query()
	stream, bad := wire.QueryBool(query, "stream")
	if bad != nil {
		return bad
	}
	after, bad := wire.QueryInt(query, "starting_after", -1, 0, 1<<31)
	if bad != nil {
		return bad
	}
	live := s.live.find(owner, id)
	if !stream {
		if query.Has("starting_after") {
			return wire.BadRequest("starting_after", "`starting_after` needs `stream=true`")
		}
		if live != nil {
			return s.WriteRaw(w, string(live.object()))
		}
		kept, err := s.loadResponse(owner, id)
		if err != nil {
			return err
		}
		return s.WriteRaw(w, string(kept.Response))
	}
	if live != nil && live.logged {
		return s.follow(w, r, live, after+1)
	}
	events, err := s.loadEvents(owner, id)
	if err != nil {
		return err
	}
	return s.follow(w, r, &liveResponse{log: events, ended: true}, after+1)
}

// cancelResponse answers POST /v1/responses/{id}/cancel.
func (s *API) cancelResponse(w http.ResponseWriter, r *server.Request) error {
	owner, id := r.Owner, r.PathValue("id")
	if live := s.live.find(owner, id); live != nil {
		live.cancel(errCancelled)
		select {
		case <-live.done:
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	kept, err := s.loadResponse(owner, id)
	if err != nil {
		return err
	}
	switch background, status := kept.state(); {
	case !background:
		return wire.BadRequest("id",
			"response %s is not one in the background: close its connection to cancel it",
			wire.Clip(id))
	case status != Cancelled:
		return wire.BadRequest("id", "response %s cannot be cancelled: it is %s",
			wire.Clip(id), status)
	}
	return s.WriteRaw(w, string(kept.Response))
}

// deleteResponse answers DELETE /v1/responses/{id}. One that is under way is cancelled first.
func (s *API) deleteResponse(w http.ResponseWriter, r *server.Request) error {
	owner, id := r.Owner, r.PathValue("id")
	if live := s.live.find(owner, id); live != nil {
		live.cancel(errCancelled)
		select {
		case <-live.done:
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	if _, err := s.loadResponse(owner, id); err != nil {
		return err
	}
	if err := s.opt.Store.Delete(responseKey(owner, id), eventsKey(owner, id)); err != nil {
		return err
	}
	return s.WriteJSON(w, struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{id, "response", true})
}

// responseInput answers GET /v1/responses/{id}/input_items: the items of the request's own input.
func (s *API) responseInput(w http.ResponseWriter, r *server.Request) error {
	query := r.URL.Query()
	limit, bad := wire.QueryInt(query, "limit", 20, 1, 100)
	if bad != nil {
		return bad
	}
	order := query.Get("order")
	if order != "" && order != "asc" && order != "desc" {
		return wire.BadRequest("order", "`order` must be asc or desc, got %q", wire.Clip(order))
	}
	id, owner := r.PathValue("id"), r.Owner
	var list []byte
	if live := s.live.find(owner, id); live != nil {
		list = live.input
	} else {
		kept, err := s.loadResponse(owner, id)
		if err != nil {
			return err
		}
		list = kept.Input
	}
	return s.WriteJSON(w, pageOf(list, limit, order != "asc", query.Get("after")))
}

// shortest is the number with the fewest digits that is this float32.
func shortest(v float32) float64 {
	d, _ := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64) // always a number
	return d
}
