// Package launch holds the words that launchers and the executor share: what is started, what came of it, and
// how it ended.
package launch

import (
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/worker"
)

// Spec is one rank to start.
type Spec struct {
	Rank, LocalRank int
	// Invitation is what the rank needs to join the driver; it holds a secret, and must not be passed where
	// others can read it. It is nil for a rank inside the driver's process.
	Invitation *worker.Invitation
	// Binary is the SHA-256 of the program that the driver will admit, for launchers that bring it to other hosts.
	Binary [32]byte
}

// Worker is a started rank.
type Worker struct {
	Rank, LocalRank int
	Node            string
	PID             int
	// Hub is the driver's end of the channel of a rank inside the driver's process, nil for others.
	Hub queue.Hub
}

// Exit is the end of a rank that was not asked to end: its death certificate.
type Exit struct {
	// Rank is -1 for the end of what watches the ranks.
	Rank int
	// Node is where it ran, "" for this host.
	Node string
	PID  int
	// Cause says how: "exit status 1", "signal: killed", "returned: …".
	Cause string
	// Detail is what else is known of the cause, in lines; mostly nothing.
	Detail string
	// Stderr are its last lines of output.
	Stderr []string
}

// String is one line, with the last output if there is any.
func (e Exit) String() string {
	s := fmt.Sprintf("rank %d (pid %d) ended: %s", e.Rank, e.PID, e.Cause)
	if len(e.Stderr) > 0 {
		s += "; last output: " + strings.Join(e.Stderr, " | ")
	}
	return s
}
