package handshake

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// plain opens a connection to the listener below the handshake.
func (f *fixture) plain(t testing.TB, network string) (net.Conn, []byte) {
	t.Helper()
	if network == "unix" {
		c, err := net.Dial("unix", "@"+f.Endpoint().Unix)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, unixBinding
	}
	raw, err := net.Dial("tcp", f.Endpoint().TCP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	c := tls.Client(raw, ClientTLS(f.Endpoint()))
	binding, err := secure(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, binding
}

func helloOf(id Identity) []byte {
	h := hello{id: id}
	return appendFrame(nil, kindHello, h.append(nil))
}

// TestStrangers sends everything that is not a worker of ours. Each is refused for its own reason,
// on both ends where the other end can know, logged with its address, and takes no rank.
func TestStrangers(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		t.Parallel()
		binary7 := [32]byte{7}
		type outcome struct {
			logged Reason // by the driver
			text   string // in its log
			told   Reason // 0 when the peer is told nothing
		}
		for name, c := range map[string]struct {
			send func(t *testing.T, f *fixture) error
			want outcome
		}{
			"garbage": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				c.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
				return silenceOf(c)
			}, outcome{logged: Malformed, text: "GET "}},
			"silence": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				return silenceOf(c)
			}, outcome{logged: Timeout}},
			"slow bytes": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				for _, b := range helloOf(Identity{Instance: f.Endpoint().Instance}) {
					if _, err := c.Write([]byte{b}); err != nil {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				return silenceOf(c)
			}, outcome{logged: Timeout}},
			"half a hello": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				c.Write(helloOf(Identity{Instance: f.Endpoint().Instance})[:60])
				c.Close()
				return nil
			}, outcome{text: "hung up"}},
			"other version": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				b := helloOf(Identity{Instance: f.Endpoint().Instance})
				binary.LittleEndian.PutUint16(b[4:], 9)
				c.Write(b)
				return refusalOf(c)
			}, outcome{VersionMismatch, "peer speaks version 9, this side version 1",
				VersionMismatch}},
			"proof first": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				c.Write(appendFrame(nil, kindProof, make([]byte, macSize)))
				return refusalOf(c)
			}, outcome{Malformed, "proof instead of hello", Malformed}},
			"hello twice": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				b := helloOf(Identity{Instance: f.Endpoint().Instance})
				c.Write(b)
				readFrame(c)
				c.Write(b)
				return refusalOf(c)
			}, outcome{Malformed, "hello instead of proof", Malformed}},
			"long frame": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				b := appendFrame(nil, kindHello, nil)
				binary.LittleEndian.PutUint16(b[8:], 65535)
				c.Write(b)
				return silenceOf(c)
			}, outcome{logged: Malformed, text: "65535"}},
			"odd hello": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				c.Write(appendFrame(nil, kindHello, make([]byte, 70)))
				return refusalOf(c)
			}, outcome{Malformed, "hello of 70 bytes", Malformed}},
			"short proof": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				c.Write(helloOf(Identity{Instance: f.Endpoint().Instance}))
				readFrame(c)
				c.Write(appendFrame(nil, kindProof, make([]byte, 31)))
				return refusalOf(c)
			}, outcome{Malformed, "proof of 31 bytes", Malformed}},
			"other instance": {func(t *testing.T, f *fixture) error {
				e := f.via(network)
				e.Instance = "another"
				_, err := Dial(short(t), e, f.token, Identity{})
				return err
			}, outcome{OtherInstance, "another", OtherInstance}},
			"wrong token": {func(t *testing.T, f *fixture) error {
				_, err := Dial(short(t), f.via(network), NewToken(), Identity{})
				return err
			}, outcome{BadToken, "does not match", BadToken}},
			"rank out of range": {func(t *testing.T, f *fixture) error {
				_, err := Dial(short(t), f.via(network), f.token,
					Identity{Rank: 4, Binary: binary7})
				return final(err)
			}, outcome{RankOutOfRange, "rank 4, world size 4", RankOutOfRange}},
			"negative rank": {func(t *testing.T, f *fixture) error {
				c, binding := f.plain(t, network)
				_, err := join(c, binding, f.token,
					Identity{Instance: f.Endpoint().Instance, Rank: -1, Binary: binary7})
				return final(err)
			}, outcome{RankOutOfRange, "rank -1, world size 4", RankOutOfRange}},
			"other binary": {func(t *testing.T, f *fixture) error {
				_, err := Dial(short(t), f.via(network), f.token,
					Identity{Rank: 1, Binary: [32]byte{8}})
				return final(err)
			}, outcome{BinaryMismatch, "0700", BinaryMismatch}},
			"unknown session": {func(t *testing.T, f *fixture) error {
				_, err := Dial(short(t), f.via(network), f.token,
					Identity{Rank: 1, Binary: binary7, Resume: &Resume{Session: Session{1}}})
				return final(err)
			}, outcome{UnknownSession, "rank 1", UnknownSession}},
			"channel not bound": {func(t *testing.T, f *fixture) error {
				c, _ := f.plain(t, network)
				_, err := join(c, []byte("other channel"), f.token,
					Identity{Instance: f.Endpoint().Instance, Binary: binary7})
				return err
			}, outcome{BadToken, "does not match", BadToken}},
			"replay": {func(t *testing.T, f *fixture) error {
				// Everything that a good worker said, again.
				c, binding := f.plain(t, network)
				tape := &recorder{Conn: c}
				if _, err := join(tape, binding, f.token,
					Identity{Instance: f.Endpoint().Instance, Rank: 2,
						Binary: binary7}); err != nil {
					t.Fatal(err)
				}
				if _, err := f.Accept(short(t)); err != nil {
					t.Fatal(err)
				}
				f.Deregister(2)
				again, _ := f.plain(t, network)
				again.Write(tape.said.Bytes())
				return refusalOf(again)
			}, outcome{BadToken, "does not match", BadToken}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := listen(t, func(o *Options) {
					o.Binary, o.Deadline = binary7,
						700*time.Millisecond
				})
				err := c.send(t, f)
				if c.want.told != 0 && !errors.Is(err, c.want.told) {
					t.Errorf("the peer is told: %v", err)
				}
				if c.want.told == 0 && err != nil {
					t.Errorf("the peer is told: %v", err)
				}
				waitFor(t, func() bool { return f.Refused() == 1 })
				waitFor(t, func() bool { return f.log.String() != "" })
				line := f.log.String()
				address := "peer=unix"
				if network == "tcp" {
					address = "peer=127.0.0.1:"
				}
				for _, want := range []string{"refused", address, c.want.text} {
					if !strings.Contains(line, want) {
						t.Errorf("log lacks %q: %s", want, line)
					}
				}
				if c.want.logged != 0 && !strings.Contains(line,
					fmt.Sprintf("reason=%q", c.want.logged)) &&
					!strings.Contains(line, "reason="+c.want.logged.String()) {
					t.Errorf("log lacks reason %q: %s", c.want.logged, line)
				}
				if strings.Contains(line, f.token.Reveal()) {
					t.Error("the token is in the log")
				}
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				defer cancel()
				if c, err := f.Accept(ctx); err == nil {
					t.Errorf("accepted %+v", c.Peer)
				}
				for rank := -1; rank < 5; rank++ {
					if _, ok := f.holder(rank); ok {
						t.Errorf("rank %d is held", rank)
					}
				}
				waitFor(t, func() bool { return f.pending.count() == 0 })
			})
		}
	})
}

