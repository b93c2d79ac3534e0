package schedule

import "container/heap"

// waiting are the requests that wait: those that are the first of their lot, and the rest.
type waiting struct {
	firsts, rest line
	background   int // how many of them are in the background
}

// line is a heap of requests by their order (Request.before). Each request keeps its index in it
// (Swap, Push), so that an abort takes it out without a search.
type line []*Request

var _ heap.Interface = (*line)(nil)

// Len implements heap.Interface.
func (l line) Len() int { return len(l) }

// Less implements heap.Interface.
func (l line) Less(i, j int) bool { return l[i].before(l[j]) }

// Swap implements heap.Interface.
func (l line) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].heap, l[j].heap = i, j
}

// Push implements heap.Interface.
func (l *line) Push(x any) {
	r := x.(*Request)
	r.heap = len(*l)
	*l = append(*l, r)
}

// Pop implements heap.Interface.
func (l *line) Pop() any {
	last := len(*l) - 1
	r := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return r
}

// of is the line that a request belongs in.
func (w *waiting) of(r *Request) *line {
	if r.Index == 0 {
		return &w.firsts
	}
	return &w.rest
}

func (w *waiting) len() int { return len(w.firsts) + len(w.rest) }

// keptSlots is the part of the slots that is kept for the first request of each lot: one in
// sixteen. Without it, a lot that has all slots would hold up the others until some of it ends.
const keptSlots = 16

// next returns the waiting request whose turn it is to start beside so many that run, in slots,
// nil for none. It is one in the background, or none is.
func (w *waiting) next(running, slots int, background bool) *Request {
	var r *Request
	if len(w.firsts) > 0 && running < slots && w.firsts[0].Background == background {
		r = w.firsts[0]
	}
	if len(w.rest) > 0 && running < slots-slots/keptSlots && w.rest[0].Background == background &&
		(r == nil || w.rest[0].before(r)) {
		r = w.rest[0]
	}
	return r
}

// wait lets a request wait.
func (s *Scheduler) wait(r *Request) {
	heap.Push(s.waiting.of(r), r)
	s.waiting.background += r.class()
	s.turns[r.class()].of(r).waiting++
}

// unwait takes a request out of those that wait.
func (s *Scheduler) unwait(r *Request) {
	heap.Remove(s.waiting.of(r), r.heap)
	s.waiting.background -= r.class()
	t := &s.turns[r.class()]
	l := t.of(r)
	if l.waiting--; l.waiting == 0 {
		delete(t.clients, r.Client)
	}
}
