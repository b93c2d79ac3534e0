package worker

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/collective/shm"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/phase"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// Invitation is what a rank needs to join its driver. It holds the secret by which the two know each other.
type Invitation struct {
	Endpoint handshake.Endpoint `json:"endpoint"`
	// Token is the revealed handshake.Token.
	Token string `json:"token"`
	Rank  int    `json:"rank"`
}

// Welcome is the driver's first word after the handshake.
type Welcome struct {
	// Ring says that the next thing on the connection is the memory of the ring; otherwise records come over
	// the connection itself.
	Ring bool `json:"ring"`
	// CollectiveBytes, when above 0, says that the memory of the group follows, made for messages of this size.
	CollectiveBytes int `json:"collective_bytes,omitempty"`
}

// maxWelcome bounds the welcome's length.
const maxWelcome = 64 << 10

// SendWelcome writes w to a connection.
func SendWelcome(c net.Conn, w Welcome) error {
	body, err := json.Marshal(w)
	if err != nil {
		return err
	}
	_, err = c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func recvWelcome(c net.Conn) (w Welcome, err error) {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return w, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxWelcome {
		return w, fmt.Errorf("welcome of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return w, err
	}
	return w, json.Unmarshal(body, &w)
}

// joinTimeout bounds a rank's way from its start to the end of the handshake.
const joinTimeout = 30 * time.Second

// Join connects to the driver and serves it until it asks for shutdown or goes away.
func Join(inv Invitation) error {
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
	m, err := enter(conn, inv.Endpoint, token, id)
	if err != nil {
		conn.Close()
		return fmt.Errorf("rank %d: join the driver: %w", inv.Rank, err)
	}
	defer m.leave()
	// The futex waits of a ring are cheapest on a thread of one's own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return Run(m.port, Options{Collective: m.collective, CollectiveBytes: m.welcome.CollectiveBytes, OnGroup: m.setGroup, Rank: inv.Rank})
}

// membership is a rank's place in the group: its port, and the goroutine that watches the driver.
type membership struct {
	conn       *handshake.Conn
	welcome    Welcome
	port       queue.Port
	collective *os.File
	watching   sync.WaitGroup

	mu    sync.Mutex
	group *shm.Group
	gone  bool
}

// enter receives the welcome and what it announces.
func enter(conn *handshake.Conn, at handshake.Endpoint, token handshake.Token, id handshake.Identity) (*membership, error) {
	m := &membership{conn: conn}
	var err error
	if m.welcome, err = recvWelcome(conn); err != nil {
		return nil, fmt.Errorf("welcome: %w", err)
	}
	if m.welcome.Ring {
		f, err := conn.RecvFile()
		if err != nil {
			return nil, fmt.Errorf("memory of the ring: %w", err)
		}
		r, err := ring.Map(f, id.Rank)
		f.Close()
		if err != nil {
			return nil, err
		}
		m.port = &ringPort{r}
	}
	if m.welcome.CollectiveBytes > 0 {
		if m.collective, err = conn.RecvFile(); err != nil {
			return nil, fmt.Errorf("memory of the group: %w", err)
		}
	}
	if m.welcome.Ring {
		m.watching.Go(m.watch)
		return m, nil
	}
	p := &linkPort{words: new(phase.Words)}
	p.link = link.Connect(conn, conn.Session, func(ctx context.Context, resume handshake.Resume) (net.Conn, error) {
		again := id
		again.Resume = &resume
		return handshake.Dial(ctx, at, token, again)
	}, link.Options{})
	p.link.SetStatus(p.words.Status)
	m.port = p
	m.watching.Go(func() {
		<-p.link.Down()
		m.driverGone(p.link.Err())
	})
	return m, nil
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

// setGroup makes the rank's group known, so that its waits end with the driver too.
func (m *membership) setGroup(g *shm.Group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.group = g
	if g != nil && m.gone {
		g.Abort(errors.New("the driver is gone"))
	}
}

func (m *membership) leave() {
	m.port.Close()
	m.conn.Close()
	if m.collective != nil {
		m.collective.Close()
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

// ringPort is a rank's port over shared memory.
type ringPort struct{ *ring.Rank }

func (p *ringPort) Recv() ([]byte, error) {
	b, err := p.Rank.Recv(time.Time{})
	if errors.Is(err, ring.ErrClosed) {
		return nil, queue.ErrClosed
	}
	return b, err
}

func (p *ringPort) Send(record []byte) error {
	err := p.Rank.Send(record, time.Time{})
	if errors.Is(err, ring.ErrClosed) {
		return queue.ErrClosed
	}
	return err
}

// linkPort is a rank's port over a connection.
type linkPort struct {
	link  *link.Link
	words *phase.Words
}

func (p *linkPort) Recv() ([]byte, error) {
	b, err := p.link.Recv(time.Time{})
	if errors.Is(err, link.ErrDown) || errors.Is(err, link.ErrClosed) {
		return nil, queue.ErrClosed
	}
	return b, err
}

func (p *linkPort) Send(record []byte) error {
	err := p.link.Send(record, time.Time{})
	if errors.Is(err, link.ErrDown) || errors.Is(err, link.ErrClosed) {
		return queue.ErrClosed
	}
	return err
}

func (p *linkPort) Words() *phase.Words { return p.words }

func (p *linkPort) Close() error { return p.link.Close("rank is ending") }

var (
	_ queue.Port = (*ringPort)(nil)
	_ queue.Port = (*linkPort)(nil)
)
