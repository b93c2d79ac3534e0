// Package testchild has a test binary run itself as other processes.
package testchild

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// variable says in a child what it is.
const variable = "EAGLERAY_TEST_CHILD"

// Main is TestMain: it runs the tests, or, in a child, what that is to be.
func Main(m *testing.M, be func(spec string) error) {
	spec := os.Getenv(variable)
	if spec == "" {
		os.Exit(m.Run())
	}
	if err := be(spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Process is a child. Stderr is what it has said when it has ended.
type Process struct {
	*exec.Cmd
	Stderr bytes.Buffer
}

// New returns a child that has yet to be started, with files as its descriptors from 3 on. It is
// killed with the test.
func New(t testing.TB, spec string, files ...*os.File) *Process {
	p := &Process{Cmd: exec.Command(os.Args[0])}
	p.Env, p.ExtraFiles = append(os.Environ(), variable+"="+spec), files
	p.Cmd.Stderr = &p.Stderr
	t.Cleanup(func() {
		if p.Process != nil {
			p.Process.Kill()
		}
	})
	return p
}

// Start is New, and starts it.
func Start(t testing.TB, spec string, files ...*os.File) *Process {
	t.Helper()
	p := New(t, spec, files...)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Gone tells whether a process has ended; one that is dead and not yet reaped has.
func Gone(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(raw), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}
