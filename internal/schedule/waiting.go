package schedule

// waiting is a binary heap of requests by their order. Each request knows its index, so that an abort takes
// it out without a search. (container/heap would hide the index behind an interface.)
type waiting []*request

func (w *waiting) push(r *request) {
	*w = append(*w, r)
	r.heap = len(*w) - 1
	w.up(r.heap)
}

// remove takes out the request at index i.
func (w *waiting) remove(i int) {
	h := *w
	last := len(h) - 1
	h.swap(i, last)
	h[last] = nil
	*w = h[:last]
	if i < last {
		w.down(i)
		w.up(i)
	}
}

func (w waiting) swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].heap, w[j].heap = i, j
}

func (w waiting) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !w[i].before(w[parent]) {
			return
		}
		w.swap(i, parent)
		i = parent
	}
}

func (w waiting) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(w); c++ {
			if w[c].before(w[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		w.swap(i, least)
		i = least
	}
}
