// Package status is what a rank says it is doing: which plan it has received, started and finished,
// and the phase it is in. The rank writes it; others read it, in shared memory or from heartbeats,
// to explain a stall.
package status

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// Phase is what a rank is doing.
type Phase uint32

// The phases of a rank, in the order of its life.
const (
	// Unknown is before the rank has written anything.
	Unknown Phase = iota
	// Init is from the process' start to the end of the handshake.
	Init
	// Load is reading weights; Detail is the percentage read.
	Load
	// Idle is waiting for a plan or a call.
	Idle
	// Recv is decoding what was received.
	Recv
	// Forward is within a layer; Detail is a Within.
	Forward
	// Collective is waiting for other ranks; Detail is a Within.
	Collective
	// Sample is choosing tokens.
	Sample
	// Send is writing the result, which waits while the driver does not read.
	Send
	// Call is within an RPC.
	Call
	phases
)

var names = [phases]string{"unknown", "init", "load", "idle", "recv", "forward", "collective",
	"sample", "send", "call"}

func (p Phase) String() string {
	if p >= phases {
		return fmt.Sprintf("phase %d", uint32(p))
	}
	return names[p]
}

// Rank is the status of one rank, written by it alone and read by others at any time. Its size is a
// multiple of 64 bytes, so that it can lie in shared memory on cache lines of its own.
type Rank struct {
	received, started, finished atomic.Uint64
	// state is the phase in the high half and the detail in the low one: the two change together.
	state atomic.Uint64
	// call is the id of the RPC under way, 0 for none.
	call atomic.Uint64
	// changes counts writes, and chunks of layers: it stays when the rank is stalled.
	changes atomic.Uint64
	// cpu and memory are what Uses was last told.
	cpu, memory atomic.Uint64
	gpu         gpuWords
}

// Snapshot is a copy of a rank's status.
type Snapshot struct {
	// Received, Started and Finished are ids of plans, 0 for none.
	Received, Started, Finished uint64
	Phase                       Phase
	Detail                      uint32
	// Call is the id of the RPC under way, 0 for none.
	Call uint64
	// Changes counts the rank's writes, and the chunks of its layers: it stays when nothing moves.
	Changes uint64
	// CPU is how many thousandths of a processor the rank's process used over the last second, and
	// Memory how many of its bytes are resident; both are 0 where they are not known.
	CPU, Memory uint64
	// GPU is what Measures was last told.
	GPU GPU
}

// Set publishes what the rank is doing now.
func (r *Rank) Set(p Phase, detail uint32) {
	r.state.Store(uint64(p)<<32 | uint64(detail))
	r.changes.Add(1)
}

// Received publishes that a plan has arrived.
func (r *Rank) Received(plan uint64) { r.received.Store(plan); r.changes.Add(1) }

// Started publishes that the rank computes a plan.
func (r *Rank) Started(plan uint64) { r.started.Store(plan); r.changes.Add(1) }

// Finished publishes that a plan is done.
func (r *Rank) Finished(plan uint64) { r.finished.Store(plan); r.changes.Add(1) }

// Call publishes the RPC under way, 0 for none.
func (r *Rank) Call(id uint64) { r.call.Store(id); r.changes.Add(1) }

// Uses publishes what the process takes of its machine, in the units of a Snapshot. It is no sign
// of work being done: Changes stays.
func (r *Rank) Uses(cpu, memory uint64) { r.cpu.Store(cpu); r.memory.Store(memory) }

// Moved is the count of the rank's writes, for what moves without saying where it is: the chunks of
// a layer.
func (r *Rank) Moved() *atomic.Uint64 { return &r.changes }

// Snapshot reads the fields one by one: what is taken while the rank writes may mix two moments.
func (r *Rank) Snapshot() Snapshot {
	state := r.state.Load()
	s := Snapshot{Received: r.received.Load(), Started: r.started.Load(),
		Finished: r.finished.Load(),
		Phase:    Phase(state >> 32), Detail: uint32(state), Call: r.call.Load(),
		Changes: r.changes.Load(), CPU: r.cpu.Load(), Memory: r.memory.Load()}
	for f := range s.GPU {
		s.GPU[f] = r.gpu.figures[f].Load()
	}
	return s
}

// String is what the rank is doing, in words.
func (s Snapshot) String() string {
	switch s.Phase {
	case Load:
		return fmt.Sprintf("load %d%%", s.Detail)
	case Forward, Collective:
		return fmt.Sprintf("%s, %v", s.Phase, s.Within())
	}
	return s.Phase.String()
}

// Size is the length of an encoded Snapshot in bytes.
const Size = 8 * (8 + int(Figures))

// Append encodes s, little-endian.
func (s Snapshot) Append(b []byte) []byte {
	state := uint64(s.Phase)<<32 | uint64(s.Detail)
	for _, v := range [...]uint64{s.Received, s.Started, s.Finished, state, s.Call, s.Changes,
		s.CPU, s.Memory} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, v := range s.GPU {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// Parse decodes a Snapshot of exactly Size bytes.
func Parse(b []byte) (Snapshot, error) {
	if len(b) != Size {
		return Snapshot{}, fmt.Errorf("status of %d bytes, not %d", len(b), Size)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	s := Snapshot{Received: at(0), Started: at(1), Finished: at(2),
		Phase: Phase(at(3) >> 32), Detail: uint32(at(3)), Call: at(4), Changes: at(5),
		CPU: at(6), Memory: at(7)}
	for f := range s.GPU {
		s.GPU[f] = at(8 + f)
	}
	return s, nil
}
