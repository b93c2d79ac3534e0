package fanin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
	"github.com/eagleray/eagleray/internal/link/status"
)

// end is a rank's end, whichever way it is reached.
type end interface {
	Send(record []byte, until time.Time) error
	Recv(until time.Time) ([]byte, error)
}

// group is a hub and the ranks at its other side, all in this process.
type group struct {
	t     testing.TB
	hub   *Hub
	ranks []end
	links []*link.Link // the worker's ends
	rings []*ring.Rank
}

// shapes are the ways ranks can be placed: l is a rank of this host, r a remote one.
var shapes = []string{"l", "ll", "r", "rrr", "lr", "rlrl"}

// newGroup makes a group in which each letter of shape is a rank.
func newGroup(t testing.TB, shape string, o link.Options) *group {
	t.Helper()
	g := &group{t: t, ranks: make([]end, len(shape)), links: make([]*link.Link, len(shape)),
		rings: make([]*ring.Rank, len(shape))}
	var driver *ring.Driver
	var segment *ring.Segment
	if strings.Contains(shape, "l") {
		var err error
		if segment, err = ring.Create(ring.Options{Ranks: len(shape),
			Memory: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		driver = segment.Driver()
	}
	links := make([]*link.Link, len(shape))
	for rank, kind := range shape {
		if kind == 'r' {
			near, far := connection(t)
			session := handshake.Session{byte(rank + 1)}
			links[rank] = link.Accept(near, session, o)
			g.links[rank] = link.Connect(far, session, nil, o)
			g.ranks[rank] = g.links[rank]
			if driver != nil {
				driver.Drop(rank)
			}
			continue
		}
		r, err := ring.Map(segment.File(), rank)
		if err != nil {
			t.Fatal(err)
		}
		g.ranks[rank], g.rings[rank] = r, r
	}
	g.hub = New(driver, links)
	t.Cleanup(g.close)
	return g
}

func (g *group) close() {
	var wg sync.WaitGroup
	for rank := range g.ranks {
		wg.Go(func() { g.leave(rank) })
	}
	if err := g.hub.Close(); err != nil {
		g.t.Error(err)
	}
	wg.Wait()
}

// leave ends one rank as a process that goes in order does.
func (g *group) leave(rank int) {
	if l := g.links[rank]; l != nil {
		l.Close("rank is ending")
		return
	}
	g.rings[rank].Close()
}

// connection is a TCP connection over loopback.
func connection(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func soon() time.Time { return time.Now().Add(time.Minute) }

func shortly() time.Time { return time.Now().Add(10 * time.Millisecond) }

// records makes the same stream for a sender and its checker: a number, then bytes that follow from
// it.
type records struct {
	rng    *rand.Rand
	number uint64
	buf    []byte
}

func newRecords(side int) *records {
	return &records{rng: rand.New(rand.NewPCG(uint64(side), 17)), buf: make([]byte, 200<<10)}
}

func (r *records) next() []byte {
	n := r.rng.IntN(700)
	if r.rng.IntN(100) == 0 {
		n = r.rng.IntN(len(r.buf) - 8)
	}
	b := r.buf[:8+n]
	binary.LittleEndian.PutUint64(b, r.number)
	for i := 8; i < len(b); i++ {
		b[i] = byte(uint64(i)*31 + r.number)
	}
	r.number++
	return b
}

// TestOrder sends both ways at once: every rank gets every record whole and in order, and so does
// the driver from each rank, while each record stays what it is until the next is asked for.
func TestOrder(t *testing.T) {
	const n = 1500
	for _, shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			g := newGroup(t, shape, link.Options{Window: 256 << 10})
			var wg sync.WaitGroup
			for rank, end := range g.ranks {
				wg.Go(func() {
					want := newRecords(0)
					for range n {
						got, err := end.Recv(soon())
						if w := want.next(); err != nil || !bytes.Equal(got, w) {
							t.Errorf("rank %d: %d bytes that are not record %d, %v", rank, len(got),
								want.number-1, err)
							return
						}
					}
				})
				wg.Go(func() {
					out := newRecords(1 + rank)
					for range n {
						b := out.next()
						if err := end.Send(b, soon()); err != nil {
							t.Errorf("rank %d: %v", rank, err)
							return
						}
						clear(b)
					}
				})
			}
			wg.Go(func() {
				out := newRecords(0)
				for range n {
					b := out.next()
					if err := g.hub.Send(b, soon()); err != nil {
						t.Error(err)
						return
					}
					clear(b)
				}
			})
			var in []*records
			for rank := range shape {
				in = append(in, newRecords(1+rank))
			}
			pause := rand.New(rand.NewPCG(1, 1))
			for i := range n * len(shape) {
				rank, got, err := g.hub.Recv(soon())
				if err != nil {
					t.Fatalf("record %d: %v", i, err)
				}
				if pause.IntN(200) == 0 {
					time.Sleep(time.Duration(pause.IntN(2000)) * time.Microsecond)
				}
				if want := in[rank].next(); !bytes.Equal(got, want) {
					t.Fatalf("%d bytes of rank %d are not its record %d", len(got), rank,
						in[rank].number-1)
				}
			}
			wg.Wait()
			if _, _, err := g.hub.Recv(shortly()); !errors.Is(err, queue.ErrTimeout) {
				t.Errorf("after the last record: %v", err)
			}
		})
	}
}

