package executor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/inproc"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// beDriver is the test binary as a driver of its own.
func beDriver(role string) error {
	switch role {
	case "bereaved ring", "bereaved link":
		return beBereaved(role == "bereaved link")
	case "without /dev/shm", "small /dev/shm":
		return beConfined(role == "small /dev/shm")
	}
	return fmt.Errorf("role %q", role)
}

// driver runs the test binary in a role.
func driver(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// orphans is a launcher whose ranks are not killed by the kernel when the driver ends, as those of
// another host are not: all they have is the connection.
type orphans struct {
	exited chan launch.Exit
	cmds   []*exec.Cmd
	wg     sync.WaitGroup
}

func (o *orphans) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	o.exited = make(chan launch.Exit, len(specs))
	var workers []launch.Worker
	for _, s := range specs {
		raw, err := json.Marshal(s.Invitation)
		if err != nil {
			return nil, err
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(os.Args[0], launch.Verb, "--rank", strconv.Itoa(s.Rank))
		cmd.ExtraFiles = []*os.File{r}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		r.Close()
		if _, err := w.Write(raw); err != nil {
			return nil, err
		}
		w.Close()
		o.cmds = append(o.cmds, cmd)
		o.wg.Go(func() { _ = cmd.Wait() })
		workers = append(workers, launch.Worker{Rank: s.Rank, Node: "elsewhere",
			PID: cmd.Process.Pid})
	}
	return workers, nil
}

func (o *orphans) Exited() <-chan launch.Exit { return o.exited }

func (o *orphans) Stop(context.Context, error) error {
	for _, c := range o.cmds {
		_ = c.Process.Kill()
	}
	o.wg.Wait()
	return nil
}

// beBereaved starts a group, prints the pids of its ranks when it is at work, and works until it
// is killed.
func beBereaved(links bool) error {
	opt := processes(2, links)
	opt.Launcher = &orphans{}
	e, err := Start(context.Background(), opt)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if n == 3 { // it is at work
			fmt.Println(e.workers[0].PID, e.workers[1].PID)
		}
		_, err := e.CollectiveRPC(context.Background(), calls.Echo.Name, make([]byte, 10_000),
			RPCOptions{})
		if err != nil {
			return err
		}
	}
}

