package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/collective"
	"github.com/eagleray/eagleray/internal/collective/shm"
	"github.com/eagleray/eagleray/internal/collective/tcp"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// dialTimeout bounds the handshake with the driver, and the one with the other ranks.
const dialTimeout = 30 * time.Second

// Rank is a rank's side of a group: its port to the driver, what connects it to the other ranks,
// and the goroutine that watches the driver.
type Rank struct {
	inv   Invitation
	token handshake.Token
	id    handshake.Identity
	conn  *handshake.Conn

	port     queue.Port
	local    bool // on the driver's host
	watching sync.WaitGroup
	left     chan struct{}

	// timeout is how long this rank waits for another. The group is made of memory, or of
	// connections by rank.
	timeout time.Duration
	memory  *os.File
	mesh    []net.Conn

	mu    sync.Mutex
	group Group
	gone  bool // the driver
}

// Dial joins the driver that wrote the invitation. What comes over cancel, which may be nil, is why
// this rank must end: the driver is notified before it does.
func Dial(inv Invitation, cancel <-chan error) (*Rank, error) {
	r, err := dial(inv)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", inv.Rank, err)
	}
	r.watching.Go(func() {
		select {
		case cause := <-cancel:
			r.sayWhy(cause)
			r.driverGone(cause)
		case <-r.left:
		}
	})
	return r, nil
}

func dial(inv Invitation) (*Rank, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	r := &Rank{inv: inv, left: make(chan struct{}),
		id: handshake.Identity{Instance: inv.Endpoint.Instance, Rank: inv.Rank, PID: os.Getpid()}}
	var err error
	if r.token, err = handshake.ParseToken(inv.Token); err != nil {
		return nil, fmt.Errorf("invitation: %w", err)
	}
	if r.id.Binary, err = BinaryHash(); err != nil {
		return nil, err
	}
	if r.conn, err = handshake.Dial(ctx, inv.Endpoint, r.token, r.id); err != nil {
		return nil, fmt.Errorf("join the driver: %w", err)
	}
	if err := r.enter(); err != nil {
		r.Close()
		return nil, fmt.Errorf("join the driver: %w", err)
	}
	return r, nil
}

// enter plays the rank's part of the messages. On an error Close gives back what was received.
func (r *Rank) enter() error {
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
	if r.inv.World > 1 {
		if err := r.rendezvous(); err != nil {
			if mapped != nil {
				mapped.Close()
			}
			return err
		}
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

// rendezvous receives how the ranks come together, and what they need for it.
func (r *Rank) rendezvous() error {
	var rendezvous Rendezvous
	if err := Receive(r.conn, &rendezvous); err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	r.timeout = rendezvous.Timeout
	var err error
	switch rendezvous.Transport {
	case SharedMemory:
		if r.memory, err = r.conn.RecvFile(); err != nil {
			return fmt.Errorf("memory of the group: %w", err)
		}
		return nil
	case Connections:
		if err := r.connectRanks(); err != nil {
			return fmt.Errorf("connect the ranks: %w", err)
		}
		return nil
	}
	return fmt.Errorf("rendezvous over %q, which is unknown", rendezvous.Transport)
}

// connectRanks makes one connection to every other rank: it dials the ranks below and accepts those
// above.
func (r *Rank) connectRanks() error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	listener, err := handshake.Listen(handshake.Options{Instance: r.id.Instance, Token: r.token,
		World:  r.inv.World,
		Binary: r.id.Binary, TCP: r.host()})
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := Send(r.conn, listener.Endpoint()); err != nil {
		return err
	}
	var peers Peers
	if err := Receive(r.conn, &peers); err != nil {
		return fmt.Errorf("where the others are: %w", err)
	}
	if len(peers.Endpoints) != r.inv.World {
		return fmt.Errorf("%d endpoints for %d ranks", len(peers.Endpoints), r.inv.World)
	}
	r.mesh = make([]net.Conn, r.inv.World)
	for rank := range r.id.Rank {
		c, err := handshake.Dial(ctx, peers.Endpoints[rank], r.token, r.id)
		if err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		r.mesh[rank] = c
	}
	for range r.inv.World - 1 - r.id.Rank {
		c, err := listener.Accept(ctx)
		if err != nil {
			return err
		}
		if peer := c.Peer.Rank; peer <= r.id.Rank || r.mesh[peer] != nil {
			c.Close()
			return fmt.Errorf("rank %d is not expected to come here", peer)
		}
		r.mesh[c.Peer.Rank] = c
	}
	if err := Send(r.conn, Connected{}); err != nil {
		return err
	}
	// The driver's end of a link opens when all ranks are connected: before that this one's
	// heartbeats have no answer.
	if err := Receive(r.conn, new(Connected)); err != nil {
		return fmt.Errorf("wait until all ranks are connected: %w", err)
	}
	return nil
}

// host is the address at which other ranks can reach this one: the one by which it reaches the
// driver, or the driver's own when the two share a host.
func (r *Rank) host() string {
	if a, ok := r.conn.LocalAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	if host, _, err := net.SplitHostPort(r.inv.Endpoint.TCP); err == nil {
		return host
	}
	return "127.0.0.1"
}

// Port is the rank's end of the queue. It is closed when the driver has gone.
func (r *Rank) Port() queue.Port { return r.port }

// Local says that the rank is on the driver's host.
func (r *Rank) Local() bool { return r.local }

// DriverGone says that the driver has gone, or that this rank was cancelled: no error of the rank
// matters any more.
func (r *Rank) DriverGone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone
}

