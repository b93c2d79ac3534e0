package responses

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// idPrefix is what the id of a response begins with.
const idPrefix = "resp_"

// itemIDs makes the ids of a response's items: each has the response's own in it, by which
// references find it.
func itemIDs(response string) func(prefix string) string {
	n := 0
	return func(prefix string) string {
		n++
		return prefix + strings.TrimPrefix(response, idPrefix) + "_" + strconv.Itoa(n)
	}
}

// responseOf is the id of the response that has an item.
func responseOf(item string) string {
	parts := strings.Split(item, "_")
	if len(parts) != 3 {
		return ""
	}
	return idPrefix + parts[1]
}

// dereference puts items of stored responses in the place of references to them. What is read for
// them, and what they all stand for, is bounded as a conversation is.
func (s *API) dereference(owner string, items []generate.Item) *wire.Error {
	const field = "input"
	outputs, total := map[string][]generate.Item{}, int64(0)
	for i := range items {
		if items[i].Kind != generate.Reference {
			continue
		}
		id := responseOf(items[i].ID)
		output, read := outputs[id]
		if !read {
			kept, bad := s.complete(field, owner, id)
			if bad != nil && bad.Status != http.StatusNotFound {
				return bad
			}
			if bad == nil {
				total += int64(len(kept.Response))
				if output, bad = kept.output(field); bad != nil {
					return bad
				}
			}
			outputs[id] = output
		}
		at := slices.IndexFunc(output, func(t generate.Item) bool { return t.ID == items[i].ID })
		if at < 0 {
			return &wire.Error{Status: http.StatusNotFound, Param: field,
				Message: fmt.Sprintf("Item with id '%s' not found.", wire.Clip(items[i].ID))}
		}
		items[i] = output[at]
		if total += int64(items[i].Size()); total > s.opt.MaxConversation {
			return wire.BadRequest(field, "the items that `input` refers to are too long: at most "+
				"%d bytes with their responses", s.opt.MaxConversation)
		}
	}
	return nil
}
