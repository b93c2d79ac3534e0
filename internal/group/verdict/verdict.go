// Package verdict decides why a group of ranks has failed: which rank is to blame, and with which
// cause.
//
// It is a state machine without goroutines, clock or I/O, as the core of etcd's raft is. Its caller
// passes events with their times, and calls Tick at Deadline; the result is at most one Failure,
// and the same for the same events at the same times. The rule for each event stands at its type,
// the time that each may wait for a better cause at the graces below.
//
// A cause that says where the error arose becomes the failure at once. Any other is a suspicion:
// the end of a process, a lost connection, the report of a rank that another one has failed. A
// suspicion waits for a better cause for its grace; a lost connection yields to the exit of the
// same rank, a rank that follows to a rank that does not, and the end of a rank that follows to its
// own report.
package verdict

import (
	"slices"
	"time"
)

// The graces: how long each suspicion waits for a better cause.
const (
	// exitGrace is for what follows from the end of a rank, until the end itself is known. A
	// launcher on this host knows it in a few milliseconds, Ray in 5 to 40 of them; a busy machine
	// takes ten times that.
	exitGrace = 750 * time.Millisecond
	// reportGrace is for the exit of a rank that reported an error before it ended. The report may
	// be behind records of many megabytes, and a link that closes gives its last records a second.
	reportGrace = 2 * time.Second
	// killedGrace is for the exit of a rank that was killed, or crashed. Most likely it sent no
	// report; one sent just before is already on its way.
	killedGrace = 5 * time.Millisecond
	// limit is from the first suspicion to the failure, whatever happens in between: the longest
	// chain of graces of one rank. Without it each new suspicion could put the failure off.
	limit = exitGrace + reportGrace + killedGrace
)

// Verdict is the state machine of a group's failure.
type Verdict struct {
	ranks []Rank
	// joined is false while the ranks are on their way to the driver.
	joined bool
	// suspicions are in the order in which they came; at most one exit per rank.
	suspicions []suspicion
	// followed are the ranks that reported the failure of another one.
	followed map[int]bool
	// last is when the failure is due at the latest, from the first suspicion on.
	last    time.Time
	failure *Failure
}

// Rank is where a rank runs.
type Rank struct {
	Node string
	PID  int
}

// suspicion is a cause that a better one may replace until its time due.
type suspicion struct {
	what    what
	failure *Failure
	due     time.Time
}

// what is the kind of evidence of a suspicion.
type what uint8

const (
	exit   what = iota // how a rank ended
	lost               // a rank's connection ended
	follow             // a rank says that another one has failed
)

// New returns the verdict on a group of started ranks.
func New(ranks []Rank) *Verdict {
	return &Verdict{ranks: ranks, followed: map[int]bool{}}
}

// Step handles an event. Times never go back.
func (v *Verdict) Step(now time.Time, e Event) {
	if v.failure == nil {
		e.apply(v, now)
	}
}

// Tick makes a suspicion the failure if its time is over: of several, the one that was due first.
// An event that is late, but comes before the tick, counts: a busy machine delays both.
func (v *Verdict) Tick(now time.Time) {
	if s, due := v.next(); s != nil && !now.Before(due) {
		v.failure = s.failure
	}
}

// Failure is the verdict, nil while there is none. It does not change.
func (v *Verdict) Failure() *Failure { return v.failure }

// Deadline returns the time of the next Tick; false while no suspicion waits.
func (v *Verdict) Deadline() (at time.Time, ok bool) {
	s, due := v.next()
	return due, s != nil
}

// next returns the suspicion that becomes the failure when no other event comes, and its time.
func (v *Verdict) next() (*suspicion, time.Time) {
	if v.failure != nil {
		return nil, time.Time{}
	}
	var next *suspicion
	for i := range v.suspicions {
		s := &v.suspicions[i]
		if !v.excused(*s) && (next == nil || s.due.Before(next.due)) {
			next = s
		}
	}
	if next == nil {
		return nil, time.Time{}
	}
	if v.last.Before(next.due) {
		return next, v.last
	}
	return next, next.due
}

// excused reports whether another suspicion is better than this one. At least one suspicion is not
// excused.
func (v *Verdict) excused(s suspicion) bool {
	switch s.what {
	case exit:
		return v.followed[s.failure.Rank]
	case lost:
		// Rank -1 is the process that watches the ranks: with it they all end.
		return v.followed[s.failure.Rank] || v.has(exit, s.failure.Rank) || v.has(exit, -1)
	}
	return v.endKnownBeside(s.failure.Rank)
}

// endKnownBeside reports whether another rank has ended that did not follow a third one. A rank
// that reports an error ends by it: its own end does not explain its report about others.
func (v *Verdict) endKnownBeside(rank int) bool {
	return slices.ContainsFunc(v.suspicions, func(s suspicion) bool {
		return s.what != follow && s.failure.Rank != rank && !v.excused(s)
	})
}

func (v *Verdict) has(w what, rank int) bool {
	return slices.ContainsFunc(v.suspicions, func(s suspicion) bool {
		return s.what == w && s.failure.Rank == rank
	})
}

func (v *Verdict) suspect(now time.Time, w what, grace time.Duration, f *Failure) {
	if len(v.suspicions) == 0 {
		v.last = now.Add(limit)
	}
	v.suspicions = append(v.suspicions, suspicion{w, f, now.Add(grace)})
}

// failureOf is a failure of a rank, or of none (-1).
func (v *Verdict) failureOf(rank int, cause string) *Failure {
	f := &Failure{Rank: rank, Cause: cause}
	if rank < 0 {
		f.Extent = AllRanks
	}
	if rank >= 0 && rank < len(v.ranks) {
		f.Node, f.PID = v.ranks[rank].Node, v.ranks[rank].PID
	}
	if !v.joined {
		f.Phase = "meet"
	}
	return f
}

// seen is a failure of a rank in the phase in which it was seen.
func (v *Verdict) seen(rank int, cause string, seen []Seen) *Failure {
	f := v.failureOf(rank, cause)
	if rank >= 0 && rank < len(seen) {
		f.Phase = seen[rank].Status.String()
	}
	return f
}
