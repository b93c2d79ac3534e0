package handshake

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
	"github.com/eagleray/eagleray/internal/sys/synctext"
)

type fixture struct {
	*Listener
	token Token
	log   synctext.Buffer
}

// listen starts a driver on both transports.
func listen(t testing.TB, change func(*Options)) *fixture {
	f := &fixture{token: NewToken()}
	o := Options{Instance: NewInstance(), Token: f.token, World: 4, TCP: "127.0.0.1", Unix: true,
		Deadline: 2 * time.Second, Log: slog.New(slog.NewTextHandler(&f.log, nil))}
	if change != nil {
		change(&o)
	}
	l, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	f.Listener = l
	t.Cleanup(func() { l.Close() })
	return f
}

func (f *fixture) via(network string) Endpoint {
	e := f.Endpoint()
	if network == "tcp" {
		e.Unix = ""
	} else {
		e.TCP = ""
	}
	return e
}

func both(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

func short(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// meet dials and accepts one worker.
func (f *fixture) meet(t testing.TB, e Endpoint, id Identity) (driver, worker *Conn) {
	t.Helper()
	worker, err := Dial(short(t), e, f.token, id)
	if err != nil {
		t.Fatal(err)
	}
	driver, err = f.Accept(short(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close(); worker.Close() })
	return driver, worker
}

// talk sends bytes both ways.
func talk(t testing.TB, a, b net.Conn) {
	t.Helper()
	for range 2 {
		want := []byte("over and out")
		if _, err := a.Write(want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%q, %v", got, err)
		}
		a, b = b, a
	}
}

func TestWorkersArrive(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	both(t, func(t *testing.T, network string) {
		f := listen(t, func(o *Options) { o.Binary = [32]byte{7} })
		seen := map[Session]bool{}
		for rank := range 4 {
			id := Identity{Rank: rank, PID: 100 + rank, Binary: [32]byte{7}}
			d, w := f.meet(t, f.via(network), id)
			talk(t, d, w)
			id.Instance = f.Endpoint().Instance
			if d.Peer != id || w.Peer.Instance != id.Instance {
				t.Errorf("driver sees %+v, worker %+v", d.Peer, w.Peer)
			}
			if local := network == "unix"; d.Local != local || w.Local != local {
				t.Errorf("local: %v and %v", d.Local, w.Local)
			}
			if d.Session != w.Session || seen[d.Session] {
				t.Errorf("sessions %s and %s", d.Session, w.Session)
			}
			seen[d.Session] = true
			if h, ok := f.holder(rank); !ok || h != id {
				t.Errorf("holder %+v, %v", h, ok)
			}
		}
		if f.Refused() != 0 || f.log.String() != "" {
			t.Errorf("%d refused: %s", f.Refused(), f.log.String())
		}
	})
}

// TestDialPrefersUnix takes the local way when it is there and really this instance, else TCP.
func TestDialPrefersUnix(t *testing.T) {
	t.Parallel()
	f, other := listen(t, nil), listen(t, nil)
	silent, err := net.Listen("unix", "@eagleray-test-silent-"+string(NewInstance()))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, c := range map[string]struct {
		unix  string
		local bool
	}{
		"this instance":  {f.Endpoint().Unix, true},
		"other instance": {other.Endpoint().Unix, false},
		"nobody":         {"eagleray-nobody", false},
		"silence":        {strings.TrimPrefix(silent.Addr().String(), "@"), false},
	} {
		t.Run(name, func(t *testing.T) {
			e := f.Endpoint()
			e.Unix = c.unix
			ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
			defer cancel()
			w, err := Dial(ctx, e, f.token, Identity{Rank: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			d, err := f.Accept(short(t))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if w.Local != c.local || d.Local != c.local {
				t.Errorf("local %v, %v", w.Local, d.Local)
			}
			talk(t, d, w)
			f.Deregister(1)
		})
	}
}

// TestRankTaken refuses a second holder until the first is forgotten; only the holder may resume.
func TestRankTaken(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		f := listen(t, nil)
		d, w := f.meet(t, f.via(network), Identity{Rank: 1, PID: 10})
		_, err := Dial(short(t), f.via(network), f.token, Identity{Rank: 1, PID: 11})
		if !errors.Is(err, RankTaken) || !strings.Contains(err.Error(), "held by pid 10") {
			t.Errorf("%v", err)
		}
		for _, id := range []Identity{
			{Rank: 1, PID: 11, Resume: &Resume{Session: d.Session}},
			{Rank: 1, PID: 10, Resume: &Resume{Session: Session{1}}},
			{Rank: 2, PID: 10, Resume: &Resume{Session: d.Session}},
		} {
			if _, err := Dial(short(t), f.via(network), f.token, id); !errors.Is(err,
				UnknownSession) {
				t.Errorf("%+v: %v", id, err)
			}
		}
		talk(t, d, w)
		w.Close()
		again, _ := f.meet(t, f.via(network),
			Identity{Rank: 1, PID: 10, Resume: &Resume{Session: d.Session, Received: 77}})
		if again.Session != d.Session || again.Peer.Resume == nil ||
			again.Peer.Resume.Received != 77 {
			t.Errorf("%+v", again.Peer)
		}
		third, _ := f.meet(t, f.via(network),
			Identity{Rank: 1, PID: 10, Resume: &Resume{Session: d.Session, Received: 5,
				Beside: true}})
		if third.Session != d.Session || *third.Peer.Resume != (Resume{d.Session, 5, true}) {
			t.Errorf("%+v", third.Peer)
		}
		f.Deregister(1)
		if _, err := Dial(short(t), f.via(network), f.token,
			Identity{Rank: 1, PID: 10, Resume: &Resume{Session: d.Session}}); !errors.Is(err,
			UnknownSession) {
			t.Errorf("resumed a forgotten session: %v", err)
		}
		fresh, _ := f.meet(t, f.via(network), Identity{Rank: 1, PID: 12})
		if fresh.Session == d.Session {
			t.Error("a new worker has the old one's session")
		}
	})
}

// TestEndedBeforeAccepted gives the rank of a worker that has ended, and was not accepted yet, to
// another one.
func TestEndedBeforeAccepted(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		f := listen(t, nil)
		dial := func(pid int) *Conn {
			c, err := Dial(short(t), f.via(network), f.token, Identity{Rank: 1, PID: pid})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for pid := range 2 {
			socketOf(dial(pid)).Close()
			waitFor(t, func() bool {
				f.ranks.mu.Lock()
				defer f.ranks.mu.Unlock()
				h := f.ranks.holders[1]
				return h.id.PID == pid && h.waiting.ended()
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if d, err := f.Accept(ctx); err == nil {
			t.Errorf("%+v is accepted", d.Peer)
		}
		w := dial(2)
		defer w.Close()
		d, err := f.Accept(short(t))
		if err != nil || d.Peer.PID != 2 {
			t.Fatalf("%+v, %v", d, err)
		}
		defer d.Close()
		talk(t, d, w)
	})
}

// TestOneOfMany lets many workers dial for one rank at once: exactly one gets it.
func TestOneOfMany(t *testing.T) {
	f := listen(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for pid := range 24 {
		wg.Go(func() {
			e := f.via([]string{"unix", "tcp"}[pid%2])
			c, err := Dial(short(t), e, f.token, Identity{Rank: 3, PID: pid})
			if err == nil {
				t.Cleanup(func() { c.Close() })
				mu.Lock()
				won++
				mu.Unlock()
			} else if !errors.Is(err, RankTaken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d hold the rank", won)
	}
}

// TestSilentCrowd opens 200 silent connections to each transport; a good worker is not delayed, and
// no more than MaxPending are kept.
func TestSilentCrowd(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	f := listen(t, func(o *Options) { o.MaxPending, o.Deadline = 64, 20*time.Second })
	var crowd []net.Conn
	for range 200 {
		for network, address := range map[string]string{"tcp": f.Endpoint().TCP,
			"unix": "@" + f.Endpoint().Unix} {
			c, err := net.Dial(network, address)
			if err != nil {
				t.Fatal(err)
			}
			crowd = append(crowd, c)
		}
	}
	waitFor(t, func() bool { return f.Refused() == 2*200-64 })
	if n := f.pending.count(); n != 64 {
		t.Errorf("%d pending, not 64", n)
	}
	for rank, network := range []string{"unix", "tcp"} {
		begin := time.Now()
		d, w := f.meet(t, f.via(network), Identity{Rank: rank})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: a good worker took %v", network, took)
		}
		talk(t, d, w)
		d.Close()
		w.Close()
	}
	if !strings.Contains(f.log.String(), "too many pending") {
		t.Error("the log does not say why")
	}
	f.Close()
	for _, c := range crowd {
		c.Close()
	}
}

// TestTwoEngines run side by side; neither takes the other's workers, not even at a swapped
// address.
func TestTwoEngines(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		a, b := listen(t, nil), listen(t, nil)
		var wg sync.WaitGroup
		for i, f := range []*fixture{a, b} {
			other := []*fixture{b, a}[i]
			for rank := range 4 {
				wg.Go(func() {
					lost := other.via(network)
					lost.Instance = f.Endpoint().Instance
					if _, err := Dial(short(t), lost, f.token,
						Identity{Rank: rank}); !errors.Is(err, OtherInstance) {
						t.Errorf("%v", err)
					}
					c, err := Dial(short(t), f.via(network), f.token, Identity{Rank: rank})
					if err != nil {
						t.Error(err)
						return
					}
					t.Cleanup(func() { c.Close() })
				})
			}
		}
		wg.Wait()
		for _, f := range []*fixture{a, b} {
			for range 4 {
				c, err := f.Accept(short(t))
				if err != nil || c.Peer.Instance != f.Endpoint().Instance {
					t.Errorf("%v", err)
				}
			}
			waitFor(t, func() bool { return f.Refused() == 4 })
		}
	})
}

// TestFalseDriver holds the endpoint's name and address without the token: the worker does not take
// it for its own.
func TestFalseDriver(t *testing.T) {
	f := listen(t, nil)
	impostor := listen(t, func(o *Options) { o.Instance = f.Endpoint().Instance })
	if _, err := Dial(short(t), impostor.via("unix"), f.token, Identity{}); !errors.Is(err,
		BadToken) || isFinal(err) {
		t.Errorf("%v", err)
	}
	// One that welcomes everybody cannot sign.
	a, b := net.Pipe()
	go func() {
		readFrame(b)
		c := challenge{instance: f.Endpoint().Instance}
		b.Write(appendFrame(nil, kindChallenge, c.append(nil)))
		readFrame(b)
		b.Write(appendFrame(nil, kindWelcome, make([]byte, 16+macSize)))
	}()
	if _, err := Client(short(t), a, f.token,
		Identity{Instance: f.Endpoint().Instance}); !errors.Is(err, BadToken) {
		t.Errorf("%v", err)
	}
	// A driver of the future names both versions.
	a, b = net.Pipe()
	go func() {
		readFrame(b)
		frame := appendFrame(nil, kindRefuse,
			appendRefusal(nil, VersionMismatch, [macSize]byte{}, "x"))
		binary.LittleEndian.PutUint16(frame[4:], 3)
		b.Write(frame)
	}()
	if _, err := Client(short(t), a, f.token, Identity{Instance: "i"}); !errors.Is(err,
		VersionMismatch) || !strings.Contains(err.Error(), "version 3, this side version 1") {
		t.Errorf("%v", err)
	}
}

func isFinal(err error) bool {
	var r *Refused
	return errors.As(err, &r) && r.Final
}

// TestSilentDriver bounds the worker's wait, by deadline and by cancellation.
func TestSilentDriver(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := Endpoint{Instance: "i", TCP: l.Addr().String()}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, e, NewToken(), Identity{}); !errors.Is(err, Timeout) {
		t.Errorf("%v", err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := Dial(ctx, e, NewToken(), Identity{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	l.Close()
	if _, err := Dial(short(t), e, NewToken(), Identity{}); err == nil || errors.Is(err, Timeout) {
		t.Errorf("%v", err)
	}
}

func TestClose(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	f := listen(t, nil)
	silent, _ := net.Dial("tcp", f.Endpoint().TCP)
	defer silent.Close()
	w, err := Dial(short(t), f.Endpoint(), f.token, Identity{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	waits := make(chan error, 1)
	go func() {
		time.Sleep(10 * time.Millisecond)
		f.Close()
	}()
	go func() {
		// The first one may have the rank that dialled.
		if c, err := f.Accept(context.Background()); err == nil {
			c.Close()
		}
		_, err := f.Accept(context.Background())
		waits <- err
	}()
	if err := <-waits; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	f.Close()
	if err := silenceOf(silent); err != nil {
		t.Error(err)
	}
	if _, err := Dial(short(t), f.Endpoint(), f.token, Identity{}); err == nil {
		t.Error("dialled a closed listener")
	}
}

func TestListenRefuses(t *testing.T) {
	good := Options{Instance: "i", Token: NewToken(), World: 1, TCP: "127.0.0.1"}
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.TCP = "0.0.0.0" }, "every interface"},
		{func(o *Options) { o.TCP = "0.0.0.0:0" }, "every interface"},
		{func(o *Options) { o.TCP = "[::]:0" }, "every interface"},
		{func(o *Options) { o.TCP = "::" }, "every interface"},
		{func(o *Options) { o.TCP = ":9000" }, "every interface"},
		{func(o *Options) { o.TCP = "" }, "neither"},
		{func(o *Options) { o.Token = Token{} }, "no token"},
		{func(o *Options) { o.Instance = "" }, "instance"},
		{func(o *Options) { o.Instance = Instance(strings.Repeat("x", 65)) }, "instance"},
		{func(o *Options) { o.World = 0 }, "world size 0"},
		{func(o *Options) { o.PortRange = [2]int{9, 8} }, "port range 9-8"},
		{func(o *Options) { o.PortRange = [2]int{0, 80} }, "port range 0-80"},
		{func(o *Options) { o.TCP = "192.0.2.1" }, "192.0.2.1"},
	} {
		o := good
		c.change(&o)
		l, err := Listen(o)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
}

// TestPortRange stays within the range, and says so when it is full.
func TestPortRange(t *testing.T) {
	holder, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	port := holder.Addr().(*net.TCPAddr).Port
	o := Options{Instance: "i", Token: NewToken(), World: 1, TCP: "127.0.0.1",
		PortRange: [2]int{port, port}}
	if l, err := Listen(o); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("no free port in %d-%d", port, port)) {
		l.Close()
		t.Errorf("%v", err)
	}
	o.PortRange = [2]int{20000, 30000}
	for range 5 {
		l, err := Listen(o)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, p, _ := net.SplitHostPort(l.Endpoint().TCP)
		if p < "20000" || p > "30000" {
			t.Errorf("port %s", p)
		}
	}
}

func TestEndpointJSON(t *testing.T) {
	f := listen(t, nil)
	for _, e := range []Endpoint{f.Endpoint(), f.via("unix")} {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var got Endpoint
		if e.TCP == "" {
			e.Fingerprint = [32]byte{}
		}
		if err := json.Unmarshal(b, &got); err != nil || got != e {
			t.Errorf("%s became %+v, %v", b, got, err)
		}
		if bytes.Contains(b, []byte(f.token.Reveal())) {
			t.Error("the token is in the endpoint")
		}
	}
	for _, s := range []string{`{}`, `{"instance":"i"}`, `{"instance":"i","tcp":"a:1"}`,
		`{"instance":"i","tcp":"a:1","fingerprint":"zz"}`,
		`{"instance":"i","tcp":"a:1","fingerprint":"` + strings.Repeat("zz",
			32) + `"}`, `{"unix":"x"}`, `[]`} {
		var e Endpoint
		if err := json.Unmarshal([]byte(s), &e); err == nil {
			t.Errorf("%s was taken: %+v", s, e)
		}
	}
}

func TestToken(t *testing.T) {
	token := NewToken()
	got, err := ParseToken(token.Reveal())
	if err != nil || got != token || token == NewToken() {
		t.Error(err)
	}
	for _, s := range []string{"", "ab", strings.Repeat("g", 64), strings.Repeat("a", 66)} {
		if _, err := ParseToken(s); err == nil || s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{fmt.Sprint(token),
		fmt.Sprintf("%v %+v %#v %s", token, token, token, token)} {
		if strings.Contains(s, token.Reveal()[:8]) ||
			strings.Contains(s, fmt.Sprint(token[0], token[1], token[2])) {
			t.Errorf("token shows in %q", s)
		}
	}
	if _, err := json.Marshal(token); err == nil {
		t.Error("a token was marshalled")
	}
}

func TestFaucet(t *testing.T) {
	var f faucet
	now := time.Unix(1, 0)
	for range faucetBurst {
		if ok, _ := f.open(now); !ok {
			t.Fatal("the burst is too short")
		}
	}
	for range 10 {
		if ok, _ := f.open(now); ok {
			t.Fatal("open after the burst")
		}
	}
	if ok, n := f.open(now.Add(time.Second)); !ok || n != 10 {
		t.Errorf("%v, %d suppressed", ok, n)
	}
}

// holder returns the worker that holds a rank.
func (f *fixture) holder(rank int) (Identity, bool) {
	f.ranks.mu.Lock()
	defer f.ranks.mu.Unlock()
	if h := f.ranks.holders[rank]; h != nil {
		return h.id, true
	}
	return Identity{}, false
}
