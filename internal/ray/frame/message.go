package frame

import "encoding/json"

// Request is what the engine sends: an operation with an id, the cancellation of an earlier one,
// or a beat.
type Request struct {
	// ID is above 0 and never repeats on a connection.
	ID int64 `json:"id,omitempty"`
	// Op names the operation and Args are its arguments.
	Op   string          `json:"op,omitempty"`
	Args json.RawMessage `json:"args,omitempty"`
	// Timeout is how long the answer is waited for, in seconds; 0 is without end.
	Timeout float64 `json:"timeout,omitempty"`
	// Cancel is the id of a request whose answer is not wanted any more.
	Cancel int64 `json:"cancel,omitempty"`
	// Beat says only that the sender is alive.
	Beat bool `json:"beat,omitempty"`
}

// Reply is what the bridge sends: its hello first, then answers, events and beats.
type Reply struct {
	Hello *Hello `json:"hello,omitempty"`
	// ID is the request that Result or Error answers.
	ID     int64           `json:"id,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Fault          `json:"error,omitempty"`
	// Exit is the unasked news that a rank's worker has ended.
	Exit *Exit `json:"exit,omitempty"`
	Beat bool  `json:"beat,omitempty"`
}

// Hello is the first message of a bridge. Error says why Ray cannot be imported; then the bridge
// ends.
type Hello struct {
	Ray    string `json:"ray"`
	Python string `json:"python"`
	PID    int    `json:"pid"`
	Error  *Fault `json:"error,omitempty"`
}

// Fault is a Python exception: its class, its text, and the chain of its causes from the nearest
// to the first.
type Fault struct {
	Class   string  `json:"class"`
	Message string  `json:"message"`
	Causes  []Fault `json:"causes,omitempty"`
}

// Exit tells how the worker of a rank ended: Code or Signal if its actor could say so, else Class
// and Reason of Ray's own exception.
type Exit struct {
	Rank   int      `json:"rank"`
	PID    int      `json:"pid"`
	Code   *int     `json:"code"`
	Signal string   `json:"signal"`
	Class  string   `json:"class"`
	Reason string   `json:"reason"`
	Stderr []string `json:"stderr"`
}
