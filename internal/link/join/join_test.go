package join

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
)

// written is a connection on which everything was written already.
type written struct {
	net.Conn
	*bytes.Reader
}

func (s written) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// kept is a connection that keeps what is written.
type kept struct {
	net.Conn
	bytes.Buffer
}

func (h *kept) Read(b []byte) (int, error)  { return h.Buffer.Read(b) }
func (h *kept) Write(b []byte) (int, error) { return h.Buffer.Write(b) }

// messages makes a fresh one of each message.
func messages() []any {
	return []any{new(Admitted), new(Location), new(Rendezvous), new(Connected), new(Closing),
		new(handshake.Endpoint)}
}

func endpoint() handshake.Endpoint {
	return handshake.Endpoint{Instance: handshake.NewInstance(), TCP: "127.0.0.1:1234",
		Unix: "name", Fingerprint: [32]byte{1, 2, 3}}
}

// TestSendAndReceive passes every message, several on one connection, and reads no byte beyond
// each.
func TestSendAndReceive(t *testing.T) {
	e := endpoint()
	all := []any{&Admitted{Ring: true}, &Location{Host: "here", Endpoint: &e},
		&Rendezvous{layout.Layout{TP: 2, PP: 2}, 1, 3, time.Second, []Peer{{0, 1, e}, {3, 3, e}}},
		&Closing{Reason: "out of cheese"}, &e, &Connected{}, &Admitted{}}
	var c kept
	for _, message := range all {
		if err := Send(&c, message); err != nil {
			t.Fatal(err)
		}
	}
	c.WriteString("beyond")
	for _, message := range all {
		got := reflect.New(reflect.TypeOf(message).Elem()).Interface()
		if err := Receive(&c, got); err != nil || !reflect.DeepEqual(got, message) {
			t.Errorf("%+v, not %+v; %v", got, message, err)
		}
	}
	if c.String() != "beyond" {
		t.Errorf("left over: %q", c.String())
	}
}

// TestReceiveRefuses what is too long, too short, or no such message, without taking memory for
// what is announced.
func TestReceiveRefuses(t *testing.T) {
	long := func(n uint32, body string) string {
		return string(binary.LittleEndian.AppendUint32(nil, n)) + body
	}
	for _, c := range []struct {
		bytes string
		want  string
	}{
		{"", "EOF"},
		{"\x01\x00", "unexpected EOF"},
		{long(10, "{}"), "unexpected EOF"},
		{long(maxMessage+1, "{}"), "65537 bytes"},
		{long(1<<32-1, ""), "4294967295 bytes"},
		{long(0, ""), "JSON"},
		{long(2, "[]"), "cannot unmarshal"},
		{long(4, "true"), "cannot unmarshal"},
		{long(3, "{}}"), "invalid character"},
	} {
		for _, message := range messages() {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Receive(written{Reader: bytes.NewReader([]byte(c.bytes))}, message)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) &&
				!strings.HasPrefix(err.Error(), "handshake: ") {
				t.Errorf("%T from %q: %v, not %q", message, c.bytes, err, c.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("%T from %q takes %d bytes", message, c.bytes, n)
			}
		}
	}
}

// nowhere is the beginning of an endpoint that leads nowhere.
const nowhere = "{Instance: Unix: TCP: "

// FuzzReceive feeds bytes to the parser of every message: what is accepted is the same once more.
func FuzzReceive(f *testing.F) {
	e := endpoint()
	for _, message := range []any{Admitted{Ring: true}, Location{Host: "here", Endpoint: &e},
		Rendezvous{layout.Layout{TP: 2}, 1, 1, time.Second, []Peer{{1, 0, e}}},
		Connected{}, Closing{"x"}, e} {
		var c kept
		if err := Send(&c, message); err != nil {
			f.Fatal(err)
		}
		f.Add(c.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, message := range messages() {
			if Receive(written{Reader: bytes.NewReader(b)}, message) != nil ||
				strings.Contains(fmt.Sprintf("%+v", message), nowhere) {
				continue // null is no endpoint, and is refused when it is dialled
			}
			var c kept
			if err := Send(&c, message); err != nil {
				t.Fatalf("%+v cannot be sent: %v", message, err)
			}
			again := reflect.New(reflect.TypeOf(message).Elem()).Interface()
			if err := Receive(&c, again); err != nil || !reflect.DeepEqual(again, message) {
				t.Fatalf("%+v, not %+v; %v", again, message, err)
			}
		}
	})
}

