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
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// stall is how soon the server calls a rank stalled.
	stall = 250 * time.Millisecond
	// deadline is how soon it calls a rank lost, and linkDeadline where there are links, which are
	// to find out by themselves.
	deadline, linkDeadline = 2 * time.Second, 8 * time.Second
	// patience is how long anything may take before a run counts as hung.
	patience = 2 * time.Minute
)

// server is the server under test: one process, or several, one after the other.
type server struct {
	o      Options
	client *http.Client
	// cluster is where the ranks are; nil without Ray.
	cluster *cluster
	// folder is what it serves where that may be replaced, else nil.
	folder *folder
	// deaf is held while nothing reads the server's log.
	deaf sync.Mutex

	mu        sync.Mutex
	running   *process
	recovered []recovery
	lastLines []string
	ending    []int // processes that do not outlive their fault
}

// process is one of the server.
type process struct {
	cmd   *exec.Cmd
	url   string
	ready chan struct{} // closed when url is known
	// draining is closed when it has said that it ends once its requests have.
	draining chan struct{}
	// asked is when it was asked to end, which is done once; nil is not yet.
	asked  atomic.Pointer[time.Time]
	asking sync.Once
	// ended is closed when it has ended, exit is how.
	ended chan struct{}
	exit  error
}

// now is the process that serves.
func (s *server) now() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// pid is its number.
func (s *server) pid() int { return s.now().cmd.Process.Pid }

// recovery is one that the server told of: when, and how long it took from its knowledge of the
// failure.
type recovery struct {
	at   time.Time
	took time.Duration
}

// expectExit records a process that is about to end.
func (s *server) expectExit(pid int) {
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

// newServer is a server that has not been started.
func newServer(o Options, c *cluster, f *folder) *server {
	return &server{o: o, cluster: c, folder: f,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}}
}

// start starts a process of the server and waits until it is ready. The one before has ended.
func (s *server) start(ctx context.Context) error {
	lost := deadline
	if onLinks(s.o) {
		lost = linkDeadline
	}
	args := append([]string{"serve"}, s.o.Args...)
	args = append(args, "--port", "0", "--max-restarts", "1000000", "--disable-uvicorn-access-log",
		"--disable-log-stats", "--log-format", "logfmt",
		"--stall-warning", fmt.Sprint(stall.Seconds()),
		"--execute-model-timeout-seconds", fmt.Sprint(lost.Seconds()),
		"--shutdown-timeout", fmt.Sprint(patience.Seconds()))
	p := &process{cmd: exec.Command(s.o.Program, args...), ready: make(chan struct{}),
		draining: make(chan struct{}), ended: make(chan struct{})}
	// Connections may be told to drop what comes: sockets of Multipath TCP cannot.
	p.cmd.Env = os.Environ()
	if s.cluster != nil && s.cluster.own != nil {
		p.cmd.Env = s.cluster.own.Env
	}
	p.cmd.Env = append(slices.Clip(p.cmd.Env), "GODEBUG=multipathtcp=0")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	p.cmd.Stderr = w
	if err := p.cmd.Start(); err != nil {
		return errors.Join(err, r.Close(), w.Close())
	}
	w.Close()
	var reading sync.WaitGroup
	reading.Go(func() { s.read(p, r) })
	go func() {
		reading.Wait()
		p.exit = p.cmd.Wait()
		close(p.ended)
	}()
	select {
	case <-p.ready:
		s.mu.Lock()
		s.running = p
		s.ending = s.ending[:0] // all of the process before
		s.mu.Unlock()
		return nil
	case <-p.ended:
		return fmt.Errorf("the server ended: %w: %s", p.exit, s.last())
	case <-ctx.Done():
	case <-time.After(patience):
	}
	return errors.Join(errors.New("the server does not become ready"), s.end(p))
}

var (
	urlOf = regexp.MustCompile(`msg=ready .*url=(\S+)`)
	msOf  = regexp.MustCompile(`msg="workers are back" .*ms=(\d+)`)
)

// shutting begins the message of a server that lets running requests finish.
const shutting = `msg="shutting down: `

// read reads the log of a process to its end.
func (s *server) read(p *process, r io.ReadCloser) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	draining := false
	for lines.Scan() {
		s.deaf.Lock()
		line := lines.Text()
		s.deaf.Unlock()
		if s.o.Output != nil {
			fmt.Fprintln(s.o.Output, line)
		}
		if m := urlOf.FindStringSubmatch(line); m != nil && p.url == "" {
			p.url = m[1]
			close(p.ready)
		}
		if strings.Contains(line, shutting) && !draining {
			draining = true
			close(p.draining)
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

// stop ends the server, which must end by itself when asked to. One that was never ready has ended.
func (s *server) stop() error {
	if p := s.now(); p != nil {
		return s.end(p)
	}
	return nil
}

// end asks a process of the server to end, and waits until it has.
func (s *server) end(p *process) error {
	p.ask()
	return s.wait(p)
}

// ask asks a process of the server to end.
func (p *process) ask() {
	p.asking.Do(func() {
		now := time.Now()
		p.asked.Store(&now)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	})
}

// mayRefuse says that it may have been asked to end by the time that a request came which was begun
// at a moment.
func (p *process) mayRefuse(started time.Time) bool {
	asked := p.asked.Load()
	return asked != nil && asked.Sub(started) < window
}

// next waits for a process of the server after p, or until ctx ends.
func (s *server) next(ctx context.Context, p *process) {
	for s.now() == p {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// wait waits for the end of a process that was asked to.
func (s *server) wait(p *process) error {
	select {
	case <-p.ended:
		if p.exit != nil {
			return fmt.Errorf("the server ended: %w: %s", p.exit, s.last())
		}
		return nil
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return errors.New("the server did not end when it was asked to")
	}
}

// get asks a route; the status is 0 when there was no answer.
func (s *server) get(ctx context.Context, path string) (status int, body []byte) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.now().url+path, nil)
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
func (s *server) post(ctx context.Context, p *process, request any) (*http.Response, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/completions",
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
	// Phase is what it is doing, Started the last step that it began, Still for how many seconds it
	// has not moved.
	Phase   string  `json:"phase"`
	Started uint64  `json:"started"`
	Still   float64 `json:"still_seconds"`
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

// isWorker says whether a process of this host is a rank's: that of another host may have the
// number of any process here.
func isWorker(pid int) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(args, []byte("\x00worker\x00"))
}

// children are the server's processes of this moment, those included that have not joined.
func (s *server) children() []int {
	var pids []int
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.pid()))
	for _, t := range tasks {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", s.pid(), t.Name()))
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
	p := s.now()
	for seen := l.tokens.Load(); ; time.Sleep(2 * time.Millisecond) {
		if status, _ := s.get(ctx, "/health"); status == http.StatusOK && l.tokens.Load() > seen &&
			s.replaced(ctx) {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("the server ended: %w: %s", p.exit, s.last())
		case <-ctx.Done():
			return fmt.Errorf("the server does not recover: %s", s.last())
		default:
		}
	}
}
