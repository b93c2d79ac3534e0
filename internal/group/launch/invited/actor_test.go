package invited

import (
	"os/exec"
	"strconv"
	"testing"
	"time"
)

func TestRayletIsWatched(t *testing.T) {
	for _, pid := range []string{"", "x", "0", "-1"} {
		t.Setenv(rayletVariable, pid)
		if raylet() != nil {
			t.Errorf("%q is watched", pid)
		}
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	t.Setenv(rayletVariable, pid)
	gone := raylet()
	select {
	case err := <-gone:
		t.Errorf("told of one that runs: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	want := "the raylet of its node (pid " + pid + ") has ended"
	ended := func(when string, gone <-chan error) {
		t.Helper()
		select {
		case err := <-gone:
			if err.Error() != want {
				t.Errorf("%s: %q, want %q", when, err, want)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: not told", when)
		}
	}
	ended("while it was watched", gone)
	// How it ends is of no interest.
	_ = cmd.Wait()
	ended("before it was watched", raylet())
}
