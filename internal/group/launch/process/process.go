// Package process starts ranks as child processes of the driver (--distributed-executor-backend
// mp): the same binary with the hidden verb "worker", which reads its invitation from an inherited
// pipe and joins the driver (package invited).
package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/sys/executable"
)

// Launcher runs ranks as children.
type Launcher struct {
	arguments []string // of a child, before its rank
	// output receives the children's standard error.
	output launch.Output
	// OnAbandon, unless it is nil, is called for each child that was killed and has not ended
	// within killGrace: its control group is frozen, a debugger holds it, or it waits for a device
	// that does not answer. Only the goroutine that reaps it still waits for it; should it ever run
	// again, it ends.
	OnAbandon func(rank, pid int)
	// Secrets are variables of the environment that children get although they look secret; they
	// get what they read of the others (launch.ChildEnvironment).
	Secrets []string

	// starts carries work to the thread that children are started from.
	starts chan func()
	thread sync.WaitGroup

	mu sync.Mutex
	// children are the last ones by rank.
	children map[int]*child
	stopping bool
	exited   chan launch.Exit
}

type child struct {
	rank  int
	place string
	cmd   *exec.Cmd
	// invitations is the pipe from which it reads one for each group; closing it ends the child.
	invitations *os.File
	tail        tail
	done        chan struct{}
	abandoned   bool // guarded by Launcher.mu
}

// New makes a launcher whose children's output goes to output, or nowhere if that is nil. They are
// this program with the arguments that make it a rank, launch.Verb if there are none, and --rank N.
func New(output launch.Output, arguments ...string) *Launcher {
	if len(arguments) == 0 {
		arguments = []string{launch.Verb}
	}
	if output == nil {
		output = func(launch.Line) {}
	}
	l := &Launcher{arguments: arguments, output: output, starts: make(chan func()),
		children: map[int]*child{}, exited: make(chan launch.Exit, maxRanks)}
	l.thread.Go(l.startThread)
	return l
}

// maxRanks bounds the exits that wait in Exited.
const maxRanks = 64

// Launch starts one child per spec, or sends the invitation to the child of that rank from the
// previous group, of which it ends those of other ranks. After an error Stop ends those already
// started.
func (l *Launcher) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	if len(specs) > maxRanks {
		return nil, fmt.Errorf("mp starts at most %d ranks on one host, not %d", maxRanks,
			len(specs))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	// A driver without an address for other hosts does not ask which program its children are.
	var binary [32]byte
	if len(specs) > 0 && specs[0].Invitation.Endpoint.TCP != "" {
		if binary, err = join.BinaryHash(); err != nil {
			return nil, err
		}
	}
	// Drop unread exits of earlier groups; reuse checks which ranks live.
	for len(l.exited) > 0 {
		<-l.exited
	}
	l.mu.Lock()
	var others []*child
	for rank, c := range l.children {
		if !slices.ContainsFunc(specs, func(s launch.Spec) bool { return s.Rank == rank }) {
			others = append(others, c)
			delete(l.children, rank)
		}
	}
	l.mu.Unlock()
	l.kill(context.Background(), others...)
	workers := make([]launch.Worker, 0, len(specs))
	for _, spec := range specs {
		w := launch.Worker{Rank: spec.Rank, LocalRank: spec.LocalRank, Node: launch.ThisHost}
		inv := *spec.Invitation
		inv.Binary = binary[:]
		spec.Invitation = &inv
		c := l.reuse(spec)
		if w.Reused = c != nil; !w.Reused {
			if c, err = l.start(self, spec); err != nil {
				return nil, fmt.Errorf("start rank %d: %w", spec.Rank, err)
			}
		}
		w.PID = c.cmd.Process.Pid
		workers = append(workers, w)
	}
	return workers, nil
}

// reuse sends the invitation to the living child of a rank. It returns nil when there is none; it
// ends a child that must be replaced.
func (l *Launcher) reuse(spec launch.Spec) *child {
	l.mu.Lock()
	c := l.children[spec.Rank]
	l.mu.Unlock()
	if c == nil {
		return nil
	}
	if !spec.Fresh && c.alive() && c.invite(spec.Invitation) == nil {
		return c
	}
	l.kill(context.Background(), c)
	return nil
}

// killGrace bounds the wait for a killed child, whose memory the system frees meanwhile. The wait
// is at least leastGrace, also where the caller has less time.
const (
	killGrace  = 3 * time.Second
	leastGrace = time.Second
)

