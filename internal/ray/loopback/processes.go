package loopback

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
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
func (c *Cluster) Processes() []Process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]Process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// It may end while it is looked at.
		if p, err := readProcess(pid); err == nil {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	var found []Process
	todo := []int{c.reaper.Process.Pid}
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
