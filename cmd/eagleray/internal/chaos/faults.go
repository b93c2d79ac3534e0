package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// victim is what a fault is injected into.
type victim struct {
	ctx context.Context
	s   *server
	l   *load
	rng *rand.Rand
	// asked is held by faults in which a server that is sound refuses tokens, or has them late.
	asked *oracle
}

// kind is one way in which something goes wrong.
type kind struct {
	// needs is what there must be for it; nil is nothing but processes of ranks on this host.
	needs *need
	do    func(v *victim) error
}

// need is something that not every server has.
type need struct {
	met func(o Options) bool
	// how says what makes a server that has it.
	how string
}

var (
	// processes are ranks that are children of the server.
	processes = &need{how: "ranks in processes of the server's own: no Ray",
		met: func(o Options) bool { return !onRay(o) }}
	// memory is shared with the ranks, where they write what they are doing.
	memory = &need{how: "no --queue-transport link",
		met: func(o Options) bool { return !onLinks(o) }}
	// links are connections between the server and its ranks.
	links = &need{how: "--queue-transport link, and no Ray",
		met: func(o Options) bool { return onLinks(o) && !onRay(o) }}
	actors = &need{how: "--ray-python, or --distributed-executor-backend ray of the server",
		met: onRay}
	// nodes can be ended, and others started.
	nodes = &need{how: "a cluster of its own: --ray-python",
		met: func(o Options) bool { return o.RayPython != "" }}
)

func onLinks(o Options) bool {
	return settings(o.Args).Queue.Transport == "link"
}

func onRay(o Options) bool {
	return o.RayPython != "" || settings(o.Args).Parallel.Backend == "ray"
}

// settings are what the arguments of the server say. What is wrong with them the server says, too.
func settings(args []string) config.Config {
	c := config.Default()
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetNormalizeFunc(config.Normalize)
	f.ParseErrorsAllowlist.UnknownFlags = true // those of the verb alone
	cli.ModelFlag(f, &c)
	c.EngineFlags(f)
	c.ServerFlags(f)
	if f.Parse(config.Expand(f, args)) == nil {
		cli.UseModel(&c, f.Args())
	}
	return c
}

// faults are the kinds, by name. Another one is a line here, a row in docs/faults.md, and what it
// does: by the time that returns all is as before, or the server knows of the failure, or will
// (victim.end).
var faults = map[string]kind{
	// An operator, the kernel's OOM killer, a scheduler.
	"kill":     {do: func(v *victim) error { return v.signal(syscall.SIGKILL) }},
	"term":     {do: term},
	"kill-all": {do: killAll},
	// SIGKILL at each phase of a step.
	"kill-idle":       {memory, killIn("idle")},
	"kill-recv":       {memory, killIn("recv")},
	"kill-forward":    {memory, killIn("forward")},
	"kill-collective": {memory, killIn("collective")},
	"kill-sample":     {memory, killIn("sample")},
	"kill-send":       {memory, killIn("send")},
	// Crashes: what a worker's runtime does of a signal that is its own fault.
	"abort": {do: func(v *victim) error { return v.signal(syscall.SIGABRT) }},
	"segv":  {do: func(v *victim) error { return v.signal(syscall.SIGSEGV) }},
	// Hangs: beyond the deadline of a step, below it, and in bursts.
	"stop":  {do: hang},
	"pause": {do: func(v *victim) error { return v.freeze(400 * time.Millisecond) }},
	"slow":  {do: slow},
	// A rank that moves as little as one may that is not stalled, and one that is stopped while the
	// server ends.
	"slow-layer": {memory, slowLayer},
	"drain":      {processes, stopInDrain},
	// A rank that does not end when it is killed, and weights that are others when it is started
	// anew.
	"unkillable": {tracing, unkillable},
	"replace":    {copied, replaceFiles},
	// A second fault while the server recovers from the first, and while a worker loads.
	"second":  {processes, func(v *victim) error { return v.again(150*time.Millisecond, killed) }},
	"loading": {processes, func(v *victim) error { return v.again(0, killed) }},
	// Less memory than a worker needs to load, and no room in any file, those in memory included.
	"oom":  {processes, func(v *victim) error { return v.again(0, starved) }},
	"disk": {do: func(v *victim) error { return v.limited(unix.RLIMIT_FSIZE, 0) }},
	// The driver's own troubles: it is stopped, its log is not read, its descriptors run out.
	"driver": {do: freezeDriver},
	"log":    {do: blockLog},
	"files":  {do: exhaustFiles},
	// The network between the server and its ranks: connections are cut, for a moment and for
	// longer than they may be; nothing comes through one that is up.
	"cut":       {links, func(v *victim) error { return v.cut(0) }},
	"cut-long":  {links, func(v *victim) error { return v.cut(3 * time.Second) }},
	"half-open": {links, halfOpen},
	// What is lost on Ray: the process of an actor, an actor by ray.kill, the placement group, the
	// bridge; a node whose raylet crashes, and one that falls silent.
	"actor":           {actors, onActor(killActor)},
	"ray-kill":        {actors, onActor(helped("kill"))},
	"placement-group": {actors, onActor(helped("remove"))},
	"bridge":          {actors, killBridge},
	"raylet":          {nodes, killRaylet},
	"ray-node":        {nodes, cutNode},
}

