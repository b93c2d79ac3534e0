package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestPythonPackage runs the Python package's own tests on this program, with the system's Python.
func TestPythonPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("a client, of some twenty servers: make test-clients runs it")
	}
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	if out, err := exec.Command(python, "-c",
		"import sys, asyncio, unittest; assert sys.version_info >= (3, 9)").
		CombinedOutput(); err != nil {
		t.Skipf("%s is not Python 3.9 or later: %s", python, out)
	}
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-B", "-W", "error", "-m", "unittest", "discover", "-s", "tests",
		"-t", ".")
	cmd.Dir = "../../python"
	cmd.Env = append(os.Environ(), asProgram+"=1", "EAGLERAY_BINARY="+self)
	cmd.WaitDelay = time.Minute
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
