package launch

import "fmt"

// Exit is the end of a rank that Stop did not cause.
type Exit struct {
	// Rank is -1 for the end of the process that watches the ranks.
	Rank int
	// Node and PID are those of its Worker, "" and 0 where they are not known.
	Node string
	PID  int
	// End says how it ended.
	End End
	// Detail has further lines about the cause, mostly none.
	Detail string
	// Stderr are its last lines of output.
	Stderr []string
}

// How is a way to end.
type How uint8

const (
	// Unknown is an end of which nothing is known but Reason.
	Unknown How = iota
	// Exited is a process that ended by itself with status Code.
	Exited
	// Signalled is a process that Signal ended.
	Signalled
	// Returned is a rank inside the driver's process whose loop returned; Reason is its error, if
	// any.
	Returned
	// ActorLost is a rank whose Ray actor is gone; Class and Reason are Ray's exception.
	ActorLost
	// Lost is a rank that ended with its placement group, its node or the bridge to Ray. Reason
	// says which.
	Lost
)

// End says how a rank ended.
type End struct {
	How  How
	Code int
	// Signal is its name, as the operating system or Ray says it: "killed", "SIGKILL".
	Signal string
	Class  string
	// Reason is one line.
	Reason string
}

// ByError says that the rank ended itself because of an error. It has then sent a report of the
// error before.
func (e End) ByError() bool {
	return e.How == Exited && e.Code == errorStatus || e.How == Returned && e.Reason != ""
}

// errorStatus is the status with which the program ends after an error.
const errorStatus = 1

// String is the end in one line.
func (e End) String() string {
	switch e.How {
	case Exited:
		return fmt.Sprintf("exit status %d", e.Code)
	case Signalled:
		return "signal: " + e.Signal
	case Returned:
		if e.Reason == "" {
			return "returned"
		}
		return "returned: " + e.Reason
	case ActorLost:
		return e.Class + ": " + e.Reason
	}
	return e.Reason
}
