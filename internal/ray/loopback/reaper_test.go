package loopback

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReaper has nothing left when who asked it is killed in the middle of a command.
func TestReaper(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	mark := filepath.Join(dir, "cluster")
	if err := os.Mkdir(mark, 0o700); err != nil {
		t.Fatal(err)
	}
	pid := filepath.Join(dir, "pid")
	c := exec.Command(python, "-c", reaper, mark)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(in, `{"argv":["/bin/sh","-c","sleep 300 & echo $! >%s; sleep 0.2"],`+
		`"env":{"PATH":"/bin:/usr/bin"}}`+"\n", pid); err != nil {
		t.Fatal(err)
	}
	out.Close()
	in.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the folder is left")
	}
	raw, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	var sleeps int
	if _, err := fmt.Sscan(string(raw), &sleeps); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", sleeps)); err == nil {
		t.Errorf("process %d is left", sleeps)
	}
}
