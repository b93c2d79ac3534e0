package link

import (
	"encoding/binary"
	"slices"
)

// chunk is a block of encoded frames. It is written from and replayed from, and never moves.
type chunk struct {
	buf []byte
	// acked and sent are how far the peer has acknowledged and the connection has taken it.
	acked, sent int
	last        uint64 // number of its last frame
	busy        bool   // a write reads it
	filling     bool   // a frame is being copied to its end
}

// outbox holds the frames of data that are not acknowledged.
type outbox struct {
	chunks []*chunk
	free   []*chunk
	lowest int // length of free since the last trim

	seq     uint64 // last frame queued
	offered uint64 // last frame given to a write
	acked   uint64 // last frame acknowledged
	bytes   int    // of the frames after acked
}

// append queues a frame.
func (o *outbox) append(flags uint8, payload []byte, ack uint64) {
	c, place := o.reserve(flags, len(payload), ack)
	copy(place, payload)
	o.commit(c, len(payload))
}

// reserve makes room for a frame at the end of the queue and returns where its payload goes. That
// place is the caller's alone, and the frame is not seen, before commit.
func (o *outbox) reserve(flags uint8, length int, ack uint64) (c *chunk, place []byte) {
	c = o.tail(headerSize + length)
	c.filling = true
	b := header{kind: typeData, flags: flags, length: length, seq: o.seq + 1,
		ack: ack}.append(c.buf)
	return c, b[len(b) : len(b)+length]
}

// commit queues the frame that was reserved last.
func (o *outbox) commit(c *chunk, length int) {
	size := headerSize + length
	o.seq++
	c.buf = c.buf[:len(c.buf)+size]
	c.last, c.filling = o.seq, false
	o.bytes += size
}

// tail returns a chunk with room for size bytes at the end of the queue.
func (o *outbox) tail(size int) *chunk {
	if n := len(o.chunks); n > 0 && len(o.chunks[n-1].buf)+size <= chunkSize {
		return o.chunks[n-1]
	}
	var c *chunk
	if n := len(o.free); n > 0 {
		c, o.free = o.free[n-1], o.free[:n-1]
		o.lowest = min(o.lowest, n-1)
	} else {
		c = &chunk{buf: make([]byte, 0, chunkSize)}
	}
	o.chunks = append(o.chunks, c)
	return c
}

// next returns what to write now: the unsent rest of a chunk. done must follow when bytes were
// returned.
func (o *outbox) next() (*chunk, []byte) {
	for _, c := range o.chunks {
		if c.sent < len(c.buf) {
			c.busy = true
			o.offered = max(o.offered, c.last)
			return c, c.buf[c.sent:]
		}
	}
	return nil, nil
}

// done ends a write; n is how many bytes went to the connection that is still the link's.
func (o *outbox) done(c *chunk, n int) {
	c.busy = false
	c.sent += n
	o.reclaim()
}

// pending says whether anything is to be written.
func (o *outbox) pending() bool {
	n := len(o.chunks)
	return n > 0 && o.chunks[n-1].sent < len(o.chunks[n-1].buf)
}

// ack frees the frames up to seq. Acknowledgements may come again, or late from a replayed header.
func (o *outbox) ack(seq uint64) error {
	if seq <= o.acked {
		return nil
	}
	if seq > o.offered {
		return violation(ErrAck, "frame %d, the last one sent is %d", seq, o.offered)
	}
	for _, c := range o.chunks {
		for c.acked < len(c.buf) && o.acked < seq {
			size := frameSize(c.buf[c.acked:])
			c.acked += size
			o.bytes -= size
			o.acked++
		}
		if o.acked == seq {
			break
		}
	}
	o.reclaim()
	return nil
}

// reclaim frees the chunks at the front whose frames are all acknowledged.
func (o *outbox) reclaim() {
	for len(o.chunks) > 0 {
		c := o.chunks[0]
		if c.busy || c.filling || c.acked < len(c.buf) || c.sent < len(c.buf) {
			return
		}
		c.buf, c.acked, c.sent = c.buf[:0], 0, 0
		if len(o.chunks) == 1 {
			return // the next frame goes here
		}
		o.chunks = slices.Delete(o.chunks, 0, 1)
		o.free = append(o.free, c)
	}
}

// rewind makes everything after the frame that the peer received last unsent, and returns how many
// frames will be sent again.
func (o *outbox) rewind(received uint64) (again uint64, err error) {
	if received < o.acked || received > o.offered {
		return 0, violation(ErrAck, "peer has received up to frame %d; acknowledged is %d, sent %d",
			received, o.acked, o.offered)
	}
	seq := o.acked
	for _, c := range o.chunks {
		c.sent = c.acked
		for c.sent < len(c.buf) && seq < received {
			c.sent += frameSize(c.buf[c.sent:])
			seq++
		}
	}
	o.reclaim()
	return o.offered - received, nil
}

// trim frees half of the chunks that were not used since the last trim.
func (o *outbox) trim() {
	if drop := (o.lowest + 1) / 2; drop > 0 {
		o.free = slices.Delete(o.free, len(o.free)-drop, len(o.free))
	}
	o.lowest = len(o.free)
}

// frameSize reads the length from a header of our own.
func frameSize(b []byte) int { return headerSize + int(binary.LittleEndian.Uint32(b[4:])) }
