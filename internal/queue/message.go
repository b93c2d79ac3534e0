package queue

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Kind is the first byte of every record.
type Kind byte

// Records from the driver to a rank.
const (
	// KindInit carries the rank's configuration as JSON; it is the first record.
	KindInit Kind = iota + 1
	// KindPlan carries a step.Plan.
	KindPlan
	// KindCall carries a call: see AppendCall.
	KindCall
	// KindShutdown asks the rank to end.
	KindShutdown
)

// Records from a rank to the driver.
const (
	// KindProgress carries a Progress as JSON while the rank starts.
	KindProgress Kind = iota + 64
	// KindReady carries Ready as JSON: the rank accepts plans.
	KindReady
	// KindResult carries a step.Result.
	KindResult
	// KindReply carries the answer to a call: see AppendReply.
	KindReply
	// KindFailure carries a Failure as JSON; the rank ends after it.
	KindFailure
)

// Progress is how far a rank's start has come.
type Progress struct {
	// Phase is what the rank is doing: "load", "warm-up".
	Phase string `json:"phase"`
	// Done and Total are bytes, or 0 when the phase has no measure.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
}

// Ready is what a rank says of itself when its start is complete.
type Ready struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// ISA and Threads are what it computes with.
	ISA     string `json:"isa"`
	Threads int    `json:"threads"`
	// WeightBytes is the size of its shard.
	WeightBytes int64 `json:"weight_bytes"`
}

// Failure is a rank's own account of why it cannot go on.
type Failure struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Phase is what the rank was doing: "init", "load", "step", "call".
	Phase string `json:"phase"`
	// Step is the plan in hand, 0 for none.
	Step uint64 `json:"step,omitempty"`
	// Type is the Go type of the error, "panic" for a panic.
	Type    string `json:"type"`
	Message string `json:"message"`
	// Stack is the goroutine's stack after a panic.
	Stack string `json:"stack,omitempty"`
}

// Split returns a record's kind and body.
func Split(record []byte) (Kind, []byte, error) {
	if len(record) == 0 {
		return 0, nil, fmt.Errorf("queue: empty record")
	}
	return Kind(record[0]), record[1:], nil
}

// SendJSON sends v as a record of the given kind.
func SendJSON(c Conn, kind Kind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("queue: encode record of kind %d: %w", kind, err)
	}
	return c.Send(append([]byte{byte(kind)}, body...))
}

// AppendCall encodes a call: its id, the method's name and its arguments.
func AppendCall(b []byte, id uint64, method string, args []byte) []byte {
	b = append(b, byte(KindCall))
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(method)))
	b = append(b, method...)
	return append(b, args...)
}

// ParseCall decodes the body of a KindCall record; args is a view of body.
func ParseCall(body []byte) (id uint64, method string, args []byte, err error) {
	if len(body) < 10 {
		return 0, "", nil, fmt.Errorf("queue: call of %d bytes is too short", len(body))
	}
	n := int(binary.LittleEndian.Uint16(body[8:]))
	if len(body) < 10+n {
		return 0, "", nil, fmt.Errorf("queue: call of %d bytes names a method of %d", len(body), n)
	}
	return binary.LittleEndian.Uint64(body), string(body[10 : 10+n]), body[10+n:], nil
}

// AppendReply encodes the answer to call id: failure is "" for success.
func AppendReply(b []byte, id uint64, failure string, value []byte) []byte {
	b = append(b, byte(KindReply))
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(failure)))
	b = append(b, failure...)
	return append(b, value...)
}

// ParseReply decodes the body of a KindReply record; value is a view of body.
func ParseReply(body []byte) (id uint64, failure string, value []byte, err error) {
	if len(body) < 12 {
		return 0, "", nil, fmt.Errorf("queue: reply of %d bytes is too short", len(body))
	}
	n := uint64(binary.LittleEndian.Uint32(body[8:]))
	if uint64(len(body)-12) < n {
		return 0, "", nil, fmt.Errorf("queue: reply of %d bytes announces an error text of %d", len(body), n)
	}
	return binary.LittleEndian.Uint64(body), string(body[12 : 12+n]), body[12+n:], nil
}
