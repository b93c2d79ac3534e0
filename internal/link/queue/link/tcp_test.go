package link

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/queuetest"
)

// proxy forwards TCP connections and can cut them all.
type proxy struct {
	l      net.Listener
	target string
	mu     sync.Mutex
	conns  []net.Conn
	dead   bool
}

func newProxy(t testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, target: target}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			if p.dead {
				in.Close()
				out.Close()
			}
			p.mu.Unlock()
			forward := func(to, from net.Conn) {
				// splice would keep pipes
				io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
				to.Close()
				from.Close()
			}
			go forward(in, out)
			go forward(out, in)
		}
	}()
	return p
}

// cut resets everything under way; for good when dead.
func (p *proxy) cut(dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = dead
	for _, c := range p.conns {
		if t, ok := c.(*net.TCPConn); ok {
			t.SetLinger(0)
		}
		c.Close()
	}
	p.conns = nil
}

// engine is a driver that listens for one worker behind a proxy, as an executor does it.
type engine struct {
	listener       *handshake.Listener
	proxy          *proxy
	driver, worker *Link
	accepting      sync.WaitGroup
}

func newEngine(t testing.TB, o Options) *engine {
	token := handshake.NewToken()
	listener, err := handshake.Listen(handshake.Options{Instance: handshake.NewInstance(),
		Token: token, World: 2, TCP: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{listener: listener, proxy: newProxy(t, listener.Endpoint().TCP)}
	through := listener.Endpoint()
	through.TCP = e.proxy.l.Addr().String()
	dial := func(ctx context.Context, r *handshake.Resume) (*handshake.Conn, error) {
		return handshake.Dial(ctx, through, token,
			handshake.Identity{Rank: 1, PID: os.Getpid(), Resume: r})
	}
	first := make(chan *handshake.Conn)
	e.accepting.Go(func() {
		for {
			c, err := listener.Accept(context.Background())
			if err != nil {
				return
			}
			if c.Peer.Resume != nil {
				e.driver.Resume(c, *c.Peer.Resume)
				continue
			}
			e.driver = Accept(c, c.Session, o)
			first <- c
		}
	})
	c, err := dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-first
	e.worker = Connect(c, c.Session,
		func(ctx context.Context, r handshake.Resume) (net.Conn, error) {
			c, err := dial(ctx, &r)
			if err != nil {
				return nil, err
			}
			return c, nil
		}, o)
	return e
}

func (e *engine) close() {
	go e.worker.Close("")
	e.driver.Close("")
	e.worker.Close("")
	e.listener.Close()
	e.accepting.Wait()
	e.proxy.l.Close()
	e.proxy.cut(true)
}

// TestTLSCut runs both directions over TCP and TLS while a proxy resets the connection again and
// again.
func TestTLSCut(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	// On a busy machine, or with the race detector, many cuts may follow each other before a
	// handshake is through.
	e := newEngine(t, Options{Window: 1 << 20, Grace: 20 * time.Second})
	defer e.close()
	s := stream{n: 1500, max: 400 << 10, within: 30 * time.Second}
	stop := make(chan struct{})
	var cutter, wg sync.WaitGroup
	cutter.Go(func() {
		for next := uint64(20); ; {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			// By what was received, not by time: a fast machine is done soon, and on a busy one a
			// handshake takes long.
			if got := e.driver.Stats().RecordsReceived; got >= next {
				next = got + 20 + uint64(rand.IntN(150))
				e.proxy.cut(false)
			}
		}
	})
	wg.Go(func() { s.send(t, e.driver, 1, false) })
	wg.Go(func() { s.send(t, e.worker, 2, false) })
	wg.Go(func() { s.recv(t, e.driver, 2, false) })
	wg.Go(func() { s.recv(t, e.worker, 1, false) })
	wg.Wait()
	close(stop)
	cutter.Wait()
	if s := e.driver.Stats(); s.Resumes < 3 {
		t.Errorf("only %d resumes", s.Resumes)
	} else {
		t.Logf("%d resumes, %d frames again", s.Resumes, s.Retransmits+e.worker.Stats().Retransmits)
	}
}

// TestTLSGone forgets a worker: its session cannot be resumed, and both ends say why they are down.
func TestTLSGone(t *testing.T) {
	defer queuetest.NoLeaks(t)()
	e := newEngine(t, Options{Grace: 3 * time.Second})
	defer e.close()
	e.listener.Deregister(1)
	e.proxy.cut(false)
	if _, err := e.worker.Recv(time.Time{}); !errors.Is(err, handshake.UnknownSession) {
		t.Error(err)
	}
	if _, err := e.driver.Recv(time.Time{}); !errors.Is(err, ErrCut) ||
		!strings.Contains(err.Error(), "3s") {
		t.Error(err)
	}
}

// tcpPair connects two ends over loopback, with TLS if asked for.
func tcpPair(t testing.TB, secure bool) (driver, worker net.Conn) {
	if secure {
		token := handshake.NewToken()
		l, err := handshake.Listen(handshake.Options{Instance: handshake.NewInstance(),
			Token: token, World: 1, TCP: "127.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		w, err := handshake.Dial(t.Context(), l.Endpoint(), token, handshake.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		return d, w
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return d, w
}

// TestSteadyStateAllocatesNothing counts what a round trip allocates in both ends, over plain TCP.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	a, b := tcpPair(t, false)
	driver, worker := Accept(a, testSession, Options{}), Connect(b, testSession, nil, Options{})
	defer driver.Close("")
	defer worker.Close("")
	go func() {
		reply := make([]byte, 1200)
		for {
			if _, err := worker.Recv(time.Time{}); err != nil {
				return
			}
			worker.Send(reply, time.Time{})
		}
	}()
	record := make([]byte, 4096)
	if n := testing.AllocsPerRun(20_000, func() {
		driver.Send(record, in(time.Minute))
		if _, err := driver.Recv(in(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per round trip", n)
	}
	if s := driver.Stats(); s.RecordsSent < 20_000 || s.State != Up {
		t.Errorf("%+v", s)
	}
}
