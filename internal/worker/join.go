package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// Invitation is what a rank needs to join its driver. It holds the secret by which the two know each other.
type Invitation struct {
	Endpoint handshake.Endpoint `json:"endpoint"`
	// Token is the revealed handshake.Token.
	Token string `json:"token"`
	Rank  int    `json:"rank"`
	// World is the number of ranks.
	World int `json:"world"`
	// Threads is the rank's share of its node's cores, for a configuration that does not say; 0 is all of them.
	Threads int `json:"threads"`
}

// joinTimeout bounds a rank's way from its start to the end of the handshake.
const joinTimeout = 30 * time.Second

// Join connects to the driver and serves it until it asks for shutdown or goes away. What comes over doom, which
// may be nil, is why this rank must end: the driver is told before it does.
func Join(inv Invitation, doom <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
	defer cancel()
	token, err := handshake.ParseToken(inv.Token)
	if err != nil {
		return fmt.Errorf("rank %d: invitation: %w", inv.Rank, err)
	}
	id := handshake.Identity{Instance: inv.Endpoint.Instance, Rank: inv.Rank, PID: os.Getpid()}
	if id.Binary, err = BinaryHash(); err != nil {
		return err
	}
	conn, err := handshake.Dial(ctx, inv.Endpoint, token, id)
	if err != nil {
		return fmt.Errorf("rank %d: join the driver: %w", inv.Rank, err)
	}
	m := &membership{conn: conn, at: inv.Endpoint, token: token, id: id, world: inv.World, left: make(chan struct{})}
	err = m.enter()
	defer m.leave()
	if err != nil {
		return fmt.Errorf("rank %d: join the driver: %w", inv.Rank, err)
	}
	m.watching.Go(func() {
		select {
		case cause := <-doom:
			m.say(cause)
			m.driverGone(cause)
		case <-m.left:
		}
	})
	// The futex waits of a ring are cheapest on a thread of one's own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = Run(m.port, Options{Rank: inv.Rank, Group: m.joinGroup, Threads: inv.Threads, DriversClock: m.near})
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return nil // whatever failed then, nobody asks any more
	}
	return err
}

// membership is a rank's place in the group: its port, and the goroutine that watches the driver.
type membership struct {
	conn     *handshake.Conn
	at       handshake.Endpoint
	token    handshake.Token
	id       handshake.Identity
	world    int
	port     queue.Port
	near     bool // on the driver's host
	watching sync.WaitGroup
	left     chan struct{}

	// gathering says how the group meets: in memory, or over connections to the other ranks.
	gathering Gathering
	memory    *os.File
	mesh      []net.Conn

	mu    sync.Mutex
	group Group
	gone  bool
}

// enter receives the welcome and what it announces. On an error what was received is given back by leave.
func (m *membership) enter() error {
	var welcome Welcome
	if err := Hear(m.conn, &welcome); err != nil {
		return fmt.Errorf("welcome: %w", err)
	}
	var ring *ring.Rank
	if welcome.Ring {
		var err error
		if ring, err = m.recvRing(); err != nil {
			return err
		}
	}
	if m.world > 1 {
		if err := m.gather(); err != nil {
			if ring != nil {
				ring.Close()
			}
			return err
		}
	}
	if ring != nil {
		m.port, m.near = ring, true
		m.watching.Go(m.watch)
		return nil
	}
	l := link.Connect(m.conn, m.conn.Session, func(ctx context.Context, resume handshake.Resume) (net.Conn, error) {
		again := m.id
		again.Resume = &resume
		return handshake.Dial(ctx, m.at, m.token, again)
	}, link.Options{})
	m.port = linkPort{l}
	m.watching.Go(func() {
		<-l.Down()
		m.driverGone(l.Err())
	})
	return nil
}

// recvRing receives and maps the memory of the ring; it returns nil when the connection cannot pass memory.
func (m *membership) recvRing() (*ring.Rank, error) {
	f, err := m.conn.RecvFile()
	if errors.Is(err, handshake.ErrNoPassing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("memory of the ring: %w", err)
	}
	defer f.Close()
	return ring.Map(f, m.id.Rank)
}

// watch waits for the end of the connection beside a ring: it is the death notice of the driver.
func (m *membership) watch() {
	var b [1]byte
	_, err := m.conn.Read(b[:])
	if err == nil {
		err = errors.New("the driver sent bytes nobody expects")
	}
	m.driverGone(err)
}

// driverGone ends every wait of this rank.
func (m *membership) driverGone(cause error) {
	m.port.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	if m.group != nil {
		m.group.Abort(fmt.Errorf("the driver is gone: %w", cause))
	}
}

// say tells the driver why this rank is about to end.
func (m *membership) say(cause error) {
	if p, ok := m.port.(linkPort); ok {
		_ = p.Link.Close(cause.Error())
		return
	}
	// The driver may be gone already.
	_ = Tell(m.conn, LastWords{Cause: cause.Error()})
}

func (m *membership) leave() {
	close(m.left)
	if m.port != nil {
		m.port.Close()
	}
	m.conn.Close()
	if m.memory != nil {
		m.memory.Close()
	}
	for _, c := range m.mesh {
		if c != nil {
			c.Close()
		}
	}
	m.watching.Wait()
}

// BinaryHash is the SHA-256 of the running program, by which driver and ranks know that they are the same.
func BinaryHash() ([32]byte, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return [32]byte{}, fmt.Errorf("own binary: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return [32]byte{}, fmt.Errorf("own binary: %w", err)
	}
	return [32]byte(h.Sum(nil)), nil
}

// Leaving is why a rank closes its link when nothing but its own end is the reason; what ended it is said elsewhere.
const Leaving = "rank is ending"

// linkPort is a rank's port over a connection: a link that says why it closes.
type linkPort struct{ *link.Link }

func (p linkPort) Close() error { return p.Link.Close(Leaving) }

var (
	_ queue.Port = (*ring.Rank)(nil)
	_ queue.Port = linkPort{}
)
