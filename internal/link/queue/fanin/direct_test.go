package fanin

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/link"
)

// TestOneLinkNeedsNobody reads and writes the only link in the goroutines of the callers.
func TestOneLinkNeedsNobody(t *testing.T) {
	g := newGroup(t, "r", link.Options{})
	before := runtime.NumGoroutine()
	h := New(nil, []*link.Link{g.hub.links[0]})
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines for one link", after-before)
	}
	if err := g.ranks[0].Send([]byte("direct"), soon()); err != nil {
		t.Fatal(err)
	}
	if rank, got, err := h.Recv(soon()); err != nil || rank != 0 || string(got) != "direct" {
		t.Errorf("%q of rank %d, %v", got, rank, err)
	}
}

// TestDirectFollows reads the link that brings one record after the other itself, whichever that
// is, and none while they come from everywhere.
func TestDirectFollows(t *testing.T) {
	g := newGroup(t, "rrr", link.Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	before := [2]int{none, none}
	for i := range 2000 {
		rank := rng.IntN(3)
		want := fmt.Appendf(nil, "record %d", i)
		if err := g.ranks[rank].Send(want, soon()); err != nil {
			t.Fatal(err)
		}
		from, got, err := g.hub.Recv(soon())
		if err != nil || from != rank || !bytes.Equal(got, want) {
			t.Fatalf("%q of rank %d, %v", got, from, err)
		}
		before = [2]int{before[1], rank}
		if i%3 != 0 {
			continue
		}
		if _, _, err := g.hub.Recv(time.Now()); !errors.Is(err, queue.ErrTimeout) {
			t.Fatal(err)
		}
		direct := int(g.hub.direct.Load())
		if before[0] == rank && direct != rank || before[0] != rank && direct != none {
			t.Fatalf("after records of ranks %v the caller reads %d", before, direct)
		}
	}
}

// TestLinksEnd goes on with the links that are left, and still ends by deadline and Interrupt when
// none is.
func TestLinksEnd(t *testing.T) {
	for first := range 3 {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			g := newGroup(t, "rrr", link.Options{Grace: -1})
			for i := range 3 {
				rank := (first + i) % 3
				got := make(chan string, 1)
				go func() {
					from, record, err := g.hub.Recv(soon())
					got <- fmt.Sprintf("%d %s %v", from, record, err)
				}()
				if err := g.ranks[rank].Send([]byte("goodbye"), soon()); err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("%d goodbye <nil>", rank); <-got != want {
					t.Fatalf("not %q", want)
				}
				g.leave(rank)
				<-g.hub.links[rank].Down()
				g.hub.Drop(rank)
				if _, _, err := g.hub.Recv(shortly()); !errors.Is(err, queue.ErrTimeout) {
					t.Errorf("without rank %d: %v", rank, err)
				}
			}
			time.AfterFunc(5*time.Millisecond, g.hub.Interrupt)
			if _, _, err := g.hub.Recv(time.Time{}); !errors.Is(err, queue.ErrInterrupted) {
				t.Error(err)
			}
			time.AfterFunc(5*time.Millisecond, func() { g.hub.Close() })
			if _, _, err := g.hub.Recv(time.Time{}); !errors.Is(err, queue.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// TestNoAllocations sends and receives with a new deadline each time.
func TestNoAllocations(t *testing.T) {
	for _, shape := range []string{"r", "rr", "lr"} {
		for name, replier := range map[string]func(step int) int{
			"first": func(int) int { return 0 },
			"last":  func(int) int { return len(shape) - 1 },
			"each":  func(step int) int { return step % len(shape) },
		} {
			t.Run(shape+name, func(t *testing.T) {
				g := newGroup(t, shape, link.Options{})
				for rank, end := range g.ranks {
					go func() {
						for reply := make([]byte, 1200); ; {
							b, err := end.Recv(time.Time{})
							if err != nil {
								return
							}
							if int(b[0]) == rank && end.Send(reply, time.Time{}) != nil {
								return
							}
						}
					}()
				}
				record, step := make([]byte, 4096), 0
				if n := testing.AllocsPerRun(3000, func() {
					step++
					record[0] = byte(replier(step))
					if err := g.hub.Send(record, soon()); err != nil {
						t.Fatal(err)
					}
					if rank, got, err := g.hub.Recv(soon()); err != nil || rank != int(record[0]) ||
						len(got) != 1200 {
						t.Fatalf("%d bytes of rank %d, %v", len(got), rank, err)
					}
				}); n != 0 {
					t.Errorf("%v allocations per round trip", n)
				}
			})
		}
	}
}

// TestOneSlowRank has a rank that reads nothing: a long record reaches the others all the same, and
// the error names that rank alone.
func TestOneSlowRank(t *testing.T) {
	for _, shape := range []string{"rr", "rrr", "lr", "rl"} {
		for slow := range shape {
			if shape[slow] == 'l' {
				continue // the ring takes a record for all of its ranks or for none
			}
			t.Run(fmt.Sprint(shape, slow), func(t *testing.T) {
				g := newGroup(t, shape, link.Options{Window: 256 << 10, Grace: -1})
				want := bytes.Repeat([]byte{7}, 2<<20)
				sent := make(chan error, 1)
				go func() { sent <- g.hub.Send(want, time.Time{}) }()
				for rank, end := range g.ranks {
					if rank == slow {
						continue
					}
					if got, err := end.Recv(soon()); err != nil || !bytes.Equal(got, want) {
						t.Errorf("rank %d: %d bytes, %v", rank, len(got), err)
					}
				}
				select {
				case err := <-sent:
					t.Fatalf("Send ends before rank %d reads: %v", slow, err)
				default:
				}
				g.leave(slow)
				err := <-sent
				for rank := range shape {
					if errors.Is(err, queue.ErrClosed) &&
						strings.Contains(err.Error(), fmt.Sprint("rank ", rank)) == (rank == slow) {
						continue
					}
					t.Errorf("rank %d of %s: %v", rank, shape, err)
				}
			})
		}
	}
}

// TestSendNamesAll has none read.
func TestSendNamesAll(t *testing.T) {
	for _, size := range []int{20 << 10, 2 << 20} {
		g := newGroup(t, "rrr", link.Options{Window: 64 << 10})
		var err error
		for err == nil {
			err = g.hub.Send(make([]byte, size), shortly())
		}
		for _, name := range []string{"rank 0", "rank 1", "rank 2"} {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("no %s in %v", name, err)
			}
		}
	}
}

// TestCloseWhileSending ends a Send of a long record, which has let go of the record when it
// returns.
func TestCloseWhileSending(t *testing.T) {
	for _, shape := range []string{"r", "rr", "rl", "rrr"} {
		for delay := range 6 {
			g := newGroup(t, shape, link.Options{Window: 64 << 10})
			closed := make(chan struct{})
			time.AfterFunc(time.Duration(delay)*time.Millisecond, func() {
				g.hub.Close()
				close(closed)
			})
			record := make([]byte, 8<<20)
			for {
				err := g.hub.Send(record, time.Time{})
				clear(record) // the race detector sees a reader that goes on
				if err == nil {
					continue
				}
				if !errors.Is(err, queue.ErrClosed) {
					t.Error(err)
				}
				break
			}
			<-closed
		}
	}
}
