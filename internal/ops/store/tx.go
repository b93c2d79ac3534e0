package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	bolt "go.etcd.io/bbolt"
)

var (
	// ErrNotFound says that there is no value under a key, or no longer.
	ErrNotFound = errors.New("not found")
	// ErrFull says that a value has no room, even without those that have expired.
	ErrFull = errors.New("the store is full")
	// ErrClosed is the answer of a store that has been closed.
	ErrClosed = errors.New("the store is closed")
)

// Tx is the store within one call of View or Update. What it returns is valid until that returns.
type Tx struct {
	values, expiry, figures *bolt.Bucket
	now, max                int64
}

// expiryLen is what precedes a value: when it expires, in nanoseconds of Unix time, big-endian.
const expiryLen = 8

// Get returns the value of a key, or ErrNotFound.
func (tx *Tx) Get(key string) ([]byte, error) {
	v := tx.values.Get([]byte(key))
	if v == nil || tx.expired(v) {
		return nil, ErrNotFound
	}
	return v[expiryLen:], nil
}

// expired says that a value's time is over. One that is shorter than its time is none that was put.
func (tx *Tx) expired(v []byte) bool {
	return len(v) < expiryLen || int64(binary.BigEndian.Uint64(v)) <= tx.now
}

// Put sets the value of a key until a time, the zero one for ever. It fails with ErrFull.
func (tx *Tx) Put(key string, value []byte, until time.Time) error {
	at := int64(math.MaxInt64)
	if !until.IsZero() {
		at = until.UnixNano()
	}
	if err := tx.Delete(key); err != nil {
		return err
	}
	size := sizeOf(len(key), len(value))
	for tx.bytes()+size > tx.max {
		n, err := tx.sweep()
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%w: %d bytes are kept, and %d more have no room in %d", ErrFull,
				tx.bytes(), size, tx.max)
		}
	}
	if err := tx.values.Put([]byte(key), append(be64(at), value...)); err != nil {
		return err
	}
	if !until.IsZero() {
		if err := tx.expiry.Put(append(be64(at), key...), nil); err != nil {
			return err
		}
	}
	return tx.count(size)
}

// Delete removes a key. One that is not there is no error.
func (tx *Tx) Delete(key string) error {
	v := tx.values.Get([]byte(key))
	if v == nil {
		return nil
	}
	if len(v) < expiryLen {
		return tx.values.Delete([]byte(key))
	}
	size := sizeOf(len(key), len(v)-expiryLen)
	if at := v[:expiryLen]; int64(binary.BigEndian.Uint64(at)) != math.MaxInt64 {
		if err := tx.expiry.Delete(append(bytes.Clone(at), key...)); err != nil {
			return err
		}
	}
	if err := tx.values.Delete([]byte(key)); err != nil {
		return err
	}
	return tx.count(-size)
}

// Each calls f with the keys that begin with prefix and their values, in the order of the keys'
// bytes or against it, from behind the key after on ("" for all), until f returns false. f must not
// update the store.
func (tx *Tx) Each(prefix, after string, reverse bool, f func(key string, value []byte) bool) {
	c := tx.values.Cursor()
	step := c.Next
	if reverse {
		step = c.Prev
	}
	for k, v := first(c, prefix, after, reverse); k != nil; k, v = step() {
		if !bytes.HasPrefix(k, []byte(prefix)) {
			return
		}
		if !tx.expired(v) && !f(string(k), v[expiryLen:]) {
			return
		}
	}
}

// EachByExpiry calls f with the keys whose values expire, and their values, the next to expire
// first, until f returns false. f must not update the store.
func (tx *Tx) EachByExpiry(f func(key string, value []byte) bool) {
	c := tx.expiry.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if len(k) <= expiryLen {
			continue
		}
		v := tx.values.Get(k[expiryLen:])
		if v != nil && !tx.expired(v) && !f(string(k[expiryLen:]), v[expiryLen:]) {
			return
		}
	}
}

// first goes to the first key of Each.
func first(c *bolt.Cursor, prefix, after string, reverse bool) (k, v []byte) {
	if !reverse {
		if after <= prefix {
			return c.Seek([]byte(prefix))
		}
		if k, v = c.Seek([]byte(after)); string(k) == after {
			k, v = c.Next()
		}
		return k, v
	}
	end := after
	if end == "" {
		end = prefix + "\xff" // no byte of a text
	}
	if k, _ = c.Seek([]byte(end)); k == nil {
		return c.Last()
	}
	return c.Prev()
}

// sweepAtOnce bounds the values that one update removes for others.
const sweepAtOnce = 64

// sweep removes some of the values that have expired, the oldest first, and says how many.
func (tx *Tx) sweep() (int, error) {
	var gone [][]byte
	c := tx.expiry.Cursor()
	for k, _ := c.First(); k != nil && len(gone) < sweepAtOnce && tx.expired(k); k, _ = c.Next() {
		gone = append(gone, bytes.Clone(k))
	}
	for _, k := range gone {
		if len(k) > expiryLen {
			if err := tx.Delete(string(k[expiryLen:])); err != nil {
				return 0, err
			}
		}
		// It is gone with its value, unless there was none.
		if err := tx.expiry.Delete(k); err != nil {
			return 0, err
		}
	}
	return len(gone), nil
}

// sizeOf is what a pair counts for: with its expiry, twice where it has one, in round figures.
func sizeOf(key, value int) int64 { return int64(2*key + value + 2*expiryLen) }

func (tx *Tx) bytes() int64 {
	v := tx.figures.Get(total)
	if len(v) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v))
}

func (tx *Tx) count(n int64) error { return tx.figures.Put(total, be64(tx.bytes()+n)) }
