package link

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
)

func helloFrame(s handshake.Session, received uint64, window uint32) []byte {
	return greeting{s, received, window}.append(header{kind: typeHello,
		length: helloSize}.append(nil))
}

func dataFrame(seq, ack uint64, flags uint8, payload string) []byte {
	return append(header{kind: typeData, flags: flags, length: len(payload), seq: seq,
		ack: ack}.append(nil), payload...)
}

func beatFrame(full bool) []byte {
	p := pulse{sent: 5, echo: 1 << 62, held: -1}
	size := beatSize
	if full {
		p.status = &status.Snapshot{Phase: 1 << 31}
		size += status.Size
	}
	return p.append(header{kind: typeBeat, length: size}.append(nil))
}

func join(frames ...[]byte) []byte {
	var all []byte
	for _, f := range frames {
		all = append(all, f...)
	}
	return all
}

// raw is a header of any values.
func raw(kind, flags byte, reserved uint16, length uint32, seq, ack uint64) []byte {
	b := []byte{kind, flags}
	b = binary.LittleEndian.AppendUint16(b, reserved)
	b = binary.LittleEndian.AppendUint32(b, length)
	b = binary.LittleEndian.AppendUint64(b, seq)
	return binary.LittleEndian.AppendUint64(b, ack)
}

// TestHostileFrames sends each breach of the protocol after an exchange of two records each way.
// The link is down with the name of the breach, and tells it the peer; what came before is
// delivered.
func TestHostileFrames(t *testing.T) {
	hello := helloFrame(testSession, 0, 1<<20)
	good := join(hello, dataFrame(1, 0, 0, "one"), beatFrame(false), beatFrame(true),
		dataFrame(2, 2, 0, "two"))
	for name, c := range map[string]struct {
		bytes []byte
		want  error
		bare  bool // bytes are the first ones of the connection
	}{
		"no hello":               {dataFrame(1, 0, 0, "x"), ErrSession, true},
		"other session":          {helloFrame(handshake.Session{7}, 0, 1<<20), ErrSession, true},
		"tiny window":            {helloFrame(testSession, 0, 10), ErrWindow, true},
		"received too much":      {helloFrame(testSession, 3, 1<<20), ErrAck, true},
		"garbage":                {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ErrType, true},
		"short hello":            {raw(1, 0, 0, helloSize-1, 0, 0), ErrLength, true},
		"second hello":           {hello, ErrType, false},
		"gap":                    {dataFrame(4, 0, 0, "x"), ErrGap, false},
		"sequence number 0":      {dataFrame(0, 0, 0, "x"), ErrDuplicate, false},
		"duplicate":              {dataFrame(2, 0, 0, "x"), ErrDuplicate, false},
		"last sequence number":   {dataFrame(1<<64-1, 0, 0, "x"), ErrGap, false},
		"ack of unsent":          {dataFrame(3, 3, 0, "x"), ErrAck, false},
		"ack of everything":      {raw(3, 0, 0, 0, 0, 1<<64-1), ErrAck, false},
		"unknown type 0":         {raw(0, 0, 0, 0, 0, 0), ErrType, false},
		"unknown type 6":         {raw(6, 0, 0, 0, 0, 0), ErrType, false},
		"unknown type 255":       {raw(255, 0, 0, 0, 0, 0), ErrType, false},
		"reserved bits":          {raw(3, 0, 1, 0, 0, 0), ErrType, false},
		"length of 4 GiB":        {raw(2, 0, 0, 1<<32-1, 3, 0), ErrLength, false},
		"length of a chunk":      {raw(2, 0, 0, chunkSize, 3, 0), ErrLength, false},
		"length just too long":   {raw(2, 0, 0, maxPayload+1, 3, 0), ErrLength, false},
		"ack with payload":       {raw(3, 0, 0, 1, 0, 0), ErrLength, false},
		"ack with sequence":      {raw(3, 0, 0, 0, 1, 0), ErrType, false},
		"ack with flags":         {raw(3, 1, 0, 0, 0, 0), ErrType, false},
		"unknown flags":          {raw(2, 4, 0, 0, 3, 0), ErrType, false},
		"more and abort at once": {raw(2, 3, 0, 0, 3, 0), ErrType, false},
		"abort with payload":     {raw(2, 2, 0, 1, 3, 0), ErrLength, false},
		"short heartbeat":        {raw(4, 0, 0, beatSize-8, 0, 0), ErrLength, false},
		"odd heartbeat": {raw(4, 0, 0, uint32(beatSize+status.Size+1), 0, 0), ErrLength,
			false},
		"long reason": {raw(5, 0, 0, maxReason+1, 0, 0), ErrLength, false},
	} {
		for _, pumped := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, mine, theirs := newMemnet(memopt{}, 1)
					l := Accept(mine, testSession, Options{})
					defer l.Close("")
					said := make(chan []byte)
					go func() {
						b, _ := io.ReadAll(theirs)
						said <- b
					}()
					for range 2 {
						if err := l.Send([]byte("record"), time.Time{}); err != nil {
							t.Fatal(err)
						}
					}
					synctest.Wait()
					input := c.bytes
					if !c.bare {
						input = join(good, c.bytes, dataFrame(3, 0, 0, "never"))
					}
					theirs.Write(input)
					if pumped {
						<-l.Down()
					}
					if !c.bare {
						for _, want := range []string{"one", "two"} {
							if got, err := l.Recv(in(time.Second)); err != nil ||
								string(got) != want {
								t.Fatalf("%q, %v", got, err)
							}
						}
					}
					for range 2 {
						if got, err := l.Recv(in(time.Second)); !errors.Is(err, c.want) ||
							!errors.Is(err, ErrProtocol) || !errors.Is(err, queue.ErrClosed) {
							t.Fatalf("%q, %v", got, err)
						}
					}
					if tells := string(<-said); !strings.Contains(tells, c.want.Error()) {
						t.Errorf("the peer is not told: %q", tells)
					}
				})
			})
		}
	}
}

