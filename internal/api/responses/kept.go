package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Stored responses are kept for so long, as at OpenAI.
const responseLife = 30 * 24 * time.Hour

// maxChain is the longest conversation by previous_response_id, in responses. Its bytes are bounded
// as those of a request are.
const maxChain = 1000

// storedResponse is what is kept of a response.
type storedResponse struct {
	Response json.RawMessage `json:"response"`
	// Input is the list of the items of the request.
	Input json.RawMessage `json:"input"`

	// These are members of the response that has been read.
	background bool
	status     Status
	previous   string
	items      []byte // its output
}

// readStored reads a response as it is stored, and of it no more than it needs: each turn of a
// conversation reads all before it.
func readStored(raw []byte) *storedResponse {
	k := &storedResponse{}
	for name, text := range jsonx.Members(raw) {
		switch name {
		case "response":
			k.Response = text
		case "input":
			k.Input = text
		}
	}
	left := 4
	for name, text := range jsonx.Members(k.Response) {
		switch name {
		default:
			continue
		case "background":
			k.background = text[0] == 't'
		case "status":
			k.status = Status(wire.Unquote(text))
		case "previous_response_id":
			if !wire.IsNull(text) {
				k.previous = wire.Unquote(text)
			}
		case "output":
			k.items = text
		}
		if left--; left == 0 {
			break // what is behind, the tools, is most of many a response
		}
	}
	return k
}

func responseKey(owner, id string) string { return "response/" + owner + "/" + id }
func eventsKey(owner, id string) string   { return "events/" + owner + "/" + id }

// storeResponse stores a response as it is.
func (s *API) storeResponse(owner string, rec *Response, input []byte) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	raw, err = json.Marshal(storedResponse{Response: raw, Input: input})
	if err != nil {
		return err
	}
	return s.put(responseKey(owner, rec.ID), raw)
}

// put stores a value.
func (s *API) put(key string, value []byte) error {
	return s.opt.Store.Update(func(tx *store.Tx) error { return putIn(tx, key, value) })
}

// putIn stores a value from now on for responseLife. Where there is no room the oldest values of
// the client that has the most make some.
func putIn(tx *store.Tx, key string, value []byte) error {
	until := time.Now().Add(responseLife)
	err := tx.Put(key, value, until)
	if !errors.Is(err, store.ErrFull) {
		return err
	}
	if err := evict(tx); err != nil {
		return err
	}
	return tx.Put(key, value, until)
}

// evict removes an eighth of all values by size, those of the owner that has the most which expire
// first: one client does not crowd out the others.
func evict(tx *store.Tx) error {
	type entry struct {
		key  string
		size int
	}
	entries, sizes, all := map[string][]entry{}, map[string]int{}, 0
	tx.EachByExpiry(func(key string, value []byte) bool {
		owner := strings.Split(key, "/")[1]
		e := entry{key, len(key) + len(value)}
		entries[owner] = append(entries[owner], e)
		sizes[owner] += e.size
		all += e.size
		return true
	})
	most := ""
	for owner, size := range sizes {
		if most == "" || size > sizes[most] {
			most = owner
		}
	}
	freed := 0
	for _, e := range entries[most] {
		if freed >= all/8 {
			break
		}
		if err := tx.Delete(e.key); err != nil {
			return err
		}
		freed += e.size
	}
	return nil
}

// noResponse is the answer to an id of which there is no response, or none of this client.
func noResponse(param, id string) *wire.Error {
	return &wire.Error{Status: http.StatusNotFound, Param: param,
		Message: fmt.Sprintf("Response with id '%s' not found.", wire.Clip(id))}
}

