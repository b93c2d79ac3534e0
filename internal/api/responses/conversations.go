package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// ConversationsPath is OpenAI's, for conversations that responses are made in.
const ConversationsPath = "/v1/conversations"

// itemsExample are items of a conversation.
const itemsExample = `{"items":[{"role":"user","content":"What does os.Open do?"}]}`

// talkRoutes are those of the Conversations API.
func (s *API) talkRoutes() []server.Route {
	const one, items, item = ConversationsPath + "/{id}", ConversationsPath + "/{id}/items",
		ConversationsPath + "/{id}/items/{item}"
	list := []server.Route{
		server.Posted(s.Server, ConversationsPath, decodeNewTalk, s.createTalk,
			server.Doc{Summary: "Begin a conversation", Answer: Conversation{}, Forms: itemForms},
			itemsExample),
		{Method: "GET", Path: one, Handler: s.getTalk,
			Doc: server.Doc{Summary: "Show a conversation", Answer: Conversation{}}},
		server.Posted(s.Server, one, decodeTalkUpdate, s.changeTalk,
			server.Doc{Summary: "Replace the metadata of a conversation", Answer: Conversation{}},
			`{"metadata":{"topic":"files"}}`),
		{Method: "DELETE", Path: one, Handler: s.deleteTalk,
			Doc: server.Doc{Summary: "Delete a conversation", Answer: Deleted{}}},
		server.Posted(s.Server, items, decodeTalkItems, s.createItems,
			server.Doc{Summary: "Add items to a conversation", Answer: page{},
				Forms: itemForms}, itemsExample),
		{Method: "GET", Path: items, Handler: s.listItems,
			Doc: server.Doc{Summary: "List the items of a conversation", Answer: page{},
				Query: server.Paged}},
		{Method: "GET", Path: item, Handler: s.getItem,
			Doc: server.Doc{Summary: "Show an item of a conversation", Answer: map[string]any{}}},
		{Method: "DELETE", Path: item, Handler: s.deleteItem,
			Doc: server.Doc{Summary: "Delete an item of a conversation", Answer: Conversation{}}},
	}
	for i := range list {
		list[i].Handler = server.Checked(s.storesTalks, list[i].Handler)
	}
	return list
}

// storesTalks refuses requests where nothing is stored.
func (s *API) storesTalks() error {
	if s.opt.Store != nil {
		return nil
	}
	return &wire.Error{Status: http.StatusNotFound,
		Message: "conversations are not supported: this server keeps nothing"}
}

// newTalk is the body of POST /v1/conversations, talkUpdate that of POST /v1/conversations/{id}.
type newTalk struct {
	items    []generate.Item
	metadata []byte
}

func decodeNewTalk(f *wire.Fields) (newTalk, *wire.Error) {
	t := newTalk{metadata: decodeMetadata(f)}
	if raw := f.Array("items"); raw != nil {
		t.items = decodeOwnItems(f, raw)
	}
	return t, f.Err
}

func decodeTalkUpdate(f *wire.Fields) ([]byte, *wire.Error) {
	if raw := f.Members["metadata"]; raw == nil || wire.IsNull(raw) {
		f.Fail(wire.BadRequest("metadata", "`metadata` is required"))
	}
	return decodeMetadata(f), f.Err
}

func decodeTalkItems(f *wire.Fields) ([]generate.Item, *wire.Error) {
	raw := f.Array("items")
	if raw == nil {
		f.Fail(wire.BadRequest("items", "`items` is required: a list of items"))
		return nil, f.Err
	}
	return decodeOwnItems(f, raw), f.Err
}

// decodeOwnItems reads items for a conversation.
func decodeOwnItems(f *wire.Fields, raw []byte) []generate.Item {
	items, bad := generate.DecodeItems("items", raw)
	if bad == nil {
		bad = checkDuplicates("items", items)
	}
	f.Fail(bad)
	for i := range items {
		if items[i].Kind == generate.Reference {
			f.Fail(wire.Path("items").Index(i).Bad("is a reference: a conversation takes items " +
				"themselves"))
		}
	}
	return items
}

// add appends items, within the bytes that a request's body may have.
func (s *API) add(t *storedTalk, items []generate.Item) error {
	taken := make(map[string]bool, len(t.Items))
	for _, raw := range t.Items {
		taken[idOf(raw)] = true
	}
	for i := range items {
		if taken[items[i].ID] { // items' own ids differ (checkDuplicates)
			return wire.BadRequest("items", "the conversation has an item of id %s already",
				wire.Clip(items[i].ID))
		}
		t.Items = append(t.Items, generate.AppendItem(nil, &items[i]))
	}
	if t.size() > s.opt.MaxConversation {
		return s.talkTooLong("items", t.ID)
	}
	return nil
}

