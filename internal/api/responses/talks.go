package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/store"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Conversation is the object of the Conversations API. Its metadata are those of the request, as
// the client wrote them.
type Conversation struct {
	ID        string          `json:"id"`
	Object    string          `json:"object"`
	CreatedAt int64           `json:"created_at"`
	Metadata  json.RawMessage `json:"metadata"`
}

// storedTalk is what is kept of a conversation: one value, so that it never loses a part.
type storedTalk struct {
	Conversation
	Items []json.RawMessage `json:"items"`
}

// size is the bytes of its items.
func (t *storedTalk) size() int64 {
	n := 0
	for _, raw := range t.Items {
		n += len(raw)
	}
	return int64(n)
}

func talkKey(owner, id string) string { return "conversation/" + owner + "/" + id }

// noTalk is the answer to an id of which there is no conversation, or none of this client.
func noTalk(param, id string) *wire.Error {
	return &wire.Error{Status: http.StatusNotFound, Param: param,
		Message: fmt.Sprintf("Conversation with id '%s' not found.", wire.Clip(id))}
}

// loadTalk returns a conversation.
func (s *API) loadTalk(owner, id string) (t *storedTalk, err error) {
	err = s.opt.Store.View(func(tx *store.Tx) error {
		t, err = getTalk(tx, owner, id)
		return err
	})
	return t, err
}

func getTalk(tx *store.Tx, owner, id string) (*storedTalk, error) {
	raw, err := tx.Get(talkKey(owner, id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, noTalk("conversation_id", id)
	}
	if err != nil {
		return nil, err
	}
	t := &storedTalk{}
	if err := json.Unmarshal(raw, t); err != nil {
		return nil, fmt.Errorf("stored conversation %s: %w", id, err)
	}
	return t, nil
}

func putTalk(tx *store.Tx, owner string, t *storedTalk) error {
	raw, err := jsonx.Marshal(t)
	if err != nil {
		return err
	}
	return putIn(tx, talkKey(owner, t.ID), raw)
}

// updateTalk changes a conversation, unless f fails.
func (s *API) updateTalk(owner, id string, f func(*storedTalk) error) (t *storedTalk, err error) {
	err = s.opt.Store.Update(func(tx *store.Tx) error {
		if t, err = getTalk(tx, owner, id); err != nil {
			return err
		}
		if err := f(t); err != nil {
			return err
		}
		return putTalk(tx, owner, t)
	})
	return t, err
}

// appendTurn adds the items of a request and those of its answer.
func (s *API) appendTurn(owner, id string, input []byte, output []json.RawMessage) error {
	_, err := s.updateTalk(owner, id, func(t *storedTalk) error {
		t.Items = slices.Concat(t.Items, elements(input), output)
		return nil
	})
	return err
}

// talkItems returns the items of a conversation that a request goes on with.
func (s *API) talkItems(owner, id string) ([]generate.Item, *wire.Error) {
	const field = "conversation"
	t, err := s.loadTalk(owner, id)
	var bad *wire.Error
	switch {
	case errors.As(err, &bad):
		return nil, noTalk(field, id)
	case err != nil:
		bad = s.StatusOf(err)
		s.LogError(err, bad, "conversation", id)
		return nil, bad
	case t.size() > s.opt.MaxConversation:
		return nil, s.talkTooLong(field, id)
	}
	var items []generate.Item
	for _, raw := range t.Items {
		one, bad := generate.DecodeItems(field, append(append([]byte{'['}, raw...), ']'))
		if bad != nil {
			return nil, bad
		}
		items = append(items, one...)
	}
	return items, nil
}

// talkTooLong refuses a conversation as long as no request's body may be.
func (s *API) talkTooLong(param, id string) *wire.Error {
	return wire.BadRequest(param, "the conversation %s is too long: at most %d bytes",
		wire.Clip(id), s.opt.MaxConversation)
}

// checkDuplicates refuses items with ids that others have: they are found by these.
func checkDuplicates(field string, lists ...[]generate.Item) *wire.Error {
	seen := map[string]bool{}
	for _, list := range lists {
		for i := range list {
			id := list[i].ID
			if seen[id] {
				return wire.BadRequest(field, "Duplicate item found with id %s. Remove duplicate "+
					"items from your input and try again.", wire.Clip(id))
			}
			seen[id] = true
		}
	}
	return nil
}

// busyTalks are the conversations that a response is made in: another one would not know of it.
type busyTalks struct {
	mu  sync.Mutex
	all map[string]bool // by talkKey
}

// acquireTalk has the conversation of a request for it alone, until it releases that.
func (s *API) acquireTalk(owner string, req *responseRequest) *wire.Error {
	req.release = func() {}
	if req.talk == "" {
		return nil
	}
	key, b := talkKey(owner, req.talk), &s.talks
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[key] {
		bad := wire.BadRequest("conversation", "Another process is currently operating on this "+
			"conversation. Please retry in a few seconds.")
		bad.Code = "conversation_locked"
		return bad
	}
	if b.all == nil {
		b.all = map[string]bool{}
	}
	b.all[key] = true
	req.release = sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.all, key)
	})
	return nil
}