// TestWindowExceeded is a peer that does not wait for acknowledgements, with no goroutine in Recv:
// memory is bounded.
func TestWindowExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, mine, theirs := newMemnet(memopt{}, 1)
		l := Accept(mine, testSession, Options{Window: chunkSize})
		defer l.Close("")
		go io.Copy(io.Discard, theirs)
		theirs.Write(helloFrame(testSession, 0, 1<<20))
		sent := 0
		for seq := uint64(1); ; seq++ {
			n, err := theirs.Write(dataFrame(seq, 0, 0, strings.Repeat("x", 10_000)))
			sent += n
			if err != nil {
				break
			}
			if sent > 1<<20 {
				t.Fatal("a megabyte was taken")
			}
		}
		if !errors.Is(l.Err(), ErrWindow) {
			t.Error(l.Err())
		}
	})
}

// FuzzFrames feeds a link with arbitrary bytes, in pieces, with and without Recv. Its goroutines
// run in an order of their own each time, so what looks new to the fuzzer need not be: run it with
// -fuzzminimizetime=10x.
func FuzzFrames(f *testing.F) {
	for _, b := range exchange(f) {
		f.Add(b, uint64(1))
		f.Add(b[:len(b)/2], uint64(3))
	}
	f.Add(join(helloFrame(testSession, 0, 1<<20), raw(2, 0, 0, 1<<31, 1, 0)), uint64(2))
	f.Add(join(helloFrame(testSession, 0, 1<<20), dataFrame(1, 1, 1, "ab"),
		dataFrame(2, 1, 0, "cd"), dataFrame(3, 0, 2, "")), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			_, mine, theirs := newMemnet(memopt{chunk: 16 << (seed % 8)}, seed)
			l := Accept(mine, testSession, Options{Window: chunkSize, MaxRecord: 1 << 20,
				Grace: -1})
			go io.Copy(io.Discard, theirs)
			l.Send([]byte("record"), time.Time{})
			theirs.Write(b)
			theirs.Close()
			total := 0
			if seed%2 == 0 {
				time.Sleep(time.Second) // the pump reads
			}
			for {
				got, err := l.Recv(in(10 * time.Second))
				if err != nil {
					if !errors.Is(err, queue.ErrClosed) {
						t.Errorf("%v", err)
					}
					break
				}
				total += len(got)
			}
			if total > len(b) {
				t.Errorf("%d bytes of records out of %d on the wire", total, len(b))
			}
			l.Close("")
		})
	})
}

// exchange records what two links say to each other, for the corpus.
func exchange(t testing.TB) [2][]byte {
	a, b := net.Pipe()
	c, d := net.Pipe()
	var said [2][]byte
	done := make(chan struct{}, 2)
	for i, p := range [][2]net.Conn{{b, c}, {c, b}} {
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, err := p[0].Read(buf)
				said[i] = append(said[i], buf[:n]...)
				if err != nil {
					p[1].Close()
					done <- struct{}{}
					return
				}
				p[1].Write(buf[:n])
			}
		}()
	}
	x, y := Accept(a, testSession, Options{}), Connect(d, testSession, nil, Options{})
	rng := rand.New(rand.NewPCG(1, 1))
	for range 6 {
		record := make([]byte, rng.IntN(300))
		for _, l := range []*Link{x, y} {
			if err := l.Send(record, time.Time{}); err != nil {
				t.Error(err)
			}
		}
		for _, l := range []*Link{x, y} {
			if _, err := l.Recv(time.Time{}); err != nil {
				t.Error(err)
			}
		}
	}
	go x.Close("end")
	y.Close("end")
	x.Close("end")
	<-done
	<-done
	return said
}

// FuzzHeader round-trips every header that the parser takes.
func FuzzHeader(f *testing.F) {
	f.Add(raw(2, 1, 0, 100, 1, 1))
	f.Add(beatFrame(true))
	f.Add(helloFrame(testSession, 1, 1<<20))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		h, err := parseHeader(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
			return
		}
		if got := h.append(nil); string(got) != string(b[:headerSize]) {
			t.Errorf("% x became % x", b[:headerSize], got)
		}
		switch payload := b[headerSize:]; {
		case len(payload) < h.length:
		case h.kind == typeHello:
			if got := parseGreeting(payload[:h.length]).append(nil); string(
				got) != string(payload[:h.length]) {
				t.Errorf("greeting changed")
			}
		case h.kind == typeBeat:
			if got := parsePulse(payload[:h.length]).append(nil); string(
				got) != string(payload[:h.length]) {
				t.Errorf("heartbeat changed")
			}
		}
	})
}
