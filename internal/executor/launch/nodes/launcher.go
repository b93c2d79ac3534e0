package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/executor/launch/process"
	"github.com/eagleray/eagleray/internal/machine"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/status"
)

// Options are what node 0 needs.
type Options struct {
	// Nodes is how many there are with this one. Node n has the ranks from n·world/Nodes on.
	Nodes int
	// Address is this node's, host:port, at which the others arrive.
	Address string
	// Token is what all nodes know.
	Token handshake.Token
	// Settings are what must be equal on all nodes.
	Settings []config.Setting
	// Timeout is how long the other nodes are waited for.
	Timeout time.Duration
	// Silence is how long a node may be silent; 0 is the constant of that name.
	Silence time.Duration
	// Output receives what this node's ranks print, each line with the rank before it.
	Output io.Writer
	Log    *slog.Logger
	// Events is notified of whom the start waits for.
	Events status.Listener
}

// Launcher is node 0: it starts its own ranks, and has the other nodes start theirs.
type Launcher struct {
	o        Options
	listener *handshake.Listener
	own      *process.Launcher

	exited  chan launch.Exit
	running sync.WaitGroup
	// ctx ends with Stop.
	ctx context.Context
	end context.CancelFunc

	mu sync.Mutex
	// members are the nodes that are there; that of node 0 is nil.
	members []*member
	// changed has a value when a node has come or gone before the start.
	changed chan struct{}
	// started says that the ranks were ordered: from then on a node that goes fails the group.
	started, stopped bool
	// cause is why the start has failed.
	cause error
}

// member is another node.
type member struct {
	*channel
	hello
	// label is how failures name it.
	label string
	// answered has what became of the order to start.
	answered chan report
	// gone is closed when the node has gone, or has stopped.
	gone chan struct{}

	mu sync.Mutex
	// workers are its ranks, left those that have not ended.
	workers []launch.Worker
	left    map[int]bool
	// why it has gone.
	why string
}

const (
	// startTimeout bounds the start of ranks on a node that was ordered.
	startTimeout = time.Minute
	// stopTimeout is how long nodes may take to stop.
	stopTimeout = 3 * time.Second
	// maxRanks bounds the ends of ranks that may wait to be heard.
	maxRanks = 4096
)

// Listen makes node 0 and lets the other nodes arrive. Stop undoes it.
func Listen(o Options) (*Launcher, error) {
	o.Silence = cmp.Or(o.Silence, Silence)
	listener, err := handshake.Listen(handshake.Options{Instance: instance, Token: o.Token, World: 1,
		Shared: true, TCP: o.Address, Log: o.Log})
	if err != nil {
		return nil, err
	}
	l := &Launcher{o: o, listener: listener, own: process.New(o.Output),
		exited:  make(chan launch.Exit, maxRanks),
		members: make([]*member, o.Nodes), changed: make(chan struct{}, 1)}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.running.Go(l.accept)
	l.running.Go(l.relay)
	return l, nil
}

// Address is where the other nodes arrive.
func (l *Launcher) Address() string { return l.listener.Endpoint().TCP }

// accept receives nodes until Stop.
func (l *Launcher) accept() {
	for {
		conn, err := l.listener.Accept(l.ctx)
		if err != nil {
			return
		}
		l.running.Go(func() { l.meet(conn) })
	}
}

// relay hands on the ends of this node's ranks.
func (l *Launcher) relay() {
	for {
		select {
		case e := <-l.own.Exited():
			l.exited <- e
		case <-l.ctx.Done():
			return
		}
	}
}

