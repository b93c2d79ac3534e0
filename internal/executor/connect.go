package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/eagleray/eagleray/internal/collective/shm"
	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/queue/handshake"
	"github.com/eagleray/eagleray/internal/queue/hub"
	"github.com/eagleray/eagleray/internal/queue/link"
	"github.com/eagleray/eagleray/internal/queue/ring"
	"github.com/eagleray/eagleray/internal/worker"
)

// meeting is how the ranks of other processes come to the driver: a listener they dial, and the memory that
// those of this host are given.
type meeting struct {
	e          *Executor
	listener   *handshake.Listener
	segment    *ring.Segment
	collective *os.File
	links      []*link.Link
	conns      []*handshake.Conn
	local      int
}

// connect starts the ranks and joins them to a hub.
func (e *Executor) connect(ctx context.Context) error {
	world := e.opt.Init.WorldSize
	specs := make([]launch.Spec, world)
	for i := range specs {
		specs[i] = launch.Spec{Rank: i, LocalRank: i}
	}
	if e.opt.InProcess {
		var err error
		if e.workers, err = e.opt.Launcher.Launch(ctx, specs); err != nil {
			return err
		}
		e.hub = e.workers[0].Hub
		return nil
	}
	m := &meeting{e: e, links: make([]*link.Link, world), conns: make([]*handshake.Conn, world)}
	defer m.release()
	if err := m.open(specs); err != nil {
		return err
	}
	var err error
	if e.workers, err = e.opt.Launcher.Launch(ctx, specs); err != nil {
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
		Binary: binary, TCP: o.Address, Unix: !o.LinksOnly, Log: o.Log})
	if err != nil {
		return err
	}
	m.e.closers = append(m.e.closers, m.listener.Close)
	for i := range specs {
		specs[i].Invitation = &worker.Invitation{Endpoint: m.listener.Endpoint(), Token: token.Reveal(), Rank: i}
	}
	if o.LinksOnly {
		return nil
	}
	if m.segment, err = ring.Create(ring.Options{Ranks: len(specs), Memory: o.QueueMemory}); err != nil {
		return fmt.Errorf("--queue-memory %d: %w", o.QueueMemory, err)
	}
	if len(specs) > 1 {
		if m.collective, err = shm.Create(len(specs), o.CollectiveBytes); err != nil {
			return fmt.Errorf("shared memory of the ranks: %w", err)
		}
	}
	return nil
}

// accept admits one connection per rank and gives each what it needs. It ends early when a rank does.
func (m *meeting) accept(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	exited := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case exit := <-m.e.opt.Launcher.Exited():
			f := m.e.failure(exit.Rank, exit.Cause)
			f.Phase, f.Stderr = "meet", exit.Stderr
			cancel(f)
		case <-exited:
		}
	}()
	defer func() { close(exited); <-ended }()
	for range m.links {
		conn, err := m.listener.Accept(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("waiting for ranks: %w", err)
		}
		if err := m.welcome(conn); err != nil {
			return fmt.Errorf("welcome rank %d: %w", conn.Peer.Rank, err)
		}
		m.conns[conn.Peer.Rank] = conn
	}
	return nil
}

// welcome gives a rank its memory, or makes its connection a link when memory cannot be passed.
func (m *meeting) welcome(conn *handshake.Conn) error {
	w := worker.Welcome{Ring: conn.Local}
	if m.collective != nil {
		if !conn.Local {
			return errors.New("ranks of several hosts cannot share tensors yet")
		}
		w.CollectiveBytes = m.e.opt.CollectiveBytes
	}
	if err := worker.SendWelcome(conn, w); err != nil {
		return err
	}
	if !conn.Local {
		m.links[conn.Peer.Rank] = link.Accept(conn, conn.Session, link.Options{Log: m.e.opt.Log})
		return nil
	}
	m.local++
	if err := conn.SendFile(m.segment.File()); err != nil {
		return err
	}
	if m.collective != nil {
		return conn.SendFile(m.collective)
	}
	return nil
}

// join makes the hub and watches every connection for the death of its rank.
func (m *meeting) join() error {
	e := m.e
	var driver *ring.Driver
	if m.local > 0 {
		driver = m.segment.Driver()
	}
	for rank, l := range m.links {
		if l != nil && driver != nil {
			driver.Drop(rank) // its part of the ring has no reader
		}
	}
	e.hub = hub.New(driver, m.links)
	e.local = make([]bool, len(m.links))
	for rank, l := range m.links {
		e.local[rank] = l == nil
	}
	for rank, conn := range m.conns {
		if l := m.links[rank]; l != nil {
			e.background.Go(func() {
				<-l.Down()
				e.lost(rank, l.Err())
			})
			continue
		}
		e.closers = append(e.closers, conn.Close)
		e.background.Go(func() { e.watchConn(rank, conn) })
	}
	if len(m.links) > m.local {
		e.background.Go(func() { m.resume() })
	}
	m.segment = nil
	return nil
}

// watchConn waits for the end of the connection beside a ring: the death notice of its rank.
func (e *Executor) watchConn(rank int, conn net.Conn) {
	var b [1]byte
	_, err := conn.Read(b[:])
	if err == nil {
		err = errors.New("it sent bytes nobody expects")
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("its process is gone")
	}
	e.lost(rank, err)
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
	if m.collective != nil {
		m.collective.Close()
	}
	if m.e.hub != nil {
		return
	}
	for rank, conn := range m.conns {
		if l := m.links[rank]; l != nil {
			_ = l.Close("start was given up")
		} else if conn != nil {
			conn.Close()
		}
	}
}