// loadResponse returns a response that is not under way. One that was when the server ended has
// failed by that.
func (s *API) loadResponse(owner, id string) (*storedResponse, error) {
	if s.opt.Store == nil {
		return nil, noResponse("id", id)
	}
	raw, err := s.opt.Store.Get(responseKey(owner, id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, noResponse("id", id)
	}
	if err != nil {
		return nil, err
	}
	kept := readStored(raw)
	if kept.status.Final() {
		return kept, nil
	}
	var rec Response
	if err := json.Unmarshal(kept.Response, &rec); err != nil {
		return nil, fmt.Errorf("stored response %s: %w", id, err)
	}
	rec.Status, kept.status = Failed, Failed
	rec.Error = &Error{Code: "server_error",
		Message: "the server ended before the response was complete"}
	if kept.Response, err = json.Marshal(&rec); err != nil {
		return nil, err
	}
	return kept, nil
}

// loadEvents returns the events of a response that has ended.
func (s *API) loadEvents(owner, id string) ([]byte, error) {
	if _, err := s.loadResponse(owner, id); err != nil {
		return nil, err
	}
	events, err := s.opt.Store.Get(eventsKey(owner, id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, wire.BadRequest("stream",
			"response %s has no events to stream: it was not created with `background` and "+
				"`stream`, or its server has ended", wire.Clip(id))
	}
	return events, err
}

// history returns the items of a conversation up to a response: of each the input, then the output.
func (s *API) history(owner, id string) ([]generate.Item, *wire.Error) {
	const field = "previous_response_id"
	var chain []*storedResponse
	total := int64(0)
	for next := id; next != ""; {
		kept, bad := s.complete(field, owner, next)
		if bad != nil {
			return nil, bad
		}
		chain = append(chain, kept)
		total += int64(len(kept.Response) + len(kept.Input))
		if len(chain) > maxChain || total > s.opt.MaxConversation {
			return nil, wire.BadRequest(field,
				"the conversation of response %s is too long: at most %d responses, and %d bytes",
				wire.Clip(id), maxChain, s.opt.MaxConversation)
		}
		next = kept.previous
	}
	var items []generate.Item
	for _, kept := range slices.Backward(chain) {
		input, bad := generate.DecodeItems(field, kept.Input)
		if bad != nil {
			return nil, bad
		}
		output, bad := kept.output(field)
		if bad != nil {
			return nil, bad
		}
		items = append(append(items, input...), output...)
	}
	return items, nil
}

// complete is what is stored of a response that a field of a request names.
func (s *API) complete(field, owner, id string) (*storedResponse, *wire.Error) {
	if live := s.live.find(owner, id); live != nil {
		if !live.complete() {
			return nil, wire.BadRequest(field, "response %s is not complete yet", wire.Clip(id))
		}
		<-live.done // its client has seen the end: only the store is behind
	}
	kept, err := s.loadResponse(owner, id)
	if bad := (*wire.Error)(nil); errors.As(err, &bad) {
		return nil, noResponse(field, id)
	}
	if err != nil {
		bad := s.StatusOf(err)
		s.LogError(err, bad, "response", id)
		return nil, bad
	}
	return kept, nil
}

// output are the items of the response, which a field of a request names.
func (k *storedResponse) output(field string) ([]generate.Item, *wire.Error) {
	return generate.DecodeItems(field, k.items)
}

// page is a part of a list of items.
type page struct {
	Object  string            `json:"object"`
	Data    []json.RawMessage `json:"data"`
	FirstID *string           `json:"first_id"`
	LastID  *string           `json:"last_id"`
	HasMore bool              `json:"has_more"`
}

// paging is what a client wants of a list of objects with ids: at most limit, after the one with an
// id, the last first if reverse.
type paging struct {
	limit   int
	reverse bool
	after   string
}

// pageAsked reads the parameters of a request for a list.
func pageAsked(r *server.Request) (paging, *wire.Error) {
	query := r.URL.Query()
	limit, bad := wire.QueryInt(query, "limit", 20, 1, 100)
	if bad != nil {
		return paging{}, bad
	}
	order := query.Get("order")
	if order != "" && order != "asc" && order != "desc" {
		return paging{}, wire.BadRequest("order", "`order` must be asc or desc, got %q",
			wire.Clip(order))
	}
	return paging{limit, order != "asc", query.Get("after")}, nil
}

// elements are those of a JSON list.
func elements(list []byte) []json.RawMessage {
	var all []json.RawMessage
	for _, raw := range jsonx.Elements(list) {
		all = append(all, raw)
	}
	return all
}

// of cuts the page out of a list, whose order it may change.
func (p paging) of(all []json.RawMessage) page {
	if p.reverse {
		slices.Reverse(all)
	}
	if p.after != "" {
		all = all[indexOf(all, p.after)+1:]
	}
	cut := page{Object: "list", Data: []json.RawMessage{}, HasMore: len(all) > p.limit}
	cut.Data = append(cut.Data, all[:min(p.limit, len(all))]...)
	if n := len(cut.Data); n > 0 {
		cut.FirstID, cut.LastID = new(idOf(cut.Data[0])), new(idOf(cut.Data[n-1]))
	}
	return cut
}

// idOf is the member id of an object.
func idOf(object []byte) string {
	return wire.UnquoteOr(wire.MemberOf(object, "id", '"'), "")
}

// indexOf finds the object with an id, -1 for none.
func indexOf(list []json.RawMessage, id string) int {
	return slices.IndexFunc(list, func(raw json.RawMessage) bool { return idOf(raw) == id })
}