// TestFair lets one rank send without end: the others are heard all the same.
func TestFair(t *testing.T) {
	for _, shape := range []string{"ll", "rr", "lr", "rl"} {
		t.Run(shape, func(t *testing.T) {
			g := newGroup(t, shape, link.Options{})
			var wg sync.WaitGroup
			stop := make(chan struct{})
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					err := g.ranks[0].Send(make([]byte, 100), shortly())
					if err != nil && !errors.Is(err, queue.ErrTimeout) {
						return
					}
				}
			})
			for round := range 50 {
				if err := g.ranks[1].Send([]byte{byte(round)}, soon()); err != nil {
					t.Fatal(err)
				}
				for others := 0; ; others++ {
					rank, got, err := g.hub.Recv(soon())
					if err != nil || others > 100_000 {
						t.Fatalf("round %d: %d records of rank 0, %v", round, others, err)
					}
					if rank == 1 {
						if !bytes.Equal(got, []byte{byte(round)}) {
							t.Fatalf("round %d: %v", round, got)
						}
						break
					}
				}
			}
			close(stop)
			go func() {
				for {
					if _, _, err := g.hub.Recv(shortly()); err != nil {
						return
					}
				}
			}()
			wg.Wait()
		})
	}
}

// TestDeadlines ends waits for records, and for room at a rank that does not read, with an error
// that names it.
func TestDeadlines(t *testing.T) {
	for _, shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			g := newGroup(t, shape, link.Options{Window: 64 << 10})
			for _, until := range []time.Time{shortly(), time.Now().Add(-time.Second)} {
				if _, _, err := g.hub.Recv(until); !errors.Is(err, queue.ErrTimeout) {
					t.Errorf("Recv: %v", err)
				}
			}
			var err error
			for sent := 0; err == nil; sent++ {
				if sent > 1000 {
					t.Fatal("nobody reads and the hub takes everything")
				}
				err = g.hub.Send(make([]byte, 20<<10), shortly())
			}
			if !errors.Is(err, queue.ErrTimeout) || !strings.Contains(err.Error(), "rank") {
				t.Errorf("Send: %v", err)
			}
		})
	}
}

// TestInterrupt ends the wait under way, or else the next one, and loses no record.
func TestInterrupt(t *testing.T) {
	for _, shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			g := newGroup(t, shape, link.Options{})
			g.hub.Interrupt()
			if _, _, err := g.hub.Recv(soon()); !errors.Is(err, queue.ErrInterrupted) {
				t.Fatalf("interrupted before: %v", err)
			}
			done := make(chan error)
			for round := range 20 {
				go func() {
					_, _, err := g.hub.Recv(soon())
					for errors.Is(err, queue.ErrInterrupted) && round == 0 {
						// The wait may have begun before; only this one may follow.
						round = -1
						_, _, err = g.hub.Recv(shortly())
					}
					done <- err
				}()
				time.Sleep(time.Duration(round) * 100 * time.Microsecond)
				g.hub.Interrupt()
				select {
				case err := <-done:
					if !errors.Is(err, queue.ErrInterrupted) && !errors.Is(err, queue.ErrTimeout) {
						t.Fatalf("round %d: %v", round, err)
					}
				case <-time.After(time.Minute):
					t.Fatal("Recv does not hear Interrupt")
				}
			}
			var wg sync.WaitGroup
			for rank, end := range g.ranks {
				wg.Go(func() {
					out := newRecords(rank)
					for range 300 {
						if err := end.Send(out.next(), soon()); err != nil {
							t.Error(err)
						}
						g.hub.Interrupt()
					}
				})
			}
			in := make([]*records, len(shape))
			for rank := range in {
				in[rank] = newRecords(rank)
			}
			for got := 0; got < 300*len(shape); {
				rank, record, err := g.hub.Recv(soon())
				if errors.Is(err, queue.ErrInterrupted) {
					continue
				}
				if err != nil || !bytes.Equal(record, in[rank].next()) {
					t.Fatalf("record %d of rank %d: %d bytes, %v", in[rank].number-1, rank,
						len(record), err)
				}
				got++
			}
			wg.Wait()
		})
	}
}

