package worker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/eagleray/eagleray/internal/collective/shm"
	"github.com/eagleray/eagleray/internal/collective/tcp"
	"github.com/eagleray/eagleray/internal/model/layers"
	"github.com/eagleray/eagleray/internal/queue/handshake"
)

// What driver and rank tell each other between the handshake and the first record, in this order:
//
//	driver → rank  Welcome, and the memory of the ring when it says so
//	driver → rank  Gathering, when there are several ranks, and the memory of the group with TransportShm
//	rank → driver  with TransportTCP: the handshake.Endpoint where it awaits the ranks above it
//	driver → rank  with TransportTCP: Peers
//	rank → driver  with TransportTCP: Met, when it is connected to all others
//	driver → rank  with TransportTCP: Met, when all are
//
// Each is a little-endian 32-bit length and that much JSON.

// Welcome is the driver's first word after the handshake.
type Welcome struct {
	// Ring says that the next thing on the connection is the memory of the ring; otherwise, or when it cannot be
	// passed, records come over the connection itself.
	Ring bool `json:"ring"`
}

// Transport is what tensors travel by between ranks.
type Transport string

// The transports of tensors.
const (
	// TransportShm is memory shared by all ranks; it follows on the connection.
	TransportShm Transport = "shm"
	// TransportTCP is a connection between each two ranks.
	TransportTCP Transport = "tcp"
)

// Gathering says how the ranks of a group come together.
type Gathering struct {
	Transport Transport `json:"transport"`
	// Bytes is the largest piece in which tensors are exchanged.
	Bytes int `json:"bytes"`
	// Timeout is how long a rank waits for another, in nanoseconds; 0 is the transport's default.
	Timeout time.Duration `json:"timeout"`
}

// Peers says where each rank awaits the ranks above it.
type Peers struct {
	Endpoints []handshake.Endpoint `json:"endpoints"`
}

// Met says that a rank is connected to all others, and to it that all are: from now on there are records.
type Met struct{}

// LastWords are what a rank beside a ring says on its connection when something ends it from outside.
type LastWords struct {
	Cause string `json:"cause"`
}

// maxWord bounds the length of what is said before the first record.
const maxWord = 64 << 10

// Tell writes one of the words above.
func Tell(c net.Conn, word any) error {
	body, err := json.Marshal(word)
	if err != nil {
		return err
	}
	_, err = c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// Hear reads what Tell wrote.
func Hear(c net.Conn, word any) error {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxWord {
		return fmt.Errorf("%T of %d bytes", word, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	return json.Unmarshal(body, word)
}

// Group is a rank's tensor parallel group.
type Group interface {
	layers.Comm
	// Abort ends every operation under way and to come, on all ranks.
	Abort(cause error)
	Close() error
}

// gather learns how the group meets, and meets.
func (m *membership) gather() error {
	if err := Hear(m.conn, &m.gathering); err != nil {
		return fmt.Errorf("how the ranks gather: %w", err)
	}
	var err error
	switch m.gathering.Transport {
	case TransportShm:
		if m.memory, err = m.conn.RecvFile(); err != nil {
			return fmt.Errorf("memory of the group: %w", err)
		}
		return nil
	case TransportTCP:
		if err := m.connectAll(); err != nil {
			return fmt.Errorf("connect the ranks: %w", err)
		}
		return nil
	}
	return fmt.Errorf("the ranks gather over %q, which is unknown", m.gathering.Transport)
}

// connectAll makes one connection to every other rank: it dials the ranks below and awaits those above.
func (m *membership) connectAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
	defer cancel()
	listener, err := handshake.Listen(handshake.Options{Instance: m.id.Instance, Token: m.token, World: m.world,
		Binary: m.id.Binary, TCP: m.host()})
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := Tell(m.conn, listener.Endpoint()); err != nil {
		return err
	}
	var peers Peers
	if err := Hear(m.conn, &peers); err != nil {
		return fmt.Errorf("where the others are: %w", err)
	}
	if len(peers.Endpoints) != m.world {
		return fmt.Errorf("%d endpoints for %d ranks", len(peers.Endpoints), m.world)
	}
	m.mesh = make([]net.Conn, m.world)
	for rank := range m.id.Rank {
		c, err := handshake.Dial(ctx, peers.Endpoints[rank], m.token, m.id)
		if err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		m.mesh[rank] = c
	}
	for range m.world - 1 - m.id.Rank {
		c, err := listener.Accept(ctx)
		if err != nil {
			return err
		}
		if r := c.Peer.Rank; r <= m.id.Rank || m.mesh[r] != nil {
			c.Close()
			return fmt.Errorf("rank %d is not expected to come here", r)
		}
		m.mesh[c.Peer.Rank] = c
	}
	if err := Tell(m.conn, Met{}); err != nil {
		return err
	}
	// The driver's end of a link opens when all have met: before that nobody answers this one's heartbeats.
	if err := Hear(m.conn, new(Met)); err != nil {
		return fmt.Errorf("wait until all ranks have met: %w", err)
	}
	return nil
}

// host is the address at which other ranks can reach this one: the one by which it reaches the driver, or the
// driver's own when the two share a host.
func (m *membership) host() string {
	if a, ok := m.conn.LocalAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	if host, _, err := net.SplitHostPort(m.at.TCP); err == nil {
		return host
	}
	return "127.0.0.1"
}

// joinGroup makes the group of what gather brought, and lets it end with the driver.
func (m *membership) joinGroup() (Group, error) {
	var g Group
	var err error
	if m.memory != nil {
		g, err = shm.Options{Timeout: m.gathering.Timeout}.Join(m.memory, m.id.Rank, m.world, m.gathering.Bytes)
	} else {
		var t *tcp.Group
		if t, err = tcp.Join(m.mesh, m.id.Rank, tcp.Options{MaxBytes: m.gathering.Bytes, Timeout: m.gathering.Timeout}); err == nil {
			g, m.mesh = t, nil // the group closes them
		}
	}
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.group = g
	if m.gone {
		g.Abort(errors.New("the driver is gone"))
	}
	return &memberGroup{g, m}, nil
}

// memberGroup is a group that is forgotten by its membership before it is closed.
type memberGroup struct {
	Group
	m *membership
}

func (g *memberGroup) Close() error {
	g.m.mu.Lock()
	g.m.group = nil
	g.m.mu.Unlock()
	return g.Group.Close()
}

var (
	_ Group = (*shm.Group)(nil)
	_ Group = (*tcp.Group)(nil)
)
