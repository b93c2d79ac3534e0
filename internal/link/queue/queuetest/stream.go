// Package queuetest holds what the tests of the queue's transports have in common.
package queuetest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"time"
)

// Stream makes random records that say what they must be: a number, a checksum, then up to 300 KiB
// of an own pattern. A second stream of the same seed and side checks them.
type Stream struct {
	// Number is that of the next record.
	Number uint64
	// Sum is the checksum of all records so far.
	Sum uint32

	rng    *rand.Rand
	source []byte
}

const (
	header  = 12
	longest = 300 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewStream returns the stream of a side (0 for the driver's) in a test with the seed.
func NewStream(seed, side int) *Stream {
	s := &Stream{rng: rand.New(rand.NewPCG(uint64(seed), uint64(side))),
		source: make([]byte, 2*longest)}
	for i := range s.source {
		s.source[i] = byte(s.rng.Uint32())
	}
	return s
}

// Next returns the next record, in buf.
func (s *Stream) Next(buf []byte) []byte {
	n := s.rng.IntN(400)
	switch k := s.rng.IntN(2000); {
	case k == 0:
		n = s.rng.IntN(longest - header)
	case k < 40:
		n = s.rng.IntN(20 << 10)
	}
	from := s.rng.IntN(longest)
	body := s.source[from : from+n]
	buf = binary.LittleEndian.AppendUint64(buf[:0], s.Number)
	buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(body, castagnoli))
	buf = append(buf, body...)
	s.count(buf)
	return buf
}

// Check compares a record received with its own account of itself.
func (s *Stream) Check(record []byte) error {
	if len(record) < header {
		return fmt.Errorf("record %d of %d bytes", s.Number, len(record))
	}
	if n := binary.LittleEndian.Uint64(record); n != s.Number {
		return fmt.Errorf("record %d, not %d", n, s.Number)
	}
	sum := crc32.Checksum(record[header:], castagnoli)
	if want := binary.LittleEndian.Uint32(record[8:]); sum != want {
		return fmt.Errorf("record %d of %d bytes has sum %#x, not %#x", s.Number, len(record), sum,
			want)
	}
	s.count(record)
	return nil
}

func (s *Stream) count(record []byte) {
	s.Number++
	s.Sum = crc32.Update(s.Sum, castagnoli, record)
}

// Doze is a short delay now and then.
func Doze(rng *rand.Rand) {
	if rng.IntN(3000) == 0 {
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
	}
}
