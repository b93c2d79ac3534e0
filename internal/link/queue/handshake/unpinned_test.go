package handshake

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// the driver's certificate is not known, only where it is.
func (f *fixture) unpinned() Endpoint {
	return Endpoint{Instance: f.Endpoint().Instance, TCP: f.Endpoint().TCP, Unpinned: true}
}

// TestUnpinned lets the token alone say who is who: a driver with another one is not taken, and
// who stands between the two, with a certificate of their own, cannot pass the proofs on.
func TestUnpinned(t *testing.T) {
	f := listen(t, nil)
	d, w := f.meet(t, f.unpinned(), Identity{Rank: 1})
	talk(t, d, w)
	if _, err := Dial(short(t), f.unpinned(), TokenOf([]byte("other")), Identity{}); !errors.Is(err,
		BadToken) {
		t.Errorf("another token: %v", err)
	}

	cert, _, err := Certificate("between")
	if err != nil {
		t.Fatal(err)
	}
	between, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer between.Close()
	go func() {
		raw, err := between.Accept()
		if err != nil {
			return
		}
		in := tls.Server(raw, ServerTLS(cert))
		out, err := tls.Dial("tcp", f.Endpoint().TCP, ClientTLS(Endpoint{Unpinned: true}))
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			_, _ = io.Copy(out, in)
			out.Close()
		}()
		_, _ = io.Copy(in, out)
		in.Close()
	}()
	e := f.unpinned()
	e.TCP = between.Addr().String()
	if _, err := Dial(short(t), e, f.token, Identity{}); !errors.Is(err, BadToken) {
		t.Errorf("through another's hands: %v", err)
	}
	// A pinned endpoint still is.
	e = f.via("tcp")
	e.Fingerprint[0]++
	if _, err := Dial(short(t), e, f.token, Identity{}); !errors.Is(err, Insecure) {
		t.Errorf("another certificate: %v", err)
	}
}

// TestShared gives one rank to several workers, none of which can resume.
func TestShared(t *testing.T) {
	f := listen(t, func(o *Options) { o.World, o.Shared = 1, true })
	seen := map[Session]bool{}
	for range 3 {
		d, w := f.meet(t, f.via("tcp"), Identity{})
		talk(t, d, w)
		seen[d.Session] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d sessions", len(seen))
	}
	for s := range seen {
		id := Identity{Resume: &Resume{Session: s}}
		if _, err := Dial(short(t), f.via("tcp"), f.token, id); !errors.Is(err, UnknownSession) {
			t.Errorf("resumed: %v", err)
		}
	}
}

// TestTokenOf is the same for the same secret only.
func TestTokenOf(t *testing.T) {
	a := TokenOf([]byte("secret"))
	if a != TokenOf([]byte("secret")) || a == TokenOf([]byte("Secret")) || a == (Token{}) {
		t.Error("tokens of secrets")
	}
}
