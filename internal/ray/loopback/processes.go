package loopback

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Process is one process of a cluster: of Ray, an actor, or a child of an actor.
type Process struct {
	PID  int
	Args []string

	parent int
	start  string
	zombie bool
}

// Processes lists the running processes of the cluster. Drivers are not among them, unless Run
// started them.
func (c *Cluster) Processes() []Process { return below(c.reaper.Process.Pid) }

// Crash ends a node as a power cut would: its raylet, and at the same time everything that runs
// below it. What listens there is closed, though, and connections of it are reset. A raylet that
// was silent for long may have ended before.
func (c *Cluster) Crash(n *Node) error {
	c.Remove(n)
	processes := below(n.Raylet)
	err := syscall.Kill(n.Raylet, syscall.SIGKILL)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill raylet %d: %w", n.Raylet, err)
	}
	for _, p := range processes {
		// Some end with the raylet.
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	return nil
}

// Silence stops a node and everything that runs below it, as if its network were cut: nothing is
// heard of it any more, and no connection to it ends. Crash ends it.
func (c *Cluster) Silence(n *Node) error {
	// The raylet first: it starts nothing more.
	if err := syscall.Kill(n.Raylet, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop raylet %d: %w", n.Raylet, err)
	}
	for _, p := range below(n.Raylet) {
		if err := syscall.Kill(p.PID, syscall.SIGSTOP); err != nil &&
			!errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop process %d: %w", p.PID, err)
		}
	}
	return nil
}

// below lists the running descendants of a process.
func below(pid int) []Process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]Process{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// It may end while it is looked at.
		if p, err := readProcess(id); err == nil {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var found []Process
	todo := []int{pid}
	for len(todo) > 0 {
		next := children[todo[0]]
		todo = todo[1:]
		for _, p := range next {
			todo = append(todo, p.PID)
			if !p.zombie {
				found = append(found, p)
			}
		}
	}
	return found
}

func readProcess(pid int) (Process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, err
	}
	// The name in parentheses may hold anything. After it: state, ppid, …, start time as the 20th.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Process{}, err
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Args: strings.Split(strings.TrimRight(string(args), "\x00"), "\x00"),
		parent: parent,
		start:  fields[19], zombie: fields[0] == "Z"}, nil
}
