// Package phase holds the words in which a rank tells how far it is: which step it has received, started and
// finished, and what it is doing. They lie in shared memory or travel with heartbeats, and are read by the
// stall explainer.
package phase

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// Phase is what a rank is doing.
type Phase uint32

// The phases of a rank, in the order of its life.
const (
	// Unknown is before the rank's first word.
	Unknown Phase = iota
	// Init is from the process' start to the end of the handshake.
	Init
	// Load is reading weights; Detail is the percentage read.
	Load
	// Warmup is the first, unmeasured steps.
	Warmup
	// Idle is waiting for a plan or a call.
	Idle
	// Recv is decoding what was received.
	Recv
	// Forward is within a layer; Detail is its number.
	Forward
	// Collective is waiting for other ranks; Detail is the layer.
	Collective
	// Sample is choosing tokens.
	Sample
	// Send is writing the result, which waits while nobody reads it.
	Send
	// Call is within an RPC.
	Call
	phases
)

var names = [phases]string{"unknown", "init", "load", "warm-up", "idle", "recv", "forward", "collective", "sample", "send", "call"}

func (p Phase) String() string {
	if p >= phases {
		return fmt.Sprintf("phase %d", uint32(p))
	}
	return names[p]
}

// Words are a rank's own, written by it alone and read by others at any time. Its size is a multiple of 64
// bytes, so that it can lie in shared memory on cache lines of its own.
type Words struct {
	received, started, finished atomic.Uint64
	// state is the phase in the high half and the detail in the low one: the two change together.
	state atomic.Uint64
	// call is the id of the RPC under way, 0 for none.
	call atomic.Uint64
	// changes counts writes: a reader that sees it stand still sees a rank that does not move.
	changes atomic.Uint64
	_       [16]byte
}

// Status is a copy of the words.
type Status struct {
	// Received, Started and Finished are ids of plans, 0 for none.
	Received, Started, Finished uint64
	Phase                       Phase
	Detail                      uint32
	// Call is the id of the RPC under way, 0 for none.
	Call uint64
	// Changes counts the rank's writes.
	Changes uint64
}

// Set publishes what the rank is doing now.
func (w *Words) Set(p Phase, detail uint32) {
	w.state.Store(uint64(p)<<32 | uint64(detail))
	w.changes.Add(1)
}

// Received publishes that a plan has arrived.
func (w *Words) Received(plan uint64) { w.received.Store(plan); w.changes.Add(1) }

// Started publishes that the rank computes a plan.
func (w *Words) Started(plan uint64) { w.started.Store(plan); w.changes.Add(1) }

// Finished publishes that a plan is done.
func (w *Words) Finished(plan uint64) { w.finished.Store(plan); w.changes.Add(1) }

// Call publishes the RPC under way, 0 for none.
func (w *Words) Call(id uint64) { w.call.Store(id); w.changes.Add(1) }

// Status reads the words. They are read one by one: a status taken while the rank writes may mix two moments.
func (w *Words) Status() Status {
	state := w.state.Load()
	return Status{Received: w.received.Load(), Started: w.started.Load(), Finished: w.finished.Load(),
		Phase: Phase(state >> 32), Detail: uint32(state), Call: w.call.Load(), Changes: w.changes.Load()}
}

// Store copies a status into the words: the driver's copy of a remote rank's.
func (w *Words) Store(s Status) {
	w.received.Store(s.Received)
	w.started.Store(s.Started)
	w.finished.Store(s.Finished)
	w.state.Store(uint64(s.Phase)<<32 | uint64(s.Detail))
	w.call.Store(s.Call)
	w.changes.Store(s.Changes)
}

// Size is the length of an encoded Status in bytes.
const Size = 48

// Append encodes s, little-endian.
func (s Status) Append(b []byte) []byte {
	for _, v := range [...]uint64{s.Received, s.Started, s.Finished, uint64(s.Phase)<<32 | uint64(s.Detail), s.Call, s.Changes} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// Parse decodes a Status of exactly Size bytes.
func Parse(b []byte) (Status, error) {
	if len(b) != Size {
		return Status{}, fmt.Errorf("status of %d bytes, not %d", len(b), Size)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return Status{Received: at(0), Started: at(1), Finished: at(2), Phase: Phase(at(3) >> 32), Detail: uint32(at(3)), Call: at(4), Changes: at(5)}, nil
}
