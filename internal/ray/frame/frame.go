// Package frame is the wire format between the engine and its Ray bridge: a message is one JSON
// object, sent as a 4-byte big-endian length and that many bytes. bridge.py speaks the same
// format (python/wire.py).
package frame

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxLength bounds the JSON of one message, in bytes. The largest messages are starts of workers,
// which hold their environments and their standard input.
const MaxLength = 16 << 20

// headLength is the length of the length.
const headLength = 4

// ErrLength is returned for a message that is longer than allowed or has no bytes at all. After
// it the stream is of no use.
var ErrLength = errors.New("frame length out of range")

// Read reads one message from r. It returns io.EOF at a clean end and io.ErrUnexpectedEOF at an
// end within a message. Memory grows with what has arrived, not with what the length promises.
func Read(r io.Reader) (json.RawMessage, error) { return ReadAtMost(r, MaxLength) }

// ReadAtMost is Read for messages of another length.
func ReadAtMost(r io.Reader, most int) (json.RawMessage, error) {
	var head [headLength]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || int64(n) > int64(most) {
		return nil, fmt.Errorf("%w: %d bytes", ErrLength, n)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return nil, err
	}
	if len(body) < int(n) {
		return nil, io.ErrUnexpectedEOF
	}
	return body, nil
}

// Append appends the frame of message to dst.
func Append(dst []byte, message any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return dst, fmt.Errorf("encode message: %w", err)
	}
	if len(body) > MaxLength {
		return dst, fmt.Errorf("%w: %d bytes", ErrLength, len(body))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	return append(dst, body...), nil
}

// Write writes message to w with one call.
func Write(w io.Writer, message any) error {
	data, err := Append(nil, message)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
