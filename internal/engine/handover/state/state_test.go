package state

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/sys/transcripts"
)

// TestTranscripts replays testdata/*.txt (see package transcripts). Each command prints the actions
// that follow. Commands:
//
//	admit REQUEST [later]           a request with a ticket, or a later output of its prompt
//	fetch REQUEST [BLOCK…]          the scheduler wants blocks, or none, of its ticket
//	cancel REQUEST                  no request waits for the fetch
//	fetched REQUEST [lost]          the fetch has ended
//	plan REQUEST PLAN BLOCK…        a plan completes blocks to hand over
//	publish REQUEST PLAN BLOCK…     the request has ended with these blocks
//	end REQUEST                     it has ended otherwise, or after publish
//	unpublish REQUEST               its ticket was not read
//	unpinned TRANSFER               the ranks hand it out no more
//	restart                         the ranks have other agents
//	state                           prints the machine
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(t *testing.T) func(string, []string) string {
		m := new(Machine)
		return func(name string, args []string) string { return command(t, m, name, args) }
	})
}

func command(t *testing.T, m *Machine, name string, args []string) string {
	n := make([]uint64, 0, len(args))
	for _, a := range args {
		if v, err := strconv.ParseUint(a, 10, 64); err == nil {
			n = append(n, v)
		}
	}
	word := strings.Join(args[len(n):], " ")
	said := ""
	switch name {
	case "admit":
		m.Admit(n[0], word != "later")
	case "fetch":
		m.Fetch(schedule.Fetch{Key: n[0], Blocks: blocks(n[1:])})
	case "cancel":
		m.Cancel(n[0])
	case "fetched":
		m.FetchEnded(n[0], word != "lost")
	case "plan":
		m.PlanPin(n[0], schedule.HandOver{Plan: n[1], Blocks: blocks(n[2:])})
	case "publish":
		h := schedule.HandOver{Plan: n[1], Blocks: blocks(n[2:])}
		said = fmt.Sprintf("ticket of transfer %d\n", m.Publish(n[0], &h))
	case "end":
		m.End(n[0])
	case "unpublish":
		m.Unpublish(n[0])
	case "unpinned":
		m.PinEnded(Transfer(n[0]))
	case "restart":
		m.Restart()
	case "state":
		said = m.String()
	default:
		t.Fatalf("unknown command %q", name)
	}
	for _, a := range m.Actions() {
		said += show(a) + "\n"
	}
	return said
}

func blocks(n []uint64) (list []uint32) {
	for _, b := range n {
		list = append(list, uint32(b))
	}
	return list
}

func show(a Action) string {
	switch a := a.(type) {
	case Pin:
		return fmt.Sprintf("  pin blocks %v of plan %d as transfer %d", a.Blocks.Blocks,
			a.Blocks.Plan, a.Transfer)
	case Unpin:
		return fmt.Sprintf("  unpin transfer %d", a.Transfer)
	case Release:
		return fmt.Sprintf("  release the blocks of %d", a.Request)
	case Fetch:
		return fmt.Sprintf("  fetch blocks %v for %d", a.Blocks, a.Key)
	case CancelFetch:
		return fmt.Sprintf("  cancel the fetch for %d", a.Request)
	case Complete:
		return fmt.Sprintf("  fetch for %d is complete: %v", a.Request, a.OK)
	case Decline:
		return fmt.Sprintf("  decline the ticket of %d", a.Request)
	}
	return fmt.Sprintf("%T", a)
}

