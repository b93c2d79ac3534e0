package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hold makes a process one that cannot be killed, as in a frozen control group, until release is called: a
// tracer stops it, and holds its first thread where a killed one ends.
func hold(t *testing.T, pid int) (release func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stop", func() bool { return procState(pid) == "T" })
	held, let, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		// What traces is a thread. It ends with this goroutine, and what it holds goes on.
		runtime.LockOSThread()
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			held <- errno
			return
		}
		held <- nil
		<-let
	}()
	if err := <-held; err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		t.Skipf("processes cannot be traced here: %v", err)
	}
	released := false
	release = func() {
		if !released {
			released = true
			close(let)
			<-done
		}
	}
	t.Cleanup(release)
	return release
}

// A rank that does not end when it is killed is left behind: another one takes its place beside it, nothing is
// lost, and the server ends when it is asked to. Once it is let go, it ends.
func TestRankCannotBeKilled(t *testing.T) {
	t.Parallel()
	const tokens = 2000
	p, url := startServer(t, "-tp", "2", "--execute-model-timeout-seconds", "1", "--shutdown-timeout", "1")
	pids := twoWorkers(t, p)
	whole, err := io.ReadAll(longStream(t, url, tokens))
	if err != nil {
		t.Fatal(err)
	}
	events := longStream(t, url, tokens)
	release := hold(t, pids[1])
	rest, err := io.ReadAll(events)
	// The first event, which may have several tokens, was read before.
	if got, want := textOf(rest), textOf(whole); err != nil || len(got) < len(want)/2 ||
		!strings.HasSuffix(got, want) && !strings.HasSuffix(want, got) {
		t.Errorf("the stream ends with %q, %v", rest[max(0, len(rest)-300):], err)
	}
	if log := p.err.String(); !strings.Contains(log, "it is left behind") || !strings.Contains(log, fmt.Sprintf("pid=%d", pids[1])) {
		t.Error("the log does not say that the rank was left behind")
	}
	if resp, err := http.Get(url + "/health"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("health: %v, %v", resp, err)
	}
	after := workers(t, p.cmd.Process.Pid)
	if after[0] != pids[0] || after[1] == pids[1] {
		t.Errorf("workers %v, before %v", after, pids)
	}
	// One more that cannot be killed, and no time left to find out.
	longStream(t, url, tokens)
	releaseOther := hold(t, after[1])
	p.signal(syscall.SIGTERM)
	begun := time.Now()
	if code := p.exit(); code != 0 && code != exitCut {
		t.Errorf("exit code %d", code)
	}
	t.Logf("the server ended after %v", time.Since(begun))
	release()
	releaseOther()
	workersEnd(t, map[int]int{0: pids[0], 1: pids[1], 2: after[1]})
}

// procState is the letter of a process' state, "" for none.
func procState(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(raw), ") ")
	return state[:min(1, len(state))]
}

// textOf is all text of a stream.
func textOf(stream []byte) string {
	var b strings.Builder
	for line := range bytes.Lines(stream) {
		if _, rest, ok := bytes.Cut(line, []byte(`"text":"`)); ok {
			text, _, _ := bytes.Cut(rest, []byte(`","logprobs"`))
			b.Write(text)
		}
	}
	return b.String()
}
