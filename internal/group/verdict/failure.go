package verdict

import "fmt"

// Failure is the first error of any rank, which ends the group.
type Failure struct {
	// Rank is -1 when no rank is to blame: the process that watches them has ended.
	Rank int
	Node string
	PID  int
	// Step is the plan that the rank computed, 0 for none or unknown.
	Step uint64
	// Phase is what the rank was doing, "" where it is not known.
	Phase string
	// Cause is one line.
	Cause string
	// Extent says which ranks are lost.
	Extent Extent
	// Reported says that the rank itself reported Cause, an error of its own: nothing from outside
	// has ended it.
	Reported bool
	// Unrelated says that no request can be the cause: the rank was stopped, had no processor, was
	// still moving, or lost a file of the model.
	Unrelated bool
	// Detail has further lines about the cause: the stack of a panic, Ray's whole message.
	Detail string
	// Stderr are the rank's last lines of output.
	Stderr []string
}

// Extent says which ranks a failure has ended.
type Extent uint8

const (
	// OneRank is lost: the one that is to blame.
	OneRank Extent = iota
	// NoRank is known to be lost: the rank to blame is late, or its connection was cut.
	NoRank
	// AllRanks are lost: the process that watches them has ended, or they cannot be trusted.
	AllRanks
)

// Error names the rank, where it ran, what it was doing and the cause.
func (f *Failure) Error() string {
	if f.Rank < 0 {
		return f.Cause
	}
	s := fmt.Sprintf("rank %d on %s (pid %d)", f.Rank, f.Node, f.PID)
	if f.Step > 0 {
		s += fmt.Sprintf(", step %d", f.Step)
	}
	if f.Phase != "" {
		s += ", " + f.Phase
	}
	return s + ": " + f.Cause
}
