package schedule

// turns say when a request's turn comes: fair queueing by start tags (Goyal, Vin and Cheng: SFQ,
// 1996) in place of the order of arrival. now is the latest turn of those that have started.
//
// The requests of a lot, which a client adds together, have one turn after the other. The first is
// the turn after now, or after the first of the client's lot before, whichever is later. So a
// client's lots begin in the order of their arrival, and a lot that comes after one of a thousand
// requests waits for one or two of them. Nor do lots that keep coming hold up those that wait: once
// the next turn has begun, theirs are later.
type turns struct {
	now uint64
	// clients are those that have requests that wait.
	clients map[string]*lots
}

// lots are those of a client.
type lots struct {
	waiting int // requests
	// first is the turn of the first request of the lot added last, 0 for none.
	first uint64
}

// of returns the lots of a request's client.
func (t *turns) of(r *Request) *lots {
	l := t.clients[r.Client]
	if l == nil {
		l = new(lots)
		t.clients[r.Client] = l
	}
	return l
}

// assign gives a new request its turn.
func (t *turns) assign(r *Request) {
	l := t.of(r)
	if r.Index == 0 || l.first == 0 {
		l.first = max(t.now, l.first) + 1
	}
	r.turn = l.first + uint64(r.Index)
}

// again gives a preempted request its turn. Those that are not the first of their lot wait behind
// the first of others.
func (t *turns) again(r *Request) {
	if r.Index > 0 {
		r.turn = max(r.turn, t.now+1)
	}
}
