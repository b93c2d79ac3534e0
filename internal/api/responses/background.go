package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/output"
)

// errCancelled ends a response in the background because its client wants it so.
var errCancelled = errors.New("response is cancelled")

// liveResponses are the responses in the background that have not ended.
type liveResponses struct {
	limit  int // how many there may be, 0 for any number
	mu     sync.Mutex
	all    map[string]*liveResponse // by responseKey
	closed bool
	// running are their goroutines.
	running sync.WaitGroup
}

// find returns the response of an owner, nil for none.
func (l *liveResponses) find(owner, id string) *liveResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[responseKey(owner, id)]
}

// refuses says why there are no more.
func (l *liveResponses) refuses() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return wire.Draining()
	case l.limit > 0 && len(l.all) >= l.limit:
		return engine.ErrOverloaded
	}
	return nil
}

// add counts one more, unless the server ends.
func (l *liveResponses) add(key string, live *liveResponse) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.all == nil {
		l.all = map[string]*liveResponse{}
	}
	l.all[key] = live
	l.running.Add(1)
	return true
}

func (l *liveResponses) remove(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, key)
}

// Close ends the responses in the background and waits until they are stored. The server answers no
// more requests by then.
func (s *API) Close() {
	s.live.mu.Lock()
	s.live.closed = true
	for _, live := range s.live.all {
		live.cancel(wire.Draining())
	}
	s.live.mu.Unlock()
	s.live.running.Wait()
}

// liveResponse is a response in the background.
type liveResponse struct {
	cancel context.CancelCauseFunc
	// done is closed when it has ended and is stored.
	done chan struct{}
	// input is the list of its items, logged whether its events are kept.
	input  []byte
	logged bool

	mu     sync.Mutex
	stream *Stream
	// log is its events, one after another; changed is closed when there are more, or none any
	// more.
	log     []byte
	changed chan struct{}
	ended   bool
}

// object is the response as it is now.
func (l *liveResponse) object() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	raw, _ := json.Marshal(l.stream.R) // it has been written before
	return raw
}

// complete says that the response shows its end.
func (l *liveResponse) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream.R.Status != Queued && l.stream.R.Status != InProgress
}

// Part adds a part of the answer.
func (l *liveResponse) Part(p output.Part, logprobs []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream.R.Status = InProgress
	return l.stream.Part(p, logprobs)
}

// Close ends the answer.
func (l *liveResponse) Close(e End) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream.Close(e)
}

// append keeps an event.
func (l *liveResponse) append(event []byte) error {
	l.log = append(l.log, event...)
	l.wake()
	return nil
}

// wake lets those who wait look again.
func (l *liveResponse) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// startBackground submits a request and answers it in a goroutine of the server.
func (s *API) startBackground(r *server.Request, req *responseRequest,
	begun time.Time) (_ *liveResponse, err error) {
	if err := s.live.refuses(); err != nil { // before the work of starting it
		return nil, err
	}
	// Its client's other requests are not refused for it.
	leave, err := s.Enter(r, server.InBackground)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(r.Context(), func() { cancel(r.Context().Err()) })
	r, end, err := server.Deadline(r.WithContext(ctx), req.Timeout, begun)
	if err != nil {
		return nil, err
	}
	g, err := s.startResponse(r, req)
	if err == nil && !stop() { // from here on the client may go
		g.Stream.Close()
		g.CloseReaders()
		err = ctx.Err()
	}
	if err != nil {
		end()
		cancel(err)
		return nil, err
	}
	owner, rec := r.Owner, &req.record
	rec.Status = Queued
	live := &liveResponse{cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		logged: req.Stream, input: req.inputList()}
	key := responseKey(owner, rec.ID)
	err = s.storeResponse(owner, rec, live.input)
	var send func([]byte) error
	if live.logged {
		send = live.append
	}
	live.stream = s.responseStream(r, req, send)
	if err == nil && !s.live.add(key, live) {
		err = wire.Draining()
	}
	if err != nil {
		g.Stream.Close()
		g.CloseReaders()
		end()
		cancel(err)
		return nil, err
	}
	if err := live.stream.Open(); err != nil {
		s.opt.Log.Error("response cannot be shown", "id", rec.ID, "error", err)
	}
	rec.Status = Queued // until there is some of it
	go func() {
		defer s.live.running.Done()
		defer leave()
		defer req.release()
		defer end()
		defer cancel(nil)
		defer g.CloseReaders()
		s.background(r.Context(), g, req, live)
		if live.logged {
			if err := s.put(eventsKey(owner, rec.ID), live.log); err != nil {
				s.opt.Log.Error("events of a response are not stored", "id", rec.ID, "error", err)
			}
		}
		s.live.remove(key)
		close(live.done)
	}()
	return live, nil
}

// background answers a request that no client waits for.
func (s *API) background(ctx context.Context, g *generate.Generation, req *responseRequest,
	live *liveResponse) {
	err := s.respond(ctx, g, req, live)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	live.mu.Lock()
	defer live.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, errCancelled):
		err = live.stream.Cancel()
	default:
		err = live.stream.Fail(s.responseError(err, "id", live.stream.R.ID))
	}
	if err != nil {
		s.opt.Log.Error("response cannot be shown", "id", live.stream.R.ID, "error", err)
	}
	live.ended = true
	live.wake()
}

// follow sends the events of a response from a sequence number on, as they come, until it ends.
func (s *API) follow(w http.ResponseWriter, r *server.Request, live *liveResponse,
	from int) error {
	out := s.Events(w)
	sent := 0
	for {
		live.mu.Lock()
		more, changed, ended := live.log[sent:], live.changed, live.ended
		live.mu.Unlock()
		sent += len(more)
		for ; from > 0 && len(more) > 0; from-- {
			_, more, _ = bytes.Cut(more, []byte("\n\n"))
		}
		switch {
		case len(more) > 0, ended && !out.Started: // there may be none
			out.Buf = append(out.Buf[:0], more...)
			if err := out.Send(); err != nil {
				return err
			}
		case ended:
			return nil
		default:
			select {
			case <-changed:
			case <-r.Context().Done():
				return r.Context().Err()
			}
		}
	}
}
