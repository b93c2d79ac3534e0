package responses

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
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

// API answers requests of the Responses API, and of the Conversations API. Close ends those in the
// background.
type API struct {
	*server.Server
	*generate.Service
	opt   Options
	live  liveResponses
	talks busyTalks
}

// New makes the dialect.
func New(srv *server.Server, service *generate.Service, o Options) *API {
	return &API{Server: srv, Service: service, opt: o,
		live: liveResponses{limit: o.MaxBackground}}
}

// The example of a request, and the parameters of a response's stream.
const example = `{"input":"What does os.Open do?"}`

var streamed = []server.Param{{Name: "stream", Type: "boolean"},
	{Name: "starting_after", Type: "integer"}}

// Routes are those of the dialect.
func (s *API) Routes() []server.Route {
	decode := generate.Bind(s.Service, decodeResponse)
	body := server.Reads(decode, example)
	body.Forms = forms
	list := []server.Route{
		{Method: "POST", Path: ResponsesPath,
			Handler: server.Checked(s.Generates, s.createResponse),
			Doc: server.Doc{Summary: "Answer a conversation", Answer: Response{}, Events: events,
				Body: body}},
		{Method: "GET", Path: ResponsesPath + "/{id}", Handler: s.getResponse,
			Doc: server.Doc{Summary: "Show a response, or its events", Answer: Response{},
				Query: streamed, Events: events}},
		{Method: "DELETE", Path: ResponsesPath + "/{id}", Handler: s.deleteResponse,
			Doc: server.Doc{Summary: "Delete a response", Answer: Deleted{}}},
		{Method: "POST", Path: ResponsesPath + "/{id}/cancel", Handler: s.cancelResponse,
			Doc: server.Doc{Summary: "Cancel a response in the background", Answer: Response{}}},
		{Method: "GET", Path: ResponsesPath + "/{id}/input_items", Handler: s.responseInput,
			Doc: server.Doc{Summary: "List the input of a response", Answer: page{},
				Query: server.Paged}},
	}
	count := server.Posted(s.Server, InputTokensPath, decode, s.countInput,
		server.Doc{Summary: "Count the tokens of an input", Answer: InputTokens{}, Forms: forms},
		example)
	count.Handler = server.Checked(s.Generates, s.Counted(count.Handler))
	return slices.Concat(list, []server.Route{count}, s.talkRoutes())
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
		bad = s.checkStored(r, req)
	}
	if bad == nil && (req.record.Background || req.talk != "") {
		bad = r.Pin()
	}
	if bad == nil {
		bad = s.acquireTalk(r.Owner, req)
	}
	if bad != nil {
		return bad
	}
	released := false
	defer func() {
		if !released {
			req.release()
		}
	}()
	if bad := s.finishResponse(r, req); bad != nil {
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
	live, err := s.startBackground(r, req, begun)
	f.Done()
	if err != nil {
		return err
	}
	released = true // once it has ended
	if req.Stream {
		return s.follow(w, r, live, 0)
	}
	return s.WriteRaw(w, live.object())
}

// checkStored refuses what needs a store where there is none.
func (s *API) checkStored(r *server.Request, req *responseRequest) *wire.Error {
	if s.opt.Store != nil && !r.Row {
		return nil
	}
	who := "this server keeps"
	if r.Row {
		who = "rows of a batch keep"
	}
	for field, given := range map[string]bool{"store": req.storeGiven && req.record.Store,
		"background": req.record.Background, "previous_response_id": req.previous != "",
		"conversation": req.talk != ""} {
		if given {
			return wire.BadRequest(field, "`%s` is not supported: %s nothing", field, who)
		}
	}
	req.record.Store = false
	return nil
}

// finishResponse finds what a request goes on from.
func (s *API) finishResponse(r *server.Request, req *responseRequest) *wire.Error {
	bad := s.dereference(r.Owner, req.input)
	switch {
	case bad != nil:
	case req.previous != "":
		req.history, bad = s.history(r.Owner, req.previous)
	case req.talk != "":
		req.history, bad = s.talkItems(r.Owner, req.talk)
		if bad == nil {
			bad = checkDuplicates("input", req.history, req.input)
		}
	}
	if bad == nil {
		req.converse(0)
	}
	return bad
}

