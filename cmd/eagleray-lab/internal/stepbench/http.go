package stepbench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

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
		_, _ = io.Copy(io.Discard, lines) // the log is not read further; a server waits for no reader
		close(logged)
	}()
	if err != nil {
		return nil, err
	}
	clients, err := newClients(address, o)
	if err != nil {
		return nil, err
	}
	defer clients.close()
	return clients.run(ctx, c.Process.Pid)
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

// clients read many streams on one thread: what they cost is kept low, as it is on the same machine
// as the server.
type clients struct {
	poll    int
	streams []client
	byFD    map[int32]*client
	buffer  []byte
}

// client is one stream.
type client struct {
	fd int
	// head is what came before the events, tail the last of what came.
	head    []byte
	headed  bool
	tail    []byte
	tokens  int
	events  int
	started bool
}

// tailBytes hold the last events of a stream: the one with the usage, and the end.
const tailBytes = 1024

func newClients(address netip.AddrPort, o HTTPOptions) (*clients, error) {
	c := &clients{poll: -1, byFD: map[int32]*client{}, buffer: make([]byte, 256<<10),
		streams: make([]client, o.Streams)}
	for i := range c.streams {
		c.streams[i].fd = -1
	}
	var err error
	if c.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	to := &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	for i := range c.streams {
		if err := c.open(&c.streams[i], to, i, o.Tokens); err != nil {
			c.close()
			return nil, fmt.Errorf("stream %d: %w", i, err)
		}
	}
	return c, nil
}

// open connects a stream and sends its request.
func (c *clients) open(s *client, to unix.Sockaddr, number, tokens int) (err error) {
	if s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err := unix.Connect(s.fd, to); err != nil {
		return err
	}
	body := fmt.Sprintf(`{"prompt":[%d,11,12,13,14,15,16,17],"max_tokens":%d,"ignore_eos":true,`+
		`"stream":true,"stream_options":{"include_usage":true}}`, 1+number%200, tokens)
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if n, err := unix.Write(s.fd, []byte(request)); err != nil || n < len(request) {
		return errors.Join(err, fmt.Errorf("%d of %d bytes of the request are sent", n, len(request)))
	}
	if err := unix.SetNonblock(s.fd, true); err != nil {
		return err
	}
	c.byFD[int32(s.fd)] = s
	return unix.EpollCtl(c.poll, unix.EPOLL_CTL_ADD, s.fd,
		&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)})
}

func (c *clients) close() {
	for i := range c.streams {
		if c.streams[i].fd >= 0 {
			unix.Close(c.streams[i].fd)
		}
	}
	if c.poll >= 0 {
		unix.Close(c.poll)
	}
}

// moment is what had come, and been used, by then.
type moment struct {
	at             time.Time
	server, client time.Duration
	tokens, events int
}

func (c *clients) moment(pid int) (m moment, err error) {
	m.at, m.client = time.Now(), used().cpu
	m.server, err = processorTime(pid)
	for i := range c.streams {
		m.tokens += c.streams[i].tokens
		m.events += c.streams[i].events
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
func (c *clients) run(ctx context.Context, pid int) (*HTTPReport, error) {
	var from, to moment
	begun, ended := 0, 0
	events := make([]unix.EpollEvent, 128)
	for ended < len(c.streams) {
		n, err := unix.EpollWait(c.poll, events, 1000)
		if err != nil && err != unix.EINTR {
			return nil, fmt.Errorf("epoll: %w", err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, e := range events[:max(n, 0)] {
			s := c.byFD[e.Fd]
			over, err := c.read(s)
			if err != nil {
				return nil, err
			}
			if !s.started && s.tokens > 0 {
				s.started = true
				if begun++; begun == len(c.streams) {
					if from, err = c.moment(pid); err != nil {
						return nil, err
					}
				}
			}
			if !over {
				continue
			}
			if ended++; ended == 1 {
				if to, err = c.moment(pid); err != nil {
					return nil, err
				}
			}
			if err := unix.EpollCtl(c.poll, unix.EPOLL_CTL_DEL, s.fd, nil); err != nil {
				return nil, fmt.Errorf("epoll: %w", err)
			}
		}
	}
	if from.at.IsZero() || to.tokens <= from.tokens {
		return nil, errors.New("the first stream had ended before the last one began: " +
			"ask for more tokens")
	}
	tokens := to.tokens - from.tokens
	r := &HTTPReport{Streams: len(c.streams), Tokens: tokens, Events: to.events - from.events,
		Seconds: to.at.Sub(from.at).Seconds()}
	r.TokensPerS = float64(tokens) / r.Seconds
	r.CPUUSPerToken = float64((to.server - from.server).Nanoseconds()) / 1e3 / float64(tokens)
	r.ClientCPUUSPerToken = float64((to.client - from.client).Nanoseconds()) / 1e3 / float64(tokens)
	return r, nil
}

// read takes what has come of a stream, and says whether it was the end.
func (c *clients) read(s *client) (over bool, err error) {
	n, err := unix.Read(s.fd, c.buffer)
	if err == unix.EAGAIN || err == unix.EINTR {
		return false, nil
	}
	if err != nil || n == 0 {
		return false, fmt.Errorf("a stream broke after %d tokens: %w", s.tokens,
			errors.Join(err, errors.New(strconv.Quote(string(s.tail)))))
	}
	b := c.buffer[:n]
	if !s.headed {
		if b = s.skipHead(b); b == nil {
			return false, nil
		}
		if !bytes.HasPrefix(s.head, []byte("HTTP/1.1 200 ")) {
			return false, fmt.Errorf("the server answers %q", append(s.head, b...))
		}
	}
	s.tokens += bytes.Count(b, []byte{mark})
	s.events += bytes.Count(b, []byte{'['}) // that of the choices
	s.tail = append(s.tail, b[max(0, len(b)-tailBytes):]...)
	if extra := len(s.tail) - tailBytes; extra > 0 {
		s.tail = s.tail[:copy(s.tail, s.tail[extra:])]
	}
	if !bytes.HasSuffix(s.tail, []byte("data: [DONE]\n\n\r\n0\r\n\r\n")) {
		return false, nil
	}
	return true, s.check()
}

// skipHead keeps the head of the answer and returns what follows it, nil while it is not complete.
func (s *client) skipHead(b []byte) []byte {
	s.head = append(s.head, b...)
	at := bytes.Index(s.head, []byte("\r\n\r\n"))
	if at < 0 {
		return nil
	}
	b = s.head[at+4:]
	s.head, s.headed = s.head[:at], true
	return b
}

// check compares the tokens that were counted with those that the server counts.
func (s *client) check() error {
	_, after, ok := bytes.Cut(s.tail, []byte(`"completion_tokens":`))
	digits := 0
	for ok && digits < len(after) && after[digits] >= '0' && after[digits] <= '9' {
		digits++
	}
	if n, err := strconv.Atoi(string(after[:digits])); err != nil || n != s.tokens {
		return fmt.Errorf("a stream brought %d tokens, and the server says %q", s.tokens,
			after[:digits])
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
