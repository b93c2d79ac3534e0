package link

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
)

const (
	headerSize = 24
	// chunkSize bounds a frame with its header.
	chunkSize  = 64 << 10
	maxPayload = chunkSize - headerSize
	maxReason  = 512
	helloSize  = 16 + 8 + 4
	// beatSize is a heartbeat without a status.
	beatSize = 8 + 8 + 8
)

// frameType is the first byte of a header.
type frameType uint8

const (
	// typeHello opens every connection: session, last sequence number received, window.
	typeHello frameType = iota + 1
	// typeData is a record or a fragment of one.
	typeData
	// typeAck is a header alone.
	typeAck
	// typeBeat is a heartbeat: own time, the peer's last time, how long that was held, and perhaps
	// a status.
	typeBeat
	// typeClose is the end in order, with its reason.
	typeClose
)

func (t frameType) String() string {
	switch t {
	case typeHello:
		return "hello"
	case typeData:
		return "data"
	case typeAck:
		return "ack"
	case typeBeat:
		return "heartbeat"
	case typeClose:
		return "close"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Flags of data.
const (
	// flagMore says that the record goes on in the next frame.
	flagMore = 1 << iota
	// flagAbort ends a record that its sender gave up; it has no payload.
	flagAbort
)

// header is type (1 byte), flags (1), zero (2), length of the payload (4), sequence number (8),
// last sequence number consumed (8).
type header struct {
	kind     frameType
	flags    uint8
	length   int
	seq, ack uint64
}

func (h header) append(b []byte) []byte {
	b = append(b, byte(h.kind), h.flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.length))
	b = binary.LittleEndian.AppendUint64(b, h.seq)
	return binary.LittleEndian.AppendUint64(b, h.ack)
}

// parseHeader reads a header from at least headerSize bytes and refuses what no peer of ours sends.
func parseHeader(b []byte) (header, error) {
	h := header{kind: frameType(b[0]), flags: b[1], seq: binary.LittleEndian.Uint64(b[8:]),
		ack: binary.LittleEndian.Uint64(b[16:])}
	length := binary.LittleEndian.Uint32(b[4:])
	if h.kind < typeHello || h.kind > typeClose || b[2] != 0 || b[3] != 0 {
		return h, violation(ErrType, "header % x", b[:8])
	}
	if length > maxPayload {
		return h, violation(ErrLength, "%s of %d bytes, at most %d", h.kind, length, maxPayload)
	}
	h.length = int(length)
	fits := true
	switch h.kind {
	case typeHello:
		fits = h.length == helloSize
	case typeData:
		if h.flags > flagAbort {
			return h, violation(ErrType, "data with flags %#x", h.flags)
		}
		fits = h.flags != flagAbort || h.length == 0
	case typeAck:
		fits = h.length == 0
	case typeBeat:
		fits = h.length == beatSize || h.length == beatSize+status.Size
	case typeClose:
		fits = h.length <= maxReason
	}
	if !fits {
		return h, violation(ErrLength, "%s of %d bytes", h.kind, h.length)
	}
	if h.kind != typeData && (h.flags != 0 || h.seq != 0) {
		return h, violation(ErrType, "%s with flags %#x, sequence number %d", h.kind, h.flags,
			h.seq)
	}
	return h, nil
}

// greeting is the payload of a hello.
type greeting struct {
	session  handshake.Session
	received uint64
	window   uint32
}

func (g greeting) append(b []byte) []byte {
	b = append(b, g.session[:]...)
	b = binary.LittleEndian.AppendUint64(b, g.received)
	return binary.LittleEndian.AppendUint32(b, g.window)
}

// parseGreeting reads a payload whose length parseHeader has checked.
func parseGreeting(p []byte) greeting {
	return greeting{session: handshake.Session(p), received: binary.LittleEndian.Uint64(p[16:]),
		window: binary.LittleEndian.Uint32(p[24:])}
}

// pulse is the payload of a heartbeat; its times are monotonic clocks of their senders.
type pulse struct {
	sent, echo, held time.Duration
	status           *status.Snapshot
}

func (p pulse) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(p.sent))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.echo))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.held))
	if p.status != nil {
		b = p.status.Append(b)
	}
	return b
}

// parsePulse reads a payload whose length parseHeader has checked.
func parsePulse(b []byte) pulse {
	at := func(i int) time.Duration { return time.Duration(binary.LittleEndian.Uint64(b[8*i:])) }
	p := pulse{sent: at(0), echo: at(1), held: at(2)}
	if len(b) == beatSize {
		return p
	}
	if s, err := status.Parse(b[beatSize:]); err == nil {
		p.status = &s
	}
	return p
}
