// Package process starts ranks as child processes of the driver (--distributed-executor-backend mp): the same
// binary with the hidden verb "worker", a socket pair as its channel and the group's shared memory inherited.
package process

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/worker"
)

// Verb is the first argument of a worker process.
const Verb = "worker"

// Descriptors a worker inherits.
const (
	connFD       = 3
	collectiveFD = 4
)

// Launcher runs ranks as children.
type Launcher struct {
	// output receives the children's standard error, each line with the rank before it.
	output io.Writer

	// starts carries work to the thread that children are started from.
	starts chan func()
	thread sync.WaitGroup

	mu       sync.Mutex
	children []*child
	stopping bool
	exited   chan launch.Exit
	running  sync.WaitGroup
}

type child struct {
	rank int
	cmd  *exec.Cmd
	conn queue.Conn
	tail tail
	done chan struct{}
}

// New makes a launcher whose children's output goes to output.
func New(output io.Writer) *Launcher {
	l := &Launcher{output: output, starts: make(chan func()), exited: make(chan launch.Exit, maxRanks)}
	l.thread.Go(l.startThread)
	return l
}

// maxRanks bounds the ends of ranks that may wait to be heard.
const maxRanks = 64

// Launch starts one child per spec. On an error Stop ends those already started.
func (l *Launcher) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	if len(specs) > maxRanks {
		return nil, fmt.Errorf("mp starts at most %d ranks on one host, not %d", maxRanks, len(specs))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	var shared *os.File
	if len(specs) > 1 {
		if shared, err = worker.CollectiveFile(len(specs), specs[0].CollectiveBytes); err != nil {
			return nil, fmt.Errorf("shared memory of the ranks: %w", err)
		}
		defer shared.Close()
	}
	workers := make([]launch.Worker, 0, len(specs))
	for _, spec := range specs {
		c, err := l.start(self, spec, shared)
		if err != nil {
			return nil, fmt.Errorf("start rank %d: %w", spec.Rank, err)
		}
		workers = append(workers, launch.Worker{Rank: spec.Rank, LocalRank: spec.LocalRank, Node: "localhost",
			PID: c.cmd.Process.Pid, Conn: c.conn})
	}
	return workers, nil
}

func (l *Launcher) start(self string, spec launch.Spec, shared *os.File) (*child, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(self, Verb, "--rank", strconv.Itoa(spec.Rank),
		"--collective-bytes", strconv.Itoa(spec.CollectiveBytes))
	cmd.ExtraFiles = []*os.File{theirs}
	if shared != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, shared)
	}
	// A worker never outlives the driver, however the driver ends: its socket closes, and the kernel kills it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		ours.Close()
		return nil, err
	}
	started := make(chan error, 1)
	l.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		ours.Close()
		return nil, err
	}
	c := &child{rank: spec.Rank, cmd: cmd, conn: queue.Stream(ours), done: make(chan struct{})}
	l.mu.Lock()
	l.children = append(l.children, c)
	l.mu.Unlock()
	l.running.Go(func() { l.watch(c, stderr) })
	return c, nil
}

// startThread runs what starts sends on one thread of its own until starts is closed. The kernel sends the
// parent-death signal when the *thread* that started a child ends, and a thread of the Go runtime may end at any
// time; this one ends when the children have.
func (l *Launcher) startThread() {
	runtime.LockOSThread()
	for f := range l.starts {
		f()
	}
}

// watch relays the child's output, then reaps it and reports an end nobody asked for.
func (l *Launcher) watch(c *child, stderr io.Reader) {
	defer close(c.done)
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			c.tail.add(line)
			fmt.Fprintf(l.output, "[rank %d] %s\n", c.rank, trimNewline(line))
		}
		if err != nil {
			break
		}
	}
	err := c.cmd.Wait()
	l.mu.Lock()
	stopping := l.stopping
	l.mu.Unlock()
	if stopping {
		return
	}
	cause := "exit status 0"
	if err != nil {
		cause = err.Error()
	}
	l.exited <- launch.Exit{Rank: c.rank, PID: c.cmd.Process.Pid, Cause: cause, Stderr: c.tail.lines()}
}

// Exited delivers ends of ranks that were not asked for.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// Stop closes the children's channels, which asks them to end, kills those that have not ended when ctx does
// (or after a second), and waits for all.
func (l *Launcher) Stop(ctx context.Context) error {
	l.mu.Lock()
	again := l.stopping
	l.stopping = true
	children := l.children
	l.mu.Unlock()
	for _, c := range children {
		c.conn.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, c := range children {
		select {
		case <-c.done:
		case <-ctx.Done():
			// It may have ended meanwhile; there is nothing else to do about an error.
			_ = c.cmd.Process.Kill()
		}
	}
	l.running.Wait()
	if !again {
		close(l.starts)
	}
	l.thread.Wait()
	return nil
}

// Main is the child's side: args are what the launcher gave it after the verb. It serves the inherited channel
// and returns when the driver is gone.
func Main(args []string) error {
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	rank := flags.Int("rank", 0, "")
	collectiveBytes := flags.Int("collective-bytes", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(connFD, "driver"))
	if err != nil {
		return fmt.Errorf("rank %d: no channel at descriptor %d: this verb is started by eagleray itself: %w", *rank, connFD, err)
	}
	opt := worker.Options{CollectiveBytes: *collectiveBytes}
	if _, err := unix.FcntlInt(collectiveFD, unix.F_GETFD, 0); err == nil {
		opt.Collective = os.NewFile(collectiveFD, "collective")
	}
	return worker.Run(queue.Stream(conn), opt)
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "worker")
	defer ours.Close()
	theirs := os.NewFile(uintptr(fds[1]), "driver")
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	return conn, theirs, nil
}