// TestDriverKilled kills a driver at work. Its ranks end: here only their connection shows them
// that it has gone.
func TestDriverKilled(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		role := "bereaved ring"
		if links {
			role = "bereaved link"
		}
		shared := len(entries(t, "/dev/shm"))
		cmd := driver(t, role)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := sync.OnceFunc(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
		t.Cleanup(ended)
		line, err := bufio.NewReader(out).ReadString('\n')
		var pids [2]int
		if _, scanErr := fmt.Sscan(line, &pids[0], &pids[1]); err != nil || scanErr != nil {
			t.Fatalf("%q, %v", line, err)
		}
		t.Cleanup(func() {
			for _, pid := range pids {
				if !testchild.Gone(pid) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
		started := time.Now()
		ended()
		for rank, pid := range pids {
			eventually(t, fmt.Sprintf("the end of rank %d", rank),
				func() bool { return testchild.Gone(pid) })
		}
		t.Logf("no process left after %v", time.Since(started))
		if now := len(entries(t, "/dev/shm")); now > shared {
			t.Errorf("%d files in /dev/shm, before %d", now, shared)
		}
	})
}

// TestSharedMemoryFolder runs a group where there is no /dev/shm at all, and where it is as small
// as in a container.
func TestSharedMemoryFolder(t *testing.T) {
	for _, role := range []string{"without /dev/shm", "small /dev/shm"} {
		t.Run(role, func(t *testing.T) {
			cmd := driver(t, role)
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0,
				HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0,
				HostID: os.Getgid(), Size: 1}}
			out, err := cmd.CombinedOutput()
			switch {
			case errors.Is(err, syscall.EPERM) || bytes.Contains(out, []byte(noMount)):
				t.Skipf("this machine gives no namespace to mount in: %v: %s", err, out)
			case err != nil || !bytes.HasSuffix(out, []byte("fine\n")):
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

const noMount = "cannot mount"

// beConfined runs a group in a mount namespace of its own.
func beConfined(small bool) error {
	if err := confine(small); err != nil {
		return fmt.Errorf("%s: %w", noMount, err)
	}
	if _, err := os.Stat("/dev/shm"); (err == nil) != small {
		return fmt.Errorf("/dev/shm: %v", err)
	}
	for _, links := range []bool{false, true} {
		o := processes(2, links)
		if small {
			o.QueueMemory = 24 << 20 // more than /dev/shm could give
		}
		e, err := Start(context.Background(), o)
		if err != nil {
			return err
		}
		rounds := uint64(4)
		if small && !links {
			rounds = 6 // the queue's memory is written from end to end: 24 MB are more than 16
		}
		for id := range rounds {
			f, err := e.Execute(prompt(1+id, 5, 6))
			if err != nil {
				return err
			}
			if _, err := f.Wait(); err != nil {
				return err
			}
			if _, err := e.CollectiveRPC(context.Background(), calls.Echo.Name, make([]byte, 4<<20),
				RPCOptions{}); err != nil {
				return err
			}
		}
		if small {
			var s unix.Statfs_t
			if err := unix.Statfs("/dev/shm", &s); err != nil {
				return err
			}
			if s.Bfree != s.Blocks {
				return fmt.Errorf("%d of %d blocks of /dev/shm are used", s.Blocks-s.Bfree,
					s.Blocks)
			}
		}
		if err := e.Shutdown(context.Background()); err != nil {
			return err
		}
	}
	fmt.Println("fine")
	return nil
}

// confine mounts a /dev/shm of 16 MB, or a /dev that has none.
func confine(small bool) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if small {
		return unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16m")
	}
	dev, err := os.MkdirTemp("", "dev")
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", 0, "size=1m"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "urandom"} {
		path := filepath.Join(dev, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(filepath.Join("/dev", name), path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	return os.Remove(dev)
}

// held is what a process must give back.
type held struct{ goroutines, descriptors, mappings, memfds, children, shared int }

func countHeld(t *testing.T) held {
	t.Helper()
	runtime.GC()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	var children int
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range lists {
		// A thread may have ended since the folder was listed.
		raw, _ := os.ReadFile(f)
		children += len(strings.Fields(string(raw)))
	}
	// The Go runtime maps memory of its own as it likes; what has an inode is ours.
	var files int
	for line := range bytes.Lines(maps) {
		if f := bytes.Fields(line); len(f) > 4 && string(f[4]) != "0" {
			files++
		}
	}
	return held{runtime.NumGoroutine(), len(entries(t, "/proc/self/fd")), files,
		bytes.Count(maps, []byte("/memfd:eagleray")), children, len(entries(t, "/dev/shm"))}
}

// entries lists a folder; one that does not exist is empty.
func entries(t *testing.T, folder string) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return list
}

// TestNothingIsLeft takes groups through whole lives, ordered and not, and counts what is left in
// this process.
func TestNothingIsLeft(t *testing.T) {
	lives := map[string]struct {
		options func() Options
		life    func(t *testing.T, e *Executor)
		end     string // early end of rank 0, which makes the start fail
	}{
		"in process": {options: func() Options {
			return Options{Launcher: inproc.New(machine.Place{}), InProcess: true,
				Init: tinyInit(1)}
		}},
		"several in process": {options: func() Options {
			return Options{Launcher: inproc.New(machine.Place{}), InProcess: true,
				Init: tinyInit(4)}
		}},
		"several in process, no model": {options: func() Options {
			o := Options{Launcher: inproc.New(machine.Place{}), InProcess: true, Init: tinyInit(2)}
			o.Init.ModelDir = "/no/such/model"
			return o
		}, end: "- -"},
		"ring": {options: func() Options { return processes(2, false) }},
		"link": {options: func() Options { return processes(2, true) }},
		"killed, ring": {options: func() Options { return processes(2, false) },
			life: killOne},
		"killed, link": {options: func() Options { return processes(2, true) }, life: killOne},
		"not started, ring": {options: func() Options { return processes(2, false) },
			end: "0 handshake"},
		"not started, link": {options: func() Options { return processes(2, true) },
			end: "0 admitted"},
		"no model": {options: func() Options {
			o := processes(2, false)
			o.Init.ModelDir = "/no/such/model"
			return o
		}, end: "- -"},
	}
	for name, l := range lives {
		t.Run(name, func(t *testing.T) {
			t.Setenv(endVariable, l.end)
			cycle := func() {
				e, err := Start(t.Context(), l.options())
				if l.end != "" {
					if err == nil {
						t.Fatal("started")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				for id := range uint64(5) {
					runs(t, e, 1+id)
				}
				if l.life != nil {
					l.life(t, e)
				}
				if err := e.Shutdown(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // caches of the runtime and of libraries fill
				cycle()
			}
			before := countHeld(t)
			cycles := 5
			if testing.Short() {
				cycles = 2
			}
			for range cycles {
				cycle()
			}
			var after held
			until := time.Now().Add(patience / 4)
			for ; time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
				after = countHeld(t)
				if after.goroutines <= before.goroutines &&
					after.descriptors <= before.descriptors && after.children == 0 &&
					after.memfds == 0 {
					break
				}
			}
			if after.goroutines > before.goroutines || after.descriptors > before.descriptors ||
				after.children > 0 || after.memfds > 0 ||
				after.shared > before.shared || after.mappings > before.mappings {
				stacks := make([]byte, 1<<20)
				t.Errorf("before %+v, after %+v\n%s", before, after,
					stacks[:runtime.Stack(stacks, true)])
			}
		})
	}
}

// killOne kills a rank and waits until it is known.
func killOne(t *testing.T, e *Executor) {
	signal(t, e.Ranks()[1].PID, syscall.SIGKILL)
	select {
	case <-e.Dead():
	case <-time.After(patience):
		t.Fatal("no failure although a rank was killed")
	}
}
