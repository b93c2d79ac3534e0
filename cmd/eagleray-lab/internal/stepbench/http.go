package stepbench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// HTTPOptions say what is measured through HTTP.
type HTTPOptions struct {
	// Command starts a server whose ranks answer with Marked, and which logs its address as url=….
	Command []string
	// Streams is how many requests there are side by side, a connection each, and Tokens how many
	// tokens each asks for.
	Streams, Tokens int
}

// Marked is what the ranks of a server that is measured answer with: a word that is one token and
// has one letter, mark, that no event has anywhere else.
const (
	Marked = " Time"
	mark   = 'T'
)

// HTTPReport is what RunHTTP finds between the first token of the last stream and the last one of
// the first stream.
type HTTPReport struct {
	Streams int `json:"streams"`
	Tokens  int `json:"tokens"`
	// Events is how many came: what a reader has not taken yet is merged.
	Events     int     `json:"events"`
	Seconds    float64 `json:"seconds"`
	TokensPerS float64 `json:"tokens_per_s"`
	// CPUUSPerToken is the processor time of the server's process: HTTP, driver and, with the
	// backend uni, the rank. ClientCPUUSPerToken is that of this process.
	CPUUSPerToken       float64 `json:"cpu_us_per_token"`
	ClientCPUUSPerToken float64 `json:"client_cpu_us_per_token"`
}

// RunHTTP starts a server, reads from it, and ends it.
func RunHTTP(ctx context.Context, o HTTPOptions) (r *HTTPReport, err error) {
	c := exec.CommandContext(ctx, o.Command[0], o.Command[1:]...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	log, err := c.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the server: %w", err)
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	logged := make(chan struct{})
	defer func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		<-logged
		err = errors.Join(err, c.Wait())
	}()
	lines := bufio.NewReader(log)
	address, err := serverAddress(lines)
	go func() {
		// the log is not read further; a server waits for no reader
		_, _ = io.Copy(io.Discard, lines)
		close(logged)
	}()
	if err != nil {
		return nil, err
	}
	return newClients(address, o.Streams).run(ctx, c.Process.Pid, o.Tokens)
}

// serverAddress reads a server's log up to its address.
func serverAddress(log *bufio.Reader) (netip.AddrPort, error) {
	var all strings.Builder
	for {
		line, err := log.ReadString('\n')
		all.WriteString(line)
		if _, after, ok := strings.Cut(line, "url="); ok {
			u, err := url.Parse(strings.TrimSpace(after))
			if err != nil {
				return netip.AddrPort{}, fmt.Errorf("the server's address: %w", err)
			}
			return netip.ParseAddrPort(u.Host)
		}
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("the server has ended: %s", all.String())
		}
	}
}

// clients read many streams, each on a connection of its own.
type clients struct {
	client  *http.Client
	url     string
	streams []stream
	// started and ended are closed when the last stream has started and when the first one has
	// ended.
	started, ended chan struct{}
	waiting        atomic.Int64 // streams that have not begun
	first          sync.Once
}

// stream counts what has come of an answer.
type stream struct {
	tokens, events atomic.Int64
	began          bool
	tail           []byte // the last of what came: the event with the usage, and the end
}

const tailBytes = 1024

func newClients(address netip.AddrPort, streams int) *clients {
	c := &clients{url: "http://" + address.String() + "/v1/completions",
		client: &http.Client{Transport: &http.Transport{ReadBufferSize: 64 << 10,
			DisableCompression: true}},
		streams: make([]stream, streams), started: make(chan struct{}), ended: make(chan struct{})}
	c.waiting.Store(int64(streams))
	return c
}

// moment is what had come, and been used, by then.
type moment struct {
	at             time.Time
	server, client time.Duration
	tokens, events int64
}

func (c *clients) moment(pid int) (m moment, err error) {
	m.at, m.client = time.Now(), used().cpu
	m.server, err = processorTime(pid)
	for i := range c.streams {
		m.tokens += c.streams[i].tokens.Load()
		m.events += c.streams[i].events.Load()
	}
	return m, err
}

