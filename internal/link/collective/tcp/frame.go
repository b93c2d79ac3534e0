package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// step is what the ranks must agree on at one place of the stream.
type step struct {
	seq, tag uint64
	// guard is the sender's, by Group.Guard.
	guard uint64
}

// String describes the step in errors.
func (s step) String() string {
	return fmt.Sprintf("step %d, %s", s.seq, collective.DescribeTag(s.tag))
}

const (
	// headerSize is the length of a frame's header: kind and payload length, 4 bytes each, then the
	// step's number, tag and guard, 8 bytes each, all little-endian. The payload is a piece of the
	// sender's memory: on the architectures there are kernels for, little-endian too.
	headerSize = 32
	// maxFrame is the largest payload of a frame; larger messages are several. A notice of an abort
	// gets between two frames.
	maxFrame = 256 << 10
	// maxAbortText bounds the text of an abort notice.
	maxAbortText = 1024
)

// The kinds of frames. An abort notice has the rank that ended the group in place of the step's
// number, and its payload is text for people.
const (
	kindData  = 0x31_43_54_45 // "ETC1"
	kindAbort = 0x31_41_54_45 // "ETA1"
)

type header struct {
	kind, length uint32
	step         step
}

func (h header) encode(b []byte) {
	binary.LittleEndian.PutUint32(b[0:], h.kind)
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint64(b[8:], h.step.seq)
	binary.LittleEndian.PutUint64(b[16:], h.step.tag)
	binary.LittleEndian.PutUint64(b[24:], h.step.guard)
}

func decodeHeader(b []byte) header {
	return header{
		kind:   binary.LittleEndian.Uint32(b[0:]),
		length: binary.LittleEndian.Uint32(b[4:]),
		step: step{seq: binary.LittleEndian.Uint64(b[8:]), tag: binary.LittleEndian.Uint64(b[16:]),
			guard: binary.LittleEndian.Uint64(b[24:])},
	}
}
