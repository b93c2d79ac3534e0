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
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/store"
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
}

// state is the part of a response that says what can be done with it.
func (k *storedResponse) state() (background bool, status Status) {
	var v struct {
		Background bool
		Status     Status
	}
	_ = json.Unmarshal(k.Response, &v) // it was written by this program
	return v.Background, v.Status
}

func responseKey(owner, id string) string { return "response/" + owner + "/" + id }
func eventsKey(owner, id string) string   { return "events/" + owner + "/" + id }

// storeResponse stores a response as it is.
func (s *API) storeResponse(owner string, rec *Response, input []byte) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	raw, err = json.Marshal(storedResponse{raw, input})
	if err != nil {
		return err
	}
	return s.put(responseKey(owner, rec.ID), raw, rec.CreatedAt)
}

// put stores a value of a response that was created at a time. Where there is no room the oldest
// values of the client that has the most make some.
func (s *API) put(key string, value []byte, created int64) error {
	until := time.Unix(created, 0).Add(responseLife)
	return s.opt.Store.Update(func(tx *store.Tx) error {
		err := tx.Put(key, value, until)
		if !errors.Is(err, store.ErrFull) {
			return err
		}
		if err := evict(tx); err != nil {
			return err
		}
		return tx.Put(key, value, until)
	})
}

// evict removes an eighth of all values by size, of the owner that has the most: one client does
// not crowd out the others.
func evict(tx *store.Tx) error {
	type entry struct {
		key  string
		size int
	}
	entries, sizes, all := map[string][]entry{}, map[string]int{}, 0
	tx.Each("", "", false, func(key string, value []byte) bool {
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
	id := func(key string) string { return key[strings.LastIndex(key, "/")+1:] } // by age
	slices.SortFunc(entries[most], func(a, b entry) int {
		return strings.Compare(id(a.key),
			id(b.key))
	})
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
	var kept storedResponse
	if err := json.Unmarshal(raw, &kept); err != nil {
		return nil, fmt.Errorf("stored response %s: %w", id, err)
	}
	if _, status := kept.state(); status.Final() {
		return &kept, nil
	}
	var rec Response
	if err := json.Unmarshal(kept.Response, &rec); err != nil {
		return nil, fmt.Errorf("stored response %s: %w", id, err)
	}
	rec.Status = Failed
	rec.Error = &Error{Code: "server_error",
		Message: "the server ended before the response was complete"}
	if kept.Response, err = json.Marshal(&rec); err != nil {
		return nil, err
	}
	return &kept, nil
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
		if live := s.live.find(owner, next); live != nil {
			if !live.complete() {
				return nil, wire.BadRequest(field, "response %s is not complete yet",
					wire.Clip(next))
			}
			<-live.done // its client has seen the end: only the store is behind
		}
		kept, err := s.loadResponse(owner, next)
		if err != nil {
			var bad *wire.Error
			if !errors.As(err, &bad) {
				bad = s.StatusOf(err)
				s.LogError(err, bad)
				return nil, bad
			}
			return nil, noResponse(field, next)
		}
		chain = append(chain, kept)
		total += int64(len(kept.Response) + len(kept.Input))
		if len(chain) > maxChain || total > s.opt.MaxConversation {
			return nil, wire.BadRequest(field,
				"the conversation of response %s is too long: at most %d responses, and %d bytes",
				wire.Clip(id), maxChain, s.opt.MaxConversation)
		}
		var link struct {
			Previous string `json:"previous_response_id"`
		}
		_ = json.Unmarshal(kept.Response, &link) // it was written by this program
		next = link.Previous
	}
	var items []generate.Item
	for _, kept := range slices.Backward(chain) {
		var rec struct{ Output json.RawMessage }
		_ = json.Unmarshal(kept.Response, &rec)
		for _, list := range [][]byte{kept.Input, rec.Output} {
			more, bad := generate.DecodeItems(field, list)
			if bad != nil {
				return nil, bad
			}
			items = append(items, more...)
		}
	}
	return items, nil
}

// page is a part of a list.
type page struct {
	Object  string            `json:"object"`
	Data    []json.RawMessage `json:"data"`
	FirstID *string           `json:"first_id"`
	LastID  *string           `json:"last_id"`
	HasMore bool              `json:"has_more"`
}

// pageOf cuts a page out of a JSON list of objects with ids: at most limit, after the one with an
// id, the last first if reverse.
func pageOf(list []byte, limit int, reverse bool, after string) page {
	type entry struct {
		id  string
		raw []byte
	}
	var all []entry
	_ = wire.EachElement(list, func(_ int, raw []byte) *wire.Error {
		e := entry{raw: raw}
		_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			if key == "id" {
				e.id = wire.Unquote(raw)
			}
			return nil
		})
		all = append(all, e)
		return nil
	})
	if reverse {
		slices.Reverse(all)
	}
	if after != "" {
		i := slices.IndexFunc(all, func(e entry) bool { return e.id == after })
		all = all[i+1:]
	}
	p := page{Object: "list", Data: []json.RawMessage{}, HasMore: len(all) > limit}
	all = all[:min(limit, len(all))]
	for _, e := range all {
		p.Data = append(p.Data, e.raw)
	}
	if len(all) > 0 {
		p.FirstID, p.LastID = &all[0].id, &all[len(all)-1].id
	}
	return p
}
