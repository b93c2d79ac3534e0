// Package launch holds the records that launchers and the executor share: the ranks to start, the
// started workers, and their exits.
package launch

import (
	"time"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
)

// Verb is the first argument of the program as the process of a rank, ActorFlag another one that
// tells it that an actor of Ray started it.
const (
	Verb      = "worker"
	ActorFlag = "--actor"
)

// Spec is one rank to start.
type Spec struct {
	Rank, LocalRank int
	// Invitation lets the rank join the driver; it holds a secret, and must not be passed where
	// others can read it. It is nil for a rank inside the driver's process.
	Invitation *join.Invitation
	// Binary is the SHA-256 of the program that the driver will admit, for launchers that bring it
	// to other hosts; zero for a driver of this host's ranks alone.
	Binary [32]byte
	// Layout is how the ranks divide the model, CollectiveTimeout how long a rank inside the
	// driver's process waits for the others; those of other processes are told as they join.
	Layout            layout.Layout
	CollectiveTimeout time.Duration
	// Fresh says that the rank must be started anew: the process that was this rank in the previous
	// group is ended first.
	Fresh bool
}

// ThisHost is the node of ranks that the driver started itself.
const ThisHost = "localhost"

// Worker is a started rank.
type Worker struct {
	Rank, LocalRank int
	// Node is where it runs: ThisHost for a rank that the driver started itself, else an address.
	Node string
	PID  int
	// Reused says that the process was this rank in the previous group: it only got a new
	// invitation.
	Reused bool
	// Hub is the driver's end of the channels to ranks inside the driver's process, the same for
	// all of them; nil for others.
	Hub queue.Hub
}