// startResponse submits a request, and fills in what is known of the response then.
func (s *API) startResponse(r *server.Request, req *responseRequest) (*generate.Generation, error) {
	req.Polled = req.record.Background
	g, err := s.StartChat(r.Context(), &r.Call, idPrefix, req.Chat)
	var bad *wire.Error
	if errors.As(err, &bad) && bad.IsTooLong() && req.record.Truncation == truncateAuto {
		if bad = s.shorten(r.Context(), req); bad != nil {
			return nil, cmp.Or(call.Ended(r.Context()), error(bad))
		}
		g, err = s.StartChat(r.Context(), &r.Call, idPrefix, req.Chat)
	}
	if err != nil {
		return nil, err
	}
	req.history = nil
	rec, params := &req.record, &g.Prompts[0].Params
	// Who knows the id of a response may go on from it: it is none that a client chose.
	g.ID = r.Origin.ItemID(idPrefix)
	rec.ID, rec.CreatedAt, rec.Model = g.ID, g.Created, g.Model
	rec.Temperature, rec.TopP = shortest(params.Temperature), shortest(params.TopP)
	return g, nil
}

// responseStream makes the response of a generation. send takes its events, nil for none.
func (s *API) responseStream(r *server.Request, req *responseRequest,
	send func([]byte) error) *Stream {
	t := &Stream{R: &req.record, NewID: itemIDs(req.record.ID), Send: send,
		Namespaces: req.namespaces}
	if !req.record.Store && req.talk == "" {
		return t
	}
	owner, input := r.Owner, req.inputList()
	req.input = nil
	// The answer is worth more than its record: the client is told that there is none.
	t.Final = func(rec *Response) {
		defer req.release() // before the client knows that it may go on
		if req.talk != "" && (rec.Status == Completed || rec.Status == Incomplete) {
			if err := s.appendTurn(owner, req.talk, input, rec.Output); err != nil {
				s.opt.Log.Error("response is not in its conversation", "id", rec.ID, "error", err)
				rec.Conversation = nil
			}
		}
		if rec.Store {
			if err := s.storeResponse(owner, rec, input); err != nil {
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
	return t.Fail(s.responseError(err, r.LogName()))
}

// responseError is an error as a response shows it. known is what the log is to say of the request.
func (s *API) responseError(err error, known ...any) Error {
	api := s.StatusOf(err)
	s.LogError(err, api, known...)
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
			return s.WriteRaw(w, live.object())
		}
		kept, err := s.loadResponse(owner, id)
		if err != nil {
			return err
		}
		return s.WriteRaw(w, kept.Response)
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

// stop cancels a response that is under way, and waits until it has ended.
func (s *API) stop(ctx context.Context, owner, id string) error {
	live := s.live.find(owner, id)
	if live == nil {
		return nil
	}
	live.cancel(errCancelled)
	select {
	case <-live.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cancelResponse answers POST /v1/responses/{id}/cancel.
func (s *API) cancelResponse(w http.ResponseWriter, r *server.Request) error {
	owner, id := r.Owner, r.PathValue("id")
	if err := s.stop(r.Context(), owner, id); err != nil {
		return err
	}
	kept, err := s.loadResponse(owner, id)
	if err != nil {
		return err
	}
	switch {
	case !kept.background:
		return wire.BadRequest("id",
			"response %s is not one in the background: close its connection to cancel it",
			wire.Clip(id))
	case kept.status != Cancelled:
		return wire.BadRequest("id", "response %s cannot be cancelled: it is %s",
			wire.Clip(id), kept.status)
	}
	return s.WriteRaw(w, kept.Response)
}

// deleteResponse answers DELETE /v1/responses/{id}. One that is under way is cancelled first.
func (s *API) deleteResponse(w http.ResponseWriter, r *server.Request) error {
	owner, id := r.Owner, r.PathValue("id")
	if err := s.stop(r.Context(), owner, id); err != nil {
		return err
	}
	if _, err := s.loadResponse(owner, id); err != nil {
		return err
	}
	if err := s.opt.Store.Delete(responseKey(owner, id), eventsKey(owner, id)); err != nil {
		return err
	}
	return s.WriteJSON(w, Deleted{id, "response", true})
}

// Deleted says that an object is gone.
type Deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// responseInput answers GET /v1/responses/{id}/input_items: the items of the request's own input.
func (s *API) responseInput(w http.ResponseWriter, r *server.Request) error {
	p, bad := pageAsked(r)
	if bad != nil {
		return bad
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
	return s.WriteJSON(w, p.of(elements(list)))
}

// shortest is the number with the fewest digits that is this float32.
func shortest(v float32) float64 {
	d, _ := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64) // always a number
	return d
}
