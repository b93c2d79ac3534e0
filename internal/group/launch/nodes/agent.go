package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/figure"
)

// AgentOptions configure a node other than node 0.
type AgentOptions struct {
	// Node is this one's number, from 1.
	Node int
	// Address is node 0's, host:port.
	Address string
	// Token is the secret that all nodes share.
	Token handshake.Token
	// Settings are what must be equal on all nodes.
	Settings []config.Setting
	// Model is what the model is called.
	Model string
	// Timeout is how long node 0 is waited for.
	Timeout time.Duration
	// Silence is how long node 0 may be silent; 0 is the constant of that name.
	Silence time.Duration
	// Worker are the arguments that make the program a rank; none are launch.Verb.
	Worker []string
	// Output receives what this node's ranks print; nil drops it.
	Output launch.Output
	Log    *slog.Logger
}

// redial is how long a node waits before it tries again to reach node 0.
const redial = 500 * time.Millisecond

// agent is a node that starts ranks for node 0.
type agent struct {
	*channel
	o AgentOptions
	// groups are the groups that it has orders for, by number.
	groups map[int]*group
	// living are their goroutines.
	living sync.WaitGroup
}

// group is a node's share of a group of ranks. Each group has a goroutine of its own, so none waits
// for another.
type group struct {
	*agent
	number int
	log    *slog.Logger
	orders chan order
	// ranks are numbered running; nil before the first order to start, and after one to stop.
	ranks   *process.Launcher
	running []int
}

// Serve joins node 0, which may come later than this node, and runs this node's ranks, of one group
// after the other, until node 0 ends, which is an error if it was not asked to, or ctx ends, which
// is none.
func Serve(ctx context.Context, o AgentOptions) error {
	o.Silence = cmp.Or(o.Silence, Silence)
	a := &agent{o: o, groups: map[int]*group{}}
	conn, err := a.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			o.Log.Info("stopped before node 0 was there")
			return nil
		}
		return err
	}
	defer conn.Close()
	a.channel = &channel{conn: conn, silence: o.Silence}
	if err := a.join(); err != nil {
		return err
	}
	o.Log.Info("joined node 0: waiting for the order to start ranks", "node", o.Node,
		"address", o.Address)
	return a.run(ctx)
}

// dial connects to node 0, again and again until the time is over: it may not be there yet.
func (a *agent) dial(ctx context.Context) (*handshake.Conn, error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	var p waiting
	word := time.Now()
	for {
		conn, err := a.dialOnce(ctx)
		if err == nil {
			return conn, nil
		}
		switch {
		case errors.Is(err, handshake.BadToken):
			return nil, fmt.Errorf("--cluster-token-file: node 0 at %s has another token",
				a.o.Address)
		case errors.Is(err, handshake.VersionMismatch):
			return nil, fmt.Errorf("node 0 at %s is another version of the program: %w",
				a.o.Address, err)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("node 0 was not reached at %s within %v "+
				"(--distributed-timeout-seconds): %w", a.o.Address, a.o.Timeout, err)
		}
		if now := time.Now(); !now.Before(word) {
			a.o.Log.Info("waiting for node 0", "address", a.o.Address,
				"seconds", int(now.Sub(started).Seconds()), "last_try", err.Error())
			word = now.Add(p.after())
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
	}
}

// dialOnce tries to connect to node 0.
func (a *agent) dialOnce(ctx context.Context) (*handshake.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Silence)
	defer cancel()
	return handshake.Dial(ctx, handshake.Endpoint{Instance: instance, TCP: a.o.Address,
		Unpinned: true}, a.o.Token, handshake.Identity{PID: os.Getpid()})
}

// join sends node 0 this node's hello and receives the answer.
func (a *agent) join() error {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	var admitted answer
	err = a.send(hello{Node: a.o.Node, Host: name, PID: os.Getpid(), Settings: a.o.Settings})
	if err == nil {
		err = a.receive(&admitted)
	}
	switch {
	case err != nil:
		return a.lost(err)
	case admitted.Refused != "":
		return fmt.Errorf("node 0 at %s refuses this node: %s", a.o.Address, admitted.Refused)
	}
	return nil
}

// lost is the end of the connection to node 0.
func (a *agent) lost(err error) error {
	return fmt.Errorf("node 0 at %s is gone: %s", a.o.Address, inWords(err))
}

// run carries out orders until the end.
func (a *agent) run(ctx context.Context) error {
	done := make(chan struct{})
	orders, lost := make(chan order), make(chan error, 1)
	var helpers sync.WaitGroup
	helpers.Go(func() { a.beat(done) })
	helpers.Go(func() {
		for {
			var o order
			if err := a.receive(&o); err != nil {
				lost <- err
				return
			}
			select {
			case orders <- o:
			case <-done:
				return
			}
		}
	})
	err := a.obey(ctx, orders, lost)
	close(done)
	a.conn.Close()
	helpers.Wait()
	return err
}

