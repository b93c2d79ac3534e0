package responses

import (
	"context"
	"sort"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// converse makes the conversation of the items that the request goes on from, and of its own,
// without those before an index. Instructions, and messages of the system, always stay.
func (r *responseRequest) converse(from int) {
	var d generate.Dialogue
	if r.instructions != "" {
		d.Add(&generate.Item{Kind: "message", Role: "system", Parts: []string{r.instructions}})
	}
	for i := range len(r.history) + len(r.input) {
		if t := r.item(i); i >= from || stays(t) {
			d.Add(t)
		}
	}
	d.End(&r.Conversation)
}

// item is the item of an index: history first, then input.
func (r *responseRequest) item(i int) *generate.Item {
	if n := len(r.history); i >= n {
		return &r.input[i-n]
	}
	return &r.history[i]
}

// stays is whether an item is never dropped.
func stays(t *generate.Item) bool {
	return t.Kind == "message" && (t.Role == "system" || t.Role == "developer")
}

// cuts are the indices, in order, from which a conversation can go on without what is before. Where
// a message of the user begins is best, as templates expect; behind the last of them, any item but
// the output of a call that would be gone.
func (r *responseRequest) cuts() []int {
	var turns, list []int
	n := len(r.history) + len(r.input)
	calls := map[string]int{}
	open := make([]bool, n) // whether a call before an index has an output at or behind it
	for i := range n {
		switch t := r.item(i); {
		case t.Kind == "function_call":
			calls[t.CallID] = i
		case t.Kind == "function_call_output":
			if at, ok := calls[t.CallID]; ok {
				for j := at + 1; j <= i; j++ {
					open[j] = true
				}
			} else {
				open[i] = true
			}
		case t.Kind == "message" && t.Role == "user":
			turns = append(turns, i)
		}
	}
	last := 0
	for _, i := range turns {
		if i > 0 && !open[i] {
			list = append(list, i)
		}
		last = i
	}
	for i := last + 1; i < n; i++ {
		if !open[i] && !stays(r.item(i)) {
			list = append(list, i)
		}
	}
	return list
}

// shorten drops items from the start of a conversation that is too long for the model, as few as
// are enough beside max_output_tokens. Where even the least is too long, its error says so.
func (s *API) shorten(ctx context.Context, req *responseRequest) *wire.Error {
	list := req.cuts()
	try := func(i int) *wire.Error {
		req.converse(list[i])
		return s.Fits(ctx, req.Chat)
	}
	var other *wire.Error
	fits := sort.Search(len(list), func(i int) bool {
		if other != nil {
			return true
		}
		bad := try(i)
		if bad != nil && !bad.IsTooLong() {
			other = bad
		}
		return bad == nil
	})
	switch {
	case other != nil:
		return other
	case len(list) == 0:
		return s.Fits(ctx, req.Chat)
	}
	return try(min(fits, len(list)-1))
}
