package handshake

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"
)

// seeds are the frames of a real handshake.
func seeds(f *testing.F) (worker, driver []byte) {
	token := NewToken()
	a, b := net.Pipe()
	w, d := &recorder{Conn: a}, &recorder{Conn: b}
	done := make(chan error)
	go func() {
		_, _, err := serve(d, nil, &gate{instance: "fuzz", token: token, world: 4,
			register: func(Identity) (Session, error) { return Session{1}, nil }})
		done <- err
	}()
	if _, err := join(w, nil, token, Identity{Instance: "fuzz", Rank: 1, PID: 2,
		Resume: &Resume{Session: Session{3}, Received: 4}}); err != nil {
		f.Fatal(err)
	}
	if err := <-done; err != nil {
		f.Fatal(err)
	}
	return w.said.Bytes(), d.said.Bytes()
}

// FuzzFrame holds every parser to its bounds, and what it takes to its encoding.
func FuzzFrame(f *testing.F) {
	worker, driver := seeds(f)
	for _, said := range [][]byte{worker, driver} {
		for r := bytes.NewReader(said); r.Len() > 0; {
			_, frame, err := readFrame(r)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(frame)
		}
	}
	f.Add(appendFrame(nil, kindRefuse, appendRefusal(nil, RankTaken, [macSize]byte{1},
		"rank 1 is held")))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, frame, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		payload := frame[prefixSize:]
		if again := appendFrame(nil, k, payload); !bytes.Equal(again, frame) {
			t.Fatalf("% x became % x", frame, again)
		}
		var again []byte
		switch k {
		case kindHello:
			var h hello
			h, err = parseHello(payload)
			again = h.append(nil)
		case kindChallenge:
			var c challenge
			c, err = parseChallenge(payload)
			again = c.append(nil)
		case kindProof:
			var m [macSize]byte
			m, err = parseProof(payload)
			again = m[:]
		case kindWelcome:
			var s Session
			var m [macSize]byte
			s, m, err = parseWelcome(payload)
			again = append(s[:], m[:]...)
		case kindRefuse:
			var r Reason
			var m [macSize]byte
			var detail string
			r, m, detail, err = parseRefusal(payload)
			again = appendRefusal(nil, r, m, detail)
		}
		if err == nil && !bytes.Equal(again, payload) {
			t.Fatalf("%s: % x became % x", k, payload, again)
		}
		if err != nil && !errors.Is(err, Malformed) {
			t.Fatal(err)
		}
	})
}

// FuzzPeers lets each side meet arbitrary bytes: neither takes them for its peer.
func FuzzPeers(f *testing.F) {
	worker, driver := seeds(f)
	f.Add(worker, true)
	f.Add(driver, false)
	f.Add(worker[:40], true)
	f.Add(append(bytes.Clone(driver), driver...), false)
	f.Fuzz(func(t *testing.T, b []byte, atDriver bool) {
		c := &script{in: bytes.NewReader(b)}
		var err error
		if atDriver {
			_, _, err = serve(c, nil, &gate{instance: "fuzz", token: Token{1}, world: 4,
				register: func(Identity) (Session, error) {
					t.Error("a rank was claimed")
					return Session{}, nil
				}})
		} else {
			_, err = join(c, nil, Token{1}, Identity{Instance: "fuzz"})
		}
		if err == nil {
			t.Fatal("authenticated")
		}
		if c.out > 4*(prefixSize+maxPayload) {
			t.Fatalf("answered with %d bytes", c.out)
		}
	})
}

// script is a connection that says what it was given.
type script struct {
	net.Conn
	in  *bytes.Reader
	out int
}

func (s *script) Read(p []byte) (int, error) { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) {
	s.out += len(p)
	return len(p), nil
}
func (s *script) SetDeadline(time.Time) error { return nil }
