package libcuda

import (
	"maps"
	"slices"
	"sync"
)

// handles are those of one kind that a context owns. The zero value has none.
type handles[H comparable] struct {
	mu  sync.Mutex
	all map[H]struct{}
}

func (h *handles[H]) add(x H) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[H]struct{}{}
	}
	h.all[x] = struct{}{}
}

// remove says whether it was there.
func (h *handles[H]) remove(x H) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, there := h.all[x]
	delete(h.all, x)
	return there
}

// clear removes all, and returns them.
func (h *handles[H]) clear() []H {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := slices.Collect(maps.Keys(h.all))
	clear(h.all)
	return list
}
