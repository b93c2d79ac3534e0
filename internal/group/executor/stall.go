package executor

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/status"
)

// explainer watches the ranks' status. While work is queued and a rank has not moved for the
// warning time it emits an event for each lagging rank, and another one when that rank moves again;
// it emits none while nothing is queued.
type explainer struct {
	end  chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	seen []rankSample
	// looked is the time at which the status was last read.
	looked time.Time
}

// rankSample records when a rank was last seen to move. Time in which it waited for a processor
// does not count: moved is later by it.
type rankSample struct {
	// is its status at the last look.
	is    status.Snapshot
	moved time.Time
	// stalled is the time at which a reported stall began, warned the time of the last warning;
	// both are zero without one.
	stalled, warned time.Time
	// first is its processor time when it was first seen not to move, last the newest.
	first, last schedule
}

// stallTick is how often the status is read, stalledTick how often while a rank is stalled.
const (
	stallTick   = 500 * time.Millisecond
	stalledTick = 50 * time.Millisecond
)

func (x *explainer) start(e *Executor) {
	x.end = make(chan struct{})
	x.seen = make([]rankSample, len(e.workers))
	x.wg.Go(func() {
		tick := min(stallTick, e.opt.StallWarning/4)
		t := time.NewTimer(tick)
		defer t.Stop()
		for {
			select {
			case <-x.end:
				return
			case <-e.life.dead:
				return
			case <-t.C:
				next := tick
				if x.look(e, time.Now()) {
					next = min(tick, stalledTick)
				}
				t.Reset(next)
			}
		}
	})
}

func (x *explainer) stop() {
	if x.end == nil {
		return
	}
	close(x.end)
	x.wg.Wait()
	x.end = nil
}

// look reads every rank's status and warns of those that are stalled with work queued. Each further
// warning of the same stall waits twice as long. It says whether a rank is stalled.
func (x *explainer) look(e *Executor, now time.Time) (stalled bool) {
	queued := e.queuedSince(now)
	last := e.lastPlace()
	x.mu.Lock()
	defer x.mu.Unlock()
	elapsed := now.Sub(x.looked)
	x.looked = now
	var latest time.Time // a rank has moved
	for r := range x.seen {
		v := &x.seen[r]
		s, _ := e.hub.Status(r)
		if s.Changes != v.is.Changes || v.moved.IsZero() || queued == 0 {
			x.moves(e, r, now)
			*v = rankSample{moved: now}
		}
		v.is = s
		latest = later(latest, v.moved)
	}
	for r := range x.seen {
		v := &x.seen[r]
		if v.moved.Equal(now) {
			continue
		}
		if pid := e.pid(r); pid != 0 {
			before := v.last
			v.last = scheduleOf(pid)
			if v.first.known == 0 {
				v.first = v.last
			}
			if v.last.starved(before, elapsed) {
				v.moved = v.moved.Add(elapsed)
			}
		}
		s, moved := v.is, v.moved
		if s.Phase == status.Collective {
			// The rank waits for others: it counts as moving while they move.
			if moved = later(moved, latest); moved.Equal(now) {
				x.moves(e, r, now)
			}
		}
		stalled = stalled || !v.stalled.IsZero()
		still := min(now.Sub(moved), queued)
		if still < e.opt.StallWarning || !e.behind(s) || blocked(s, last) {
			continue
		}
		if !v.warned.IsZero() && now.Sub(v.warned) < v.warned.Sub(moved) {
			continue
		}
		stalled = true
		v.stalled, v.warned = moved, now
		e.opt.Events.Emit(status.RankStalled{Rank: r, Node: e.workers[r].Node,
			PID: e.workers[r].PID, Place: e.place(r), For: still, Phase: s.String(),
			Process: e.processState(r), Received: s.Received, Started: s.Started,
			Finished: s.Finished, Sent: e.sent.Load(), Call: e.calls.name(s.Call)})
	}
	return stalled
}

// moves reports that a rank moves again, if its stall was reported. mu is held.
func (x *explainer) moves(e *Executor, rank int, now time.Time) {
	v := &x.seen[rank]
	if v.stalled.IsZero() {
		return
	}
	e.opt.Events.Emit(status.RankMoves{Rank: rank, Node: e.workers[rank].Node,
		PID:   e.workers[rank].PID,
		After: now.Sub(v.stalled)})
	v.stalled, v.warned = time.Time{}, time.Time{}
}

// moved returns the time at which a rank was last seen to move, or to wait for a processor.
func (x *explainer) moved() (at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for r := range x.seen {
		at = later(at, x.seen[r].moved)
	}
	return at
}

