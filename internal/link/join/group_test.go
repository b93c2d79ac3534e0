package join

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

func soon() time.Time { return time.Now().Add(time.Minute) }

// listen is a driver's side for so many ranks.
func listen(t *testing.T, world int, links bool) *Driver {
	t.Helper()
	o := Options{Layout: layout.Layout{TP: world}, QueueMemory: 1 << 20, LinksOnly: links,
		Timeout: time.Minute,
		Log:     slog.New(slog.DiscardHandler)}
	if links {
		o.Address = "127.0.0.1"
	}
	d, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestBothSides has each rank join over a ring and over links, sum a number with the others, and
// send a record. One is cancelled: the driver learns why, and the others' connections end with the
// driver.
func TestBothSides(t *testing.T) {
	for _, world := range []int{1, 2, 4} {
		for _, links := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d ranks, links %v", world, links), func(t *testing.T) {
				d := listen(t, world, links)
				cancel := make(chan error, 1)
				var ranks sync.WaitGroup
				for rank := range world {
					ranks.Go(func() {
						var why <-chan error
						if rank == 0 {
							why = cancel
						}
						takePart(t, d, rank, why)
					})
				}
				if err := d.Admit(t.Context()); err != nil {
					t.Fatal(err)
				}
				hub := d.Open()
				for range world {
					rank, record, err := hub.Recv(soon())
					if err != nil || string(record) != fmt.Sprint("hello of ", rank) {
						t.Errorf("rank %d: %q, %v", rank, record, err)
					}
				}
				cancel <- errors.New("out of cheese")
				if end := d.WatchRank(0); !end.Final || end.Err.Error() != "out of cheese" {
					t.Errorf("rank 0 ended with %+v", end)
				}
				if err := errors.Join(hub.Close(), d.Close()); err != nil {
					t.Error(err)
				}
				ranks.Wait()
				for rank := 1; rank < world; rank++ {
					if end := d.WatchRank(rank); end.Err == nil || end.Final {
						t.Errorf("rank %d ended with %+v", rank, end)
					}
				}
			})
		}
	}
}

// takePart is a rank that stays until its driver goes.
func takePart(t *testing.T, d *Driver, rank int, cancel <-chan error) {
	r, err := Dial(*d.Invitation(rank), nil, cancel)
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	world := d.o.Layout.World()
	if world > 1 {
		groups, err := r.Groups(nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer groups.Close()
		g := groups.TP
		x := []float32{float32(rank)}
		if err := g.AllReduce(x); err != nil || x[0] != float32(world*(world-1)/2) {
			t.Errorf("rank %d has the sum %v, %v", rank, x, err)
		}
	}
	if err := r.Port().Send(fmt.Append(nil, "hello of ", rank), soon()); err != nil {
		t.Error(err)
	}
	if _, err := r.Port().Recv(soon()); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("rank %d received %v", rank, err)
	}
}

// TestAdmitNamesMissingRank gives up on the first rank that does not come.
func TestAdmitNamesMissingRank(t *testing.T) {
	d := listen(t, 2, false)
	d.o.Timeout = 50 * time.Millisecond
	err := d.Admit(t.Context())
	var broke *Error
	if !errors.As(err, &broke) || broke.Rank != 0 ||
		!strings.Contains(err.Error(), "start: not all have come within 50ms") {
		t.Errorf("%v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestCloseAfterReset has nothing to say of a connection whose rank has gone: the cause is
// another's to tell.
func TestCloseAfterReset(t *testing.T) {
	d := listen(t, 2, true)
	inv := d.Invitation(0)
	token, err := handshake.ParseToken(inv.Token)
	if err != nil {
		t.Fatal(err)
	}
	c, err := handshake.Dial(t.Context(), inv.Endpoint, token, handshake.Identity{
		Instance: inv.Endpoint.Instance, PID: 1, Binary: d.Binary()})
	if err != nil {
		t.Fatal(err)
	}
	if d.conns[0], err = d.listener.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw := c.Conn.(*tls.Conn).NetConn().(*net.TCPConn)
	if err := errors.Join(raw.SetLinger(0), raw.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Receive(d.conns[0], new(Location)); err == nil {
		t.Error("the rank has not gone")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestApart has a rank say that it cannot reach another one: the driver says so at once, and the
// other one, which waits for it, goes with the driver.
func TestApart(t *testing.T) {
	d := listen(t, 2, true)
	began, waits := time.Now(), make(chan error, 1)
	go func() {
		_, err := Dial(*d.Invitation(0), nil, nil)
		waits <- err
	}()
	go func() {
		inv := d.Invitation(1)
		token, err := handshake.ParseToken(inv.Token)
		if err != nil {
			t.Error(err)
		}
		c, err := handshake.Dial(t.Context(), inv.Endpoint, token, handshake.Identity{Rank: 1,
			Instance: inv.Endpoint.Instance, PID: 1, Binary: d.Binary()})
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(Receive(c, new(Admitted)),
			Send(c, Location{Host: "elsewhere", Endpoint: &inv.Endpoint}),
			Receive(c, new(Rendezvous)),
			Send(c, Connected{Failed: "rank 0: no route to host"})); err != nil {
			t.Error(err)
		}
	}()
	err := d.Admit(t.Context())
	var rank *Error
	if !errors.As(err, &rank) || rank.Rank != 1 || !errors.Is(err, ErrApart) ||
		!strings.HasSuffix(err.Error(), "connect the ranks: rank 0: no route to host") {
		t.Errorf("%v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, ErrApart) ||
		!strings.Contains(err.Error(), "rank 1 has not come") {
		t.Errorf("the other rank: %v", err)
	}
	if took := time.Since(began); took > dialTimeout/2 {
		t.Errorf("it took %v", took)
	}
}
