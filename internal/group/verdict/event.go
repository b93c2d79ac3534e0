package verdict

import (
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Event is something that happened to a group. The comment of its type states the rule for it.
type Event interface {
	apply(v *Verdict, now time.Time)
}

// Joined says that all ranks are connected. Before it a rank cannot report an error: its exit is
// the failure at once, in the phase "meet".
type Joined struct{}

// ConnectionLost is the end of a rank's connection without a reason, or a failure to send over it.
// The launcher usually reports the rank's exit a moment later; without that report Cause is the
// failure.
type ConnectionLost struct {
	// Rank is -1 when the queue names none.
	Rank  int
	Cause string
	// Cut says that it was the connection that failed: the rank may live.
	Cut bool
}

// ConnectionClosed is the end of a rank's connection with a reason, from the rank or from a link
// whose peer was silent too long. No better cause follows, so it is the failure at once.
type ConnectionClosed struct {
	Rank   int
	Reason string
	// Cut says that it was the connection that failed: the rank may live.
	Cut bool
}

// Corrupt is an invalid record or ring position. It is the failure at once: no end of a rank
// explains it.
type Corrupt struct {
	// Rank is -1 when the queue names none.
	Rank  int
	Cause string
}

// Exited is the launcher's report of a rank's end; rank -1 is the process that watches the ranks,
// without which they all end. It is the failure unless a report that the rank sent before comes in
// time: a better cause than "exit status 1". A second exit of the same rank adds nothing.
type Exited launch.Exit

// Reported is a rank's own report of an error, sent before it ends: the failure at once, unless the
// report says that another rank is at fault.
type Reported struct {
	Rank  int
	Step  uint64
	Phase string
	// Message is one line, Stack that of a panic.
	Message, Stack string
	// Follows says that the rank failed because another one has ended. The end of the other one is
	// the cause, and is reported a moment before or after.
	Follows bool
	// Missing are the ranks that this one waited for until its timeout. One of them is at fault,
	// not the reporting rank, unless another rank has ended: then its end is the cause. Seen is
	// what each rank was doing.
	Missing []int
	Seen    []Seen
	// Disagrees says that this rank and others were not in the same step.
	Disagrees bool
	// Unrelated says that no request can be the cause of an error of the rank's own.
	Unrelated bool
}

// Overdue is a step in which no rank has moved for too long, or a record that was not read in time.
// The rank at fault is one whose process is stopped, else Rank, else the one furthest behind; it is
// the failure at once, unless another cause is known already. A request can be its cause only if
// the rank was computing all the while.
type Overdue struct {
	// Rank is the one that the queue names, -1 for none.
	Rank  int
	Step  uint64
	Cause string
	// Seen is what each rank was doing.
	Seen []Seen
}

func (Joined) apply(v *Verdict, _ time.Time) { v.joined = true }

func (e ConnectionLost) apply(v *Verdict, now time.Time) {
	v.suspect(now, lost, exitGrace, cut(v.failureOf(e.Rank, e.Cause), e.Cut))
}

func (e ConnectionClosed) apply(v *Verdict, _ time.Time) {
	v.failure = cut(v.failureOf(e.Rank, e.Reason), e.Cut)
}

// cut returns f, with the Extent NoRank if only the connection was cut.
func cut(f *Failure, was bool) *Failure {
	if was {
		f.Extent = NoRank
	}
	return f
}

func (e Corrupt) apply(v *Verdict, _ time.Time) {
	f := v.failureOf(e.Rank, e.Cause)
	f.Phase, f.Extent = "protocol", AllRanks
	v.failure = f
}

func (e Exited) apply(v *Verdict, now time.Time) {
	if v.has(exit, e.Rank) {
		return
	}
	f := v.failureOf(e.Rank, e.End.String())
	f.Detail, f.Stderr = e.Detail, e.Stderr
	if f.Node == "" {
		f.Node, f.PID = e.Node, e.PID
	}
	switch {
	case !v.joined:
		v.failure = f
	case e.End.ByError():
		v.suspect(now, exit, reportGrace, f)
	default:
		v.suspect(now, exit, killedGrace, f)
	}
}

func (e Reported) apply(v *Verdict, now time.Time) {
	f := v.failureOf(e.Rank, e.Message)
	f.Step, f.Phase, f.Detail = e.Step, e.Phase, e.Stack
	switch {
	case e.Follows || len(e.Missing) > 0 && v.endKnownBeside(e.Rank):
		v.followed[e.Rank], f.Extent = true, NoRank
		v.suspect(now, follow, exitGrace, f)
	case len(e.Missing) > 0:
		v.failure = v.missed(f, e)
	default:
		f.Reported, f.Unrelated = true, e.Unrelated
		if e.Disagrees {
			f.Extent = AllRanks
		}
		v.failure = f
	}
}

// missed is the failure of a group in which one rank has waited for others until its timeout. The
// rank at fault is one whose process is stopped, since it blocks all others; else the first missing
// rank that has not reported another one; if that rank waits too, the rank furthest behind.
func (v *Verdict) missed(report *Failure, e Reported) *Failure {
	worst := -1
	for _, r := range e.Missing {
		if r < 0 || r >= min(len(v.ranks), len(e.Seen)) {
			return report
		}
		if worst < 0 || v.followed[worst] && !v.followed[r] {
			worst = r
		}
	}
	cause, step := "did not come: ", report.Step
	rank, held := slowest(e.Seen)
	at := e.Seen[worst].Status
	switch {
	case held != "":
		worst, cause = rank, held+": "
	case at.Phase == status.Collective && rank != e.Rank &&
		PlaceOf(at).After(PlaceOf(e.Seen[rank].Status)):
		worst, cause, step = rank, "holds others up: ", e.Seen[rank].Status.Started
	}
	f := v.seen(worst, cause+report.Cause, e.Seen)
	f.Step, f.Unrelated = step, held != "" || !e.Seen[worst].Busy
	return cut(f, held == "")
}

func (e Overdue) apply(v *Verdict, _ time.Time) {
	if len(v.suspicions) > 0 {
		return // what is known is older than this, and becomes the failure in time
	}
	cause := e.Cause
	rank, held := slowest(e.Seen)
	switch {
	case held != "":
		cause += ": " + held
	case e.Rank >= 0:
		rank = e.Rank
	}
	f := v.seen(rank, cause, e.Seen)
	f.Step = e.Step
	f.Unrelated = held != "" || f.Rank < 0 || f.Rank >= len(e.Seen) || !e.Seen[f.Rank].Busy
	v.failure = cut(f, f.Rank >= 0 && held == "")
}
