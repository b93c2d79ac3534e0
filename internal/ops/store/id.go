package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// lastID is the time in the newest id.
var lastID atomic.Int64

// NewID returns 32 hexadecimal digits whose order is that of their making, within one process and
// where clocks are right; 64 bits of them are random and not to be guessed.
func NewID() string {
	now := time.Now().UnixNano()
	for {
		last := lastID.Load()
		now = max(now, last+1)
		if lastID.CompareAndSwap(last, now) {
			break
		}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(now))
	_, _ = rand.Read(b[8:]) // never fails
	return hex.EncodeToString(b[:])
}
