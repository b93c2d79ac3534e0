package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// dialTimeout bounds the handshake with the driver, and the one with the other ranks.
const dialTimeout = 30 * time.Second

// Rank is a rank's side of a group: its port to the driver, what connects it to the other ranks,
// and the goroutine that watches the driver.
type Rank struct {
	inv    Invitation
	memory memory.Bounds
	token  handshake.Token
	id     handshake.Identity
	conn   *handshake.Conn

	port     queue.Port
	local    bool // on the driver's host
	watching sync.WaitGroup
	left     chan struct{}

	// timeout is how long this rank waits for another in its communicators, neighbours how many
	// ranks are on its host.
	timeout       time.Duration
	neighbours    int
	communicators []*communicator

	// cancelled says that the launcher, not the driver, ends this rank.
	cancelled atomic.Bool

	mu     sync.Mutex
	groups Groups
	ended  bool // the driver
	// life ends with the driver, or when the rank leaves.
	life context.Context
	end  context.CancelFunc
}

// Dial joins the driver that wrote the invitation, and tells it the bounds of memory. An error
// received from cancel, which may be nil, ends this rank; Rank sends it to the driver first.
func Dial(inv Invitation, bounds memory.Bounds, cancel <-chan error) (*Rank, error) {
	r, err := dial(inv, bounds)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", inv.Rank, err)
	}
	r.watching.Go(func() {
		select {
		case cause := <-cancel:
			r.cancelled.Store(true)
			r.sendClosing(cause)
			r.driverGone(cause)
		case <-r.left:
		}
	})
	return r, nil
}

func dial(inv Invitation, bounds memory.Bounds) (*Rank, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	r := &Rank{inv: inv, memory: bounds, left: make(chan struct{}),
		id: handshake.Identity{Instance: inv.Endpoint.Instance, Rank: inv.Rank, PID: os.Getpid()}}
	r.life, r.end = context.WithCancel(context.Background())
	var err error
	if r.token, err = handshake.ParseToken(inv.Token); err != nil {
		return nil, fmt.Errorf("invitation: %w", err)
	}
	if len(inv.Binary) == len(r.id.Binary) {
		r.id.Binary = [32]byte(inv.Binary)
	} else if r.id.Binary, err = BinaryHash(); err != nil {
		return nil, err
	}
	if r.conn, err = handshake.Dial(ctx, inv.Endpoint, r.token, r.id); err != nil {
		return nil, fmt.Errorf("join the driver: %w", err)
	}
	if err := r.join(); err != nil {
		r.Close()
		return nil, fmt.Errorf("join the driver: %w", err)
	}
	return r, nil
}

// join exchanges the rank's messages with the driver. After an error Close releases what was
// received.
func (r *Rank) join() error {
	var admitted Admitted
	if err := Receive(r.conn, &admitted); err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	var mapped *ring.Rank
	if admitted.Ring {
		var err error
		if mapped, err = r.receiveRing(); err != nil {
			return err
		}
	}
	meet := r.meet
	if r.inv.World == 1 {
		meet = func() error { return Send(r.conn, r.location(nil)) }
	}
	if err := meet(); err != nil {
		if mapped != nil {
			mapped.Close()
		}
		return err
	}
	if mapped != nil {
		r.port, r.local = mapped, true
		r.watching.Go(r.watchConn)
		return nil
	}
	l := link.Connect(r.conn, r.conn.Session,
		func(ctx context.Context, resume handshake.Resume) (net.Conn, error) {
			again := r.id
			again.Resume = &resume
			return handshake.Dial(ctx, r.inv.Endpoint, r.token, again)
		}, link.Options{})
	r.port = linkPort{l}
	r.watching.Go(func() {
		<-l.Down()
		r.driverGone(l.Err())
	})
	return nil
}

// receiveRing receives and maps the memory of the ring; it returns nil when the connection cannot
// pass memory.
func (r *Rank) receiveRing() (*ring.Rank, error) {
	f, err := r.conn.RecvFile()
	if errors.Is(err, handshake.ErrNoPassing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("memory of the ring: %w", err)
	}
	defer f.Close()
	return ring.Map(f, r.id.Rank)
}

// Port is the rank's end of the queue. It is closed when the driver has gone.
func (r *Rank) Port() queue.Port { return r.port }

// Local says that the rank is on the driver's host.
func (r *Rank) Local() bool { return r.local }

// DriverGone reports whether the driver has ended or this rank was cancelled. The rank's later
// errors follow from that and are not reported.
func (r *Rank) DriverGone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// Ended is closed when the driver has ended, or this rank has left.
func (r *Rank) Ended() <-chan struct{} { return r.life.Done() }

// Cancelled says that this rank ends because it was cancelled.
func (r *Rank) Cancelled() bool { return r.cancelled.Load() }

// watchConn waits for the end of the connection beside a ring, which is the driver's end.
func (r *Rank) watchConn() {
	var b [1]byte
	_, err := r.conn.Read(b[:])
	if err == nil {
		err = errors.New("the driver sent unexpected bytes")
	}
	r.driverGone(err)
}

// Beside opens another connection to the driver, which must expect it (Driver.Beside); received is
// sent along. The end of the driver closes it. It needs a link.
func (r *Rank) Beside(received uint64) (net.Conn, error) {
	id := r.id
	id.Resume = &handshake.Resume{Session: r.conn.Session, Received: received, Beside: true}
	c, err := handshake.Dial(r.life, r.inv.Endpoint, r.token, id)
	if err != nil {
		return nil, err
	}
	return besideConn{c, context.AfterFunc(r.life, func() { c.Close() })}, nil
}

// besideConn is a connection that ends with the driver.
type besideConn struct {
	net.Conn
	stop func() bool
}

// Close implements net.Conn.
func (c besideConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// driverGone ends every wait of this rank with the driver's end as cause.
func (r *Rank) driverGone(cause error) {
	r.end()
	r.port.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.groups.Abort(fmt.Errorf("the driver is gone: %w", cause))
}

// sendClosing sends the driver the cause of this rank's end.
func (r *Rank) sendClosing(cause error) {
	if p, ok := r.port.(linkPort); ok {
		_ = p.Link.Close(cause.Error())
		return
	}
	// The driver may be gone already.
	_ = Send(r.conn, Closing{Reason: cause.Error()})
}

// Close leaves the group.
func (r *Rank) Close() {
	close(r.left)
	r.end()
	if r.port != nil {
		r.port.Close()
	}
	r.conn.Close()
	for _, c := range r.communicators {
		c.close()
	}
	r.watching.Wait()
}

// rankEnding is why a rank closes its link when nothing but its own end is the reason, which the
// driver learns from its records or its launcher.
const rankEnding = "rank is ending"

// linkPort is a rank's port over a connection: a link that says why it closes.
type linkPort struct{ *link.Link }

func (p linkPort) Close() error { return p.Link.Close(rankEnding) }

var (
	_ queue.Port = (*ring.Rank)(nil)
	_ queue.Port = linkPort{}
)
