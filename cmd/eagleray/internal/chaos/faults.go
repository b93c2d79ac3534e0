package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// victim is what a fault is injected into.
type victim struct {
	ctx context.Context
	s   *server
	rng *rand.Rand
}

// faults are the kinds, by name.
var faults = map[string]func(v *victim) error{
	// The kernel's OOM killer, an operator, a scheduler.
	"kill":     func(v *victim) error { return v.signal(syscall.SIGKILL) },
	"term":     term,
	"kill-all": killAll,
	// Crashes: what a worker's runtime does of a signal that is its own fault.
	"abort": func(v *victim) error { return v.signal(syscall.SIGABRT) },
	"segv":  func(v *victim) error { return v.signal(syscall.SIGSEGV) },
	// Hangs: beyond the deadline of a step, below it, and in bursts.
	"stop":  hang,
	"pause": func(v *victim) error { return v.freeze(400 * time.Millisecond) },
	"slow":  slow,
	// A second fault while the server recovers from the first, and while a worker loads.
	"second":  func(v *victim) error { return v.again(150 * time.Millisecond) },
	"loading": func(v *victim) error { return v.again(0) },
	// The driver's own troubles: it is stopped, its log is read by nobody, its descriptors run out.
	"driver": freezeDriver,
	"log":    blockLog,
	"files":  exhaustFiles,
}

// Kinds are the names of all faults.
func Kinds() []string { return slices.Sorted(maps.Keys(faults)) }

// one is the process of a rank.
func (v *victim) one() (int, error) {
	pids, err := v.s.ranks(v.ctx)
	if err != nil {
		return 0, err
	}
	return pids[v.rng.IntN(len(pids))], nil
}

// end signals a process that does not outlive it. The next fault waits until the server knows.
func (v *victim) end(pid int, sig syscall.Signal) error {
	v.s.gone(pid)
	return send(pid, sig)
}

// send signals a process; one that has gone meanwhile is no error.
func send(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

func (v *victim) signal(sig syscall.Signal) error {
	pid, err := v.one()
	if err != nil {
		return err
	}
	return v.end(pid, sig)
}

func killAll(v *victim) error {
	pids, err := v.s.ranks(v.ctx)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := v.end(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// freeze stops a rank for a while.
func (v *victim) freeze(d time.Duration) error {
	pid, err := v.one()
	if err != nil {
		return err
	}
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d)
	return send(pid, syscall.SIGCONT)
}

// term asks a rank to end, as a shell does with all processes of its terminal: ranks end with their
// driver, and by nothing else.
func term(v *victim) error {
	pid, err := v.one()
	if err != nil {
		return err
	}
	return send(pid, syscall.SIGTERM)
}

// hang stops a rank for longer than a step may take. The server ends it.
func hang(v *victim) error {
	pid, err := v.one()
	if err != nil {
		return err
	}
	return v.end(pid, syscall.SIGSTOP)
}

func slow(v *victim) error {
	pid, err := v.one()
	for range 10 {
		if err == nil {
			err = send(pid, syscall.SIGSTOP)
		}
		time.Sleep(40 * time.Millisecond)
		err = errors.Join(err, send(pid, syscall.SIGCONT))
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// again kills a rank, and then, after up to a time, a process that takes its place.
func (v *victim) again(within time.Duration) error {
	before := v.s.children()
	if err := v.signal(syscall.SIGKILL); err != nil {
		return err
	}
	time.Sleep(time.Duration(v.rng.Int64N(int64(within) + 1)))
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		for _, pid := range v.s.children() {
			if !slices.Contains(before, pid) {
				return v.end(pid, syscall.SIGKILL)
			}
		}
	}
	return errors.New("no worker was started in the place of one that was killed")
}

func freezeDriver(v *victim) error {
	pid := v.s.cmd.Process.Pid
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(400 * time.Millisecond)
	return send(pid, syscall.SIGCONT)
}

// blockLog kills a rank while nobody reads the log.
func blockLog(v *victim) error {
	v.s.deaf.Lock()
	defer v.s.deaf.Unlock()
	if err := v.signal(syscall.SIGKILL); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	return nil
}

// exhaustFiles kills a rank while the driver can open no file, so that the first new group cannot
// be started.
func exhaustFiles(v *victim) error {
	pid := v.s.cmd.Process.Pid
	rank, err := v.one()
	if err != nil {
		return err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return err
	}
	tight := unix.Rlimit{Cur: uint64(len(open)), Max: was.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &tight, nil); err != nil {
		return err
	}
	err = v.end(rank, syscall.SIGKILL)
	time.Sleep(300 * time.Millisecond)
	return errors.Join(err, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil))
}
