package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/collective/shm"
	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/executor/verdict"
	"github.com/eagleray/eagleray/internal/machine"
	"github.com/eagleray/eagleray/internal/queue/fanin"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/ring"
	"github.com/eagleray/eagleray/internal/worker"
)

// meeting is how the ranks of other processes come to the driver: a listener they dial, and the memory that
// those of this host are given.
type meeting struct {
	e        *Executor
	listener *handshake.Listener
	segment  *ring.Segment
	// By rank: its connection, whether it shares the ring's memory, and its link when it does not.
	conns []*handshake.Conn
	local []bool
	links []*link.Link
}

// connect starts the ranks and joins them to a hub.
func (e *Executor) connect(ctx context.Context) error {
	world := e.opt.Init.WorldSize
	specs := make([]launch.Spec, world)
	for i := range specs {
		specs[i] = launch.Spec{Rank: i, LocalRank: i}
	}
	if e.opt.InProcess {
		if err := e.launch(ctx, specs); err != nil {
			return err
		}
		e.hub = e.workers[0].Hub
		return nil
	}
	m := &meeting{e: e, conns: make([]*handshake.Conn, world), local: make([]bool, world), links: make([]*link.Link, world)}
	defer m.release()
	if err := m.open(specs); err != nil {
		return err
	}
	if err := e.launch(ctx, specs); err != nil {
		return err
	}
	if err := m.accept(ctx); err != nil {
		return err
	}
	return m.join()
}

// open listens, writes the invitations and makes the shared memory.
func (m *meeting) open(specs []launch.Spec) error {
	o := &m.e.opt
	binary, err := worker.BinaryHash()
	if err != nil {
		return err
	}
	token := handshake.NewToken()
	m.listener, err = handshake.Listen(handshake.Options{Instance: handshake.NewInstance(), Token: token, World: len(specs),
		Binary: binary, TCP: o.Address, PortRange: o.PortRange, Unix: !o.LinksOnly, Log: o.Log})
	if err != nil {
		return err
	}
	m.e.closers = append(m.e.closers, m.listener.Close)
	for i := range specs {
		specs[i].Binary = binary
		specs[i].Invitation = &worker.Invitation{Endpoint: m.listener.Endpoint(), Token: token.Reveal(), Rank: i,
			World: len(specs), Threads: max(1, machine.Cores()/len(specs))}
	}
	if o.LinksOnly {
		return nil
	}
	if m.segment, err = ring.Create(ring.Options{Ranks: len(specs), Memory: o.QueueMemory}); err != nil {
		return fmt.Errorf("--queue-memory %d: %w", o.QueueMemory, err)
	}
	return nil
}

// accept admits one connection per rank and gives each what it needs. It ends early when a rank does.
func (m *meeting) accept(ctx context.Context) error {
	late := fmt.Errorf("not all have come within %v", m.e.opt.MeetTimeout)
	ctx, end := context.WithTimeoutCause(ctx, m.e.opt.MeetTimeout, late)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	exited := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case exit := <-m.e.opt.Launcher.Exited():
			f := m.e.judge.ranks.Ended(exit)
			f.Phase = "meet"
			cancel(f)
		case <-exited:
		}
	}()
	err := m.admit(ctx)
	if err != nil {
		// The exit of a rank says more than the connection that broke with it, and comes a moment later.
		select {
		case <-ctx.Done():
		case <-time.After(verdict.ExitGrace):
		}
	}
	close(exited)
	<-ended
	// An end that was heard counts, even if it came when all had been admitted.
	if cause := context.Cause(ctx); errors.Is(cause, late) {
		err = m.late(err, late)
	} else if cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("waiting for ranks: %w", err)
	}
	return nil
}

// late is the error of a meeting whose time is over: the first rank that has not come is at fault, else the one that
// was waited for.
func (m *meeting) late(waiting, late error) error {
	var f *Failure
	if rank := slices.Index(m.conns, nil); rank >= 0 {
		return m.failed(rank, "start", late)
	} else if errors.As(waiting, &f) {
		return waiting
	}
	return late
}

// admit accepts every rank, then welcomes all: only when all are there it is known who shares a host with whom.
func (m *meeting) admit(ctx context.Context) error {
	for range m.conns {
		conn, err := m.listener.Accept(ctx)
		if err != nil {
			return err
		}
		if m.conns[conn.Peer.Rank] != nil {
			conn.Close()
			return fmt.Errorf("rank %d came back before the group was complete", conn.Peer.Rank)
		}
		m.conns[conn.Peer.Rank] = conn
	}
	// Whoever ends ctx ends the exchange under way too.
	defer context.AfterFunc(ctx, func() {
		for _, c := range m.conns {
			c.SetDeadline(time.Unix(1, 0))
		}
	})()
	for rank, conn := range m.conns {
		if err := m.welcome(conn); err != nil {
			return m.failed(rank, "welcome", err)
		}
	}
	if len(m.conns) == 1 {
		return nil
	}
	return m.group()
}

// welcome gives a rank of this host the memory of the ring. When memory cannot be passed the rank is treated as
// one of another host.
func (m *meeting) welcome(conn *handshake.Conn) error {
	if err := worker.Tell(conn, worker.Welcome{Ring: conn.Local}); err != nil {
		return err
	}
	if !conn.Local {
		return nil
	}
	err := conn.SendFile(m.segment.File())
	if errors.Is(err, handshake.ErrNoPassing) {
		m.e.opt.Log.Warn("cannot pass memory to a rank of this host: its records go over the socket", "rank", conn.Peer.Rank)
		return nil
	}
	m.local[conn.Peer.Rank] = err == nil
	return err
}

