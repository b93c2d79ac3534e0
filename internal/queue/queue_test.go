package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

func pairs(t *testing.T) map[string][2]Conn {
	t.Helper()
	a, b := net.Pipe()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p, q := Pipe()
	return map[string][2]Conn{
		"memory": {Stream(a), Stream(b)},
		"unix":   {Stream(dialled), Stream(accepted)},
		"pipe":   {p, q},
	}
}

// TestRecords sends records of many sizes both ways at once and wants each whole and in order.
func TestRecords(t *testing.T) {
	for name, ends := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			defer ends[0].Close()
			var wg sync.WaitGroup
			for i, end := range ends {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 1))
					buf := make([]byte, 300<<10)
					for range 500 {
						b := buf[:size(rng)]
						fill(b, rng)
						if err := end.Send(b); err != nil {
							t.Error(err)
							return
						}
						clear(b) // Send must not keep the caller's memory
					}
				})
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(1-i), 1))
					want := make([]byte, 300<<10)
					for n := range 500 {
						w := want[:size(rng)]
						fill(w, rng)
						got, err := end.Recv()
						if err != nil {
							t.Error(err)
							return
						}
						if !bytes.Equal(got, w) {
							t.Errorf("record %d of %d bytes differs", n, len(w))
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

func size(rng *rand.Rand) int {
	if rng.IntN(20) == 0 {
		return rng.IntN(300 << 10)
	}
	return rng.IntN(3000)
}

func fill(b []byte, rng *rand.Rand) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// TestClose ends waits on both sides; what was sent before is still received.
func TestClose(t *testing.T) {
	for name, ends := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			a, b := ends[0], ends[1]
			if name != "memory" { // net.Pipe has no buffer
				if err := a.Send([]byte("last")); err != nil {
					t.Fatal(err)
				}
				a.Close()
				if got, err := b.Recv(); err != nil || string(got) != "last" {
					t.Errorf("received %q, %v", got, err)
				}
			} else {
				a.Close()
			}
			if _, err := b.Recv(); !errors.Is(err, ErrClosed) {
				t.Errorf("Recv from a closed peer: %v", err)
			}
			for i := 0; ; i++ {
				err := b.Send(make([]byte, 1<<10))
				if errors.Is(err, ErrClosed) {
					break
				}
				if i > 1000 {
					t.Fatalf("Send to a closed peer: %v", err)
				}
			}
			a.Close()
			b.Close()
		})
	}
}

// TestHostileLength refuses a length no record may have, without allocating it.
func TestHostileLength(t *testing.T) {
	a, b := net.Pipe()
	go func() {
		a.Write(binary.LittleEndian.AppendUint32(nil, 1<<31))
		a.Close()
	}()
	if _, err := Stream(b).Recv(); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("length of 2 GiB: %v", err)
	}
	if err := Stream(b).Send(make([]byte, MaxRecord+1)); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("record longer than the limit: %v", err)
	}
}

// TestTruncated is a peer that dies within a record.
func TestTruncated(t *testing.T) {
	for n := range 10 {
		a, b := net.Pipe()
		go func() {
			a.Write(append(binary.LittleEndian.AppendUint32(nil, 6), "record"...)[:n])
			a.Close()
		}()
		got, err := Stream(b).Recv()
		if n == 10 != (err == nil) {
			t.Errorf("%d bytes of 10: %q, %v", n, got, err)
		}
	}
}

func TestCallsAndReplies(t *testing.T) {
	for i, c := range []struct {
		method, failure string
		payload         []byte
	}{{"check_health", "", nil}, {"", "boom", []byte("x")}, {"m", "", bytes.Repeat([]byte{7}, 70000)}} {
		id := uint64(i) << 40
		kind, body, err := Split(AppendCall(nil, id, c.method, c.payload))
		if err != nil || kind != KindCall {
			t.Fatal(kind, err)
		}
		gotID, method, args, err := ParseCall(body)
		if err != nil || gotID != id || method != c.method || !bytes.Equal(args, c.payload) {
			t.Errorf("call %d: %d %q %d bytes, %v", i, gotID, method, len(args), err)
		}
		_, body, _ = Split(AppendReply(nil, id, c.failure, c.payload))
		gotID, failure, value, err := ParseReply(body)
		if err != nil || gotID != id || failure != c.failure || !bytes.Equal(value, c.payload) {
			t.Errorf("reply %d: %d %q %d bytes, %v", i, gotID, failure, len(value), err)
		}
	}
}

// FuzzMessages holds the parsers to their bounds.
func FuzzMessages(f *testing.F) {
	f.Add(AppendCall(nil, 1, "check_health", []byte("args")))
	f.Add(AppendReply(nil, 1, "failure", []byte("value")))
	f.Fuzz(func(t *testing.T, record []byte) {
		_, body, err := Split(record)
		if err != nil {
			return
		}
		if _, method, args, err := ParseCall(body); err == nil && 10+len(method)+len(args) != len(body) {
			t.Error("call does not account for its bytes")
		}
		if _, failure, value, err := ParseReply(body); err == nil && 12+len(failure)+len(value) != len(body) {
			t.Error("reply does not account for its bytes")
		}
	})
}

// BenchmarkRoundTrip is 4 KB there and 1.2 KB back.
func BenchmarkRoundTrip(b *testing.B) {
	p, q := Pipe()
	fds := func() (Conn, Conn) {
		l, err := net.Listen("unix", b.TempDir()+"/s")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		d, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		return Stream(c), Stream(d)
	}
	c, d := fds()
	for name, ends := range map[string][2]Conn{"pipe": {p, q}, "unix": {c, d}} {
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				reply := make([]byte, 1200)
				for range b.N {
					if _, err := ends[1].Recv(); err != nil {
						return
					}
					ends[1].Send(reply)
				}
			}()
			out := make([]byte, 4096)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				ends[0].Send(out)
				ends[0].Recv()
			}
			<-done
		})
	}
}
