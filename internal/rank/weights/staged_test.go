package weights

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// built is an update of random bytes, and these by name.
func built(t *testing.T, specs []checkpoint.Spec) (*Update, map[string][]byte) {
	t.Helper()
	b, err := NewBuilder(specs, new(Spare))
	if err != nil {
		t.Fatal(err)
	}
	rng, want := rand.NewChaCha8([32]byte{1}), map[string][]byte{}
	for _, s := range specs {
		p := Piece{Name: s.Name, DType: checkpoint.BF16, Shape: s.Shape}
		raw := make([]byte, 2*elements(s.Shape))
		rng.Read(raw)
		if _, err := b.Receive(bytes.NewReader(raw), &p); err != nil {
			t.Fatal(err)
		}
		b.Done(&p)
		want[s.Name] = raw
	}
	u, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u, want
}

// same compares what a rank has of an update.
func same(t *testing.T, s *Staged, want map[string][]byte) {
	t.Helper()
	c, err := s.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, raw := range want {
		if x, err := c.Tensor(name); err != nil || !bytes.Equal(x.Data, raw) {
			t.Errorf("%s differs, %v", name, err)
		}
	}
}

// TestReceive goes on where a connection has broken off, wherever that is. Others map what has
// come, and only when all has.
func TestReceive(t *testing.T) {
	u, want := built(t, []checkpoint.Spec{{Name: "a", Shape: []int{3, 5}}, {Name: "b",
		Shape: []int{0}},
		{Name: "c", Shape: []int{1 << 10, 1 << 10}}, {Name: "d", Shape: []int{7}}})
	told := *u
	told.Segments = slices.Clone(u.Segments)
	told.Segments[0].Link = "another host's"
	var spare Spare
	for round := range 2 {
		s := Open(told)
		if s.Complete() {
			t.Fatal("a copy of memory that is not to be had")
		}
		if err := s.Make(&spare); err != nil {
			t.Fatal(err)
		}
		for _, breaks := range []int64{0, 1, 29, 30, 31, 1 << 20, 2<<20 + 29, u.Bytes() - 1,
			u.Bytes()} {
			if at, err := s.Segments(); at != nil || err != nil || s.Complete() {
				t.Fatalf("after %d bytes: complete", s.Done())
			}
			a, b := net.Pipe()
			go func() {
				_ = u.Send(&limited{a, breaks - s.Done()}, s.Done())
				a.Close()
			}()
			err := s.Receive(b, func() {})
			b.Close()
			if s.Done() != breaks || (err == nil) != s.Complete() {
				t.Fatalf("%d bytes of %d have come: %v", s.Done(), breaks, err)
			}
		}
		at, err := s.Segments()
		if err != nil || len(at) != 1 || at[0].PID != os.Getpid() {
			t.Fatal(at, err)
		}
		told.Elsewhere = [][]Segment{{{PID: 1, FD: 1, Link: "gone", Size: at[0].Size}}, at}
		other := Open(told)
		if !other.Complete() || other.Own() {
			t.Fatal("what has come is not to be had")
		}
		same(t, other, want)
		same(t, s, want)
		if len(spare.free) != 1 {
			t.Errorf("round %d: no memory is kept", round)
		}
		told.Elsewhere = nil
	}
	spare.Drop()
}

// limited breaks off after so many bytes.
type limited struct {
	net.Conn
	left int64
}

func (l *limited) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b[:min(int64(len(b)), l.left)])
	if l.left -= int64(n); err == nil && n < len(b) {
		err = net.ErrClosed
	}
	return n, err
}

// TestClaim: of those that want to send an update to a host one does, and the others look again
// when it has, or has failed.
func TestClaim(t *testing.T) {
	u, _ := built(t, []checkpoint.Spec{{Name: "a", Shape: []int{3}}})
	_, known := u.Copies()
	if u.BeginCopy("h", known["h"]) != nil {
		t.Fatal("nobody sends it")
	}
	wait := u.BeginCopy("h", known["h"])
	if wait == nil || u.BeginCopy("other", 0) != nil {
		t.Fatal("who sends it to which host")
	}
	u.EndCopy("h") // it has failed
	<-wait
	if u.BeginCopy("h", known["h"]) != nil {
		t.Fatal("nobody sends it again")
	}
	for range 2 {
		u.AddCopy(&Opened{Has: true, Host: "h", Segments: []Segment{{PID: 5}}})
	}
	u.AddCopy(&Opened{Has: true, Host: "h"})                     // the driver's
	u.AddCopy(&Opened{Host: "h", Segments: []Segment{{PID: 6}}}) // not complete
	u.EndCopy("h")
	<-u.BeginCopy("h", known["h"])
	all, known := u.Copies()
	if len(all) != 1 || all[0][0].PID != 5 || known["h"] != 1 {
		t.Errorf("%v, %v", all, known)
	}
	if u.BeginCopy("h", known["h"]) != nil {
		t.Fatal("it could not be mapped, and is not sent")
	}
	if all, _ := u.Copies(); len(all) != 0 {
		t.Errorf("%v could not be mapped", all)
	}
}