// kill kills children, and abandons those that have not ended by the deadline of ctx, within the
// bounds of killGrace and leastGrace.
func (l *Launcher) kill(ctx context.Context, children ...*child) {
	for _, c := range children {
		// It may have ended meanwhile; there is nothing else to do about an error.
		_ = c.cmd.Process.Kill()
	}
	grace := killGrace
	if end, ok := ctx.Deadline(); ok {
		grace = min(grace, max(time.Until(end), leastGrace))
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for _, c := range children {
		select {
		case <-c.done:
		case <-late.Done():
			l.abandon(c)
		}
	}
}

// abandon gives up on a child that does not end, unless it just has, and calls OnAbandon once.
func (l *Launcher) abandon(c *child) {
	select {
	case <-c.done:
		return
	default:
	}
	l.mu.Lock()
	again := c.abandoned
	c.abandoned = true
	l.mu.Unlock()
	c.invitations.Close()
	if !again && l.OnAbandon != nil {
		l.OnAbandon(c.rank, c.cmd.Process.Pid)
	}
}

// alive reports whether a child has not ended. A child that waits to be reaped has.
func (c *child) alive() bool {
	var ended unix.Siginfo
	err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, &ended,
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && ended.Signo == 0
}

// invite writes an invitation, which is smaller than a pipe's buffer: this does not wait for the
// child unless that has left many unread.
func (c *child) invite(inv *join.Invitation) error {
	text, err := json.Marshal(inv)
	if err != nil {
		return err
	}
	if err := c.invitations.SetWriteDeadline(time.Now().Add(inviteTimeout)); err != nil {
		return err
	}
	_, err = c.invitations.Write(append(text, '\n'))
	return err
}

const inviteTimeout = 100 * time.Millisecond

// start starts a child that knows itself by the name self.
func (l *Launcher) start(self string, spec launch.Spec) (*child, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	// The rank and its place are for readers of the list of processes; the invitation has the rank
	// too.
	args := append(slices.Clone(l.arguments), "--rank", strconv.Itoa(spec.Rank))
	place := spec.Layout.Suffix(spec.Rank)
	if place != "" {
		args = append(args, "--place", strings.TrimPrefix(place, "_"))
	}
	cmd := exec.Command(executable.Own, args...)
	cmd.Args[0] = self
	cmd.Env = launch.ChildEnvironment(os.Environ(), l.Secrets...)
	cmd.ExtraFiles = []*os.File{theirs}
	// A worker never outlives the driver, however the driver ends: its connection closes, and the
	// kernel kills it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	stderr, err := cmd.StderrPipe()
	started := make(chan error, 1)
	if err == nil {
		l.starts <- func() { started <- cmd.Start() }
		err = <-started
	}
	if err != nil {
		ours.Close()
		return nil, err
	}
	c := &child{rank: spec.Rank, place: place, cmd: cmd, invitations: ours,
		done: make(chan struct{})}
	l.mu.Lock()
	l.children[spec.Rank] = c
	l.mu.Unlock()
	// It ends with the child: Stop waits for it, unless the child is abandoned.
	go l.watch(c, stderr)
	if err := c.invite(spec.Invitation); err != nil {
		return nil, fmt.Errorf("write invitation: %w", err)
	}
	return c, nil
}

// startThread runs what starts sends on one thread of its own until starts is closed. The kernel
// sends the parent-death signal when the *thread* that started a child ends, and a thread of the Go
// runtime may end at any time; this one ends when the children have.
func (l *Launcher) startThread() {
	runtime.LockOSThread()
	for f := range l.starts {
		f()
	}
}

// watch relays the child's output, then reaps it and reports an end that Stop did not ask for.
func (l *Launcher) watch(c *child, stderr io.Reader) {
	defer close(c.done)
	defer c.invitations.Close()
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			c.tail.add(line)
			l.output(launch.Line{Rank: c.rank, Place: c.place, Node: launch.ThisHost,
				PID: c.cmd.Process.Pid, Text: trimNewline(line)})
		}
		if err != nil {
			break
		}
	}
	err := c.cmd.Wait()
	l.mu.Lock()
	silent := l.stopping || c.abandoned
	l.mu.Unlock()
	if silent {
		return
	}
	l.exited <- launch.Exit{Rank: c.rank, Node: launch.ThisHost, PID: c.cmd.Process.Pid,
		End: end(c.cmd.ProcessState, err), Stderr: c.tail.lines()}
}

// end is how a child ended, of which Wait said state and err.
func end(state *os.ProcessState, err error) launch.End {
	if state != nil {
		switch s, _ := state.Sys().(syscall.WaitStatus); {
		case s.Exited():
			return launch.End{How: launch.Exited, Code: s.ExitStatus()}
		case s.Signaled():
			name := s.Signal().String()
			if s.CoreDump() {
				name += " (core dumped)"
			}
			return launch.End{How: launch.Signalled, Signal: name}
		}
	}
	return launch.End{Reason: fmt.Sprintf("cannot wait for it: %v", err)}
}

// Exited delivers the ends of ranks that Stop did not cause.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// How long children may take to end by themselves: when they have been asked to, and after the
// failure of their group, which waits for its successor.
const (
	askedGrace  = time.Second
	failedGrace = 20 * time.Millisecond
)

// Stop waits for the children, which end with their connection to the driver, kills those that have
// not ended when ctx does or after a grace, and reaps all but those that cannot be killed
// (OnAbandon).
func (l *Launcher) Stop(ctx context.Context, cause error) error {
	l.mu.Lock()
	again := l.stopping
	l.stopping = true
	children := slices.DeleteFunc(slices.Collect(maps.Values(l.children)),
		func(c *child) bool { return c.abandoned })
	l.mu.Unlock()
	for _, c := range children {
		c.invitations.Close()
	}
	grace := askedGrace
	if cause != nil {
		grace = failedGrace
	}
	asked, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	var late []*child
	for _, c := range children {
		select {
		case <-c.done:
		case <-asked.Done():
			late = append(late, c)
		}
	}
	l.kill(ctx, late...)
	if !again {
		close(l.starts)
	}
	l.thread.Wait()
	return nil
}