// FuzzInvitation feeds bytes to the parser of what a rank is started with. An invitation that is
// accepted is the same once more, and its token never shows in an error.
func FuzzInvitation(f *testing.F) {
	raw, err := json.Marshal(Invitation{Endpoint: endpoint(), Token: handshake.NewToken().Reveal(),
		Rank: 3, World: 4})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"endpoint":{},"token":"x","rank":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		inv, err := ReadInvitation(bufio.NewReader(bytes.NewReader(b)))
		if err != nil || strings.Contains(fmt.Sprintf("%+v", inv), nowhere) {
			return
		}
		raw, err := json.Marshal(inv)
		if err != nil {
			t.Fatalf("%+v: %v", inv, err)
		}
		again, err := ReadInvitation(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil || !reflect.DeepEqual(again, inv) {
			t.Fatalf("%+v, not %+v; %v", again, inv, err)
		}
		if _, err := handshake.ParseToken(inv.Token); err != nil && len(inv.Token) > 8 &&
			strings.Contains(err.Error(), inv.Token) {
			t.Fatalf("the token shows: %v", err)
		}
	})
}

// TestReadInvitation reads one line of bounded length, and nothing beyond it.
func TestReadInvitation(t *testing.T) {
	raw, err := json.Marshal(Invitation{Endpoint: endpoint(), Token: "secret", Rank: 3, World: 4,
		Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(raw):          "",
		string(raw) + "\n":   "",
		string(raw) + "\n{}": "",
		"":                   "no invitation",
		"\n":                 "read invitation",
		string(raw[:40]):     "read invitation",
		string(raw[:40]) + "\n" + string(raw[40:]): "read invitation",
		strings.Repeat(" ", maxInvitation) + "{}":  "more than 1048576 bytes",
	} {
		r := bufio.NewReaderSize(strings.NewReader(text), 16)
		inv, err := ReadInvitation(r)
		switch {
		case want == "" && (err != nil || inv.Rank != 3 || inv.World != 4 || inv.Token != "secret"):
			t.Errorf("%.60q: %+v, %v", text, inv, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.60q: %v, not %q", text, err, want)
		}
		if _, after, _ := strings.Cut(text, "\n"); want == "" {
			if rest, _ := io.ReadAll(r); string(rest) != after {
				t.Errorf("%.60q: %q is left", text, rest)
			}
		}
	}
}

// host is a driver that accepts ranks and then does what a test wants.
type host struct {
	t *testing.T
	l *handshake.Listener
	i Invitation
}

func newHost(t *testing.T, world int) *host {
	t.Helper()
	binary, err := BinaryHash()
	if err != nil {
		t.Fatal(err)
	}
	token := handshake.NewToken()
	l, err := handshake.Listen(handshake.Options{Instance: handshake.NewInstance(), Token: token,
		World: world, Binary: binary, Unix: true, TCP: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &host{t, l, Invitation{Endpoint: l.Endpoint(), Token: token.Reveal(), World: world}}
}

// dial runs a rank until it has joined or failed, and f with its connection at the driver.
func (h *host) dial(f func(c *handshake.Conn)) error {
	h.t.Helper()
	done := make(chan error, 1)
	go func() {
		r, err := Dial(h.i, nil, nil)
		if err == nil {
			r.Close()
		}
		done <- err
	}()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	c, err := h.l.Accept(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	f(c)
	c.Close()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		h.t.Fatal("the rank goes on without its driver")
		return nil
	}
}

// memory is a memory file of no meaning.
func sharedMemory(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestJoinFails lets a driver go, or say something wrong, at each point before the first record:
// the rank ends with an error that says where, and keeps no descriptor and no goroutine.
func TestJoinFails(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	send := func(c *handshake.Conn, f *os.File) {
		defer f.Close()
		must(c.SendFile(f))
	}
	segment := func(ranks int) *ring.Segment {
		s, err := ring.Create(ring.Options{Ranks: ranks})
		must(err)
		return s
	}
	cases := []struct {
		name  string
		world int
		send  func(c *handshake.Conn)
		want  string
	}{
		{"gone at once", 1, func(*handshake.Conn) {}, "admission: "},
		{"half an admission", 1, func(c *handshake.Conn) { c.Write([]byte{9, 0, 0, 0, '{'}) },
			"admission: "},
		{"a long admission", 1, func(c *handshake.Conn) {
			c.Write([]byte{1, 2, 3, 4})
			io.ReadFull(c, make([]byte, 1))
		}, "admission: "},
		{"no ring", 1, func(c *handshake.Conn) { must(Send(c, Admitted{Ring: true})) },
			"memory of the ring"},
		{"a ring that is none", 1, func(c *handshake.Conn) {
			must(Send(c, Admitted{Ring: true}))
			send(c, sharedMemory(t, 1<<20))
		}, "ring: "},
		{"a ring for others", 3, func(c *handshake.Conn) {
			must(Send(c, Admitted{Ring: true}))
			s := segment(1)
			must(c.SendFile(s.File()))
			must(s.Driver().Close())
		}, "ring: "},
		{"no rendezvous", 3, func(c *handshake.Conn) {
			must(Send(c, Admitted{}))
			must(Receive(c, new(Location)))
		}, "rendezvous: "},
		{"too few ranks", 3, func(c *handshake.Conn) {
			must(Send(c, Admitted{}))
			must(Receive(c, new(Location)))
			must(Send(c, Rendezvous{Layout: layout.Layout{PP: 2}}))
		}, "layout of 2 ranks for 3"},
		{"too few peers", 3, func(c *handshake.Conn) {
			must(Send(c, Admitted{}))
			var h Location
			must(Receive(c, &h))
			must(Send(c, Rendezvous{Layout: layout.Layout{TP: 3}, Peers: []Peer{{0, 2,
				*h.Endpoint}}}))
			io.ReadFull(c, make([]byte, 1))
		}, "rank 1 is missing among 1 peers"},
		{"a peer that is another", 3, func(c *handshake.Conn) {
			must(Send(c, Admitted{}))
			var h Location
			must(Receive(c, &h))
			r := Rendezvous{Layout: layout.Layout{TP: 3}}
			for rank := range 2 {
				r.Peers = append(r.Peers, Peer{rank, 0, endpoint()})
			}
			must(Send(c, r))
			io.ReadFull(c, make([]byte, 1))
		}, "connect the ranks: rank "},
	}
	for round := range 2 {
		var before, after [2]int
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				h := newHost(t, c.world)
				if c.world > 1 {
					h.i.Rank = 2
				}
				err := h.dial(c.send)
				if err == nil || !strings.Contains(err.Error(), c.want) ||
					!strings.HasPrefix(err.Error(), "rank ") {
					t.Errorf("error %v, not %q", err, c.want)
				}
			})
			if round == 0 {
				continue
			}
			if before == [2]int{} {
				before = queuetest.Counted(t)
			}
		}
		for until := soon(); round == 1; time.Sleep(5 * time.Millisecond) {
			if after = queuetest.Counted(t); after[0] <= before[0] && after[1] <= before[1] {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("goroutines and descriptors %v, before %v", after, before)
			}
		}
	}
}

// TestBadInvitation is refused before anything is dialled.
func TestBadInvitation(t *testing.T) {
	h := newHost(t, 1)
	dial := func() error { _, err := Dial(h.i, nil, nil); return err }
	h.i.Token = "0123456789abcdef-secret"
	if err := dial(); err == nil || !strings.Contains(err.Error(), "invitation") ||
		strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	h.i.Token = handshake.NewToken().Reveal()
	if err := dial(); !errors.Is(err, handshake.BadToken) {
		t.Error(err)
	}
	h.i.Endpoint = handshake.Endpoint{}
	if err := dial(); err == nil || !strings.Contains(err.Error(), "rank 0: join the driver") {
		t.Error(err)
	}
}
