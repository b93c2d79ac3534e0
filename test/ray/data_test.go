package ray_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// dataset is testdata/data.py at work, a driver of its own.
type dataset struct {
	cmd  *exec.Cmd
	log  *tail
	done chan struct{}
	err  error
}

// datasetCommand is a case of testdata/data.py; folder is for its checkpoint.
func (s *site) datasetCommand(t *testing.T, name, folder string) *exec.Cmd {
	t.Helper()
	script, err := filepath.Abs("testdata/data.py")
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(s.Ray.Python, "-u", script, s.Address, s.head(), name, folder)
	cmd.Env = append(s.Env[:len(s.Env):len(s.Env)], "PYTHONPATH="+source,
		"PYTHONDONTWRITEBYTECODE=1", "EAGLERAY_BINARY="+program(t))
	return cmd
}

// dataset starts a case.
func (s *site) dataset(t *testing.T, name, folder string) *dataset {
	t.Helper()
	d := &dataset{log: &tail{}, done: make(chan struct{}), cmd: s.datasetCommand(t, name, folder)}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.done
	})
	return d
}

// end waits for the end of the case.
func (d *dataset) end(t *testing.T) {
	t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		t.Fatalf("%s\nit does not end", d.log)
	}
	if d.err != nil {
		t.Fatalf("%s\n%v", d.log, d.err)
	}
	if !strings.Contains(d.log.String(), " rows/s, ") && !strings.Contains(d.log.String(),
		"refused:") {
		t.Errorf("%s\nno progress in the log", d.log)
	}
}

// TestData answers the rows of datasets.
func TestData(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		for _, name := range []string{"kinds", "fewer", "embeddings", "scores", "shown", "refused",
			"ranks"} {
			t.Run(name, func(t *testing.T) {
				s.dataset(t, name, t.TempDir()).end(t)
				s.clean(t)
			})
		}
	})
}

// TestDataGoesOn ends a job, and then an actor of it, in the midst of its rows: what is answered
// is not asked again.
func TestDataGoesOn(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		folder := t.TempDir()
		first := s.dataset(t, "kept", folder)
		eventually(t, "answers", func() bool { return kept(t, folder) > 30 })
		if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-first.done
		s.clean(t)
		before := kept(t, folder)
		second := s.dataset(t, "kept", folder)
		eventually(t, "more answers", func() bool { return kept(t, folder) > before+30 })
		if err := syscall.Kill(stage(t, folder), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		second.end(t)
		t.Logf("%d rows were kept of the first job", before)
		s.clean(t)
	})
}

// kept is how many answers a checkpoint has.
func kept(t *testing.T, folder string) (lines int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(text, []byte("\n"))
	}
	return lines
}

// stage is an actor that has a file of a checkpoint open.
func stage(t *testing.T, folder string) int {
	t.Helper()
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		target, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(target, folder) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(fd, "/proc/%d/", &pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("no process has a file of %s open", folder)
	return 0
}
