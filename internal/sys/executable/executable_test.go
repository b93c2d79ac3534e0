package executable

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// role makes the test binary a program that becomes another one, or that one.
const role = "EAGLERAY_EXECUTABLE_TEST"

// signal is the parent-death signal of the first thread, which runs init.
var signal int32

func init() {
	switch os.Getenv(role) {
	case "first":
		runtime.LockOSThread()
	case "second":
		_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0, 0, 0)
	}
}

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "first":
		os.Setenv(role, "second")
		f, err := os.Open(os.Args[1])
		if err == nil {
			err = os.Remove(os.Args[2]) // its own file
		}
		if err == nil {
			err = Become(f, []string{"a name", "a b", ""})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case "second":
		if err := json.NewEncoder(os.Stdout).Encode(look()); err != nil {
			os.Exit(1)
		}
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// seen is what a program sees of itself.
type seen struct {
	PID         int
	Args        []string
	Signal      int32
	Inode       uint64
	Descriptors map[string]string
	Child       string
	Error       string
}

func look() (s seen) {
	CloseOnExec()
	s.PID, s.Args = os.Getpid(), os.Args
	s.Signal = signal
	f, err := Open()
	if err != nil {
		s.Error = err.Error()
		return s
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		s.Inode = info.Sys().(*syscall.Stat_t).Ino
	}
	s.Descriptors = map[string]string{}
	names, _ := filepath.Glob("/proc/self/fd/*")
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil {
			s.Descriptors[filepath.Base(name)] = to
		}
	}
	child, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
	if s.Child = string(child); err != nil {
		s.Error = err.Error()
	}
	return s
}

// TestBecome has a process become another program, after its own file was removed.
func TestBecome(t *testing.T) {
	raw, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(t.TempDir(), "first")
	if err := os.WriteFile(first, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command(first, os.Args[0], first)
	cmd.Env = append(os.Environ(), role+"=first", variable+"=1 2")
	cmd.ExtraFiles = []*os.File{r}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	// The thread that starts a process is the one by the end of which it gets the signal.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatal(err)
	}
	var s seen
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if s.PID != cmd.Process.Pid || !slices.Equal(s.Args, []string{"a name", "a b", ""}) {
		t.Errorf("process %d is %d, with %q", cmd.Process.Pid, s.PID, s.Args)
	}
	if s.Signal != int32(unix.SIGKILL) {
		t.Errorf("the parent-death signal is %d", s.Signal)
	}
	if want := info.Sys().(*syscall.Stat_t).Ino; s.Inode != want || s.Error != "" {
		t.Errorf("the first program has inode %d, not %d (%s)", want, s.Inode, s.Error)
	}
	if !strings.HasPrefix(s.Descriptors["3"], "pipe:") {
		t.Errorf("what was passed on is not there: %v", s.Descriptors)
	}
	for fd, to := range s.Descriptors {
		if to == os.Args[0] {
			t.Errorf("descriptor %s of the program itself is open", fd)
		}
	}
	if strings.Contains(s.Child, first) || !strings.Contains(s.Child, "pipe:") {
		t.Errorf("a child has\n%s", s.Child)
	}
}

// TestOpen opens this program, whatever another process has left in the environment.
func TestOpen(t *testing.T) {
	want, err := os.Stat(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"", "x", "1 2", fmt.Sprintf("%d 0", os.Getppid())} {
		t.Setenv(variable, value)
		f, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Stat(); err != nil || !os.SameFile(got, want) {
			t.Errorf("%q: %v", value, err)
		}
		f.Close()
	}
}