// Kinds are the names of all faults.
func Kinds() []string { return slices.Sorted(maps.Keys(faults)) }

// Possible are the names of those that the server can have.
func Possible(o Options) []string {
	return slices.DeleteFunc(Kinds(), func(name string) bool { return Missing(name, o) != "" })
}

// Missing says what the server lacks for a kind; "" is nothing.
func Missing(name string, o Options) string {
	if n := faults[name].needs; n != nil && !n.met(o) {
		return n.how
	}
	return ""
}

// one is the process of a rank.
func (v *victim) one() (int, error) {
	ranks, err := v.s.ranks(v.ctx)
	if err != nil {
		return 0, err
	}
	return ranks[v.rng.IntN(len(ranks))].PID, nil
}

// end signals a process that does not outlive it. The next fault waits until the server knows.
func (v *victim) end(pid int, sig syscall.Signal) error {
	v.s.expectExit(pid)
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
	ranks, err := v.s.ranks(v.ctx)
	if err != nil {
		return err
	}
	for _, r := range ranks {
		if err := v.end(r.PID, syscall.SIGKILL); err != nil {
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

// killIn kills a rank in a phase of a step: it is stopped at moments until what it was stopped in
// is the phase.
func killIn(phase string) func(v *victim) error {
	return func(v *victim) error {
		for until := time.Now().Add(patience); time.Now().Before(until); {
			pid, err := v.one()
			if err != nil {
				return err
			}
			if err := send(pid, syscall.SIGSTOP); err != nil {
				return err
			}
			now, err := v.s.ranks(v.ctx)
			if err != nil {
				return errors.Join(err, send(pid, syscall.SIGCONT))
			}
			at := slices.IndexFunc(now, func(r rank) bool { return r.PID == pid })
			if at >= 0 && strings.HasPrefix(now[at].Phase, phase) {
				v.l.now()
				return v.end(pid, syscall.SIGKILL)
			}
			if err := send(pid, syscall.SIGCONT); err != nil {
				return err
			}
			time.Sleep(time.Duration(v.rng.Int64N(int64(time.Millisecond))))
		}
		return fmt.Errorf("no rank was ever found in phase %s", phase)
	}
}

// again kills a rank, and then, after up to a time, does something to a process that takes its
// place.
func (v *victim) again(within time.Duration, do func(v *victim, pid int) error) error {
	before := v.s.children()
	if err := v.signal(syscall.SIGKILL); err != nil {
		return err
	}
	time.Sleep(time.Duration(v.rng.Int64N(int64(within) + 1)))
	until := time.Now().Add(5 * time.Second)
	for ; time.Now().Before(until); time.Sleep(time.Millisecond) {
		for _, pid := range v.s.children() {
			if !slices.Contains(before, pid) {
				return do(v, pid)
			}
		}
	}
	return errors.New("no worker was started in the place of one that was killed")
}

func killed(v *victim, pid int) error { return v.end(pid, syscall.SIGKILL) }

// starved lets a process have no more memory than it has.
func starved(_ *victim, pid int) error {
	err := unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: 0, Max: 0}, nil)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func freezeDriver(v *victim) error {
	pid := v.s.pid()
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(400 * time.Millisecond)
	return send(pid, syscall.SIGCONT)
}

// blockLog kills a rank while the log is not read.
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
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.s.pid()))
	if err != nil {
		return err
	}
	return v.limited(unix.RLIMIT_NOFILE, uint64(len(open)))
}

// limited kills a rank while the driver has a tight limit.
func (v *victim) limited(resource int, tight uint64) error {
	pid := v.s.pid()
	rank, err := v.one()
	if err != nil {
		return err
	}
	var was unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &was); err != nil {
		return err
	}
	if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: tight, Max: was.Max}, nil); err != nil {
		return err
	}
	err = v.end(rank, syscall.SIGKILL)
	time.Sleep(300 * time.Millisecond)
	return errors.Join(err, unix.Prlimit(pid, resource, &was, nil))
}
