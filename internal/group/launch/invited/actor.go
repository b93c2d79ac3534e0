package invited

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/rank/worker"
	"github.com/eagleray/eagleray/internal/sys/parent"
)

// exitOrphaned is the exit code of a worker whose actor has gone.
const exitOrphaned = 12

// ofActor serves as the child of an actor, which writes an invitation for each group to its
// standard input as one line and keeps that open: when the input ends the worker ends, whatever it
// is doing. The parent-death signal does the same faster, where the kernel sends it.
func ofActor(gpus worker.GPUs) error {
	if _, err := parent.Watch(); err != nil {
		return err
	}
	raiseNiceness()
	in := bufio.NewReaderSize(os.Stdin, 4096)
	first, err := join.ReadInvitation(in)
	if err != nil {
		return err
	}
	invitations := make(chan join.Invitation, 1)
	invitations <- first
	// It lives as long as the process.
	go func() {
		for {
			inv, err := join.ReadInvitation(in)
			if err != nil {
				os.Exit(exitOrphaned)
			}
			invitations <- inv
		}
	}()
	return worker.Serve(func() (join.Invitation, error) {
		select {
		case inv := <-invitations:
			return inv, nil
		case <-time.After(againTimeout):
			return join.Invitation{}, io.EOF
		}
	}, raylet(), gpus)
}

// againTimeout is how long a worker waits for another group. Ray leaves the actors of a node that
// was cut off as they are, where they are not asked for again.
const againTimeout = time.Minute

// raiseNiceness takes niceness 0 where this process may: Ray runs its workers at 15, where any busy
// process of the machine starves them, Ray's own included. Niceness belongs to threads, so each is
// asked; those to come inherit it.
//
// Where it may not, and the kernel schedules by session (sched(7), autogroup), a session of its own
// does as well: niceness then counts only among the threads of this process. The worker leaves the
// actor's process group by that, which a SIGKILL of the group would reach; standard input and the
// parent-death signal still end it.
func raiseNiceness() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil &&
			unix.Setpriority(unix.PRIO_PROCESS, tid, 0) != nil {
			ownSession()
			return
		}
	}
}

func ownSession() {
	if on, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled"); err == nil &&
		on[0] == '1' {
		// It fails only for the leader of a group, which a child of an actor is not.
		_, _ = unix.Setsid()
	}
}

// rayletVariable is where the actor tells the process that manages its node, when it can see it.
const rayletVariable = "EAGLERAY_RAYLET_PID"

// raylet tells when the node's raylet ends, or has ended since the actor came up. Its actors notice
// that only seconds later, and then end with it; the driver need not wait so long. It is nil when
// the raylet cannot be watched.
func raylet() <-chan error {
	pid, err := strconv.Atoi(os.Getenv(rayletVariable))
	if err != nil || pid <= 0 {
		return nil
	}
	gone := make(chan error, 1)
	ended := fmt.Errorf("the raylet of its node (pid %d) has ended", pid)
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		gone <- ended
		return gone
	}
	if err != nil {
		return nil // an old kernel
	}
	// It lives as long as the process.
	go func() {
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err == nil {
				gone <- ended
			}
			return
		}
	}()
	return gone
}
