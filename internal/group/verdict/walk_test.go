package verdict

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
)

// timed is an event of a walk.
type timed struct {
	at    time.Duration
	event Event
}

// walk is a random list of events of a group, as they may come: a few at once, some after graces.
func walk(rng *rand.Rand, world int) []timed {
	gaps := []time.Duration{0, 0, time.Microsecond, 4 * time.Millisecond, killedGrace,
		exitGrace - 1,
		exitGrace, reportGrace, 200 * time.Millisecond}
	ends := []launch.End{{How: launch.Exited, Code: 1}, {How: launch.Exited, Code: 3},
		{How: launch.Signalled, Signal: "killed"}, {How: launch.Returned, Reason: "no weights"},
		{How: launch.ActorLost, Class: "ActorDiedError", Reason: "gone"}, {Reason: "unknown"}}
	var list []timed
	var now time.Duration
	for i := range 1 + rng.IntN(12) {
		if i > 0 {
			now += gaps[rng.IntN(len(gaps))]
		}
		rank := rng.IntN(world)
		cause := fmt.Sprintf("event %d", i)
		var e Event
		// Most events are suspicions: the others end the walk.
		switch n := rng.IntN(32); {
		case n < 12:
			if rng.IntN(12) == 0 {
				rank = -1
			}
			e = Exited{Rank: rank, End: ends[rng.IntN(len(ends))]}
		case n < 20:
			e = ConnectionLost{Rank: rank, Cause: cause}
		case n < 27:
			e = Reported{Rank: rank, Message: cause, Follows: true}
		case n < 28:
			e = Reported{Rank: rank, Message: cause}
		case n < 30:
			seen := make([]Seen, world)
			for r := range seen {
				seen[r].Status = status.Snapshot{Started: uint64(rng.IntN(2))}
				if rng.IntN(8) == 0 {
					seen[r].Held = "its process is stopped"
				}
			}
			if n == 28 {
				e = Reported{Rank: rank, Message: cause, Missing: []int{rng.IntN(world)},
					Seen: seen}
			} else {
				e = Overdue{Rank: -1, Cause: cause, Seen: seen}
			}
		case n < 31:
			e = ConnectionClosed{Rank: rank, Reason: cause}
		default:
			e = Corrupt{rank, cause}
		}
		list = append(list, timed{now, e})
	}
	return list
}

// run gives a verdict the events, with the ticks it wants, and checks it after each.
func run(world int, list []timed) (f *Failure, at time.Duration, err error) {
	v := New(ranks(world))
	v.Step(epoch, Joined{})
	var first time.Duration
	suspected := false
	ends, followed := map[int]bool{}, map[int]bool{}
	check := func(now time.Duration) error {
		deadline, waits := v.Deadline()
		switch got := v.Failure(); {
		case f != nil && got != f:
			return fmt.Errorf("a second failure %v after %v", got, f)
		case f != nil:
			return nil
		case got != nil:
			if waits {
				return fmt.Errorf("waits after the failure")
			}
			if suspected && now > first+limit {
				return fmt.Errorf("failure after %v", now-first)
			}
			// By its own report a follower is blamed only when no other rank is known to have
			// ended.
			for r := range ends {
				if followed[got.Rank] && !followed[r] && got.Cause != "" {
					return fmt.Errorf("rank %d followed, rank %d has ended: %v", got.Rank, r, got)
				}
			}
			f, at = got, now
		case waits != suspected:
			return fmt.Errorf("waits: %v, suspects: %v", waits, suspected)
		case waits && deadline.Sub(epoch) > first+limit:
			return fmt.Errorf("waits until %v", deadline.Sub(epoch))
		}
		return nil
	}
	tick := func(until time.Duration) error {
		for f == nil {
			deadline, waits := v.Deadline()
			if !waits || deadline.Sub(epoch) > until {
				return nil
			}
			v.Tick(deadline.Add(-1))
			if v.Failure() != nil {
				return fmt.Errorf("failure before its time")
			}
			v.Tick(deadline)
			if v.Failure() == nil {
				return fmt.Errorf("no failure at the deadline %v", deadline.Sub(epoch))
			}
			if err := check(deadline.Sub(epoch)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, e := range list {
		if err := tick(e.at); err != nil {
			return nil, 0, err
		}
		was := v.Failure() != nil
		v.Step(epoch.Add(e.at), e.event)
		if !was {
			suspects := false
			switch x := e.event.(type) {
			case Exited:
				ends[x.Rank], suspects = true, true
			case ConnectionLost:
				ends[x.Rank], suspects = true, true
			case Reported:
				suspects = v.Failure() == nil
				if suspects {
					followed[x.Rank] = true
				} else if x.Missing == nil {
					clear(ends) // its own error
				} else {
					delete(ends, x.Rank) // it ended by what it reports of another
				}
			case ConnectionClosed, Corrupt:
				clear(ends)
			}
			if suspects && !suspected {
				first, suspected = e.at, true
			}
		}
		if err := check(e.at); err != nil {
			return nil, 0, err
		}
	}
	err = tick(time.Hour)
	return f, at, err
}

// TestWalk gives random events, and wants one failure, in time, by a rank that does not only
// follow, and the same each time.
func TestWalk(t *testing.T) {
	walks := 20_000
	if testing.Short() {
		walks = 2_000
	}
	for seed := range walks {
		rng := rand.New(rand.NewPCG(1, uint64(seed)))
		world := 1 + rng.IntN(4)
		list := walk(rng, world)
		f, at, err := run(world, list)
		if err != nil {
			t.Fatalf("seed %d: %v\n%+v", seed, err, list)
		}
		again, atAgain, err := run(world, list)
		if err != nil || at != atAgain || !reflect.DeepEqual(f, again) {
			t.Fatalf("seed %d: %v at %v, then %v at %v, %v", seed, f, at, again, atAgain, err)
		}
		if f == nil {
			t.Fatalf("seed %d: no failure\n%+v", seed, list)
		}
		if late := lateTick(world, list); late != nil {
			t.Fatalf("seed %d: %v", seed, late)
		}
	}
}

// lateTick gives the events without ticks. One tick at the end, however late, has the same result
// as one in time.
func lateTick(world int, list []timed) error {
	exact, late := New(ranks(world)), New(ranks(world))
	exact.Step(epoch, Joined{})
	late.Step(epoch, Joined{})
	for _, e := range list {
		exact.Step(epoch.Add(e.at), e.event)
		late.Step(epoch.Add(e.at), e.event)
	}
	if deadline, waits := exact.Deadline(); waits {
		exact.Tick(deadline)
	}
	late.Tick(epoch.Add(time.Hour))
	if f := late.Failure(); f == nil || !reflect.DeepEqual(f, exact.Failure()) {
		return fmt.Errorf("%v by a late tick, %v by one in time", f, exact.Failure())
	}
	return nil
}
