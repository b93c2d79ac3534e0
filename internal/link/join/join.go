// Package join brings a rank into its group: its invitation, and what driver and rank exchange
// between the handshake and the first record. The driver's side is driver.go, the rank's side is
// rank.go, and mesh.go where it meets the other ranks.
//
// A rank reads its Invitation from its launcher, dials the driver, and both prove that they
// know the secret (package handshake). Then these messages follow on the connection, in this order:
//
//	driver → rank  Admitted; then the memory of the ring, if it says so
//
//	rank → driver  Location: its host with its memory, and where it accepts other ranks
//
// when there are several ranks:
//
//	driver → rank  Rendezvous, when every rank accepts: the layout, and where its peers are
//	rank → driver  Connected, when it is connected to its peers, or cannot be
//	driver → rank  Connected, when all ranks are
//
// The peers of a rank are the other ranks of its communicators, one for each dimension of the
// layout that is larger than 1. Each two peers are connected: over a unix socket on one host, else
// over TCP and TLS. Of the ranks of a communicator that are on one host the first makes memory and
// passes it to the others.
//
// From here on there are records (package queue), the first of which is queue.Init: in the ring, or
// over the connection itself, which is then a link. The connection of a rank that has the ring
// stays open, because its end is how each side learns that the other has gone; one message may come
// on it:
//
//	rank → driver  Closing, when something ends the rank from outside
//
// Each message is a little-endian 32-bit length and that much JSON.
package join

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/sys/executable"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Invitation has the driver's address and the secret with which driver and rank authenticate each
// other.
type Invitation struct {
	Endpoint handshake.Endpoint `json:"endpoint"`
	// Token is the revealed handshake.Token.
	Token string `json:"token"`
	Rank  int    `json:"rank"`
	// World is the number of ranks.
	World int `json:"world"`
	// Binary is the SHA-256 of the rank's program, from a launcher that knows it because it runs
	// the same, and zero if the driver does not ask; without it the rank finds out itself.
	Binary []byte `json:"binary,omitempty"`
	// Threads is the rank's share of its node's cores, for a configuration that does not say; 0 is
	// all of them.
	Threads int `json:"threads"`
	// Place is the rank's among those that share its node's processors.
	Place machine.Place `json:"place"`
	// Ordinal is the number of the rank's GPU among those that its process may use. Measure has the
	// rank say what that has of memory, in the place of its host: the driver has not looked at it.
	Ordinal int  `json:"ordinal,omitempty"`
	Measure bool `json:"measure,omitempty"`
}

// maxInvitation bounds what a rank reads before it knows its driver.
const maxInvitation = 1 << 20

// ReadInvitation reads one line of JSON, which the end of input may end too. It reads nothing
// beyond the line from r, which may be larger than it needs.
func ReadInvitation(r *bufio.Reader) (Invitation, error) {
	var inv Invitation
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxInvitation {
			return inv, fmt.Errorf("invitation of more than %d bytes", maxInvitation)
		}
		if err == nil || errors.Is(err, io.EOF) && len(line) > 0 {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return inv, fmt.Errorf("no invitation: this verb is started by eagleray itself: %w",
				err)
		}
	}
	if err := json.Unmarshal(line, &inv); err != nil {
		return inv, fmt.Errorf("read invitation: %w", err)
	}
	return inv, nil
}

// Admitted is the driver's first message.
type Admitted struct {
	// Ring says that the driver passes the ring's memory next. Otherwise, or when passing fails,
	// records travel over the connection itself.
	Ring bool `json:"ring"`
}

// Location is the host of a rank, and the endpoint at which it accepts other ranks.
type Location struct {
	// Host is equal for ranks that can share memory.
	Host string `json:"host"`
	// Endpoint is where it accepts ranks of higher numbers; nil in a world of one.
	Endpoint *handshake.Endpoint `json:"endpoint,omitempty"`
	// Memory bounds the memory of its processes, or that of the rank's GPU (Invitation.Measure);
	// Cores is the number of cores it may use.
	Memory memory.Bounds `json:"memory"`
	Cores  int           `json:"cores"`
}

// location returns the Location of this process.
func (r *Rank) location(e *handshake.Endpoint) Location {
	return Location{Host: hostID(), Endpoint: e, Memory: r.memory, Cores: machine.Cores()}
}

// Rendezvous says how the ranks come together.
type Rendezvous struct {
	Layout layout.Layout `json:"layout"`
	// Host numbers the rank's host: equal for the ranks of one host only.
	Host int `json:"host"`
	// Neighbours is how many ranks are there, this one included.
	Neighbours int `json:"neighbours"`
	// Timeout is how long a rank waits for another, in nanoseconds; 0 is the transport's default.
	Timeout time.Duration `json:"timeout"`
	// Peers are the other ranks of this one's communicators, in their order.
	Peers []Peer `json:"peers"`
}

// Peer is another rank of a communicator.
type Peer struct {
	Rank     int                `json:"rank"`
	Host     int                `json:"host"`
	Endpoint handshake.Endpoint `json:"endpoint"`
}

// Connected is sent by a rank that is connected to its peers, and to each rank when all are. Failed
// is why a rank is not: it leaves, and may join another group.
type Connected struct {
	Failed string `json:"failed,omitempty"`
}

// ErrApart is wrapped by the error of a rank that cannot reach its peers, of which the driver knows
// from the rank itself.
var ErrApart = errors.New("connect the ranks")

// Closing says why a rank that has the ring is about to end.
type Closing struct {
	Reason string `json:"reason"`
}

// maxMessage bounds the length of a message.
const maxMessage = 64 << 10

// Send writes a message.
func Send(c net.Conn, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// Receive reads what Send wrote, and no byte beyond it.
func Receive(c net.Conn, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxMessage {
		return fmt.Errorf("%T of %d bytes", message, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return err
	}
	return json.Unmarshal(body, message)
}

// BinaryHash is the SHA-256 of the file that this process was started from, by which driver and
// ranks know that they are the same program, also where a rank has become the one for GPUs. It is
// read once: it does not change, and a recovery waits for it.
func BinaryHash() ([32]byte, error) { return binaryHash() }

var binaryHash = sync.OnceValues(func() ([32]byte, error) {
	f, err := executable.Open()
	if err != nil {
		return [32]byte{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return [32]byte{}, fmt.Errorf("own binary: %w", err)
	}
	return [32]byte(h.Sum(nil)), nil
})
