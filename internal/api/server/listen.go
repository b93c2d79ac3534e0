package server

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Listen listens on an address. The name localhost means both of its addresses, 127.0.0.1 and ::1,
// on one port: which of them a client tries first is its own business. A machine without IPv6 has
// the first only.
func Listen(host string, port int) (net.Listener, error) {
	if !strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	}
	const attempts = 8 // at a port that is free for one of them
	var err error
	for range attempts {
		var four, six net.Listener
		if four, err = net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port)); err != nil {
			return nil, err
		}
		taken := four.Addr().(*net.TCPAddr).Port
		if six, err = net.Listen("tcp6", "[::1]:"+strconv.Itoa(taken)); err == nil {
			return join(four, six), nil
		}
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			return four, nil
		}
		four.Close()
		if port != 0 {
			break
		}
	}
	return nil, err
}

// joined is several listeners as one, whose address is the first's.
type joined struct {
	list     []net.Listener
	accepted chan accepted
	closed   chan struct{}
	once     sync.Once
	errs     error
}

type accepted struct {
	conn net.Conn
	err  error
}

func join(list ...net.Listener) *joined {
	j := &joined{list: list, accepted: make(chan accepted), closed: make(chan struct{})}
	var accepting sync.WaitGroup
	for _, l := range list {
		accepting.Go(func() { j.accept(l) })
	}
	go func() {
		accepting.Wait()
		close(j.accepted)
	}()
	return j
}

// accept hands over what one listener accepts, errors too, until it is closed. What was accepted by
// then is handed over as well, where Accept is still called.
func (j *joined) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case j.accepted <- accepted{conn, err}:
			continue
		case <-j.closed:
		}
		select {
		case j.accepted <- accepted{conn, err}:
		case <-time.After(lastAccept):
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

// lastAccept is how long a connection waits for an Accept after Close.
const lastAccept = time.Second

// Accept implements net.Listener.
func (j *joined) Accept() (net.Conn, error) {
	a, ok := <-j.accepted
	if !ok {
		return nil, net.ErrClosed
	}
	return a.conn, a.err
}

// Close implements net.Listener.
func (j *joined) Close() error {
	j.once.Do(func() {
		close(j.closed)
		for _, l := range j.list {
			j.errs = errors.Join(j.errs, l.Close())
		}
	})
	return j.errs
}

// Addr implements net.Listener.
func (j *joined) Addr() net.Addr { return j.list[0].Addr() }
