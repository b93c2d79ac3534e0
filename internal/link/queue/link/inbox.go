package link

import "encoding/binary"

// inbuf holds bytes that were read and not yet parsed.
type inbuf struct {
	b        []byte
	from, to int
}

const (
	smallBuffer = 16 << 10
	largeBuffer = 2 * chunkSize
)

// frame returns the next whole frame, or ok=false when more must be read.
func (r *inbuf) frame() (h header, payload []byte, ok bool, err error) {
	have := r.b[r.from:r.to]
	if len(have) < headerSize {
		return h, nil, false, nil
	}
	if h, err = parseHeader(have); err != nil {
		return h, nil, false, err
	}
	if len(have) < headerSize+h.length {
		return h, nil, false, nil
	}
	r.from += headerSize + h.length
	return h, have[headerSize : headerSize+h.length : headerSize+h.length], true, nil
}

// room makes space for the rest of a frame behind what is there, and returns it. Bytes move: no
// view of the buffer may be in use.
func (r *inbuf) room() []byte {
	if r.from == r.to {
		r.from, r.to = 0, 0
	}
	need := headerSize
	if have := r.b[r.from:r.to]; len(have) >= headerSize {
		need += int(binary.LittleEndian.Uint32(have[4:])) // at most maxPayload: frame has parsed it
	}
	if r.from+need > len(r.b) || r.to == len(r.b) {
		old := r.b[r.from:r.to]
		switch {
		case need > len(r.b):
			size := smallBuffer
			if need > size {
				size = largeBuffer
			}
			r.b = make([]byte, size)
			copy(r.b, old)
		default:
			copy(r.b, old)
		}
		r.from, r.to = 0, len(old)
	}
	return r.b[r.to:]
}

// inbox holds the frames of data that came outside Recv.
type inbox struct {
	b    []byte
	from int
}

// inboxHeader is flags (1 byte), length (4), sequence number (8).
const inboxHeader = 13

func (i *inbox) empty() bool { return i.from == len(i.b) }

// push appends a frame. Nothing moves within the old array, of which the last record may still be
// in use.
func (i *inbox) push(h header, payload []byte) {
	need := inboxHeader + len(payload)
	if len(i.b)+need > cap(i.b) {
		live := i.b[i.from:]
		i.b = append(make([]byte, 0, max(2*(len(live)+need), chunkSize)), live...)
		i.from = 0
	}
	i.b = append(i.b, h.flags)
	i.b = binary.LittleEndian.AppendUint32(i.b, uint32(len(payload)))
	i.b = binary.LittleEndian.AppendUint64(i.b, h.seq)
	i.b = append(i.b, payload...)
}

// pop returns the oldest frame; the inbox must not be empty.
func (i *inbox) pop() (header, []byte) {
	b := i.b[i.from:]
	n := int(binary.LittleEndian.Uint32(b[1:]))
	h := header{kind: typeData, flags: b[0], length: n, seq: binary.LittleEndian.Uint64(b[5:])}
	i.from += inboxHeader + n
	return h, b[inboxHeader : inboxHeader+n : inboxHeader+n]
}

// reset frees the popped frames; no view may be in use.
func (i *inbox) reset() {
	if !i.empty() || i.from == 0 {
		return
	}
	const keep = 4 * chunkSize
	if cap(i.b) > keep {
		i.b = nil
	}
	i.b, i.from = i.b[:0], 0
}