// processorTime is what a process has used so far.
func processorTime(pid int) (time.Duration, error) {
	// CPUCLOCK_SCHED of a process: include/linux/posix-timers.h.
	const schedClock = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|schedClock, &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// run reads all streams to their ends.
func (c *clients) run(ctx context.Context, pid, tokens int) (*HTTPReport, error) {
	defer c.client.CloseIdleConnections()
	readers, ctx := errgroup.WithContext(ctx)
	for i := range c.streams {
		readers.Go(func() error {
			if err := c.read(ctx, i, tokens); err != nil {
				return fmt.Errorf("stream %d: %w", i, err)
			}
			return nil
		})
	}
	var from, to moment
	readers.Go(func() (err error) {
		for _, x := range []struct {
			when chan struct{}
			what *moment
		}{{c.started, &from}, {c.ended, &to}} {
			select {
			case <-x.when:
			case <-ctx.Done():
				return ctx.Err()
			}
			if *x.what, err = c.moment(pid); err != nil {
				return err
			}
		}
		return nil
	})
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	if to.tokens <= from.tokens {
		return nil, errors.New("the first stream had ended before the last one began: " +
			"ask for more tokens")
	}
	n := to.tokens - from.tokens
	r := &HTTPReport{Streams: len(c.streams), Tokens: int(n), Events: int(to.events - from.events),
		Seconds: to.at.Sub(from.at).Seconds()}
	r.TokensPerS = float64(n) / r.Seconds
	r.CPUUSPerToken = float64((to.server - from.server).Nanoseconds()) / 1e3 / float64(n)
	r.ClientCPUUSPerToken = float64((to.client - from.client).Nanoseconds()) / 1e3 / float64(n)
	return r, nil
}

// read asks for a stream and counts what comes of it.
func (c *clients) read(ctx context.Context, number, tokens int) error {
	body := fmt.Sprintf(`{"prompt":[%d,11,12,13,14,15,16,17],"max_tokens":%d,"ignore_eos":true,`+
		`"stream":true,"stream_options":{"include_usage":true}}`, 1+number%200, tokens)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, tailBytes))
		return fmt.Errorf("the server answers %s: %s", response.Status, said)
	}
	s, buffer := &c.streams[number], make([]byte, 64<<10)
	for {
		n, err := response.Body.Read(buffer)
		s.count(buffer[:n])
		if n := s.tokens.Load(); n > 0 && !s.began {
			s.began = true
			if c.waiting.Add(-1) == 0 {
				close(c.started)
			}
		}
		if err == io.EOF {
			c.first.Do(func() { close(c.ended) })
			return s.check()
		}
		if err != nil {
			return fmt.Errorf("after %d tokens: %w", s.tokens.Load(), err)
		}
	}
}

func (s *stream) count(b []byte) {
	s.tokens.Add(int64(bytes.Count(b, []byte{mark})))
	s.events.Add(int64(bytes.Count(b, []byte{'['}))) // that of the choices
	s.tail = append(s.tail, b[max(0, len(b)-tailBytes):]...)
	if extra := len(s.tail) - tailBytes; extra > 0 {
		s.tail = s.tail[:copy(s.tail, s.tail[extra:])]
	}
}

// check compares the tokens that were counted with those that the server counts.
func (s *stream) check() error {
	if !bytes.HasSuffix(s.tail, []byte("data: [DONE]\n\n")) {
		return fmt.Errorf("it ends with %q", s.tail)
	}
	_, after, ok := bytes.Cut(s.tail, []byte(`"completion_tokens":`))
	digits := 0
	for ok && digits < len(after) && after[digits] >= '0' && after[digits] <= '9' {
		digits++
	}
	counted := s.tokens.Load()
	if n, err := strconv.Atoi(string(after[:digits])); err != nil || int64(n) != counted {
		return fmt.Errorf("it brought %d tokens, and the server says %q", counted, after[:digits])
	}
	return nil
}

// String is a line of a table with HTTPHeader.
func (r *HTTPReport) String() string {
	return fmt.Sprintf("%8d %10d %10d %9.2f %11.0f %9.2f %9.2f", r.Streams, r.Tokens, r.Events,
		r.Seconds, r.TokensPerS, r.CPUUSPerToken, r.ClientCPUUSPerToken)
}

// HTTPHeader are the names of the columns.
var HTTPHeader = fmt.Sprintf("%8s %10s %10s %9s %11s %9s %9s", "streams", "tokens", "events",
	"seconds", "tokens/s", "CPU us/t", "client")