// TestDrop goes on without a rank that has gone, and still receives what it sent last.
func TestDrop(t *testing.T) {
	for _, shape := range []string{"ll", "rr", "lr", "rl", "rlrl"} {
		for victim := range shape {
			t.Run(fmt.Sprint(shape, victim), func(t *testing.T) {
				g := newGroup(t, shape, link.Options{Window: 64 << 10})
				if err := g.ranks[victim].Send([]byte("last words"), soon()); err != nil {
					t.Fatal(err)
				}
				if rank, got, err := g.hub.Recv(soon()); err != nil || rank != victim ||
					string(got) != "last words" {
					t.Fatalf("%q of rank %d, %v", got, rank, err)
				}
				g.leave(victim)
				if l := g.hub.links[victim]; l != nil {
					<-l.Down()
					if err := g.hub.Send([]byte("x"), soon()); !errors.Is(err, queue.ErrClosed) ||
						!strings.Contains(err.Error(), fmt.Sprintf("rank %d", victim)) {
						t.Errorf("Send to a rank that is gone: %v", err)
					}
				}
				g.hub.Drop(victim)
				const n = 200 // far more than a window or ring holds
				var wg sync.WaitGroup
				for rank, end := range g.ranks {
					if rank == victim {
						continue
					}
					wg.Go(func() {
						for i := 0; i < n; {
							got, err := end.Recv(soon())
							if err != nil {
								t.Errorf("rank %d: %v", rank, err)
								return
							}
							if string(got) == "x" {
								continue // it was sent to those before the victim
							}
							if len(got) != 20<<10 || got[0] != byte(i) {
								t.Errorf("rank %d: record %d has %d bytes", rank, i, len(got))
								return
							}
							i++
						}
						if err := end.Send([]byte{byte(rank)}, soon()); err != nil {
							t.Error(err)
						}
					})
				}
				for i := range n {
					if err := g.hub.Send(bytes.Repeat([]byte{byte(i)}, 20<<10),
						soon()); err != nil {
						t.Fatalf("record %d: %v", i, err)
					}
				}
				for range len(shape) - 1 {
					if rank, got, err := g.hub.Recv(soon()); err != nil || rank == victim ||
						got[0] != byte(rank) {
						t.Errorf("%v of rank %d, %v", got, rank, err)
					}
				}
				wg.Wait()
			})
		}
	}
}

// TestStatus tells what a rank says of itself, local or remote, and how old a remote rank's word
// is.
func TestStatus(t *testing.T) {
	g := newGroup(t, "lr", link.Options{Heartbeat: 10 * time.Millisecond})
	g.rings[0].Status().Set(status.Forward, 7)
	g.links[1].Status().Set(status.Sample, 0)
	if s, age := g.hub.Status(0); s.Phase != status.Forward || s.Detail != 7 || age != 0 {
		t.Errorf("rank 0: %+v, %v old", s, age)
	}
	for until := soon(); ; time.Sleep(time.Millisecond) {
		s, age := g.hub.Status(1)
		if s.Phase == status.Sample && age > 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("rank 1: %+v, %v old", s, age)
		}
	}
	if _, ok := g.hub.Stats(0); ok {
		t.Error("a local rank has figures of a link")
	}
	if s, ok := g.hub.Stats(1); !ok || s.State != link.Up || s.BytesReceived == 0 {
		t.Errorf("figures of rank 1: %+v, %v", s, ok)
	}
}

// TestDropEndsSend drops ranks that read nothing while Send waits for them.
func TestDropEndsSend(t *testing.T) {
	for _, shape := range []string{"l", "r", "lr"} {
		t.Run(shape, func(t *testing.T) {
			g := newGroup(t, shape, link.Options{Window: 64 << 10})
			sent := make(chan error, 1)
			var dropped atomic.Bool
			go func() {
				var err error
				for err == nil && !dropped.Load() {
					err = g.hub.Send(make([]byte, 20<<10), soon())
				}
				sent <- err
			}()
			select {
			case err := <-sent:
				t.Fatalf("before any rank is dropped: %v", err)
			case <-time.After(100 * time.Millisecond): // long enough to fill all windows
			}
			dropped.Store(true)
			for rank := range g.ranks {
				g.hub.Drop(rank)
			}
			select {
			case err := <-sent:
				if errors.Is(err, queue.ErrTimeout) {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("Send still waits")
			}
		})
	}
}
