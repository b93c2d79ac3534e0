package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/chaos"
)

// hold makes a process one that cannot be killed, until release is called.
func hold(t *testing.T, pid int) (release func()) {
	t.Helper()
	let, err := chaos.Freeze(pid)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := let(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// A rank that does not end when it is killed is left behind: another one takes its place beside it,
// nothing is lost, and the server ends when it is asked to. Once it is let go, it ends.
func TestRankCannotBeKilled(t *testing.T) {
	t.Parallel()
	const tokens = 300
	p, url := startServer(t, "-tp", "2", "--execute-model-timeout-seconds", "1",
		"--shutdown-timeout", "1")
	pids := twoWorkers(t, p)
	events := longStream(t, url, tokens)
	release := hold(t, pids[1])
	goesOn(t, events, tokens)
	if log := p.err.String(); !strings.Contains(log, "it is left behind") || !strings.Contains(log,
		fmt.Sprintf("pid=%d", pids[1])) {
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
	started := time.Now()
	if code := p.exit(); code != 0 && code != exitCut {
		t.Errorf("exit code %d", code)
	}
	t.Logf("the server ended after %v", time.Since(started))
	release()
	releaseOther()
	workersEnd(t, map[int]int{0: pids[0], 1: pids[1], 2: after[1]})
}
