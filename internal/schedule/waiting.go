package schedule

import "container/heap"

// waiting is a heap of requests by their order; its first is the next to run. Each request keeps
// its index in it (Swap, Push), so that an abort takes it out without a search.
type waiting []*Request

var _ heap.Interface = (*waiting)(nil)

// Len implements heap.Interface.
func (w waiting) Len() int { return len(w) }

// Less implements heap.Interface.
func (w waiting) Less(i, j int) bool { return w[i].before(w[j]) }

// Swap implements heap.Interface.
func (w waiting) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].heap, w[j].heap = i, j
}

// Push implements heap.Interface.
func (w *waiting) Push(x any) {
	r := x.(*Request)
	r.heap = len(*w)
	*w = append(*w, r)
}

// Pop implements heap.Interface.
func (w *waiting) Pop() any {
	last := len(*w) - 1
	r := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return r
}
