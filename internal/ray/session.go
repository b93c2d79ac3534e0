package ray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

// Beats go both ways each second; an end that hears nothing for ten holds the other for gone.
const (
	beatEvery = time.Second
	silence   = 10 * time.Second
)

// session is one connection to one bridge.
type session struct {
	conn net.Conn
	// process is nil where the test seam gave the connection.
	process *process
	// exited is told the ends of workers.
	exited func(frame.Exit)

	hello chan frame.Hello
	// heard is when the last message came, in nanoseconds since began.
	began time.Time
	heard atomic.Int64
	// silencers counts what is under way during which the bridge may be silent: Python imports Ray
	// before its hello, and Ray's own start holds the interpreter's lock. A wait for these has
	// a deadline.
	silencers atomic.Int32

	writing sync.Mutex

	mu      sync.Mutex
	next    int64
	pending map[int64]chan frame.Reply
	closing bool
	err     error

	// gone is closed when the bridge is gone, after err is set and its process is reaped.
	gone    chan struct{}
	running sync.WaitGroup
}

// newSession serves conn. The owner calls end, once or more, and then wait.
func newSession(conn net.Conn, p *process, exited func(frame.Exit)) *session {
	s := &session{conn: conn, process: p, exited: exited, hello: make(chan frame.Hello, 1),
		began:   time.Now(),
		pending: map[int64]chan frame.Reply{}, gone: make(chan struct{})}
	s.silencers.Add(1) // until the hello
	s.running.Go(s.read)
	s.running.Go(s.beat)
	return s
}

// read delivers messages until the connection ends, and then declares the bridge gone.
func (s *session) read() {
	err := s.receive()
	s.conn.Close()
	s.mu.Lock()
	closing, cause := s.closing, s.err
	s.mu.Unlock()
	how := ""
	if s.process != nil {
		// The end of the socket is a few milliseconds ahead of the end of the process, which
		// knows the reason.
		select {
		case <-s.process.done:
		case <-time.After(time.Second):
		}
		s.process.kill()
		how = ": " + s.process.ended()
	}
	switch {
	case closing:
		err = fmt.Errorf("%w: closed", ErrGone)
	case cause != nil:
		err = fmt.Errorf("%w: %w%s", ErrGone, cause, how)
	default:
		err = fmt.Errorf("%w: %w%s", ErrGone, err, how)
	}
	s.mu.Lock()
	s.err = err
	s.pending = nil
	s.mu.Unlock()
	close(s.gone)
}

func (s *session) receive() error {
	for {
		raw, err := frame.Read(s.conn)
		if err != nil {
			return err
		}
		s.heard.Store(int64(time.Since(s.began)))
		var m frame.Reply
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("the Ray bridge sent no message: %w", err)
		}
		switch {
		case m.Hello != nil:
			select {
			case s.hello <- *m.Hello:
				s.silencers.Add(-1)
			default:
				return errors.New("the Ray bridge said hello twice")
			}
		case m.Exit != nil:
			s.exited(*m.Exit)
		case m.ID != 0:
			s.mu.Lock()
			answer := s.pending[m.ID]
			delete(s.pending, m.ID)
			s.mu.Unlock()
			if answer != nil {
				answer <- m
			}
		}
	}
}

// beat shows the bridge that the engine lives, and ends the session when the bridge falls silent.
func (s *session) beat() {
	ticks := time.NewTicker(beatEvery)
	defer ticks.Stop()
	before := time.Now()
	for {
		select {
		case <-s.gone:
			return
		case <-ticks.C:
		}
		if err := s.write(frame.Request{Beat: true}); err != nil {
			s.end(err)
		}
		now := time.Now()
		if now.Sub(before) > 3*beatEvery || s.silencers.Load() > 0 {
			// This process itself was held up, or the bridge has leave to be silent.
			s.heard.Store(int64(time.Since(s.began)))
		}
		before = now
		if quiet := time.Since(s.began) - time.Duration(s.heard.Load()); quiet > silence {
			s.end(fmt.Errorf("silent for %.0f s", quiet.Seconds()))
			s.kill()
		}
	}
}

func (s *session) write(m frame.Request) error {
	data, err := frame.Append(nil, m)
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	if _, err := s.conn.Write(data); err != nil {
		return fmt.Errorf("write to the Ray bridge: %w", err)
	}
	return nil
}

// end closes the connection; the bridge ends when it notices. The first cause is kept.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = cause
	}
	s.mu.Unlock()
	s.conn.Close()
}

// close ends the session on purpose.
func (s *session) close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.conn.Close()
}

// kill ends the bridge's process, if there is one.
func (s *session) kill() {
	if s.process != nil {
		s.process.kill()
	}
}

// wait returns when nothing of the session is left.
func (s *session) wait() { s.running.Wait() }

// failure is why the bridge is gone; nil before.
func (s *session) failure() error {
	select {
	case <-s.gone:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err
	default:
		return nil
	}
}

// call performs one operation, none when ctx is over. The bridge gets a little less time than ctx
// has, so that it can say what was missing.
func (s *session) call(ctx context.Context, op string, args, result any) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ray %s: %w", op, context.Cause(ctx))
	}
	request := frame.Request{Op: op}
	if args != nil {
		raw, err := json.Marshal(args)
		if err != nil {
			return fmt.Errorf("ray %s: encode arguments: %w", op, err)
		}
		request.Args = raw
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		request.Timeout = max(0.001, (left - min(time.Second, left/4)).Seconds())
	}
	answer := make(chan frame.Reply, 1)
	s.mu.Lock()
	if s.pending == nil {
		s.mu.Unlock()
		<-s.gone // a moment later
		return fmt.Errorf("ray %s: %w", op, s.failure())
	}
	s.next++
	request.ID = s.next
	s.pending[request.ID] = answer
	s.mu.Unlock()
	if err := s.write(request); err != nil {
		s.removePending(request.ID)
		if errors.Is(err, frame.ErrLength) {
			return fmt.Errorf("ray %s: %w", op, err)
		}
		s.end(err)
		<-s.gone
		return fmt.Errorf("ray %s: %w", op, s.failure())
	}
	select {
	case reply := <-answer:
		return decode(op, reply, result)
	case <-ctx.Done():
		s.removePending(request.ID)
		// If the bridge is gone, so is the call.
		_ = s.write(frame.Request{Cancel: request.ID})
		return fmt.Errorf("ray %s: %w", op, context.Cause(ctx))
	case <-s.gone:
		select {
		case reply := <-answer:
			return decode(op, reply, result)
		default:
			return fmt.Errorf("ray %s: %w", op, s.failure())
		}
	}
}

func (s *session) removePending(id int64) {
	s.mu.Lock()
	delete(s.pending, id)
	s.mu.Unlock()
}

func decode(op string, reply frame.Reply, result any) error {
	if reply.Error != nil {
		return newError(op, reply.Error)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Result, result); err != nil {
		return fmt.Errorf("ray %s: decode answer: %w", op, err)
	}
	return nil
}
