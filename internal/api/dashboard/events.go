package dashboard

import (
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

// keptEvents is how many events a page that opens is shown.
const keptEvents = 300

// Event is a status.Event as the page gets it.
type Event struct {
	// ID names the event: one that comes again under its ID takes the place of the first.
	ID uint64 `json:"id"`
	// At is Unix time in milliseconds.
	At int64 `json:"at"`
	// Level is DEBUG, INFO, WARN or ERROR.
	Level   string `json:"level"`
	Message string `json:"message"`
	// Detail is the rest of its line in the log.
	Detail string `json:"detail"`
}

// Events keeps the newest events of an engine. Its zero value is ready. Keeping one costs a lock
// and a copy: it is put into words when a page asks.
type Events struct {
	mu sync.Mutex
	// ring holds the event with an ID at that ID modulo its length; newest is the last ID given.
	ring   [keptEvents]entry
	newest uint64
	// last counts changes of the ring.
	last uint64
	// guesses are those of the requests that ended last, the one with an ID at that ID modulo
	// keptGuesses; guessed is the last ID given.
	guesses [keptGuesses]Guesses
	guessed uint64
}

// keptGuesses is how many requests a page shows the guesses of.
const keptGuesses = 12

// Guesses is what was guessed of a request that has ended.
type Guesses struct {
	ID uint64 `json:"id"`
	// At is Unix time in milliseconds.
	At     int64 `json:"at"`
	Tokens int   `json:"tokens"`
	// Steps are pairs of how many drafts a step verified and how many tokens it made, all but the
	// last of them drafts; they travel in base64.
	Steps []byte `json:"steps"`
}

type entry struct {
	id uint64
	// seq is the number of the change that put the event there.
	seq   uint64
	at    time.Time
	event status.Event
}

// Listen keeps an event; it is a status.Listener. Progress is left out: the phases of the ranks
// show it. Preemptions within a second are one event.
func (l *Events) Listen(e status.Event) {
	source, engine := status.Source(e)
	if g, ok := source.(status.Speculated); ok {
		l.listenGuesses(g)
		return
	}
	if _, ok := source.(status.Progress); ok || status.Frequent(source) {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	newest := &l.ring[l.newest%keptEvents]
	if p, ok := source.(status.Preempted); ok {
		before, of := status.Source(newest.event)
		b, same := before.(status.Preempted)
		if same && of == engine && now.Sub(newest.at) < time.Second {
			p.Requests += b.Requests
			newest.event, newest.seq = status.Like(e, p), l.last
			return
		}
	}
	l.newest++
	l.ring[l.newest%keptEvents] = entry{id: l.newest, seq: l.last, at: now, event: e}
}

// listenGuesses keeps what was guessed of a request.
func (l *Events) listenGuesses(e status.Speculated) {
	g := Guesses{At: time.Now().UnixMilli(), Tokens: e.Tokens, Steps: make([]byte, 0,
		2*len(e.Steps))}
	for _, s := range e.Steps {
		g.Steps = append(g.Steps, s.Drafts, s.Tokens)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guessed++
	g.ID = l.guessed
	l.guesses[g.ID%keptGuesses] = g
}

// GuessesSince returns what was guessed of the requests after the one with an ID, oldest first, and
// the last ID.
func (l *Events) GuessesSince(id uint64) (list []Guesses, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id = max(id, l.guessed-min(l.guessed, keptGuesses)); id < l.guessed; id++ {
		list = append(list, l.guesses[(id+1)%keptGuesses])
	}
	return list, l.guessed
}

// Since returns what changed after the change numbered seq, oldest first, and the number of the
// last change.
func (l *Events) Since(seq uint64) ([]Event, uint64) {
	l.mu.Lock()
	if seq == l.last {
		defer l.mu.Unlock()
		return nil, l.last
	}
	var found []entry
	for id := l.newest - min(l.newest, keptEvents-1); id <= l.newest; id++ {
		if e := l.ring[id%keptEvents]; e.seq > seq {
			found = append(found, e)
		}
	}
	last := l.last
	l.mu.Unlock()
	events := make([]Event, len(found))
	for i, e := range found {
		level, message, attrs := e.event.Log()
		events[i] = Event{ID: e.id, At: e.at.UnixMilli(), Level: level.String(), Message: message,
			Detail: status.Details(attrs)}
	}
	return events, last
}
