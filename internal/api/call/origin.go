package call

import (
	"encoding/hex"
	"math/rand/v2"
	"time"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// Origin is what an answer is made of beside its request: a time, and a source of random numbers.
// The nil origin is the present, with numbers that differ each time; that of an answer that can be
// resumed (ResumeHeader) gives every server the same.
type Origin struct {
	created int64
	random  *rand.ChaCha8
}

func NewOrigin(seed [32]byte, created int64) *Origin {
	return &Origin{created: created, random: rand.NewChaCha8(seed)}
}

// Uint64 draws a number.
func (o *Origin) Uint64() uint64 {
	if o == nil {
		return rand.Uint64()
	}
	return o.random.Uint64()
}

// Time is when the answer was begun, in seconds of Unix time.
func (o *Origin) Time() int64 {
	if o == nil {
		return time.Now().Unix()
	}
	return o.created
}

// NewID returns 128 random bits in hexadecimal, as vLLM's random_uuid.
func NewID() string { return (*Origin)(nil).ID() }

// ID is newID for an answer.
func (o *Origin) ID() string {
	var b [16]byte
	for i := 0; i < len(b); i += 8 {
		v := o.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// CallID returns a random id of a call in OpenAI's form.
func (o *Origin) CallID() string { return "call_" + o.text(24) }

// ShortCallID returns one in Mistral's.
func (o *Origin) ShortCallID() string { return o.text(9) }

func (o *Origin) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = base62[o.Uint64()%uint64(len(base62))]
	}
	return string(b)
}

// NewItemID makes the id of an item.
func NewItemID(prefix string) string { return prefix + store.NewID() }

// ItemID is newItemID for an answer .
func (o *Origin) ItemID(prefix string) string {
	if o == nil {
		return NewItemID(prefix)
	}
	return prefix + o.ID()
}