// obey is the agent's loop. It returns when no rank is left.
func (a *agent) obey(ctx context.Context, orders <-chan order, lost <-chan error) error {
	groups, end := context.WithCancel(ctx)
	defer a.living.Wait()
	defer end()
	for {
		select {
		case o := <-orders:
			switch {
			case len(o.Start) > 0 || o.Serving || o.Stop != nil:
				select {
				case a.group(groups, o.Group).orders <- o:
				case <-groups.Done():
				}
			case o.End != nil && o.End.Cause != "":
				return fmt.Errorf("node 0 at %s has ended: %s", a.o.Address, o.End.Cause)
			case o.End != nil:
				a.o.Log.Info("ended: node 0 has ended, as it was asked to")
				return nil
			}
		case err := <-lost:
			return a.lost(err)
		case <-ctx.Done():
			a.o.Log.Info("ending: this node was asked to")
			_ = a.send(report{Leaving: "it was asked to end"})
			return nil
		}
	}
}

// group is the one of a number, which lives until ctx ends.
func (a *agent) group(ctx context.Context, number int) *group {
	g := a.groups[number]
	if g == nil {
		g = &group{agent: a, number: number, log: a.o.Log.With("engine", number),
			orders: make(chan order)}
		a.groups[number] = g
		a.living.Go(func() { g.obey(ctx) })
	}
	return g
}

// obey carries out the orders for a group until ctx ends, and its ranks with it.
func (g *group) obey(ctx context.Context) {
	defer g.kill()
	for {
		var exited <-chan launch.Exit
		if g.ranks != nil {
			exited = g.ranks.Exited()
		}
		select {
		case o := <-g.orders:
			switch {
			case len(o.Start) > 0:
				g.start(ctx, o)
			case o.Serving:
				g.log.Info("serving: all ranks of the group have loaded", "ranks",
					figure.Numbers(g.running))
			default:
				g.stop(*o.Stop)
			}
		case e := <-exited:
			g.log.Error("a rank has ended", "rank", e.Rank, "pid", e.PID, "cause", e.End.String())
			// Node 0 decides what follows. If it is gone, the loop sees that too.
			_ = g.send(report{Group: g.number, Exit: short(e)})
		case <-ctx.Done():
			return
		}
	}
}

// start starts the ranks that node 0 has ordered, but for those of the previous group that it
// reuses.
func (g *group) start(ctx context.Context, o order) {
	if g.ranks == nil {
		g.ranks = process.New(g.o.Output, g.o.Worker...)
		g.ranks.Secrets = launch.ModelNames(g.o.Model) // this node may lack the model's folder
		g.ranks.OnAbandon = func(rank, pid int) {
			g.log.Error("a rank was killed and does not end: it is left behind", "rank", rank,
				"pid", pid)
		}
	}
	var specs []launch.Spec
	g.running = nil
	for i, r := range o.Start {
		r.Invitation.Measure = true // node 0 has looked at its own GPUs alone
		specs = append(specs, launch.Spec{Rank: r.Rank, LocalRank: i, Invitation: &r.Invitation,
			Fresh: r.Fresh})
		g.running = append(g.running, r.Rank)
	}
	r := report{Group: g.number}
	workers, err := g.ranks.Launch(ctx, specs)
	if err != nil {
		r.Failed = err.Error()
	}
	kept := 0
	for _, w := range workers {
		r.Started, r.Reused = append(r.Started, w.PID), append(r.Reused, w.Reused)
		if w.Reused {
			kept++
		}
	}
	g.log.Info("started ranks", "ranks", figure.Numbers(g.running), "pids",
		figure.Numbers(r.Started), "kept", kept)
	_ = g.send(r)
}

// stop ends the ranks by an order of node 0, whose driver has told them to end already.
func (g *group) stop(s stop) {
	if g.ranks != nil {
		// Processes that were reaped have nothing more to say.
		_ = g.ranks.Stop(context.Background(), nil)
		g.ranks, g.running = nil, nil
	}
	if s.Cause != "" {
		g.log.Error("the group has failed: waiting for the order to start ranks of another",
			"cause", s.Cause)
	}
	_ = g.send(report{Group: g.number, Stopped: true})
}

// kill ends the ranks now.
func (g *group) kill() {
	if g.ranks == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = g.ranks.Stop(ctx, nil)
	g.ranks, g.running = nil, nil
}

// The most that an end says of a rank's output: what a message has room for.
const (
	maxLine   = 400
	maxDetail = 4000
)

// short is the end of a rank with lines that fit a message.
func short(e launch.Exit) *launch.Exit {
	e.Detail = e.Detail[:min(len(e.Detail), maxDetail)]
	lines := make([]string, len(e.Stderr))
	for i, s := range e.Stderr {
		lines[i] = s[:min(len(s), maxLine)]
	}
	e.Stderr = lines
	return &e
}
