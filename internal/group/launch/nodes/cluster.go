package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/figure"
)

// Options configure node 0.
type Options struct {
	// Nodes is how many there are with this one.
	Nodes int
	// Address is this node's, host:port, at which the others arrive.
	Address string
	// Token is the secret that all nodes share.
	Token handshake.Token
	// Settings are what must be equal on all nodes.
	Settings []config.Setting
	// Timeout is how long the start of a group waits for other nodes.
	Timeout time.Duration
	// Silence is how long a node may be silent; 0 is the constant of that name.
	Silence time.Duration
	// Worker are the arguments that make the program a rank; none are launch.Verb.
	Worker []string
	// Output receives what this node's ranks print; nil drops it.
	Output launch.Output
	Log    *slog.Logger
}

// Cluster is node 0 with the nodes that have joined it. They stay from one group of ranks to the
// next.
type Cluster struct {
	o        Options
	listener *handshake.Listener
	running  sync.WaitGroup
	// ctx ends with Stop.
	ctx context.Context
	end context.CancelFunc

	mu sync.Mutex
	// members are the other nodes that are there, by their numbers.
	members map[int]*member
	// changed is closed, and replaced, when a node joins or leaves.
	changed chan struct{}
	stopped bool
}

// member is another node.
type member struct {
	*channel
	hello
	// label is how failures name it.
	label string
	// gone is closed when the node has gone.
	gone chan struct{}

	mu sync.Mutex
	// shares are what the node has of groups, by their numbers.
	shares map[int]*share
	// why it has gone.
	why string
}

// share is a node's share of a group.
type share struct {
	group *Launcher
	// workers are its ranks, of which the processes in ended have.
	workers []launch.Worker
	ended   map[int]bool
	// answered has the reports on orders: one to start, and one to stop that followed before the
	// report.
	answered chan report
}

// stopTimeout is how long nodes may take to stop, which have ranks that must be killed, and may
// have some that cannot be.
const stopTimeout = 5 * time.Second

// Listen makes node 0 and admits the other nodes. Stop undoes it.
func Listen(o Options) (*Cluster, error) {
	o.Silence = cmp.Or(o.Silence, Silence)
	listener, err := handshake.Listen(handshake.Options{Instance: instance, Token: o.Token,
		World:  1,
		Shared: true, TCP: o.Address, Log: o.Log})
	if err != nil {
		return nil, err
	}
	c := &Cluster{o: o, listener: listener, members: map[int]*member{},
		changed: make(chan struct{})}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.running.Go(func() {
		for {
			conn, err := listener.Accept(c.ctx)
			if err != nil {
				return
			}
			c.running.Go(func() { c.meet(conn) })
		}
	})
	return c, nil
}

// Address returns the address that the other nodes dial.
func (c *Cluster) Address() string { return c.listener.Endpoint().TCP }

// Launcher returns the launcher of a group of ranks and its successors; it starts each when all
// nodes of the group have joined.
func (c *Cluster) Launcher(g Group) *Launcher {
	if g.Log == nil {
		g.Log = c.o.Log
	}
	l := &Launcher{Group: g, cluster: c, own: process.New(c.o.Output, c.o.Worker...),
		exited: make(chan launch.Exit, g.Slots+1)}
	l.own.OnAbandon = func(rank, pid int) {
		g.Events.Emit(status.RankAbandoned{Rank: rank, Node: launch.ThisHost, PID: pid})
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.relaying.Go(l.relay)
	return l
}

// meet admits or refuses a node, and reads its reports until it has gone.
func (c *Cluster) meet(conn *handshake.Conn) {
	defer conn.Close()
	// A connection that is no member yet ends with the cluster at once.
	end := context.AfterFunc(c.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	m := &member{channel: &channel{conn: conn, silence: c.o.Silence},
		gone: make(chan struct{}), shares: map[int]*share{}}
	err := m.receive(&m.hello)
	if !end() || err != nil {
		return
	}
	m.label = fmt.Sprintf("node %d at %s", m.Node, host(conn.RemoteAddr()))
	log := c.o.Log.With("node", m.Node, "host", m.Host, "address", conn.RemoteAddr().String(),
		"pid", m.PID)
	// An order may be sent as soon as the node is registered: the answer must precede it.
	m.sending.Lock()
	why := c.register(m)
	if why == "" {
		log.Info("node joined")
	} else {
		log.Warn("refused a node", "reason", why)
	}
	err = m.write(answer{Refused: why})
	m.sending.Unlock()
	if why != "" {
		return
	}
	var beating sync.WaitGroup
	beating.Go(func() { m.beat(m.gone) })
	if err == nil {
		why = m.listen()
	} else {
		why = inWords(err)
	}
	if c.deregister(m) {
		log.Warn("a node has gone: another one may take its place", "reason", why)
	}
	m.shutDown(why)
	conn.Close()
	beating.Wait()
}

func host(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.String()
	}
	return a.String()
}

// register enters a node under its number, or returns why it is refused.
func (c *Cluster) register(m *member) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.differences(m); len(d) > 0 {
		return strings.Join(d, "; ")
	}
	switch {
	case m.Node < 1 || m.Node >= maxNodes:
		return fmt.Sprintf("--node-rank %d is outside of 1 to %d", m.Node, maxNodes-1)
	case c.members[m.Node] != nil:
		other := c.members[m.Node]
		return fmt.Sprintf("--node-rank %d is taken by pid %d of host %s, which joined before "+
			"from %s", m.Node, other.PID, other.Host, other.conn.RemoteAddr())
	case c.stopped:
		return "node 0 is ending"
	}
	c.members[m.Node] = m
	c.change()
	return ""
}

