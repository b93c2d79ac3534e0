package machine

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Threads is how many more threads, of which each process has one or more, a limit lets this
// process and its children start.
type Threads struct {
	Left int64
	// Limit is which one, in words: "pids.max 64 of the control group /kubepods/pod1".
	Limit string
}

// ThreadsLeft is the tightest limit of threads there is; false when none is known.
func ThreadsLeft() (Threads, bool) {
	var r unix.Rlimit
	user := int64(-1)
	// The limit of a user's threads does not hold for root.
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &r); err == nil && r.Cur != unix.RLIM_INFINITY &&
		os.Geteuid() != 0 {
		user = int64(r.Cur)
	}
	return threadsLeft(os.DirFS("/"), user, os.Geteuid())
}

func threadsLeft(root fs.FS, user int64, uid int) (least Threads, ok bool) {
	take := func(limit, used int64, what string) {
		if t := (Threads{max(0, limit-used), what}); !ok || t.Left < least.Left {
			least, ok = t, true
		}
	}
	for _, group := range controlGroups(root, "pids") {
		limit, has := number(root, path.Join(group, "pids.max")) // "max" is no number
		used, counted := number(root, path.Join(group, "pids.current"))
		if has && counted {
			name := strings.TrimPrefix(strings.TrimPrefix(group, "sys/fs/cgroup"), "/pids")
			take(limit, used, fmt.Sprintf("pids.max %d of the control group /%s", limit,
				strings.Trim(name, "/")))
		}
	}
	if user >= 0 {
		take(user, threadsOf(root, uid), fmt.Sprintf("ulimit -u %d", user))
	}
	if limit, has := number(root, "proc/sys/kernel/threads-max"); has {
		take(limit, allThreads(root), fmt.Sprintf("kernel.threads-max %d", limit))
	}
	return least, ok
}

// threadsOf counts the threads of a user's processes that can be seen.
func threadsOf(root fs.FS, uid int) (n int64) {
	entries, _ := fs.ReadDir(root, "proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		status := path.Join("proc", e.Name(), "status")
		if owner, ok := keyed(root, status, "Uid:"); ok && owner == int64(uid) {
			threads, _ := keyed(root, status, "Threads:")
			n += threads
		}
	}
	return n
}

// allThreads counts those of the machine: the fourth field of /proc/loadavg is "running/all".
func allThreads(root fs.FS) int64 {
	raw, _ := fs.ReadFile(root, "proc/loadavg")
	fields := strings.Fields(string(raw))
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.ParseInt(all, 10, 64)
	return n
}

// What a process of Go has beside the threads that it computes on: its runtime's, and those that
// wait in system calls.
const runtimeThreads = 10

// ThreadsWanted is how many threads a driver has with so many ranks on its machine, which compute
// on so many threads in all; children says that ranks are processes of their own.
func ThreadsWanted(ranks, threads int, children bool) int64 {
	n := runtimeThreads + ReservedThreads + threads
	if children {
		n += ranks * runtimeThreads
	}
	return int64(n)
}

// ReservedThreads is what a driver is to reserve.
const ReservedThreads = 16

// ReserveThreads has the runtime start n threads, which it then keeps: it ends the process when it
// needs another one and there is none to be had.
func ReserveThreads(n int) {
	var all, let sync.WaitGroup
	all.Add(n)
	let.Add(1)
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // it stays, as no goroutine's own
			all.Done()
			let.Wait()
		}()
	}
	all.Wait()
	let.Done()
}
