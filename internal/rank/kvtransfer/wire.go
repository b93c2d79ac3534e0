package kvtransfer

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Bounds of messages in bytes. An answer lists the ranks of an engine.
const (
	maxRequest = 4 << 10
	maxAnswer  = 1 << 20
)

// version is that of the messages. Version 2 says what each layer keeps; engines before it have 0,
// and refuse a Shape without their key/value heads. Version 3 sends blocks in portions.
const version = 3

// request is a message of a peer to an agent.
type request struct {
	Op     string `json:"op"`
	Secret Secret `json:"secret"`
	// Digest is the contents that the peer expects up to the last of the blocks that it reads.
	Digest Digest `json:"digest"`
	// Part, First and Count are what it reads: First is a number in the transfer's list of blocks.
	Part
	First int `json:"first"`
	Count int `json:"count"`
	// Rank of Ranks is the rank of the peer that is done.
	Rank  int `json:"rank"`
	Ranks int `json:"ranks"`
}

// answer is the agent's reply; Error is "" when the request is served.
type answer struct {
	Error string `json:"error,omitempty"`
	// Version is the agent's, beside its Shape.
	Version int       `json:"version,omitempty"`
	Shape   *Shape    `json:"shape,omitempty"`
	Ranks   []Address `json:"ranks,omitempty"`
	// Bytes follow.
	Bytes int64 `json:"bytes,omitempty"`
}

// portionHead is the bytes that a portion of the bytes of blocks begins with: how many it has,
// big-endian. They follow, or are in the next part of the memory. A portion of none ends the blocks
// early: an answer follows with the error.
const portionHead = 4

func appendPortion(to []byte, n int) []byte { return binary.BigEndian.AppendUint32(to, uint32(n)) }

// writeMessage writes a message after its length.
func writeMessage(w io.Writer, message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// readMessage reads a message of at most so many bytes.
func readMessage(r io.Reader, most int, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if int64(n) > int64(most) {
		return fmt.Errorf("message of %d bytes, more than %d", n, most)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, message); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}