// Expect replaces some of the settings, by their names, for nodes that join from now on.
func (c *Cluster) Expect(settings []config.Setting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.o.Settings)
	for i := range all {
		for _, s := range settings {
			if all[i].Name == s.Name {
				all[i] = s
			}
		}
	}
	c.o.Settings = all
}

// maxNodes bounds the numbers of nodes that may join for engines that are added.
const maxNodes = 4096

// differences lists the settings that differ between node 0 and another node, in words. A node
// beyond those that node 0 was started with is for engines that are added: it knows of more nodes.
func (c *Cluster) differences(m *member) []string {
	zeros, theirs := c.o.Settings, m.Settings
	if m.Node >= c.o.Nodes {
		zeros, theirs = withoutSizes(zeros), withoutSizes(theirs)
	}
	return differences(m.Node, zeros, theirs)
}

func withoutSizes(settings []config.Setting) []config.Setting {
	return slices.DeleteFunc(slices.Clone(settings), func(s config.Setting) bool {
		return s.Name == "--nnodes" || strings.HasPrefix(s.Name, "--data-parallel-size")
	})
}

// change wakes the starts that wait. c.mu is held.
func (c *Cluster) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// deregister removes a node, and reports whether that was unexpected: Stop was not called.
func (c *Cluster) deregister(m *member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.members, m.Node)
	c.change()
	return !c.stopped
}

// wait returns the other nodes of a group that have joined, and the slots of its ranks, as soon as
// these nodes have one for each. It logs from time to time which are missing. If patience is over 0
// the error after it is a *launch.NoPlace.
func (c *Cluster) wait(ctx context.Context, g *Group, ranks int, patience time.Duration) (
	there []*member, slots []int, err error) {
	started := time.Now()
	late := time.NewTimer(cmp.Or(patience, c.o.Timeout))
	defer late.Stop()
	var p waiting
	word := time.NewTimer(0)
	defer word.Stop()
	for {
		there, missing, changed := c.present(g.nodes())
		if slots := g.slots(missing); len(slots) >= ranks {
			return there, slots[:ranks], nil
		}
		of := c.o.Nodes
		if _, end := g.nodes(); end > of {
			of = end
		}
		g.Events.Emit(status.Progress{Rank: -1, Phase: fmt.Sprintf("wait for node %s of %d",
			list(missing), of)})
		select {
		case <-changed:
		case <-word.C:
			g.Log.Info("waiting for other nodes", "missing", figure.Numbers(missing), "of", of,
				"address", c.Address(), "seconds", int(time.Since(started).Seconds()))
			word.Reset(p.after())
		case <-late.C:
			err := fmt.Errorf("node %s has not come to %s within", list(missing), c.Address())
			if patience == 0 {
				return nil, nil, fmt.Errorf("%w %v (--distributed-timeout-seconds)", err,
					c.o.Timeout)
			}
			return nil, nil, &launch.NoPlace{Room: len(g.slots(missing)),
				Missing: "node " + list(missing), Err: fmt.Errorf("%w %v", err, patience)}
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("wait for node %s: %w", list(missing), ctx.Err())
		}
	}
}

// Missing lists the numbers of a group's nodes that have not joined.
func (c *Cluster) Missing(g *Group) []int {
	_, missing, _ := c.present(g.nodes())
	return missing
}

// present returns the members from first up to end, the numbers of the missing nodes, and a channel
// that is closed when that changes.
func (c *Cluster) present(first, end int) (there []*member, missing []int, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := max(1, first); n < end; n++ {
		if m := c.members[n]; m != nil {
			there = append(there, m)
		} else {
			missing = append(missing, n)
		}
	}
	return there, missing, c.changed
}

