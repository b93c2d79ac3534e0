package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// deafConn is a peer that sends bytes whatever this rank says, in short pieces. Then the stream
// ends.
type deafConn struct {
	net.Conn
	mu    sync.Mutex
	bytes *bytes.Reader
	step  int
	until time.Time
}

func (c *deafConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && time.Until(c.until) <= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	if len(b) == 0 {
		return 0, errors.New("read of nothing")
	}
	return c.bytes.Read(b[:min(len(b), c.step)])
}

func (c *deafConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *deafConn) Close() error                     { return nil }
func (c *deafConn) SetWriteDeadline(time.Time) error { return nil }
func (c *deafConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return nil
}

func frame(h header, payload []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(payload))
	h.encode(b)
	return append(b, payload...)
}

// splitElements is the size of the all-reduce that goes the way of large ones although it is small.
const splitElements = 100

// hear runs two all-reduces, one of them by the readers, and a broadcast from the peer against the
// bytes.
func hear(t testing.TB, raw []byte, piece int) (x []float32, err error) {
	g, err := Join([]net.Conn{nil, &deafConn{bytes: bytes.NewReader(raw), step: piece}}, 0,
		Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	x = []float32{1, 2, 3}
	if err := g.AllReduce(x); err != nil {
		return x, err
	}
	err = g.do(collective.AllReduce, func() error {
		large := g.next(collective.Tag(collective.AllReduce, 0, 4*splitElements))
		return g.reduceSplit(make([]float32, splitElements), large)
	})
	if err != nil {
		return x, err
	}
	return x, g.Broadcast(make([]byte, 5), 1)
}

// honest is what a peer sends that takes part in what hear does.
func honest() []byte {
	var b []byte
	reduce := step{seq: 1, tag: collective.Tag(collective.AllReduce, 0, 12)}
	b = append(b, frame(header{kind: kindData, length: 12, step: reduce},
		collective.Bytes([]float32{10, 20, 30}))...)
	large := step{seq: 2, tag: collective.Tag(collective.AllReduce, 0, 4*splitElements)}
	for rank := range 2 {
		from, to := collective.Share(rank, 2, splitElements)
		b = append(b, frame(header{kind: kindData, length: uint32(4 * (to - from)), step: large},
			make([]byte, 4*(to-from)))...)
	}
	broadcast := step{seq: 3, tag: collective.Tag(collective.Broadcast, 1, 5)}
	return append(b, frame(header{kind: kindData, length: 5, step: broadcast}, []byte("hello"))...)
}

func TestHostilePeer(t *testing.T) {
	first := step{seq: 1, tag: collective.Tag(collective.AllReduce, 0, 12)}
	text := strings.Repeat("x", 2000)
	for name, tt := range map[string]struct {
		bytes []byte
		is    error
		want  string
	}{
		"nothing": {nil, collective.ErrLeft, "waiting for rank 1"},
		"half a header": {frame(header{kind: kindData, length: 12, step: first}, nil)[:11],
			collective.ErrLeft, "rank 1"},
		"half a payload": {frame(header{kind: kindData, length: 12, step: first}, make([]byte,
			7)), collective.ErrLeft, "rank 1"},
		"another protocol": {[]byte("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n"),
			collective.ErrMismatch, "unknown kind"},
		"huge length": {frame(header{kind: kindData, length: 1<<32 - 1, step: first}, nil),
			collective.ErrMismatch, "of 4294967295 bytes on rank 1"},
		"other operation": {frame(header{kind: kindData, step: step{seq: 1,
			tag: collective.Tag(collective.Barrier, 0, 0)}}, nil), collective.ErrMismatch,
			"barrier of 0 bytes, root 0 on rank 1"},
		"other step": {frame(header{kind: kindData, length: 12, step: step{seq: 2,
			tag: first.tag}}, nil), collective.ErrMismatch, "step 2"},
		"abort": {frame(header{kind: kindAbort, length: 3, step: step{seq: 1}},
			[]byte("why")), collective.ErrAborted, "by rank 1: why"},
		"half an abort": {frame(header{kind: kindAbort, length: 3, step: step{seq: 1}},
			[]byte("wh")), collective.ErrLeft, "rank 1"},
		"abort by rank 2": {frame(header{kind: kindAbort, step: step{seq: 2}}, nil),
			collective.ErrMismatch, "malformed abort"},
		"abort with a novel": {frame(header{kind: kindAbort, length: 2000, step: step{seq: 1}},
			[]byte(text)), collective.ErrMismatch, "malformed abort"},
		"half of a large one": {honest()[:len(honest())-200], collective.ErrLeft,
			"all-reduce on rank 0: waiting for rank 1"},
		"all but the end": {honest()[:len(honest())-1], collective.ErrLeft,
			"broadcast on rank 0"},
		"everything and more": {append(honest(), text...), nil, ""},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			x, err := hear(t, tt.bytes, piece)
			if !errors.Is(err, tt.is) {
				t.Errorf("%s in pieces of %d: %v", name, piece, err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s in pieces of %d: %v does not say %q", name, piece, err, tt.want)
			}
			if err == nil && (x[0] != 11 || x[2] != 33) {
				t.Errorf("%s in pieces of %d: sum %v", name, piece, x)
			}
		}
	}
}

// FuzzPeer feeds a rank any bytes: it may fail in any way but a panic or a hang, and succeeds only
// with a peer that keeps to the protocol.
func FuzzPeer(f *testing.F) {
	f.Add(honest(), 1000)
	f.Add(honest()[:50], 1)
	f.Add(frame(header{kind: kindAbort, length: 3, step: step{seq: 1}}, []byte("why")), 3)
	f.Add([]byte{}, 1)
	f.Fuzz(func(t *testing.T, raw []byte, piece int) {
		_, err := hear(t, raw, max(1, piece))
		if err != nil {
			var e *collective.Error
			if !errors.As(err, &e) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			return
		}
		r := bytes.NewReader(raw)
		var h [headerSize]byte
		for _, want := range []uint64{1, 2, 3} {
			if _, err := io.ReadFull(r, h[:]); err != nil {
				t.Fatal("succeeded with too few bytes")
			}
			got := decodeHeader(h[:])
			if want == 2 { // which has two frames
				r.Seek(int64(got.length), io.SeekCurrent)
				io.ReadFull(r, h[:])
				got = decodeHeader(h[:])
			}
			if got.kind != kindData || got.step.seq != want ||
				binary.LittleEndian.Uint64(h[16:]) != got.step.tag {
				t.Fatalf("succeeded with header %+v", got)
			}
			r.Seek(int64(got.length), io.SeekCurrent)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, headerSize))
	f.Add(honest()[:headerSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		var again [headerSize]byte
		h := decodeHeader(b)
		h.encode(again[:])
		if !bytes.Equal(again[:], b[:headerSize]) {
			t.Errorf("%x became %x", b[:headerSize], again)
		}
		if h.step.String() == "" {
			t.Error("a step without a name")
		}
	})
}