// createTalk answers POST /v1/conversations.
func (s *API) createTalk(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	req newTalk) error {
	t := &storedTalk{Conversation: Conversation{ID: call.NewItemID("conv_"),
		Object: "conversation", CreatedAt: time.Now().Unix(), Metadata: req.metadata}}
	if err := s.add(t, req.items); err != nil {
		return err
	}
	err := s.opt.Store.Update(func(tx *store.Tx) error { return putTalk(tx, r.Owner, t) })
	if err != nil {
		return storeError(err)
	}
	return s.WriteJSON(w, t.Conversation)
}

// storeError is the answer to what has no room in the store, however much is removed for it.
func storeError(err error) error {
	if errors.Is(err, store.ErrFull) {
		return &wire.Error{Status: http.StatusInsufficientStorage, Expected: true,
			Message: "the server's store has no room for the conversation"}
	}
	return err
}

// getTalk answers GET /v1/conversations/{id}.
func (s *API) getTalk(w http.ResponseWriter, r *server.Request) error {
	t, err := s.loadTalk(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.WriteJSON(w, t.Conversation)
}

// changeTalk answers POST /v1/conversations/{id}: it replaces the metadata.
func (s *API) changeTalk(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	metadata []byte) error {
	t, err := s.updateTalk(r.Owner, r.PathValue("id"), func(t *storedTalk) error {
		t.Metadata = metadata
		return nil
	})
	if err != nil {
		return storeError(err)
	}
	return s.WriteJSON(w, t.Conversation)
}

// deleteTalk answers DELETE /v1/conversations/{id}. Responses that were made in it stay.
func (s *API) deleteTalk(w http.ResponseWriter, r *server.Request) error {
	id := r.PathValue("id")
	err := s.opt.Store.Update(func(tx *store.Tx) error {
		if _, err := getTalk(tx, r.Owner, id); err != nil {
			return err
		}
		return tx.Delete(talkKey(r.Owner, id))
	})
	if err != nil {
		return err
	}
	return s.WriteJSON(w, Deleted{id, "conversation.deleted", true})
}

// createItems answers POST /v1/conversations/{id}/items with the list of what it added.
func (s *API) createItems(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	items []generate.Item) error {
	var added []json.RawMessage
	_, err := s.updateTalk(r.Owner, r.PathValue("id"), func(t *storedTalk) error {
		before := len(t.Items)
		if err := s.add(t, items); err != nil {
			return err
		}
		added = t.Items[before:]
		return nil
	})
	if err != nil {
		return storeError(err)
	}
	return s.WriteJSON(w, paging{limit: len(added)}.of(added))
}

// listItems answers GET /v1/conversations/{id}/items.
func (s *API) listItems(w http.ResponseWriter, r *server.Request) error {
	p, bad := pageAsked(r)
	if bad != nil {
		return bad
	}
	t, err := s.loadTalk(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.WriteJSON(w, p.of(t.Items))
}

// noItem is the answer to an id of which the conversation has no item.
func noItem(r *server.Request) *wire.Error {
	return &wire.Error{Status: http.StatusNotFound, Param: "item_id",
		Message: fmt.Sprintf("Item with id '%s' not found in conversation '%s'.",
			wire.Clip(r.PathValue("item")), wire.Clip(r.PathValue("id")))}
}

// getItem answers GET /v1/conversations/{id}/items/{item}.
func (s *API) getItem(w http.ResponseWriter, r *server.Request) error {
	t, err := s.loadTalk(r.Owner, r.PathValue("id"))
	if err != nil {
		return err
	}
	i := indexOf(t.Items, r.PathValue("item"))
	if i < 0 {
		return noItem(r)
	}
	return s.WriteRaw(w, t.Items[i])
}

// deleteItem answers DELETE /v1/conversations/{id}/items/{item} with the conversation.
func (s *API) deleteItem(w http.ResponseWriter, r *server.Request) error {
	t, err := s.updateTalk(r.Owner, r.PathValue("id"), func(t *storedTalk) error {
		i := indexOf(t.Items, r.PathValue("item"))
		if i < 0 {
			return noItem(r)
		}
		t.Items = slices.Delete(t.Items, i, i+1)
		return nil
	})
	if err != nil {
		return err
	}
	return s.WriteJSON(w, t.Conversation)
}
