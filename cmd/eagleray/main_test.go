package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/rank/gpu"
	"github.com/eagleray/eagleray/internal/sys/synctext"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// asProgram makes the test binary be the program: tests start it as users do, and it starts its own
// workers.
const asProgram = "EAGLERAY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if len(os.Args) > 2 && os.Args[1] == gpus.Verb && os.Args[2] == launch.Verb {
			asRankOnGPU()
		}
		main()
	}
	os.Exit(m.Run())
}

// asRankOnGPU is a rank on the machine that stands for GPUs: no program for those is attached to
// the test binary.
func asRankOnGPU() {
	if err := invited.Main(os.Args[3:], gpu.Devices(gpu.Libraries{})); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitError)
	}
	os.Exit(0)
}

// patience is for what takes milliseconds on an idle machine.
const patience = detector * 30 * time.Second

// program is a running eagleray.
type program struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  synctext.Buffer
	err  synctext.Buffer
	done chan struct{}
	// shown prints what the program printed when the test fails.
	shown bool
}

// command prepares a process that ends with the test, whatever happens.
func command(t *testing.T, stdin string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stdin = strings.NewReader(stdin)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

func (p *program) start() *program {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		// How it ended is read from ProcessState.
		_ = p.cmd.Wait()
	}()
	p.t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			p.signal(syscall.SIGKILL)
			<-p.done
		}
		if p.shown && p.t.Failed() {
			p.t.Logf("%q printed:\n%s\non standard error:\n%s", p.cmd.Args[1:], p.out.String(),
				p.err.String())
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("send %v: %v", s, err)
	}
}

// exit waits for the end and returns the exit code, -1 when a signal ended it.
func (p *program) exit() int {
	p.t.Helper()
	return p.exitWithin(patience)
}

// exitWithin is exit for a program that may take longer than others.
func (p *program) exitWithin(d time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(d):
		p.t.Fatalf("%q did not end", p.cmd.Args[1:])
		return 0
	}
}

// stops asks a program to end, which it does well.
func (p *program) stops() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		p.t.Errorf("%q: exit code %d, %v", p.cmd.Args[1:], code, p.cmd.ProcessState)
	}
}

// execute runs a command line to its end.
func execute(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := command(t, stdin, args...).start()
	code = p.exit()
	return code, p.out.String(), p.err.String()
}

// eventually waits until check is true.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for started := time.Now(); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Since(started) > patience {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

var readyURL = regexp.MustCompile(`msg=ready .*url=(\S+)`)

// startServer runs serve on a free port and returns its address when it is ready.
func startServer(t *testing.T, args ...string) (p *program, url string) {
	t.Helper()
	return ready(t, command(t, "", append([]string{"serve", "--port", "0",
		"--kv-cache-memory-bytes", "64M", "--cpu-threads", "1"}, args...)...))
}

func ready(t *testing.T, p *program) (*program, string) {
	t.Helper()
	p.shown = true
	p.start()
	url := ""
	eventually(t, "the ready line", func() bool {
		if m := readyURL.FindStringSubmatch(p.err.String()); m != nil {
			url = m[1]
		}
		select {
		case <-p.done:
			t.Fatalf("the server ended: %s", p.err.String())
		default:
		}
		return url != ""
	})
	return p, url
}

// workers are the children of a process by rank.
func workers(t *testing.T, parent int) map[int]int {
	t.Helper()
	found, newest := map[int]int{}, map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 20 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(line), "\x00")
		for i, a := range args[:max(len(args)-1, 0)] {
			if a != "--rank" {
				continue
			}
			rank, _ := strconv.Atoi(args[i+1])
			// One that could not be killed may be there beside its successor.
			if started, _ := strconv.Atoi(fields[19]); started >= newest[rank] {
				newest[rank] = started
				found[rank], _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
			}
		}
	}
	return found
}

// twoWorkers are the workers of a server with two ranks; they must be gone within a second of its
// end.
func twoWorkers(t *testing.T, p *program) map[int]int {
	t.Helper()
	w := workers(t, p.cmd.Process.Pid)
	if len(w) != 2 || w[0] == 0 || w[1] == 0 {
		t.Fatalf("workers %v, want ranks 0 and 1", w)
	}
	return w
}

// workersEnd checks that the workers end with their driver.
func workersEnd(t *testing.T, w map[int]int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for rank, pid := range w {
		for !testchild.Gone(pid) {
			if time.Now().After(deadline) {
				t.Errorf("rank %d (pid %d) is still there", rank, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}
