package handshake

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// A frame is magic (4 bytes), version (2), kind (1), zero (1), length of the payload (2), zero (2),
// payload; all numbers little-endian. The first twelve bytes keep their meaning in every version.
const (
	prefixSize = 12
	maxPayload = 512
	nonceSize  = 32
	macSize    = 32
)

var magic = [4]byte{'E', 'R', 'q', 0x1A}

type kind uint8

const (
	kindHello kind = iota + 1
	kindChallenge
	kindProof
	kindWelcome
	kindRefuse
)

func (k kind) String() string {
	switch k {
	case kindHello:
		return "hello"
	case kindChallenge:
		return "challenge"
	case kindProof:
		return "proof"
	case kindWelcome:
		return "welcome"
	case kindRefuse:
		return "refuse"
	}
	return fmt.Sprintf("frame of kind %d", uint8(k))
}

// appendFrame adds the frame of a payload of at most maxPayload bytes.
func appendFrame(b []byte, k kind, payload []byte) []byte {
	b = append(b, magic[:]...)
	b = binary.LittleEndian.AppendUint16(b, Version)
	b = append(b, byte(k), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
	b = append(b, 0, 0)
	return append(b, payload...)
}

// parsePrefix returns a frame's kind and the length of its payload.
func parsePrefix(p []byte) (kind, int, error) {
	if [4]byte(p) != magic {
		return 0, 0, refuse(Malformed, "first bytes %q are not of this protocol", p[:4])
	}
	if v := binary.LittleEndian.Uint16(p[4:]); v != Version {
		return 0, 0, refuse(VersionMismatch, "peer speaks version %d, this side version %d", v,
			Version)
	}
	k, n := kind(p[6]), int(binary.LittleEndian.Uint16(p[8:]))
	if k < kindHello || k > kindRefuse || p[7] != 0 || p[10] != 0 || p[11] != 0 {
		return 0, 0, refuse(Malformed, "header % x", p[4:prefixSize])
	}
	if n > maxPayload {
		return 0, 0, refuse(Malformed, "%s announces %d bytes, more than %d", k, n, maxPayload)
	}
	return k, n, nil
}

// readFrame reads one frame whole: prefix and payload. It reads not a byte beyond, since what
// follows the handshake may carry a file descriptor.
func readFrame(r io.Reader) (k kind, frame []byte, err error) {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", err)
	}
	k, n, err := parsePrefix(prefix[:])
	if err != nil {
		return 0, nil, err
	}
	frame = append(make([]byte, 0, prefixSize+n), prefix[:]...)[:prefixSize+n]
	if _, err := io.ReadFull(r, frame[prefixSize:]); err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", k, err)
	}
	return k, frame, nil
}

// hello is a worker's first frame.
type hello struct {
	nonce [nonceSize]byte
	id    Identity
}

// The flag of a hello: whether it names a session, and what for.
const (
	flagResume = iota + 1
	flagBeside
)

const helloFixed = nonceSize + 4 + 4 + 32 + 1 + 16 + 8 + 1

func (h *hello) append(b []byte) []byte {
	b = append(b, h.nonce[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(int32(h.id.Rank)))
	b = binary.LittleEndian.AppendUint32(b, uint32(int32(h.id.PID)))
	b = append(b, h.id.Binary[:]...)
	var resume Resume
	flag := byte(0)
	if h.id.Resume != nil {
		resume, flag = *h.id.Resume, flagResume
		if resume.Beside {
			flag = flagBeside
		}
	}
	b = append(b, flag)
	b = append(b, resume.Session[:]...)
	b = binary.LittleEndian.AppendUint64(b, resume.Received)
	b = append(b, byte(len(h.id.Instance)))
	return append(b, h.id.Instance...)
}

func parseHello(p []byte) (hello, error) {
	var h hello
	if len(p) < helloFixed || len(p) != helloFixed+int(p[helloFixed-1]) ||
		len(p) > helloFixed+maxInstance {
		return h, refuse(Malformed, "hello of %d bytes", len(p))
	}
	p = p[copy(h.nonce[:], p):]
	h.id.Rank = int(int32(binary.LittleEndian.Uint32(p)))
	h.id.PID = int(int32(binary.LittleEndian.Uint32(p[4:])))
	p = p[8:]
	p = p[copy(h.id.Binary[:], p):]
	flag := p[0]
	var resume Resume
	p = p[1:]
	p = p[copy(resume.Session[:], p):]
	resume.Received = binary.LittleEndian.Uint64(p)
	h.id.Instance = Instance(p[9:])
	switch {
	case flag == flagResume, flag == flagBeside:
		resume.Beside = flag == flagBeside
		h.id.Resume = &resume
	case flag != 0 || resume != Resume{}:
		return h, refuse(Malformed, "hello with resume flag %d, session %s, received %d", flag,
			resume.Session, resume.Received)
	}
	return h, nil
}

// check refuses an identity that does not fit on the wire.
func (id *Identity) check() error {
	if id.Instance == "" || len(id.Instance) > maxInstance {
		return fmt.Errorf("instance of %d bytes, not 1 to %d", len(id.Instance), maxInstance)
	}
	if id.Rank < 0 || id.Rank > math.MaxInt32 {
		return fmt.Errorf("rank %d does not fit in 31 bits", id.Rank)
	}
	if id.PID < 0 || id.PID > math.MaxInt32 {
		return fmt.Errorf("pid %d does not fit in 31 bits", id.PID)
	}
	return nil
}

// challenge is the driver's answer to a hello.
type challenge struct {
	nonce    [nonceSize]byte
	instance Instance
}

func (c *challenge) append(b []byte) []byte {
	b = append(b, c.nonce[:]...)
	b = append(b, byte(len(c.instance)))
	return append(b, c.instance...)
}

func parseChallenge(p []byte) (challenge, error) {
	var c challenge
	if len(p) < nonceSize+1 || len(p) != nonceSize+1+int(p[nonceSize]) ||
		len(p) > nonceSize+1+maxInstance {
		return c, refuse(Malformed, "challenge of %d bytes", len(p))
	}
	copy(c.nonce[:], p)
	c.instance = Instance(p[nonceSize+1:])
	return c, nil
}

func parseProof(p []byte) ([macSize]byte, error) {
	if len(p) != macSize {
		return [macSize]byte{}, refuse(Malformed, "proof of %d bytes", len(p))
	}
	return [macSize]byte(p), nil
}

func parseWelcome(p []byte) (Session, [macSize]byte, error) {
	if len(p) != len(Session{})+macSize {
		return Session{}, [macSize]byte{}, refuse(Malformed, "welcome of %d bytes", len(p))
	}
	return Session(p), [macSize]byte(p[len(Session{}):]), nil
}

// maxDetail bounds a refusal's text on the wire, in bytes.
const maxDetail = maxPayload - 1 - macSize

func appendRefusal(b []byte, reason Reason, mac [macSize]byte, detail string) []byte {
	b = append(b, byte(reason))
	b = append(b, mac[:]...)
	return append(b, detail[:min(len(detail), maxDetail)]...)
}

func parseRefusal(p []byte) (Reason, [macSize]byte, string, error) {
	if len(p) < 1+macSize {
		return 0, [macSize]byte{}, "", refuse(Malformed, "refusal of %d bytes", len(p))
	}
	return Reason(p[0]), [macSize]byte(p[1:]), string(p[1+macSize:]), nil
}
