// Package launch holds the words that launchers and the executor share: what is started, what came of it, and
// how it ended.
package launch

import (
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/queue"
)

// Spec is one rank to start.
type Spec struct {
	Rank, LocalRank int
	// WorldSize is the number of ranks of the group.
	WorldSize int
	// CollectiveBytes is the largest message of the group's collectives.
	CollectiveBytes int
}

// Worker is a started rank.
type Worker struct {
	Rank, LocalRank int
	Node            string
	PID             int
	// Conn is the driver's end of its channel.
	Conn queue.Conn
}

// Exit is the end of a rank that was not asked to end.
type Exit struct {
	Rank int
	PID  int
	// Cause says how: "exit status 1", "signal: killed", "returned: …".
	Cause string
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
