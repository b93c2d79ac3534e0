package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestClockSetBack disturbs a program whose wall clock is set back by a day each second, and forth
// by two days each third one: nothing that it waits for depends on that clock. The program is this
// one, with another time.Now: the clock of a machine is not a test's to set.
func TestClockSetBack(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program anew")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	program := buildWithClock(ctx, t)
	for name, run := range map[string]struct{ faults, server []string }{
		"memory": {[]string{"kill", "stop", "pause", "loading", "second"}, []string{"-tp", "2"}},
		"links": {[]string{"cut", "cut-long", "half-open", "kill"},
			[]string{"-tp", "2", "--queue-transport", "link"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := exec.CommandContext(ctx, program, append([]string{"bench", "chaos", "--seconds",
				"600", "--count", "9", "--streams", "4", "--prompts", "6", "--tokens", "60",
				"--verbose", "--faults", strings.Join(run.faults, ","), "--"}, run.server...)...)
			c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), " 0 lost, 0 duplicated, 0 different") {
				t.Errorf("%v: %s", err, out)
			}
			back, before := 0, ""
			for _, m := range stamp.FindAllStringSubmatch(string(out), -1) {
				if m[1] < before {
					back++
				}
				before = m[1]
			}
			if back == 0 {
				t.Errorf("the clock was never set back: %s", out)
			}
			t.Logf("%d lines of the log are older than those before them", back)
		})
	}
}

var stamp = regexp.MustCompile(`(?m)^time=(\S+) `)

// buildWithClock builds the program with a time.Now of its own.
func buildWithClock(ctx context.Context, t *testing.T) (program string) {
	t.Helper()
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		t.Skipf("no go command: %v", err)
	}
	dir := t.TempDir()
	clock, changed := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go"),
		filepath.Join(dir, "time.go")
	source, err := os.ReadFile(clock)
	if err != nil {
		t.Fatal(err)
	}
	const from = "	mono -= startNano\n	sec += unixToInternal - minWall\n"
	if strings.Count(string(source), from) != 1 {
		t.Fatalf("time.Now of %s is another than this test knows", clock)
	}
	const setBack = "	sec -= 24 * 60 * 60 * (mono / 1e9 % 3)\n"
	replaced := strings.Replace(string(source), from, setBack+from, 1)
	if err := os.WriteFile(changed, []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{clock: changed}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "eagleray")
	out, err := exec.CommandContext(ctx, "go", "build", "-overlay", file, "-o", program,
		".").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return program
}
