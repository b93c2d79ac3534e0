// Package nodes starts ranks on several machines without Ray (--nnodes): each node starts its own
// as child processes (package process), and node 0, the driver's, tells the others when.
//
// A node dials --master-addr and both prove that they know the secret of --cluster-token-file
// (package handshake, over TLS). Then these messages follow, each a package join message:
//
//	node → node 0  hello    who it is, and everything that must be equal on both
//	node 0 → node  answer   admitted, or refused and why
//
// From then on each side may send at any time, and beats every second when it has nothing to say:
//
//	node 0 → node  order    start these ranks, or invite those that live to the next group; all
//	                        ranks serve; stop them, and why; end, and why
//	node → node 0  report   ranks started, or why not; a rank has ended; stopped; this node ends
//
// Several groups (--data-parallel-size) share nodes and connections. Each has orders and reports of
// its own, and each rank belongs to one: what ends one group leaves the others alone.
//
// The connection is how each side learns that the other has gone: a node without node 0 ends its
// ranks and itself, and a node that goes takes its ranks with it (its children die with it), which
// fails the group.
package nodes

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// hello is a node's first message.
type hello struct {
	Node     int              `json:"node"`
	Host     string           `json:"host"`
	PID      int              `json:"pid"`
	Settings []config.Setting `json:"settings"`
}

// answer is node 0's first message.
type answer struct {
	// Refused is why the node cannot take part, "" when it is admitted.
	Refused string `json:"refused,omitempty"`
}

// order is what node 0 wants of a node; one without content is a beat.
type order struct {
	// Group is the number of the group that Start, Serving and Stop are for.
	Group int `json:"group,omitempty"`
	// Start are the ranks to start, or to give an invitation to.
	Start []rankOrder `json:"start,omitempty"`
	// Serving says that all ranks of the group have loaded.
	Serving bool `json:"serving,omitempty"`
	// Stop ends the ranks: another group may follow. End ends the node.
	Stop *stop `json:"stop,omitempty"`
	End  *stop `json:"end,omitempty"`
}

// rankOrder is one rank in order.Start.
type rankOrder struct {
	join.Invitation
	// Fresh is that of launch.Spec.
	Fresh bool `json:"fresh,omitempty"`
}

// stop says why something ends.
type stop struct {
	// Cause is why it has failed, "" when it was asked to end.
	Cause string `json:"cause,omitempty"`
}

// report is what a node says of its ranks of a group; one without content is a beat.
type report struct {
	Group int `json:"group,omitempty"`
	// Started are the processes of the ranks that were ordered, in that order, and Reused which of
	// them were there before; Failed is why they could not be started.
	Started []int        `json:"started,omitempty"`
	Reused  []bool       `json:"kept,omitempty"`
	Failed  string       `json:"failed,omitempty"`
	Exit    *launch.Exit `json:"exit,omitempty"`
	// Leaving is why this node ends itself.
	Leaving string `json:"leaving,omitempty"`
	// Stopped says that an order to stop was carried out.
	Stopped bool `json:"stopped,omitempty"`
}

// instance names the control connection in the handshake. The secret tells clusters apart.
const instance handshake.Instance = "eagleray-nodes"

// Silence is how long a node may be silent before the others take it for gone. Links to its ranks
// are lost after 4 seconds: a rank is named first where both fall silent.
const Silence = 8 * time.Second

// channel is one end of the control connection.
type channel struct {
	conn net.Conn
	// silence bounds the wait for the next message and for the sending of one.
	silence time.Duration
	sending sync.Mutex
}

func (c *channel) send(message any) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.write(message)
}

// write sends while c.sending is held.
func (c *channel) write(message any) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.silence)); err != nil {
		return err
	}
	return join.Send(c.conn, message)
}

func (c *channel) receive(message any) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return err
	}
	err := join.Receive(c.conn, message)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it is silent for %v", c.silence)
	}
	return err
}

// inWords is why a channel has ended.
func inWords(err error) string {
	if errors.Is(err, io.EOF) {
		return "its connection has ended"
	}
	return err.Error()
}

// beat sends an empty message every so often until done is closed or nothing can be sent.
func (c *channel) beat(done <-chan struct{}) {
	tick := time.NewTicker(c.silence / 8)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if c.send(struct{}{}) != nil {
			return // the reader sees the end too
		}
	}
}

// differences are the settings of which node 0 and another node have other values, each in words.
func differences(node int, zeros, theirs []config.Setting) []string {
	var all []string
	differ := func(name, zero, their string) {
		all = append(all, fmt.Sprintf("%s is %s at node 0, %s at node %d", name, zero, their, node))
	}
	value := func(s config.Setting) string {
		if s.Value == "" {
			return "not set"
		}
		return s.Value
	}
	left := map[string]config.Setting{}
	for _, s := range theirs {
		left[s.Name] = s
	}
	for _, s := range zeros {
		t, ok := left[s.Name]
		delete(left, s.Name)
		switch {
		case !ok:
			differ(s.Name, value(s), "unknown")
		case s.Value != t.Value:
			differ(s.Name, value(s), value(t))
		}
	}
	for _, t := range theirs {
		if _, ok := left[t.Name]; ok {
			differ(t.Name, "unknown", value(t))
		}
	}
	return all
}

// list writes numbers in words: "1, 2 and 3".
func list(numbers []int) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = fmt.Sprint(n)
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}

// waiting are the times at which one that waits says so again.
type waiting struct{ next time.Duration }

// after is how long to wait before the next word.
func (w *waiting) after() time.Duration {
	w.next = max(2*w.next, firstWord)
	return w.next
}

// firstWord is how long one waits without a word.
const firstWord = 10 * time.Second
