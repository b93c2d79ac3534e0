package ray

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Descriptors of the bridge: its end of the socket pair, and its own source.
const (
	socketFD  = 3
	archiveFD = 4
)

// outputDelay is how long the output of a bridge that has ended is still read: processes that it
// left behind may hold the pipe.
const outputDelay = 200 * time.Millisecond

// process is a running bridge.
type process struct {
	cmd    *exec.Cmd
	output *output
	// done is closed when the process is reaped; then err tells how it ended.
	done chan struct{}
	err  error
}

// spawn starts the bridge under the interpreter and returns the engine's end of its socket.
func spawn(python string, env []string, log *slog.Logger) (*process, net.Conn, error) {
	source, err := archiveFile()
	if err != nil {
		return nil, nil, err
	}
	defer source.Close()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair for the Ray bridge: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "bridge"), os.NewFile(uintptr(fds[1]), "bridge")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, fmt.Errorf("socket of the Ray bridge: %w", err)
	}
	p := &process{output: &output{log: log}, done: make(chan struct{})}
	p.cmd = exec.Command(python, "-u", fmt.Sprintf("/proc/self/fd/%d", archiveFD),
		fmt.Sprint(socketFD))
	p.cmd.Env = env
	p.cmd.ExtraFiles = []*os.File{theirs, source}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.WaitDelay = outputDelay
	// A group of its own: an interrupt from the terminal is for the engine alone. A bridge that
	// has started a cluster takes the signal off (outlive_parent in operations.py): it ends that
	// cluster first.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("start the Ray bridge: %w", err)
	}
	return p, conn, nil
}

// run starts the process and reaps it on one thread of its own: the kernel sends the parent-death
// signal when the *thread* that started a child ends, and a thread of the Go runtime may end at
// any time.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	p.output.end()
	close(p.done)
}

// killGrace is how long a bridge may take to end that was killed. One that is frozen, or waits for
// a device, does not, and is left behind.
const killGrace = 3 * time.Second

// kill ends the process and waits until it is reaped, or for killGrace.
func (p *process) kill() {
	// It may have ended by itself.
	_ = p.cmd.Process.Kill()
	select {
	case <-p.done:
	case <-time.After(killGrace):
		if p.output.log != nil {
			p.output.log.Error("the bridge to Ray was killed and does not end: it is left behind",
				"pid", p.cmd.Process.Pid)
		}
	}
}

// ended says how the process ended, with its last lines. It is called after kill.
func (p *process) ended() string {
	how := "it does not end"
	select {
	case <-p.done:
		how = "exit status 0"
		if p.cmd.ProcessState != nil {
			how = p.cmd.ProcessState.String()
		}
	default:
	}
	if lines := p.output.tail(); len(lines) > 0 {
		how += "; last output: " + strings.Join(lines, " | ")
	}
	return how
}

// tailLines is how many of the bridge's last lines explain its end; maxLine bounds each, in bytes.
const (
	tailLines = 20
	maxLine   = 4096
)

// output is where the bridge's standard output and error go: to the log line by line, and the
// last lines are kept.
type output struct {
	log *slog.Logger

	mu   sync.Mutex
	part []byte
	last []string
}

// Write implements io.Writer and never fails.
func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(data)
	for {
		line, rest, found := bytes.Cut(data, []byte("\n"))
		if room := maxLine - len(o.part); len(line) > room {
			line = line[:room]
		}
		o.part = append(o.part, line...)
		if !found {
			return n, nil
		}
		o.flush()
		data = rest
	}
}

// end takes an unfinished last line for a line.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
}

func (o *output) flush() {
	line := strings.TrimRight(string(o.part), "\r ")
	o.part = o.part[:0]
	if line == "" {
		return
	}
	if len(o.last) == tailLines {
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, line)
	o.log.Debug("ray bridge: " + line)
}

func (o *output) tail() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.last...)
}
