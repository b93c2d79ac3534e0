// Package state decides what becomes of the KV blocks that engines hand over to each other. It is a
// pure state machine without clock, goroutine or I/O: what happens to requests and transfers goes
// in, and Actions come out.
//
// A producer pins blocks of a request on its ranks, publishes a ticket for them when the request
// ends, and releases them when the other engine has fetched them or the time for it is over. A
// consumer fetches blocks into ones that its scheduler has reserved, or declines them.
package state

import (
	"maps"
	"slices"

	"github.com/eagleray/eagleray/internal/engine/schedule"
)

// Transfer is the number of blocks that are pinned for another engine, from 1.
type Transfer uint64

// Action is what is to be done outside, in the order in which Actions lists it.
type Action any

type (
	// Pin has the ranks hand blocks out until PinEnded.
	Pin struct {
		Transfer Transfer
		Blocks   schedule.HandOver
	}
	// Unpin ends a Pin whose ticket was not published, or not read.
	Unpin struct{ Transfer Transfer }
	// Release frees a request's blocks, which the scheduler has pinned.
	Release struct{ Request uint64 }
	// Fetch has the ranks fetch blocks until FetchEnded.
	Fetch struct{ schedule.Fetch }
	// CancelFetch ends a Fetch early: FetchEnded follows all the same.
	CancelFetch struct{ Request uint64 }
	// Complete tells the scheduler that a fetch has ended, OK if all blocks are there.
	Complete struct {
		Request uint64
		OK      bool
	}
	// Decline tells the producer of a request's ticket that its blocks are not needed.
	Decline struct{ Request uint64 }
)

// Machine is one engine's hand-overs. The zero value has none.
type Machine struct {
	last Transfer
	pins map[Transfer]*pin
	// ahead are the transfers of requests whose tickets are not published, by request.
	ahead map[uint64]Transfer
	// tickets are the requests with a ticket of another engine that is not used: true where this
	// request is the one of several to decline it.
	tickets  map[uint64]bool
	fetching map[uint64]bool
	actions  []Action
}

type pin struct {
	request   uint64
	blocks    schedule.HandOver
	published bool
}

// Actions returns what is to be done since the last call. It is valid until the next input.
func (m *Machine) Actions() []Action {
	list := m.actions
	m.actions = m.actions[:0]
	return list
}

func (m *Machine) do(a Action) { m.actions = append(m.actions, a) }

// Admit takes note of a request with a ticket. Of several outputs of one prompt the first declines.
func (m *Machine) Admit(request uint64, first bool) {
	if m.tickets == nil {
		m.tickets, m.fetching = map[uint64]bool{}, map[uint64]bool{}
	}
	m.tickets[request] = first
}

// Fetch is what the scheduler wants of the request's ticket; no blocks decline it.
func (m *Machine) Fetch(f schedule.Fetch) {
	if len(f.Blocks) == 0 {
		m.decline(f.Key)
		return
	}
	delete(m.tickets, f.Key)
	m.fetching[f.Key] = true
	m.do(Fetch{f})
}

// Cancel takes note that no request waits for a fetch any more.
func (m *Machine) Cancel(request uint64) {
	if m.fetching[request] {
		m.do(CancelFetch{request})
	}
}

// FetchEnded takes note that the ranks write to the request's blocks no more.
func (m *Machine) FetchEnded(request uint64, ok bool) {
	if m.fetching[request] {
		delete(m.fetching, request)
		m.do(Complete{request, ok})
	}
}

// PlanPin takes note of the blocks that a plan completes, before the ranks are sent it: they can
// hand them out as soon as they have executed it. Were they told with its result, they would hear
// of it after the plan that follows, which may be another long prompt. A request that was preempted
// is planned again.
func (m *Machine) PlanPin(request uint64, blocks schedule.HandOver) {
	m.unpin(request)
	if m.ahead == nil {
		m.ahead = map[uint64]Transfer{}
	}
	m.ahead[request] = m.pin(request, blocks)
}

// Publish returns the transfer of the blocks of a request that has ended: the one that was pinned
// ahead if it has these blocks, else a new one.
func (m *Machine) Publish(request uint64, blocks *schedule.HandOver) Transfer {
	t := m.ahead[request]
	if p := m.pins[t]; p != nil && p.blocks.Digest == blocks.Digest &&
		p.blocks.Plan == blocks.Plan && slices.Equal(p.blocks.Blocks, blocks.Blocks) {
		delete(m.ahead, request)
	} else {
		m.unpin(request)
		t = m.pin(request, *blocks)
	}
	m.pins[t].published = true
	return t
}

// End takes note that a request has ended: what is pinned ahead of it is of no use unless Publish
// came first, and a ticket that it did not use is declined.
func (m *Machine) End(request uint64) {
	m.unpin(request)
	m.decline(request)
}

// Unpublish takes note that the ticket of a request, if one was published, was not read.
func (m *Machine) Unpublish(request uint64) {
	for t, p := range m.pins { // one at most
		if p.published && p.request == request {
			m.do(Unpin{t})
		}
	}
}

// PinEnded takes note that the ranks hand a transfer out no more. It tells whether its ticket was
// published: then its blocks are released.
func (m *Machine) PinEnded(t Transfer) (published bool) {
	p := m.pins[t]
	if p == nil {
		return false
	}
	delete(m.pins, t)
	if p.published {
		m.do(Release{p.request})
	} else if m.ahead[p.request] == t {
		delete(m.ahead, p.request)
	}
	return p.published
}

// Restart takes note that the ranks' agents are others: what was pinned ahead is with those before.
func (m *Machine) Restart() {
	for _, request := range slices.Sorted(maps.Keys(m.ahead)) {
		m.unpin(request)
	}
}

func (m *Machine) pin(request uint64, blocks schedule.HandOver) Transfer {
	if m.pins == nil {
		m.pins = map[Transfer]*pin{}
	}
	m.last++
	m.pins[m.last] = &pin{request: request, blocks: blocks}
	m.do(Pin{m.last, blocks})
	return m.last
}

// unpin ends what is pinned ahead of a request.
func (m *Machine) unpin(request uint64) {
	if t, ok := m.ahead[request]; ok {
		delete(m.ahead, request)
		m.do(Unpin{t})
	}
}

// decline declines a request's ticket, once.
func (m *Machine) decline(request uint64) {
	if m.tickets[request] {
		m.do(Decline{request})
	}
	delete(m.tickets, request)
}
