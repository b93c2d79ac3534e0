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
	last := -1 // the last message of the user
	n := len(r.history) + len(r.input)
	calls := map[string]int{}
	// begins counts the outputs from an index on whose calls are before it, less those that end
	// there: the sum up to an index is how many would be left alone.
	begins := make([]int, n+1)
	for i := range n {
		switch t := r.item(i); {
		case t.Kind == "function_call":
			calls[t.CallID] = i
		case t.Kind == "function_call_output":
			from := i // where there is no call
			if at, ok := calls[t.CallID]; ok {
				from = at + 1
			}
			begins[from]++
			begins[i+1]--
		case t.Kind == "message" && t.Role == "user":
			last = i
		}
	}
	var list []int
	alone := 0
	for i := range n {
		t := r.item(i)
		turn := t.Kind == "message" && t.Role == "user"
		alone += begins[i]
		if i > 0 && alone == 0 && (turn || i > last && !stays(t)) {
			list = append(list, i)
		}
	}
	return list
}

// shorten drops items from the start of a conversation that is too long for the model, as few as
// are enough beside max_output_tokens. The error is that of what is left then: where even the least
// is too long, or the template refuses it.
func (s *API) shorten(ctx context.Context, req *responseRequest) *wire.Error {
	list := req.cuts()
	try := func(i int) *wire.Error {
		req.converse(list[i])
		return s.Fits(ctx, req.Chat)
	}
	if len(list) == 0 {
		return s.Fits(ctx, req.Chat)
	}
	enough := sort.Search(len(list)-1, func(i int) bool { return !try(i).IsTooLong() })
	return try(enough)
}