// meet admits a node, or refuses it, and stays with it until it has gone.
func (l *Launcher) meet(conn *handshake.Conn) {
	defer conn.Close()
	// What is not a member yet ends with the launcher at once.
	end := context.AfterFunc(l.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	m := &member{channel: &channel{conn: conn, silence: l.o.Silence},
		answered: make(chan report, 1), gone: make(chan struct{}), left: map[int]bool{}}
	err := m.receive(&m.hello)
	if !end() || err != nil {
		return
	}
	m.label = fmt.Sprintf("node %d at %s", m.Node, host(conn.RemoteAddr()))
	log := l.o.Log.With("node", m.Node, "host", m.Host, "address", conn.RemoteAddr().String(),
		"pid", m.PID)
	// The order to start may come at once when it has its place: the answer goes before.
	m.sending.Lock()
	why := l.take(m)
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
		why = l.listen(m)
	} else {
		why = inWords(err)
	}
	m.mu.Lock()
	m.why = why
	m.mu.Unlock()
	close(m.gone)
	if l.release(m) {
		log.Warn("a node has gone before the start: another one may take its place", "reason", why)
	} else {
		l.lost(m, why)
	}
	conn.Close()
	beating.Wait()
}

func host(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.String()
	}
	return a.String()
}

// take gives a node its place, or says why it cannot have it.
func (l *Launcher) take(m *member) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := differences(m.Node, l.o.Settings, m.Settings); len(d) > 0 {
		return strings.Join(d, "; ")
	}
	switch {
	case m.Node < 1 || m.Node >= l.o.Nodes:
		return fmt.Sprintf("--node-rank %d is outside of 1 to %d", m.Node, l.o.Nodes-1)
	case l.members[m.Node] != nil:
		other := l.members[m.Node]
		return fmt.Sprintf("--node-rank %d is taken by pid %d of host %s, which joined before from %s",
			m.Node, other.PID, other.Host, other.conn.RemoteAddr())
	case l.stopped:
		return "node 0 is ending"
	}
	l.members[m.Node] = m
	l.change()
	return ""
}

// change wakes the start. l.mu is held.
func (l *Launcher) change() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// release gives the place of a node back when the ranks have not been ordered yet, and says so.
func (l *Launcher) release(m *member) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started || l.stopped {
		return false
	}
	l.members[m.Node] = nil
	l.change()
	return true
}

// listen receives a node's reports until it has gone, and says why.
func (l *Launcher) listen(m *member) string {
	for {
		var r report
		if err := m.receive(&r); err != nil {
			return inWords(err)
		}
		switch {
		case len(r.Started) > 0 || r.Failed != "":
			select {
			case m.answered <- r:
			default: // nobody has asked
			}
		case r.Exit != nil:
			l.rankEnded(m, *r.Exit)
		case r.Leaving != "":
			return r.Leaving
		case r.Stopped:
			return "it has stopped"
		}
	}
}

// rankEnded hands on the end of a rank of a node.
func (l *Launcher) rankEnded(m *member, e launch.Exit) {
	m.mu.Lock()
	ours := m.left[e.Rank]
	delete(m.left, e.Rank)
	m.mu.Unlock()
	if ours {
		e.Node = m.label
		l.exited <- e
	}
}

// lost ends the ranks of a node that has gone.
func (l *Launcher) lost(m *member, why string) {
	l.mu.Lock()
	stopped := l.stopped
	l.mu.Unlock()
	if stopped {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		if m.left[w.Rank] {
			l.exited <- launch.Exit{Rank: w.Rank, Node: m.label, PID: w.PID,
				End: launch.End{How: launch.Lost, Reason: m.label + " is gone: " + why}}
		}
	}
	clear(m.left)
}

// Launch waits for the other nodes, and starts all ranks. On an error Stop ends what was started.
func (l *Launcher) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	workers, err := l.launch(ctx, specs)
	if err != nil && ctx.Err() == nil { // else the start was given up
		l.mu.Lock()
		l.cause = err
		l.mu.Unlock()
	}
	return workers, err
}

func (l *Launcher) launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	share := len(specs) / l.o.Nodes
	if share*l.o.Nodes != len(specs) || len(specs) > maxRanks {
		return nil, fmt.Errorf("--nnodes %d does not divide the %d ranks", l.o.Nodes, len(specs))
	}
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	for _, m := range l.members[1:] {
		if err := m.order(specs[m.Node*share:][:share]); err != nil {
			return nil, fmt.Errorf("%s: %w", m.label, err)
		}
	}
	for i := range specs[:share] {
		specs[i].Invitation.Threads = threads(share)
	}
	workers, err := l.own.Launch(ctx, specs[:share])
	if err != nil {
		return nil, err
	}
	for _, m := range l.members[1:] {
		theirs, err := m.await(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.label, err)
		}
		workers = append(workers, theirs...)
	}
	return workers, nil
}

