package openai

import (
	"encoding/hex"
	"math/rand/v2"
	"time"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// origin is what an answer is made of beside its request: a time, and a source of random numbers. The
// nil origin is the present, with numbers that differ each time; that of an answer that can be resumed
// (ResumeHeader) gives every server the same.
type origin struct {
	created int64
	random  *rand.ChaCha8
}

func newOrigin(seed [32]byte, created int64) *origin {
	return &origin{created: created, random: rand.NewChaCha8(seed)}
}

// uint64 draws a number.
func (o *origin) uint64() uint64 {
	if o == nil {
		return rand.Uint64()
	}
	return o.random.Uint64()
}

// time is when the answer was begun, in seconds of Unix time.
func (o *origin) time() int64 {
	if o == nil {
		return time.Now().Unix()
	}
	return o.created
}

// newID returns 128 random bits in hexadecimal, as vLLM's random_uuid.
func newID() string { return (*origin)(nil).id() }

// id is newID for an answer.
func (o *origin) id() string {
	var b [16]byte
	for i := 0; i < len(b); i += 8 {
		v := o.uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// callID returns a random id of a call in OpenAI's form.
func (o *origin) callID() string { return "call_" + o.text(24) }

// shortCallID returns one in Mistral's.
func (o *origin) shortCallID() string { return o.text(9) }

func (o *origin) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = base62[o.uint64()%uint64(len(base62))]
	}
	return string(b)
}

// newItemID makes the id of an item.
func newItemID(prefix string) string { return prefix + store.NewID() }

// itemID is newItemID for an answer .
func (o *origin) itemID(prefix string) string {
	if o == nil {
		return newItemID(prefix)
	}
	return prefix + o.id()
}