// Stop ends the other nodes: with an error when cause, why this one ends, is not nil. The caller
// has stopped the groups before.
func (c *Cluster) Stop(ctx context.Context, cause error) error {
	c.mu.Lock()
	again := c.stopped
	c.stopped = true
	c.mu.Unlock()
	if again {
		c.running.Wait()
		return nil
	}
	var s stop
	if cause != nil {
		s.Cause = cause.Error()
	}
	late, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var ending sync.WaitGroup
	there, _, _ := c.present(1, maxNodes)
	for _, m := range there {
		ending.Go(func() {
			if m.send(order{End: &s}) == nil {
				select {
				case <-m.gone:
				case <-late.Done():
				}
			}
			m.conn.Close()
		})
	}
	ending.Wait()
	c.end()
	err := c.listener.Close()
	c.running.Wait()
	return err
}

// listen receives a node's reports until it has gone, and says why.
func (m *member) listen() string {
	for {
		var r report
		if err := m.receive(&r); err != nil {
			return inWords(err)
		}
		switch {
		case len(r.Started) > 0 || r.Failed != "" || r.Stopped:
			m.mu.Lock()
			if s := m.shares[r.Group]; s != nil {
				select {
				case s.answered <- r:
				default: // no caller has asked
				}
			}
			m.mu.Unlock()
		case r.Exit != nil:
			m.rankEnded(r.Group, *r.Exit)
		case r.Leaving != "":
			return r.Leaving
		}
	}
}

// rankEnded forwards the end of a rank, which may be of an earlier group.
func (m *member) rankEnded(group int, e launch.Exit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.shares[group]; s != nil && s.workers != nil {
		s.ended[e.PID] = true
		e.Node = m.label
		s.group.forward(e)
	}
}

// shutDown reports the ranks of a node that has gone as lost, and closes gone.
func (m *member) shutDown(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.why = why
	for _, s := range m.shares {
		for _, w := range s.workers {
			if !s.ended[w.PID] {
				s.group.forward(launch.Exit{Rank: w.Rank, Node: m.label, PID: w.PID,
					End: launch.End{How: launch.Lost, Reason: m.label + " is gone: " + why}})
			}
		}
		s.workers = nil
	}
	close(m.gone)
}

// start orders the node to start ranks of a group.
func (m *member) start(l *Launcher, specs []launch.Spec) error {
	o := order{Group: l.Number}
	s := &share{group: l, ended: map[int]bool{}, answered: make(chan report, 2)}
	for i, spec := range specs {
		o.Start = append(o.Start, rankOrder{*spec.Invitation, spec.Fresh})
		s.workers = append(s.workers, launch.Worker{Rank: spec.Rank, LocalRank: i, Node: m.label})
	}
	m.mu.Lock()
	m.shares[l.Number] = s
	m.mu.Unlock()
	return m.send(o)
}

// goneError is a node that has gone.
type goneError struct{ why string }

func (e *goneError) Error() string { return "it is gone: " + e.why }

// answer waits for the report on an order for a group.
func (m *member) answer(ctx context.Context, s *share) (report, error) {
	select {
	case r := <-s.answered:
		return r, nil
	case <-m.gone:
		m.mu.Lock()
		defer m.mu.Unlock()
		return report{}, &goneError{m.why}
	case <-ctx.Done():
		return report{}, ctx.Err()
	}
}

// share returns the node's share of a group; nil when that was stopped.
func (m *member) share(group int) *share {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shares[group]
}

// started waits for the processes of the ranks of a group that were ordered.
func (m *member) started(ctx context.Context, group int) ([]launch.Worker, error) {
	late := fmt.Errorf("its ranks were not started within %v", startTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, late)
	defer cancel()
	s := m.share(group)
	r, err := m.answer(ctx, s)
	switch {
	case err != nil && context.Cause(ctx) == late:
		return nil, late
	case err != nil:
		return nil, err
	case r.Failed != "":
		return nil, errors.New(r.Failed)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case s.workers == nil:
		return nil, &goneError{m.why}
	case len(r.Started) != len(s.workers) || len(r.Reused) != len(s.workers):
		return nil, fmt.Errorf("%d of %d ranks were started", len(r.Started), len(s.workers))
	}
	for i, pid := range r.Started {
		s.workers[i].PID, s.workers[i].Reused = pid, r.Reused[i]
	}
	return slices.Clone(s.workers), nil
}

// stop orders the node to stop its ranks of a group, and closes the connection when that takes too
// long.
func (m *member) stop(ctx context.Context, group int, why *stop) {
	m.mu.Lock()
	s := m.shares[group]
	if s == nil {
		s = &share{answered: make(chan report, 2)}
		m.shares[group] = s
	}
	s.workers = nil
	m.mu.Unlock()
	select {
	case <-s.answered: // to an order that was not waited for
	default:
	}
	err := m.send(order{Group: group, Stop: why})
	for stopped := false; err == nil && !stopped; {
		var r report
		r, err = m.answer(ctx, s)
		stopped = r.Stopped
	}
	if err != nil {
		m.conn.Close()
	}
	m.mu.Lock()
	delete(m.shares, group)
	m.mu.Unlock()
}