// group brings the ranks together for their tensors: in shared memory when all are on this host, else by a
// connection between each two of them.
func (m *meeting) group() error {
	if !slices.Contains(m.local, false) {
		return m.shareMemory()
	}
	for rank, conn := range m.conns {
		if err := worker.Tell(conn, m.e.gathering(worker.TransportTCP)); err != nil {
			return m.failed(rank, "gather", err)
		}
	}
	peers := worker.Peers{Endpoints: make([]handshake.Endpoint, len(m.conns))}
	for rank, conn := range m.conns {
		if err := worker.Hear(conn, &peers.Endpoints[rank]); err != nil {
			return m.failed(rank, "listen for the others", err)
		}
	}
	for rank, conn := range m.conns {
		if err := worker.Tell(conn, peers); err != nil {
			return m.failed(rank, "gather", err)
		}
	}
	// A link counts silence from its beginning: no rank has one before it has met the others, which may take longer.
	for rank, conn := range m.conns {
		if err := worker.Hear(conn, new(worker.Met)); err != nil {
			return m.failed(rank, "meet the others", err)
		}
	}
	for rank, conn := range m.conns {
		if err := worker.Tell(conn, worker.Met{}); err != nil {
			return m.failed(rank, "meet the others", err)
		}
	}
	return nil
}

// failed is the failure of a rank that broke off the meeting.
func (m *meeting) failed(rank int, doing string, err error) *Failure {
	f := m.e.judge.ranks.Failure(rank, doing+": "+err.Error())
	f.Phase = "meet"
	return f
}

// gathering says how the ranks exchange tensors. They wait for each other a little longer than the driver for the step,
// which then has seen all of them and says best who held it up.
func (e *Executor) gathering(by worker.Transport) worker.Gathering {
	return worker.Gathering{Transport: by, Bytes: e.opt.CollectiveBytes, Timeout: cmp.Or(e.opt.CollectiveTimeout, e.opt.StepTimeout+collectiveGrace)}
}

// collectiveGrace is how much longer that is.
const collectiveGrace = 5 * time.Second

func (m *meeting) shareMemory() error {
	memory, err := shm.Create(len(m.conns), m.e.opt.CollectiveBytes)
	if err != nil {
		return fmt.Errorf("shared memory of the ranks: %w", err)
	}
	defer memory.Close()
	for rank, conn := range m.conns {
		err := worker.Tell(conn, m.e.gathering(worker.TransportShm))
		if err == nil {
			err = conn.SendFile(memory)
		}
		if err != nil {
			return m.failed(rank, "share memory", err)
		}
	}
	return nil
}

// join makes the hub and watches every connection for the death of its rank.
func (m *meeting) join() error {
	e := m.e
	e.pids = make([]int, len(m.conns))
	var driver *ring.Driver
	if slices.Contains(m.local, true) {
		driver = m.segment.Driver()
		m.segment = nil
	}
	for rank, conn := range m.conns {
		e.pids[rank] = conn.PeerPID()
		if m.local[rank] {
			continue
		}
		m.links[rank] = link.Accept(conn, conn.Session, link.Options{Log: e.opt.Log})
		if driver != nil {
			driver.Drop(rank) // its part of the ring has no reader
		}
	}
	e.hub = fanin.New(driver, m.links)
	for rank, conn := range m.conns {
		if l := m.links[rank]; l != nil {
			e.background.Go(func() { e.watchLink(rank, l) })
			continue
		}
		e.closers = append(e.closers, conn.Close)
		e.background.Go(func() { e.watchConn(rank, conn) })
	}
	if slices.Contains(m.local, false) {
		e.background.Go(func() { m.resume() })
	}
	return nil
}

// watchConn waits for the end of the connection beside a ring: the death notice of its rank, which may come with
// last words.
func (e *Executor) watchConn(rank int, conn net.Conn) {
	var last worker.LastWords
	switch err := worker.Hear(conn, &last); {
	case err == nil:
		e.explained(rank, last.Cause)
	case errors.Is(err, io.EOF):
		e.lost(rank, errors.New("its process is gone"))
	default:
		e.lost(rank, err)
	}
}

// watchLink waits for the end of a rank's link.
func (e *Executor) watchLink(rank int, l *link.Link) {
	<-l.Down()
	err := l.Err()
	var closed *link.PeerClosed
	switch {
	case errors.As(err, &closed) && closed.Reason != worker.Leaving:
		e.explained(rank, closed.Reason)
	case errors.Is(err, link.ErrSilent):
		// Its host is gone or out of reach: whoever launched it knows no sooner.
		e.explained(rank, err.Error())
	default:
		e.lost(rank, err)
	}
}

// resume accepts ranks that come back after their connection was cut, until the group is dead.
func (m *meeting) resume() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(m.e.life, cancel)()
	for {
		conn, err := m.listener.Accept(ctx)
		if err != nil {
			return
		}
		rank := conn.Peer.Rank
		if m.links[rank] == nil || conn.Peer.Resume == nil {
			conn.Close()
			continue
		}
		if err := m.links[rank].Resume(conn, *conn.Peer.Resume); err != nil {
			m.e.opt.Log.Warn("rank could not go on with its link", "rank", rank, "error", err)
			conn.Close()
		}
	}
}

// release gives back what did not find its way into the executor.
func (m *meeting) release() {
	if m.segment != nil {
		// Nobody has mapped it who was told to use it.
		_ = m.segment.Driver().Close()
	}
	if m.e.hub != nil {
		return
	}
	for _, conn := range m.conns {
		if conn != nil {
			conn.Close()
		}
	}
}
