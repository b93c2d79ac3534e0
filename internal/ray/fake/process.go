package fake

import (
	"bufio"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/eagleray/eagleray/internal/ray"
	"golang.org/x/sys/unix"
)

// The last lines of a worker's standard error, as many as the actors on Ray keep.
const tailLines = 20

// Process starts workers as processes, children of this one, as the actors on Ray do. To them
// this process is their actor: Facts.PID is this process when workers are processes.
func Process(spec ray.StartSpec, node map[string]string) (*Worker, error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = workerEnv(spec, node)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// It stays open: its end tells the worker that its actor is gone. A write to one that has
	// ended fails.
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		_, _ = stdin.Write(spec.Stdin)
	}()
	return &Worker{PID: cmd.Process.Pid,
		Feed: func(more []byte) {
			<-fed
			_, _ = stdin.Write(more)
		},
		Signal: func(s unix.Signal) {
			// It may have ended already.
			_ = cmd.Process.Signal(s)
			select {
			case <-fed:
				stdin.Close()
			default:
			}
		},
		Wait: func() ray.Exit {
			tail := lastLines(stderr)
			// How it ended is in its state.
			_ = cmd.Wait()
			stdin.Close()
			<-fed
			return exitOf(cmd.ProcessState, tail)
		}}, nil
}

// workerEnv is the node's environment with what the spec changes.
func workerEnv(spec ray.StartSpec, node map[string]string) []string {
	env := maps.Clone(spec.DefaultEnv)
	if env == nil {
		env = map[string]string{}
	}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	maps.Copy(env, node)
	maps.Copy(env, spec.SetEnv)
	maps.DeleteFunc(env, func(name, _ string) bool {
		return strings.HasPrefix(name, "RAY_AUTH_") || slices.Contains(spec.UnsetEnv, name)
	})
	env["EAGLERAY_PARENT_PID"] = strconv.Itoa(os.Getpid())
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

func lastLines(r io.Reader) []string {
	var tail []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if len(tail) == tailLines {
			tail = tail[1:]
		}
		tail = append(tail, lines.Text())
	}
	return tail
}

func exitOf(state *os.ProcessState, tail []string) ray.Exit {
	exit := ray.Exit{Stderr: tail}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		exit.Signal = unix.SignalName(status.Signal())
	} else {
		code := status.ExitStatus()
		exit.Code = &code
	}
	return exit
}