// Group is what a rank exchanges tensors through. A call that fails ends the group.
type Group interface {
	// AllReduce replaces x by its sum over the ranks, added as a balanced binary tree over ranks.
	AllReduce(x []float32) error
	// Gather concatenates x of all ranks, in rank order, into dst on root.
	Gather(dst, x []float32, root int) error
	// Broadcast sets b on every rank to the root's.
	Broadcast(b []byte, root int) error
	// Abort ends every operation under way and to come, on all ranks.
	Abort(cause error)
	Close() error
}

// Group makes the group of ranks, once; it is aborted when the driver goes. The caller closes it.
func (r *Rank) Group() (Group, error) {
	var g Group
	var err error
	if r.memory != nil {
		g, err = shm.Options{Timeout: r.timeout}.Join(r.memory, r.id.Rank, r.inv.World,
			collective.MessageBytes)
	} else {
		var t *tcp.Group
		t, err = tcp.Join(r.mesh, r.id.Rank,
			tcp.Options{MaxBytes: collective.MessageBytes, Timeout: r.timeout})
		if err == nil {
			g, r.mesh = t, nil // the group closes them
		}
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.group = g
	if r.gone {
		g.Abort(errors.New("the driver is gone"))
	}
	return &openGroup{g, r}, nil
}

// openGroup is a group that the rank forgets before it is closed.
type openGroup struct {
	Group
	r *Rank
}

func (g *openGroup) Close() error {
	g.r.mu.Lock()
	g.r.group = nil
	g.r.mu.Unlock()
	return g.Group.Close()
}

// watchConn waits for the end of the connection beside a ring, which is the driver's end.
func (r *Rank) watchConn() {
	var b [1]byte
	_, err := r.conn.Read(b[:])
	if err == nil {
		err = errors.New("the driver sent unexpected bytes")
	}
	r.driverGone(err)
}

// driverGone ends every wait of this rank.
func (r *Rank) driverGone(cause error) {
	r.port.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	if r.group != nil {
		r.group.Abort(fmt.Errorf("the driver is gone: %w", cause))
	}
}

// sayWhy tells the driver why this rank is about to end.
func (r *Rank) sayWhy(cause error) {
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
	if r.port != nil {
		r.port.Close()
	}
	r.conn.Close()
	if r.memory != nil {
		r.memory.Close()
	}
	for _, c := range r.mesh {
		if c != nil {
			c.Close()
		}
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
	_ Group      = (*shm.Group)(nil)
	_ Group      = (*tcp.Group)(nil)
)
