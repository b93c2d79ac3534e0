package worker

import (
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

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// said is a connection on which everything has been said already.
type said struct {
	net.Conn
	*bytes.Reader
}

func (s said) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// heard is a connection that keeps what is written.
type heard struct {
	net.Conn
	bytes.Buffer
}

func (h *heard) Read(b []byte) (int, error)  { return h.Buffer.Read(b) }
func (h *heard) Write(b []byte) (int, error) { return h.Buffer.Write(b) }

// words makes a fresh one of each word that crosses before the first record.
func words() []any {
	return []any{new(Welcome), new(Gathering), new(Peers), new(LastWords), new(handshake.Endpoint)}
}

func endpoint() handshake.Endpoint {
	return handshake.Endpoint{Instance: handshake.NewInstance(), TCP: "127.0.0.1:1234", Unix: "name", Fingerprint: [32]byte{1, 2, 3}}
}

// TestTellAndHear passes every word, several on one connection, and reads no byte beyond each.
func TestTellAndHear(t *testing.T) {
	e := endpoint()
	all := []any{&Welcome{Ring: true}, &Gathering{Transport: TransportTCP, Bytes: 1 << 20}, &Peers{Endpoints: []handshake.Endpoint{e, e, e}},
		&LastWords{Cause: "out of cheese"}, &e, &Welcome{}}
	var c heard
	for _, word := range all {
		if err := Tell(&c, word); err != nil {
			t.Fatal(err)
		}
	}
	c.WriteString("beyond")
	for _, word := range all {
		got := reflect.New(reflect.TypeOf(word).Elem()).Interface()
		if err := Hear(&c, got); err != nil || !reflect.DeepEqual(got, word) {
			t.Errorf("%+v, not %+v; %v", got, word, err)
		}
	}
	if c.String() != "beyond" {
		t.Errorf("left over: %q", c.String())
	}
}

// TestHearRefuses what is too long, too short, or no such word, without taking memory for what is announced.
func TestHearRefuses(t *testing.T) {
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
		{long(maxWord+1, "{}"), "65537 bytes"},
		{long(1<<32-1, ""), "4294967295 bytes"},
		{long(0, ""), "JSON"},
		{long(2, "[]"), "cannot unmarshal"},
		{long(4, "true"), "cannot unmarshal"},
		{long(3, "{}}"), "invalid character"},
	} {
		for _, word := range words() {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Hear(said{Reader: bytes.NewReader([]byte(c.bytes))}, word)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) && !strings.HasPrefix(err.Error(), "handshake: ") {
				t.Errorf("%T from %q: %v, not %q", word, c.bytes, err, c.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("%T from %q takes %d bytes", word, c.bytes, n)
			}
		}
	}
}

// nowhere is the beginning of an endpoint that leads nowhere.
const nowhere = "{Instance: Unix: TCP: "

// FuzzHear feeds bytes to the parser of every word: what is accepted is the same once more.
func FuzzHear(f *testing.F) {
	e := endpoint()
	for _, word := range []any{Welcome{Ring: true}, Gathering{TransportShm, 1 << 20, time.Second}, Peers{[]handshake.Endpoint{e}}, LastWords{"x"}, e} {
		var c heard
		if err := Tell(&c, word); err != nil {
			f.Fatal(err)
		}
		f.Add(c.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, word := range words() {
			if Hear(said{Reader: bytes.NewReader(b)}, word) != nil || strings.Contains(fmt.Sprintf("%+v", word), nowhere) {
				continue // null is no endpoint, and is refused when it is dialled
			}
			var c heard
			if err := Tell(&c, word); err != nil {
				t.Fatalf("%+v cannot be told: %v", word, err)
			}
			again := reflect.New(reflect.TypeOf(word).Elem()).Interface()
			if err := Hear(&c, again); err != nil || !reflect.DeepEqual(again, word) {
				t.Fatalf("%+v, not %+v; %v", again, word, err)
			}
		}
	})
}

// FuzzInvitation feeds bytes to the parser of what a rank is started with. An invitation that is accepted is the
// same once more, and its token never shows in an error.
func FuzzInvitation(f *testing.F) {
	raw, err := json.Marshal(Invitation{Endpoint: endpoint(), Token: handshake.NewToken().Reveal(), Rank: 3, World: 4})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"endpoint":{},"token":"x","rank":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var inv, again Invitation
		if json.Unmarshal(b, &inv) != nil || strings.Contains(fmt.Sprintf("%+v", inv), nowhere) {
			return
		}
		raw, err := json.Marshal(inv)
		if err != nil {
			t.Fatalf("%+v: %v", inv, err)
		}
		if err := json.Unmarshal(raw, &again); err != nil || !reflect.DeepEqual(again, inv) {
			t.Fatalf("%+v, not %+v; %v", again, inv, err)
		}
		if _, err := handshake.ParseToken(inv.Token); err != nil && len(inv.Token) > 8 && strings.Contains(err.Error(), inv.Token) {
			t.Fatalf("the token shows: %v", err)
		}
	})
}