// final wants a refusal that the driver has signed.
func final(err error) error {
	var r *Refused
	if errors.As(err, &r) && !r.Final {
		return fmt.Errorf("not final: %v", r.Detail)
	}
	return err
}

// silenceOf reads until the peer hangs up, which must be without a word.
func silenceOf(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(time.Minute))
	b, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
		return fmt.Errorf("peer says %q, %v", b, err)
	}
	return nil
}

// refusalOf reads until a refusal.
func refusalOf(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		k, frame, err := readFrame(c)
		if err != nil {
			return err
		}
		if k == kindRefuse {
			return refused(frame, nil)
		}
	}
}

type recorder struct {
	net.Conn
	said bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.said.Write(p)
	return r.Conn.Write(p)
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
	}
}

// TestInsecureStrangers are those that fail before the handshake proper.
func TestInsecureStrangers(t *testing.T) {
	f, other := listen(t, nil), listen(t, nil)
	logged := func(n uint64, what string) {
		t.Helper()
		waitFor(t, func() bool { return f.Refused() == n })
		waitFor(t, func() bool { return strings.Count(f.log.String(), "\n") == int(n) })
		lines := strings.Split(strings.TrimSpace(f.log.String()), "\n")
		last := lines[len(lines)-1]
		if !strings.Contains(last, "peer=127.0.0.1:") || !strings.Contains(last, what) {
			t.Errorf("log lacks %q: %s", what, last)
		}
	}

	old, err := tls.Dial("tcp", f.Endpoint().TCP,
		&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12,
			MaxVersion: tls.VersionTLS12})
	if err == nil {
		old.Close()
		t.Error("TLS 1.2 was accepted")
	}
	logged(1, "insecure")

	raw, err := net.Dial("tcp", f.Endpoint().TCP)
	if err != nil {
		t.Fatal(err)
	}
	raw.Write(helloOf(Identity{Instance: f.Endpoint().Instance}))
	// a TLS alert is fine
	if err := silenceOf(raw); err != nil && !strings.Contains(err.Error(), `\x15\x03`) {
		t.Error(err)
	}
	raw.Close()
	logged(2, "insecure")

	// The right address with another's fingerprint, and another's address with ours: neither is
	// talked to.
	for _, e := range []Endpoint{
		{Instance: f.Endpoint().Instance, TCP: f.Endpoint().TCP,
			Fingerprint: other.Endpoint().Fingerprint},
		{Instance: f.Endpoint().Instance, TCP: other.Endpoint().TCP,
			Fingerprint: f.Endpoint().Fingerprint},
	} {
		_, err := Dial(short(t), e, f.token, Identity{})
		if !errors.Is(err, Insecure) || !strings.Contains(err.Error(), "fingerprint") {
			t.Error(err)
		}
	}
	logged(3, "insecure")
	waitFor(t, func() bool { return other.Refused() == 1 })
}
