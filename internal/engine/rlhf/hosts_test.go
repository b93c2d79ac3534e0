package rlhf

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// elsewhere is an update by a driver of another host.
func elsewhere(t testing.TB, s *server, list []checkpoint.Tensor) *weights.Update {
	t.Helper()
	b, err := weights.NewBuilder(s.specs, new(weights.Spare))
	ok(t, err)
	defer b.Close()
	all, data := pieces(list, -1)
	ok(t, b.Check(all))
	for i := range all {
		_, err := b.Receive(bytes.NewReader(data[i]), &all[i])
		ok(t, err)
		b.Done(&all[i])
	}
	u, err := b.Finish()
	ok(t, err)
	for i := range u.Segments {
		u.Segments[i].Link = "another host's"
	}
	return u
}

// stage has all engines load an update, and compute with it.
func (s *server) stage(t testing.TB, u *weights.Update) {
	t.Helper()
	ok(t, s.Control.stage(t.Context(), u))
	before := s.wanted.Commit(u)
	ok(t, s.each(func(e *engine.Engine) error { return e.Equip(t.Context()) }))
	s.wanted.Retire(before)
}

// shared is the memory of updates that all ranks have mapped: nil when they do not have the same.
func (s *server) shared(t testing.TB) (all map[string]bool) {
	t.Helper()
	for _, e := range s.engines {
		for _, r := range e.Report() {
			has := updates(t, r.PID)
			if all == nil {
				all = has
			}
			maps.DeleteFunc(all, func(inode string, _ bool) bool { return !has[inode] })
		}
	}
	return all
}

// linked has engines whose ranks are on one host, which their driver is not on.
func linked(t testing.TB, tp, dp int) *server {
	return open(t, func(c *config.Config) {
		p := &c.Parallel
		p.Backend, c.Queue.Transport = "mp", "link"
		p.TensorParallelSize, p.DataParallelSize = tp, dp
	})
}

// TestSentOncePerHost: where ranks cannot map the driver's memory one of them is sent the bytes,
// and all, of all engines, map what it has. A rank that is started later maps what the others have.
func TestSentOncePerHost(t *testing.T) {
	list := others(t)
	want := otherAnswers(t)
	own := ownAnswers(t)
	old, _ := builtins(t)
	for _, dp := range []int{1, 2} {
		t.Run(fmt.Sprint(dp), func(t *testing.T) {
			if testing.Short() && dp == 1 {
				t.Skip("the ranks of one engine, which two have as well, without -short")
			}
			s := linked(t, 2, dp)
			for round, c := range []struct {
				list []checkpoint.Tensor
				want []answer
			}{{list, want}, {old, own}, {list, want}} {
				s.stage(t, elsewhere(t, s, c.list))
				if shared := s.shared(t); len(shared) == 0 {
					t.Errorf("round %d: the ranks have no memory in common", round)
				}
				equal(t, fmt.Sprint("round ", round), answers(t, s), c.want)
			}
			before := s.shared(t)
			for rank := range 2 {
				pid := s.engines[0].Report()[rank].PID
				ok(t, syscall.Kill(pid, syscall.SIGKILL))
				for late := time.Now().Add(patience); s.engines[0].Report()[rank].PID == pid; {
					if time.Now().After(late) {
						t.Fatal("no rank takes the place of one that was killed")
					}
					time.Sleep(time.Millisecond)
				}
				equal(t, fmt.Sprint("without rank ", rank), answers(t, s), want)
				if after := s.shared(t); !maps.Equal(after, before) {
					t.Errorf("without rank %d: memory %v, before %v", rank, after, before)
				}
			}
		})
	}
}

// TestSentToTheDead kills ranks that are told of an update, or are being sent it: their engine
// fails to load it, the other one does not, the old weights go on, and the next update succeeds.
func TestSentToTheDead(t *testing.T) {
	list := others(t)
	want := otherAnswers(t)
	own := ownAnswers(t)
	s := linked(t, 2, 2)
	begin := func(e *engine.Engine, u *weights.Update) <-chan error {
		done := make(chan error, 1)
		go func() { done <- stage(t.Context(), e, u, func() {}) }()
		return done
	}
	for rank := range 2 {
		for _, told := range []bool{true, false} {
			if testing.Short() && told == (rank == 0) {
				continue // the ranks take turns
			}
			victim := s.engines[0].Report()[rank].PID
			before := updates(t, victim)
			u := elsewhere(t, s, list)
			if told {
				ok(t, syscall.Kill(victim, syscall.SIGSTOP))
			}
			first, second := begin(s.engines[0], u), begin(s.engines[1], u)
			if told {
				ok(t, <-second)
			}
			var err error
			for ended := false; !told && !ended && maps.Equal(updates(t, victim), before); {
				select {
				case err = <-first:
					ended = true
				default:
				}
				ok(t, err)
			}
			ok(t, syscall.Kill(victim, syscall.SIGKILL))
			if told {
				err = <-first
				if err == nil || !strings.Contains(err.Error(), "rank") {
					t.Errorf("rank %d was killed: %v", rank, err)
				}
			} else {
				ok(t, <-second)
			}
			for _, e := range s.engines { // one that has failed is back after this
				for late := time.Now().Add(patience); drop(t.Context(), e) != nil; {
					if time.Now().After(late) {
						t.Fatal("an engine is not back")
					}
					time.Sleep(time.Millisecond)
				}
			}
			u.Close()
			equal(t, "after it", answers(t, s), own)
		}
	}
	s.stage(t, elsewhere(t, s, list))
	equal(t, "the next update", answers(t, s), want)
}

// TestRooms: one rank of each host needs memory for what it is sent, but on the driver's.
func TestRooms(t *testing.T) {
	c := &Control{dtype: checkpoint.BF16}
	rooms := c.rooms([][]string{{weights.HostID(), "b", "b"}, {"b", "c", ""}, {"c"}})
	for i, want := range [][]int{{1}, {1}, nil} {
		if got := rooms[i].Ranks; !slices.Equal(got, want) {
			t.Errorf("engine %d: ranks %v, want %v", i, got, want)
		}
	}
}

// TestRoomForWhatIsSent: the rank that has found memory for an update is the one that is sent it,
// before those of other engines, and it finds that for the next one while no update waits.
func TestRoomForWhatIsSent(t *testing.T) {
	list := others(t)
	want := otherAnswers(t)
	own := ownAnswers(t)
	old, _ := builtins(t)
	s := linked(t, 2, 2)
	e := s.engines[1]
	s.ready = map[*engine.Engine]bool{e: true}
	ok(t, reserveSent(t.Context(), e,
		&weights.Room{Ranks: []int{0}, Specs: s.specs, DType: s.dtype.String()}))
	used := map[string]bool{}
	for round, c := range []struct {
		list []checkpoint.Tensor
		want []answer
	}{{list, want}, {old, own}, {list, want}} {
		room := map[string]bool{}
		for late := time.Now().Add(patience); len(room) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("round %d: the rank finds no memory", round)
			}
			room = updates(t, e.Report()[0].PID)
			maps.DeleteFunc(room, func(inode string, _ bool) bool { return used[inode] })
		}
		s.stage(t, elsewhere(t, s, c.list))
		used = s.shared(t)
		if !maps.Equal(used, room) {
			t.Errorf("round %d: the ranks share memory %v, ready was %v", round, used, room)
		}
		equal(t, fmt.Sprint("round ", round), answers(t, s), c.want)
	}
}