// host is a driver that admits ranks and then does what a test wants.
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
	l, err := handshake.Listen(handshake.Options{Instance: handshake.NewInstance(), Token: token, World: world, Binary: binary, Unix: true, TCP: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &host{t, l, Invitation{Endpoint: l.Endpoint(), Token: token.Reveal(), World: world}}
}

// join runs a rank, and f with its connection at the driver.
func (h *host) join(f func(c *handshake.Conn)) error {
	h.t.Helper()
	done := make(chan error, 1)
	go func() { done <- Join(h.i, nil) }()
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
func memory(t *testing.T, size int64) *os.File {
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

// TestJoinFails lets a driver go, or say something wrong, at each point before the first record: the rank ends
// with an error that says where, and keeps no descriptor and no goroutine.
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
		say   func(c *handshake.Conn)
		want  string
	}{
		{"gone at once", 1, func(*handshake.Conn) {}, "welcome: "},
		{"half a welcome", 1, func(c *handshake.Conn) { c.Write([]byte{9, 0, 0, 0, '{'}) }, "welcome: "},
		{"a long welcome", 1, func(c *handshake.Conn) { c.Write([]byte{1, 2, 3, 4}); io.ReadFull(c, make([]byte, 1)) }, "welcome: "},
		{"no ring", 1, func(c *handshake.Conn) { must(Tell(c, Welcome{Ring: true})) }, "memory of the ring"},
		{"a ring that is none", 1, func(c *handshake.Conn) { must(Tell(c, Welcome{Ring: true})); send(c, memory(t, 1<<20)) }, "ring: "},
		{"a ring for others", 3, func(c *handshake.Conn) {
			must(Tell(c, Welcome{Ring: true}))
			s := segment(1)
			must(c.SendFile(s.File()))
			must(s.Driver().Close())
		}, "ring: "},
		{"no gathering", 3, func(c *handshake.Conn) { must(Tell(c, Welcome{})) }, "how the ranks gather"},
		{"a gathering of pigeons", 3, func(c *handshake.Conn) { must(Tell(c, Welcome{})); must(Tell(c, Gathering{Transport: "pigeon"})) }, `"pigeon"`},
		{"no memory", 3, func(c *handshake.Conn) {
			must(Tell(c, Welcome{Ring: true}))
			s := segment(3)
			must(c.SendFile(s.File()))
			must(Tell(c, Gathering{Transport: TransportShm, Bytes: 1 << 10}))
			must(s.Driver().Close())
		}, "memory of the group"},
		{"no peers", 3, func(c *handshake.Conn) {
			must(Tell(c, Welcome{}))
			must(Tell(c, Gathering{Transport: TransportTCP, Bytes: 1 << 10}))
			var e handshake.Endpoint
			must(Hear(c, &e))
		}, "where the others are"},
		{"too few peers", 3, func(c *handshake.Conn) {
			must(Tell(c, Welcome{}))
			must(Tell(c, Gathering{Transport: TransportTCP, Bytes: 1 << 10}))
			var e handshake.Endpoint
			must(Hear(c, &e))
			must(Tell(c, Peers{Endpoints: []handshake.Endpoint{e}}))
			io.ReadFull(c, make([]byte, 1))
		}, "1 endpoints for 3 ranks"},
	}
	for round := range 2 {
		var before, after [2]int
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				h := newHost(t, c.world)
				if c.world > 1 {
					h.i.Rank = 2
				}
				err := h.join(c.say)
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "rank ") {
					t.Errorf("error %v, not %q", err, c.want)
				}
			})
			if round == 0 {
				continue
			}
			if before == [2]int{} {
				before = counted(t)
			}
		}
		for until := soon(); round == 1; time.Sleep(5 * time.Millisecond) {
			if after = counted(t); after[0] <= before[0] && after[1] <= before[1] {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("goroutines and descriptors %v, before %v", after, before)
			}
		}
	}
}

// counted returns how many goroutines and descriptors there are.
func counted(t *testing.T) [2]int {
	t.Helper()
	runtime.GC()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return [2]int{runtime.NumGoroutine(), len(fds)}
}

// TestJoinServes is a rank over a ring and over a link, from its invitation to the end of its driver.
func TestJoinServes(t *testing.T) {
	h := newHost(t, 1)
	s, err := ring.Create(ring.Options{Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := s.Driver()
	err = h.join(func(c *handshake.Conn) {
		if err := errors.Join(Tell(c, Welcome{Ring: true}), c.SendFile(s.File())); err != nil {
			t.Fatal(err)
		}
		record, err := queue.AppendJSON(nil, queue.KindInit, tiny())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Send(record, soon()); err != nil {
			t.Fatal(err)
		}
		for kind := queue.Kind(0); kind != queue.KindReady; {
			_, got, err := d.Recv(soon())
			if err != nil {
				t.Fatal(err)
			}
			if kind, _, err = queue.Split(got); err != nil || kind == queue.KindFailure {
				t.Fatalf("%q, %v", got, err)
			}
		}
		// Arguments that fill the ring are given back before the next record is waited for.
		for range 40 {
			if err := d.Send(queue.AppendCall(nil, &queue.Call{ID: 1, Method: "echo", Args: make([]byte, 600<<10)}), soon()); err != nil {
				t.Fatal(err)
			}
			if _, got, err := d.Recv(soon()); err != nil || len(got) < 600<<10 {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
		d.Release()
	})
	if err != nil {
		t.Errorf("a driver that goes away: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestBadInvitation is refused before anything is dialled.
func TestBadInvitation(t *testing.T) {
	h := newHost(t, 1)
	h.i.Token = "0123456789abcdef-secret"
	if err := Join(h.i, nil); err == nil || !strings.Contains(err.Error(), "invitation") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	h.i.Token = handshake.NewToken().Reveal()
	if err := Join(h.i, nil); !errors.Is(err, handshake.BadToken) {
		t.Error(err)
	}
	h.i.Endpoint = handshake.Endpoint{}
	if err := Join(h.i, nil); err == nil || !strings.Contains(err.Error(), "rank 0: join the driver") {
		t.Error(err)
	}
}