// threads is a rank's share of this machine's cores.
func threads(ranks int) int { return max(1, machine.Cores()/ranks) }

// wait waits until every node is there, and says of whom there is none from time to time.
func (l *Launcher) wait(ctx context.Context) error {
	begun := time.Now()
	late := time.NewTimer(l.o.Timeout)
	defer late.Stop()
	var p patience
	word := time.NewTimer(0)
	defer word.Stop()
	for {
		missing := l.missing()
		if len(missing) == 0 {
			return nil
		}
		l.o.Events.Emit(status.Progress{Rank: -1, Phase: "wait for node " + list(missing)})
		select {
		case <-l.changed:
		case <-word.C:
			l.o.Log.Info("waiting for other nodes", "missing", list(missing), "of", l.o.Nodes,
				"address", l.Address(), "seconds", int(time.Since(begun).Seconds()))
			word.Reset(p.after())
		case <-late.C:
			return fmt.Errorf("node %s has not come to %s within %v (--distributed-timeout-seconds)",
				list(missing), l.Address(), l.o.Timeout)
		case <-ctx.Done():
			return fmt.Errorf("wait for node %s: %w", list(missing), ctx.Err())
		}
	}
}

// missing are the nodes that are not there. When all are, no other may come.
func (l *Launcher) missing() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var missing []int
	for n := 1; n < l.o.Nodes; n++ {
		if l.members[n] == nil {
			missing = append(missing, n)
		}
	}
	l.started = len(missing) == 0
	return missing
}

// order has the node start ranks.
func (m *member) order(specs []launch.Spec) error {
	var o order
	m.mu.Lock()
	for i, s := range specs {
		o.Start = append(o.Start, *s.Invitation)
		m.workers = append(m.workers, launch.Worker{Rank: s.Rank, LocalRank: i, Node: m.label})
		m.left[s.Rank] = true
	}
	m.mu.Unlock()
	return m.send(o)
}

// await waits for the processes of the ranks that were ordered.
func (m *member) await(ctx context.Context) ([]launch.Worker, error) {
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case r := <-m.answered:
		if r.Failed != "" {
			return nil, errors.New(r.Failed)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(r.Started) != len(m.workers) {
			return nil, fmt.Errorf("%d of %d ranks were started", len(r.Started), len(m.workers))
		}
		for i, pid := range r.Started {
			m.workers[i].PID = pid
		}
		return m.workers, nil
	case <-m.gone:
		m.mu.Lock()
		defer m.mu.Unlock()
		return nil, fmt.Errorf("it is gone: %s", m.why)
	case <-timer.C:
		return nil, fmt.Errorf("its ranks were not started within %v", startTimeout)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Serving tells the other nodes that all ranks have loaded.
func (l *Launcher) Serving() {
	for _, m := range l.present() {
		// One that cannot be told is gone, which its reader sees.
		_ = m.send(order{Serving: true})
	}
}

// present are the other nodes that are there.
func (l *Launcher) present() []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*member
	for _, m := range l.members {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

// Exited delivers ends of ranks, of all nodes, that were not asked for.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// Stop ends the ranks of all nodes, and the other nodes with them: with an error when cause is one,
// or the start had failed.
func (l *Launcher) Stop(ctx context.Context, cause error) error {
	l.mu.Lock()
	again := l.stopped
	l.stopped = true
	if l.cause != nil {
		cause = l.cause
	}
	var s stop
	if cause != nil {
		s.Cause = cause.Error()
	}
	l.mu.Unlock()
	if again {
		l.running.Wait()
		return nil
	}
	late, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var stopping sync.WaitGroup
	for _, m := range l.present() {
		stopping.Go(func() {
			if m.send(order{Stop: &s}) == nil {
				select {
				case <-m.gone:
				case <-late.Done():
				}
			}
			m.conn.Close()
		})
	}
	err := l.own.Stop(ctx, cause)
	stopping.Wait()
	l.end()
	err = errors.Join(err, l.listener.Close())
	l.running.Wait()
	return err
}
