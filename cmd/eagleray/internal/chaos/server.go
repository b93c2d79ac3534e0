package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stall is how soon the server calls a rank stalled.
	stall = 250 * time.Millisecond
	// deadline is how soon it calls a rank lost, and linkDeadline where there are links, which are to
	// find out by themselves.
	deadline, linkDeadline = 2 * time.Second, 8 * time.Second
	// patience is how long anything may take before a run counts as hung.
	patience = 2 * time.Minute
)

// server is the server under test.
type server struct {
	cmd    *exec.Cmd
	url    string
	client *http.Client
	ended  chan struct{}
	exit   error
	// cluster is where the ranks are; nil without Ray.
	cluster *cluster
	// deaf is held while nothing reads the server's log.
	deaf sync.Mutex

	mu        sync.Mutex
	recovered []recovery
	lastLines []string
	ending    []int // processes that do not outlive their fault
}

// recovery is one that the server told of: when, and how long it took from its knowledge of the
// failure.
type recovery struct {
	at   time.Time
	took time.Duration
}

// gone takes note of a process that is about to end.
func (s *server) gone(pid int) {
	s.mu.Lock()
	s.ending = append(s.ending, pid)
	s.mu.Unlock()
}

// replaced says that the server knows of the end of all that have ended.
func (s *server) replaced(ctx context.Context) bool {
	ranks, err := s.listed(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil ||
		slices.ContainsFunc(ranks, func(r rank) bool { return slices.Contains(s.ending, r.PID) }) {
		return false
	}
	s.ending = s.ending[:0]
	return true
}

// start starts the server and waits until it is ready.
func start(ctx context.Context, o Options, c *cluster) (*server, error) {
	lost := deadline
	if onLinks(o) {
		lost = linkDeadline
	}
	args := append([]string{"serve"}, o.Args...)
	args = append(args, "--port", "0", "--max-restarts", "1000000", "--disable-uvicorn-access-log",
		"--disable-log-stats", "--log-format", "logfmt",
		"--stall-warning", fmt.Sprint(stall.Seconds()),
		"--execute-model-timeout-seconds", fmt.Sprint(lost.Seconds()))
	s := &server{cluster: c, cmd: exec.Command(o.Program, args...), ended: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}}
	// Connections may be told to drop what comes: sockets of Multipath TCP cannot.
	s.cmd.Env = os.Environ()
	if c != nil && c.own != nil {
		s.cmd.Env = c.own.Env
	}
	s.cmd.Env = append(slices.Clip(s.cmd.Env), "GODEBUG=multipathtcp=0")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stderr = w
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	w.Close()
	ready := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() { s.read(r, o.Output, ready) })
	go func() {
		reading.Wait()
		s.exit = s.cmd.Wait()
		close(s.ended)
	}()
	select {
	case s.url = <-ready:
		return s, nil
	case <-s.ended:
		return nil, fmt.Errorf("the server ended: %w: %s", s.exit, s.last())
	case <-ctx.Done():
	case <-time.After(patience):
	}
	return nil, errors.Join(errors.New("the server does not become ready"), s.stop())
}

var (
	urlOf = regexp.MustCompile(`msg=ready .*url=(\S+)`)
	msOf  = regexp.MustCompile(`msg="workers are back" .*ms=(\d+)`)
)

// read reads the server's log to its end.
func (s *server) read(r io.ReadCloser, output io.Writer, ready chan<- string) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.deaf.Lock()
		line := lines.Text()
		s.deaf.Unlock()
		if output != nil {
			fmt.Fprintln(output, line)
		}
		if m := urlOf.FindStringSubmatch(line); m != nil {
			ready <- m[1]
		}
		s.mu.Lock()
		if m := msOf.FindStringSubmatch(line); m != nil {
			ms, _ := strconv.Atoi(m[1])
			s.recovered = append(s.recovered,
				recovery{time.Now(), time.Duration(ms) * time.Millisecond})
		}
		s.lastLines = append(s.lastLines[max(0, len(s.lastLines)-9):], line)
		s.mu.Unlock()
	}
}

func (s *server) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lastLines, "\n")
}

func (s *server) recoveries() []recovery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.recovered)
}

// stop ends the server, which must end by itself when asked to.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
		if s.exit != nil {
			return fmt.Errorf("the server ended: %w: %s", s.exit, s.last())
		}
		return nil
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.ended
		return errors.New("the server did not end when it was asked to")
	}
}

// get asks a route; the status is 0 when there was no answer.
func (s *server) get(ctx context.Context, path string) (status int, body []byte) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return 0, nil
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, body
}

// post asks for completions. The caller closes the body.
func (s *server) post(ctx context.Context, request any) (*http.Response, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions",
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return s.client.Do(r)
}

// rank is one that has a process of its own.
type rank struct {
	PID  int    `json:"pid"`
	Node string `json:"node"`
	// Phase is what it is doing.
	Phase string `json:"phase"`
}

// listed are the ranks of this moment, as the server knows them.
func (s *server) listed(ctx context.Context) ([]rank, error) {
	status, body := s.get(ctx, "/debug/ranks")
	var list struct{ Ranks []rank }
	if err := json.Unmarshal(body, &list); err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("/debug/ranks answers %d: %s", status, body)
	}
	return list.Ranks, nil
}

// ranks are those listed that have processes on this host.
func (s *server) ranks(ctx context.Context) ([]rank, error) {
	all, err := s.listed(ctx)
	if err != nil {
		return nil, err
	}
	here := slices.DeleteFunc(all, func(r rank) bool { return !isWorker(r.PID) })
	if len(here) == 0 {
		return nil, errors.New("the ranks have no processes of their own on this host")
	}
	return here, nil
}

// isWorker says whether a process of this host is a rank's: that of another host may have the number
// of any process here.
func isWorker(pid int) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(args, []byte("\x00worker\x00"))
}

// children are the server's processes of this moment, those included that have not joined.
func (s *server) children() []int {
	var pids []int
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.cmd.Process.Pid))
	for _, t := range tasks {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", s.cmd.Process.Pid, t.Name()))
		for _, f := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// calm waits until the server serves, and tokens arrive again.
func (s *server) calm(ctx context.Context, l *load) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for seen := l.tokens.Load(); ; time.Sleep(2 * time.Millisecond) {
		if status, _ := s.get(ctx, "/health"); status == http.StatusOK && l.tokens.Load() > seen &&
			s.replaced(ctx) {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("the server ended: %w: %s", s.exit, s.last())
		case <-ctx.Done():
			return fmt.Errorf("the server does not recover: %s", s.last())
		default:
		}
	}
}