// TestWalk goes through random lives of requests: whatever order ends and answers come in, every
// pin ends, every published transfer releases its blocks once, every ticket is fetched or declined
// at most once, and nothing is left.
func TestWalk(t *testing.T) {
	for seed := range uint64(300) {
		w := &walk{T: t, rng: rand.New(rand.NewPCG(seed, 1)), pinned: map[Transfer]bool{},
			fetching: map[uint64]bool{}, published: map[uint64]bool{}, used: map[uint64]int{},
			live: map[uint64]*life{}}
		for range 200 {
			w.step()
		}
		w.end()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

type life struct{ ticket, fetched, planned bool }

type walk struct {
	*testing.T
	m         Machine
	rng       *rand.Rand
	next      uint64
	live      map[uint64]*life
	pinned    map[Transfer]bool
	fetching  map[uint64]bool
	published map[uint64]bool
	used      map[uint64]int
}

func (w *walk) step() {
	switch w.rng.IntN(8) {
	case 0:
		w.next++
		w.live[w.next] = &life{ticket: w.rng.IntN(2) == 0}
		if w.live[w.next].ticket {
			w.m.Admit(w.next, true)
		}
	case 1:
		w.one(func(key uint64, l *life) {
			if l.ticket && !l.fetched {
				l.fetched = true
				w.m.Fetch(schedule.Fetch{Key: key, Blocks: make([]uint32, w.rng.IntN(2))})
			}
		})
	case 2:
		w.one(func(key uint64, l *life) {
			l.planned = true
			w.m.PlanPin(key, schedule.HandOver{Plan: w.rng.Uint64N(3), Blocks: []uint32{1}})
		})
	case 3:
		w.one(func(key uint64, l *life) {
			if w.fetching[key] {
				return // it waits
			}
			if w.rng.IntN(2) == 0 {
				h := schedule.HandOver{Plan: w.rng.Uint64N(3), Blocks: []uint32{1}}
				w.m.Publish(key, &h)
				w.published[key] = true
			}
			w.m.End(key)
			delete(w.live, key)
		})
	case 4:
		if key, ok := some(w.rng, w.fetching); ok {
			w.m.Cancel(key)
		}
	case 5:
		w.answer()
	case 6:
		if key, ok := some(w.rng, w.published); ok {
			w.m.Unpublish(key)
		}
	case 7:
		if w.rng.IntN(10) == 0 {
			w.m.Restart()
		}
	}
	w.perform()
}

func (w *walk) one(f func(uint64, *life)) {
	if key, ok := some(w.rng, w.live); ok {
		f(key, w.live[key])
	}
}

// some is a key of a map.
func some[K cmp.Ordered, V any](rng *rand.Rand, m map[K]V) (key K, ok bool) {
	keys := slices.Sorted(maps.Keys(m))
	if len(keys) == 0 {
		return key, false
	}
	return keys[rng.IntN(len(keys))], true
}

// answer ends one of the pins and one of the fetches that are under way.
func (w *walk) answer() {
	if t, ok := some(w.rng, w.pinned); ok {
		delete(w.pinned, t)
		w.m.PinEnded(t)
	}
	if key, ok := some(w.rng, w.fetching); ok {
		w.m.FetchEnded(key, true)
	}
}

func (w *walk) perform() {
	for _, a := range w.m.Actions() {
		switch a := a.(type) {
		case Pin:
			w.pinned[a.Transfer] = true
		case Unpin: // answered by PinEnded
		case Release:
			if !w.published[a.Request] {
				w.Errorf("request %d is released twice, or was never published", a.Request)
			}
			delete(w.published, a.Request)
		case Fetch:
			w.used[a.Key]++
			w.fetching[a.Key] = true
		case Complete:
			delete(w.fetching, a.Request)
		case Decline:
			w.used[a.Request]++
		}
	}
	for key, n := range w.used {
		if n > 1 {
			w.Errorf("the ticket of request %d is used %d times", key, n)
		}
	}
}

func (w *walk) end() {
	for key := range w.live {
		w.m.End(key)
	}
	w.perform()
	for len(w.pinned)+len(w.fetching) > 0 {
		w.answer()
		w.perform()
	}
	if len(w.published) > 0 || w.m.String() != "" {
		w.Errorf("left: %v\n%s", w.published, &w.m)
	}
}

// String lists the transfers and the requests with tickets, a line each.
func (m *Machine) String() string {
	var b strings.Builder
	for _, t := range slices.Sorted(maps.Keys(m.pins)) {
		p := m.pins[t]
		how := "unpinned"
		switch {
		case p.published:
			how = "published"
		case m.ahead[p.request] == t:
			how = "ahead"
		}
		fmt.Fprintf(&b, "transfer %d of %d: blocks %v, %s\n", t, p.request, p.blocks.Blocks, how)
	}
	for _, request := range slices.Sorted(maps.Keys(m.tickets)) {
		fmt.Fprintf(&b, "ticket of %d\n", request)
	}
	for _, request := range slices.Sorted(maps.Keys(m.fetching)) {
		fmt.Fprintf(&b, "fetching %d\n", request)
	}
	return b.String()
}