// busy reports whether a rank had a processor for most of the time since it was first seen not to
// move.
func (x *explainer) busy(rank, pid int) bool {
	if pid == 0 {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if rank >= len(x.seen) || x.seen[rank].first.known == 0 {
		return false
	}
	first, now := x.seen[rank].first, scheduleOf(pid)
	return now.ran-first.ran > now.at.Sub(first.at)/2
}

// queuedSince is for how long work has been queued, 0 for none.
func (e *Executor) queuedSince(now time.Time) time.Duration {
	if at := e.loading.since.Load(); at > 0 {
		return max(now.Sub(time.Unix(0, at)), 1)
	}
	if since, due := e.flights.dueSince(); due {
		return max(now.Sub(since), 1)
	}
	return e.calls.oldest(now)
}

// lastPlace returns the place of the rank that is furthest behind.
func (e *Executor) lastPlace() (last verdict.Place) {
	for r := range e.workers {
		s, _ := e.hub.Status(r)
		if p := verdict.PlaceOf(s); r == 0 || last.After(p) {
			last = p
		}
	}
	return last
}

// blocked reports whether a rank waits for another that is further behind.
func blocked(s status.Snapshot, last verdict.Place) bool {
	return s.Phase == status.Collective && verdict.PlaceOf(s).After(last)
}

// place returns a rank's place in the layout, "" for a single rank.
func (e *Executor) place(rank int) string {
	return strings.TrimPrefix(e.opt.Init.Layout.Suffix(rank), "_")
}

// behind reports whether a rank has work of its own, and does not only wait for others.
func (e *Executor) behind(s status.Snapshot) bool {
	return s.Finished < e.sent.Load() || s.Call != 0 || s.Phase != status.Idle
}

// RankStatus is one rank as seen now.
type RankStatus struct {
	// Engine is the number of its engine.
	Engine int    `json:"engine"`
	Rank   int    `json:"rank"`
	Node   string `json:"node"`
	PID    int    `json:"pid"`
	// Place is its place in each dimension of the layout that is larger than 1, as "TP0_PP1".
	Place string `json:"place,omitempty"`
	// Phase is what it is doing, Received, Started and Finished the last steps it knows of, Sent
	// the last one sent to all.
	Phase string `json:"phase"`
	// Process is what the kernel says of it: running, sleeping, stopped; "" for a rank of another
	// host.
	Process  string `json:"process,omitempty"`
	Received uint64 `json:"received"`
	Started  uint64 `json:"started"`
	Finished uint64 `json:"finished"`
	Sent     uint64 `json:"sent"`
	Call     string `json:"call,omitempty"`
	// StillSeconds is for how long it has not moved, as far as has been seen.
	StillSeconds float64 `json:"still_seconds"`
	// AgeSeconds is how old the status of a rank of another host is.
	AgeSeconds float64 `json:"age_seconds,omitempty"`
	// Stalled says that it has not moved for the warning time with work queued, and that no other
	// rank holds it up.
	Stalled bool `json:"stalled"`
	// CPUs is how many processors its process used over the last second, MemoryBytes what is
	// resident of it, with what it shares; 0 where they are not known.
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes uint64  `json:"memory_bytes,omitempty"`
}

// Report describes every rank.
func (e *Executor) Report() []RankStatus {
	now := time.Now()
	out := make([]RankStatus, len(e.workers))
	for r, w := range e.workers {
		s, age := e.hub.Status(r)
		x := RankStatus{Rank: r, Node: w.Node, PID: w.PID, Place: e.place(r), Phase: s.String(),
			Process: e.processState(r), Received: s.Received, Started: s.Started,
			Finished: s.Finished, Sent: e.sent.Load(), Call: e.calls.name(s.Call),
			AgeSeconds: age.Seconds(), CPUs: float64(s.CPU) / 1000, MemoryBytes: s.Memory}
		e.stall.mu.Lock()
		if v := e.stall.seen[r]; v.is.Changes == s.Changes && !v.moved.IsZero() {
			x.StillSeconds, x.Stalled = now.Sub(v.moved).Seconds(), !v.stalled.IsZero()
		}
		e.stall.mu.Unlock()
		out[r] = x
	}
	return out
}

// String is one line.
func (s RankStatus) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d on %s (pid %d): %s; step received %d, started %d, finished %d of %d",
		s.Rank, s.Node, s.PID, s.Phase, s.Received, s.Started, s.Finished, s.Sent)
	if s.Place != "" {
		fmt.Fprintf(&b, "; place %s", s.Place)
	}
	if s.Call != "" {
		fmt.Fprintf(&b, "; in call %s", s.Call)
	}
	if s.Process != "" {
		fmt.Fprintf(&b, "; process is %s", s.Process)
	}
	fmt.Fprintf(&b, "; not moved for %.1f s", s.StillSeconds)
	return b.String()
}
