package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

// Open starts what answers requests, until its context ends. The value is told to the program once
// it is there. The error of a wrong argument is a Usage.
type Open func(ctx context.Context) (answers http.Handler, ready any, err error)

// Usage marks an error as a mistake in the arguments that the program gave.
type Usage struct{ Err error }

func (u Usage) Error() string { return u.Err.Error() }

// Unwrap returns what is wrong.
func (u Usage) Unwrap() error { return u.Err }

// overhead is what a frame holds beside its body, at most.
const overhead = 8 << 10

// lastWords is how long the program may take to read what it is told at the end.
const lastWords = time.Second

// Serve answers requests until the program closes the socket, which is no error, or breaks the
// rules of the protocol; or ctx ends: then the cause is told to the program, and returned. A
// request has a body of at most so many bytes. All requests are over when it returns, and open is.
// The socket is closed.
func Serve(ctx context.Context, socket net.Conn, body int, open Open) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Requests are over later: the program hears first why.
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	c := &connection{requestsCtx: requests, out: newSender(socket),
		running: map[int64]context.CancelFunc{},
		most:    body + overhead}
	received := make(chan struct{})
	go func() {
		defer close(received)
		cancel(c.receive(socket))
	}()
	err := c.open(ctx, open)
	if err == nil {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	var last []byte
	if !errors.Is(err, io.EOF) {
		last = failure(err)
	}
	c.out.end(last)
	cancelRequests()
	_ = socket.SetWriteDeadline(time.Now().Add(lastWords)) // a program may not read
	<-c.out.done
	socket.Close()
	<-received
	c.requests.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// connection is what is known of the program's requests.
type connection struct {
	requestsCtx context.Context
	out         *sender
	most        int // bytes of a frame

	mu       sync.Mutex
	answers  http.Handler // nil until the engine is ready
	running  map[int64]context.CancelFunc
	requests sync.WaitGroup
}

func (c *connection) open(ctx context.Context, open Open) error {
	answers, ready, err := open(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = answers
	return c.out.message(map[string]any{"ready": ready})
}

// message is what the program sends.
type message struct {
	ID     int64           `json:"id"`
	Method string          `json:"method"`
	Route  string          `json:"route"`
	Body   json.RawMessage `json:"body"`
	Cancel int64           `json:"cancel"`
}

// receive reads requests until the socket's end, io.EOF, or one that no program sends.
func (c *connection) receive(socket io.Reader) error {
	for {
		raw, err := frame.ReadAtMost(socket, c.most)
		if errors.Is(err, frame.ErrLength) {
			return fmt.Errorf("request: %w", err)
		}
		if err != nil { // also one that is torn: the program that wrote it is gone
			return io.EOF
		}
		var m message
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		if m.Cancel > 0 {
			c.cancel(m.Cancel)
			continue
		}
		if err := c.begin(&m); err != nil {
			return err
		}
	}
}

func (c *connection) cancel(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.running[id]; cancel != nil {
		cancel()
	}
}

// begin has a request answered.
func (c *connection) begin(m *message) error {
	target, err := url.ParseRequestURI(m.Route)
	if err != nil || !strings.HasPrefix(m.Route, "/") {
		return fmt.Errorf("request %d: %q is no route", m.ID, m.Route)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.ID < 1:
		return fmt.Errorf("request: %d is no id", m.ID)
	case c.running[m.ID] != nil:
		return fmt.Errorf("request %d is asked while it is being answered", m.ID)
	case c.answers == nil:
		return fmt.Errorf("request %d is asked before the engine is ready", m.ID)
	}
	ctx, cancel := context.WithCancel(c.requestsCtx)
	c.running[m.ID] = cancel
	r := (&http.Request{Method: m.Method, URL: target, Header: http.Header{},
		Body:          io.NopCloser(bytes.NewReader(m.Body)),
		ContentLength: int64(len(m.Body))}).WithContext(ctx)
	if r.Method == "" {
		r.Method = http.MethodPost
	}
	if m.Body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	c.requests.Go(func() {
		defer cancel()
		w := &answer{id: m.ID, out: c.out, header: http.Header{}}
		w.serve(c.answers, r)
		// Forgotten first: the program may use the id again once it has the answer.
		c.mu.Lock()
		delete(c.running, m.ID)
		c.mu.Unlock()
		w.end()
	})
	return nil
}

// failure is the last frame.
func failure(err error) []byte {
	var usage Usage
	raw, marshalErr := json.Marshal(map[string]any{"failed": map[string]any{"message": err.Error(),
		"usage": errors.As(err, &usage)}})
	if marshalErr != nil {
		return nil
	}
	return raw
}
