package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/collectivetest"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestMain makes the test binary another rank: the words are a role and its arguments.
func TestMain(m *testing.M) { testchild.Main(m, child) }

func child(spec string) error {
	words := strings.Fields(spec)
	role, args := words[0], words[1:]
	if role == "contest" {
		return contestArguments(args)
	}
	rank, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	ranks, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	conns := make([]net.Conn, ranks)
	fd := uintptr(3)
	for p := range conns {
		if p == rank {
			continue
		}
		f := os.NewFile(fd, "connection")
		fd++
		if conns[p], err = net.FileConn(f); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	var numbers []int
	for _, arg := range args[2:] {
		n, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		numbers = append(numbers, n)
	}
	if role == "die" {
		return die(conns, numbers[0], numbers[1])
	}
	g, err := Join(conns, rank, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	switch role {
	case "exchange":
		return errors.Join(collectivetest.ExchangeUntil(g, numbers[0]), g.Close())
	case "script":
		return errors.Join(collectivetest.Script(g, 21, 100, 100_000), g.Close())
	case "reduce":
		return errors.Join(collectivetest.SumUntil(g, 4), g.Close())
	}
	return fmt.Errorf("role %q", role)
}

// start runs the test binary as a rank that has the connections as descriptors.
func start(t testing.TB, conns []net.Conn, spec ...string) *testchild.Process {
	t.Helper()
	var files []*os.File
	for _, c := range conns {
		if c == nil {
			continue
		}
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		defer c.Close()
		files = append(files, f)
	}
	return testchild.Start(t, strings.Join(spec, " "), files...)
}

// processes joins rank 0 here and runs the others as processes.
func processes(t testing.TB, ranks int, role string, o Options) (*Group, []*testchild.Process) {
	t.Helper()
	conns := mesh(t, ranks, tcpPair)
	others := make([]*testchild.Process, ranks)
	for r := 1; r < ranks; r++ {
		others[r] = start(t, conns[r], role, strconv.Itoa(r), strconv.Itoa(ranks))
	}
	g, err := Join(conns[0], 0, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g, others
}

func TestProcesses(t *testing.T) {
	for _, ranks := range []int{2, 4, 8} {
		t.Run(strconv.Itoa(ranks), func(t *testing.T) {
			g, others := processes(t, ranks, "script", Options{})
			if err := errors.Join(collectivetest.Script(g, 21, 100, 100_000),
				g.Close()); err != nil {
				t.Error(err)
			}
			for r, p := range others[1:] {
				if err := p.Wait(); err != nil {
					t.Errorf("rank %d: %v: %s", r+1, err, p.Stderr.String())
				}
			}
		})
	}
}

// TestKilledPeer kills a rank in the middle of its work. All others end quickly and name it.
func TestKilledPeer(t *testing.T) {
	g, others := processes(t, 4, "reduce", Options{Timeout: time.Minute})
	x := make([]float32, 4)
	for range 100 {
		if err := g.AllReduce(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := others[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	others[1].Wait()
	died := time.Now()
	var err error
	for err == nil {
		err = g.AllReduce(x)
	}
	if !errors.Is(err, collective.ErrLeft) && !errors.Is(err, collective.ErrAborted) {
		t.Errorf("rank 0: %v", err)
	}
	const left = "waiting for rank 1: rank has left the group"
	if !strings.Contains(err.Error(), left) {
		t.Errorf("rank 0 does not name the rank that left: %v", err)
	}
	for r, p := range others {
		if r < 2 {
			continue
		}
		p.Wait()
		if p.ProcessState.ExitCode() != 1 || !strings.Contains(p.Stderr.String(), left) {
			t.Errorf("rank %d: exit code %d, %s", r, p.ProcessState.ExitCode(), p.Stderr.String())
		}
	}
	if took := time.Since(died); took > 10*time.Second {
		t.Errorf("the others ended after %v", took)
	}
}

// TestStoppedPeer stops a rank: its kernel still takes messages, but none come.
func TestStoppedPeer(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		g, others := processes(t, ranks, "reduce", Options{Timeout: time.Minute})
		x := make([]float32, 4)
		for range 100 {
			if err := g.AllReduce(x); err != nil {
				t.Fatal(err)
			}
		}
		g.timeout = 300 * time.Millisecond // now that all have started
		if err := others[1].Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			err = g.AllReduce(x)
		}
		var e *collective.Error
		if !errors.As(err, &e) || !errors.Is(err, collective.ErrTimeout) ||
			fmt.Sprint(e.Missing) != "[1]" {
			// A rank that waits for rank 1 has sent all that rank 0 needs of it, or nothing yet.
			if ranks == 2 || !errors.Is(err, collective.ErrTimeout) {
				t.Errorf("%d ranks: %v", ranks, err)
			}
		}
		for r := 2; r < ranks; r++ {
			others[r].Wait()
			if s := others[r].Stderr.String(); !strings.Contains(s, "aborted by rank 0") ||
				!strings.Contains(s, "timed out") {
				t.Errorf("rank %d: %s", r, s)
			}
		}
	}
}
