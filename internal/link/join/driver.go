package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/fanin"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
)

// Options configure the driver's side.
type Options struct {
	// Layout is how the ranks divide the model.
	Layout layout.Layout
	// Address is where ranks of other hosts may connect, "" for none.
	Address string
	// PortRange is the first and last port to listen at there; 0, 0 is any.
	PortRange [2]int
	// LinksOnly gives ranks of this host a link over Address too, instead of shared memory.
	LinksOnly bool
	// Hosts overrides the hosts that the ranks report: ranks with equal names share memory. It is
	// for tests.
	Hosts []string
	// QueueMemory is the budget of all shared memory of the queue.
	QueueMemory int64
	// Timeout bounds Admit.
	Timeout time.Duration
	// CollectiveTimeout is how long ranks wait for each other.
	CollectiveTimeout time.Duration
	// Log receives refused connections, cuts and resumptions.
	Log *slog.Logger
}

// Driver is the driver's side of a group: the listener that ranks dial, and the connection of each.
//
// The calls are, in this order: Listen, Invitation for each rank, Admit, Open, then WatchRank and
// Resume from goroutines of their own, and Close.
type Driver struct {
	o        Options
	binary   [32]byte
	token    handshake.Token
	listener *handshake.Listener
	segment  *ring.Segment // until the hub has it
	hub      *fanin.Hub

	// By rank: its connection, whether it shares the ring's memory, and its link when it does not.
	conns []*handshake.Conn
	local []bool
	links []*link.Link
	// locations are the ranks' hosts and endpoints.
	locations []Location

	// mu guards beside: by rank, the channel that receives its connections beside the link.
	mu     sync.Mutex
	beside map[int]chan *handshake.Conn
}

// Listen opens the listener and makes the shared memory of the queue.
func Listen(o Options) (*Driver, error) {
	world := o.Layout.World()
	d := &Driver{o: o, token: handshake.NewToken(),
		conns: make([]*handshake.Conn, world), local: make([]bool, world),
		links: make([]*link.Link, world), locations: make([]Location, world),
		beside: map[int]chan *handshake.Conn{}}
	var err error
	if o.Address != "" {
		if d.binary, err = BinaryHash(); err != nil {
			return nil, err
		}
	}
	if !o.LinksOnly {
		d.segment, err = ring.Create(ring.Options{Ranks: world, Memory: o.QueueMemory})
		if err != nil {
			return nil, fmt.Errorf("--queue-memory %d: %w", o.QueueMemory, err)
		}
	}
	d.listener, err = handshake.Listen(handshake.Options{Instance: handshake.NewInstance(),
		Token: d.token, World: world, Binary: d.binary, TCP: o.Address, PortRange: o.PortRange,
		Unix: !o.LinksOnly, Log: o.Log})
	if err != nil {
		return nil, errors.Join(err, d.releaseSegment())
	}
	return d, nil
}

// Invitation returns the invitation of a rank. The caller sets its Threads
// or Place.
func (d *Driver) Invitation(rank int) *Invitation {
	return &Invitation{Endpoint: d.listener.Endpoint(), Token: d.token.Reveal(), Rank: rank,
		World: len(d.conns)}
}

// Binary is the SHA-256 of the only program that is admitted; zero where only this host's ranks may
// connect, which are this program's children: to read all of it would only make the start longer.
func (d *Driver) Binary() [32]byte { return d.binary }

// Error is a rank that could not join.
type Error struct {
	Rank int
	// Doing is what it should have done.
	Doing string
	Err   error
}

func (e *Error) Error() string { return e.Doing + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Admit accepts one connection of each rank, sends each its memory and its peers, and connects the
// ranks to each other. It ends with ctx and after Options.Timeout; reused ranks, which before
// lists, start nothing and must connect within againTimeout. An *Error names the rank at fault:
// after a timeout the first rank that has not connected, else the rank whose message is missing.
func (d *Driver) Admit(ctx context.Context, before ...int) error {
	late := fmt.Errorf("not all have come within %v", d.o.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, d.o.Timeout, late)
	defer cancel()
	err := d.accept(ctx, before)
	if err == nil {
		err = d.admit(ctx)
	}
	if err == nil || !errors.Is(context.Cause(ctx), late) {
		return err
	}
	var waiting *Error
	if rank := slices.Index(d.conns, nil); rank >= 0 {
		return &Error{rank, "start", late}
	} else if errors.As(err, &waiting) {
		return waiting
	}
	return late
}

// againTimeout bounds the time until a reused rank connects: it must notice the end of the previous
// group, in which it may be computing, and dial.
const againTimeout = 2 * time.Second

// accept waits for the connections of all ranks: only the complete list tells which ranks share a
// host.
func (d *Driver) accept(ctx context.Context, before []int) error {
	late := fmt.Errorf("it has not come back within %v", againTimeout)
	soon, cancel := context.WithTimeoutCause(ctx, againTimeout, late)
	defer cancel()
	absent := func(rank int) bool { return d.conns[rank] == nil }
	for range d.conns {
		until := ctx
		if slices.ContainsFunc(before, absent) {
			until = soon
		}
		conn, err := d.listener.Accept(until)
		if err != nil {
			if i := slices.IndexFunc(before, absent); i >= 0 && context.Cause(until) == late {
				return &Error{before[i], "join another group", late}
			}
			return err
		}
		if d.conns[conn.Peer.Rank] != nil {
			conn.Close()
			return fmt.Errorf("rank %d came back before the group was complete", conn.Peer.Rank)
		}
		d.conns[conn.Peer.Rank] = conn
	}
	return nil
}

// each runs one part of the exchange with every rank in turn.
func (d *Driver) each(doing string, f func(rank int, conn *handshake.Conn) error) error {
	for rank, conn := range d.conns {
		if err := f(rank, conn); err != nil {
			return &Error{rank, doing, err}
		}
	}
	return nil
}

// together is each with all ranks at the same time. The first that fails ends the others.
func (d *Driver) together(doing string, f func(conn *handshake.Conn) error) error {
	failed := make(chan *Error, len(d.conns))
	for rank, conn := range d.conns {
		go func() { failed <- &Error{rank, doing, f(conn)} }()
	}
	var first error
	for range d.conns {
		if e := <-failed; e.Err != nil && first == nil {
			first = e
			for _, c := range d.conns {
				c.SetDeadline(time.Unix(1, 0))
			}
		}
	}
	return first
}

// admit exchanges the driver's messages with all ranks.
func (d *Driver) admit(ctx context.Context) error {
	// The end of ctx ends the exchange under way too.
	defer context.AfterFunc(ctx, func() {
		for _, c := range d.conns {
			c.SetDeadline(time.Unix(1, 0))
		}
	})()
	if err := d.each("admit", d.admitRank); err != nil {
		return err
	}
	if err := d.each("listen for the other ranks", func(rank int, conn *handshake.Conn) error {
		err := Receive(conn, &d.locations[rank])
		d.locations[rank].Host = d.host(rank, d.locations[rank].Host)
		if err == nil && d.locations[rank].Endpoint == nil && len(d.conns) > 1 {
			err = errors.New("it does not say where it accepts others")
		}
		return err
	}); err != nil || len(d.conns) == 1 {
		return err
	}
	return d.connectRanks()
}

// Locations returns the host and endpoint of each rank, after Admit.
func (d *Driver) Locations() []Location { return d.locations }

// admitRank gives a rank of this host the memory of the ring. When memory cannot be passed the rank
// is treated as one of another host.
func (d *Driver) admitRank(rank int, conn *handshake.Conn) error {
	if err := Send(conn, Admitted{Ring: conn.Local}); err != nil {
		return err
	}
	if !conn.Local {
		return nil
	}
	err := conn.SendFile(d.segment.File())
	if errors.Is(err, handshake.ErrNoPassing) {
		d.o.Log.Warn("cannot pass memory to a rank of this host: its records go over the socket",
			"rank", rank)
		return nil
	}
	d.local[rank] = err == nil
	return err
}

// connectRanks has the ranks meet those of their communicators.
func (d *Driver) connectRanks() error {
	err := d.each("rendezvous", func(rank int, conn *handshake.Conn) error {
		return Send(conn, d.rendezvous(rank, d.locations))
	})
	if err != nil {
		return err
	}
	const connect = "connect to the other ranks"
	err = d.together(connect, func(conn *handshake.Conn) error {
		var c Connected
		err := Receive(conn, &c)
		if c.Failed != "" {
			err = fmt.Errorf("%w: %s", ErrApart, c.Failed)
		}
		return err
	})
	if err != nil {
		return err
	}
	// A link counts silence from its beginning: no rank opens one before all are connected, which
	// may take longer than a link waits.
	return d.each(connect, func(_ int, conn *handshake.Conn) error {
		return Send(conn, Connected{})
	})
}

// rendezvous returns the addresses of a rank's peers.
func (d *Driver) rendezvous(rank int, locations []Location) Rendezvous {
	host := func(rank int) int { // that of the first rank there
		name := locations[rank].Host
		return slices.IndexFunc(locations, func(at Location) bool { return at.Host == name })
	}
	r := Rendezvous{Layout: d.o.Layout, Host: host(rank), Timeout: d.o.CollectiveTimeout}
	for p := range locations {
		if host(p) == r.Host {
			r.Neighbours++
		}
	}
	for _, c := range communicators(d.o.Layout, rank) {
		for _, p := range c.ranks {
			if p != rank {
				r.Peers = append(r.Peers, Peer{p, host(p), *locations[p].Endpoint})
			}
		}
	}
	return r
}

// host returns the name of a rank's host, said is what the rank reports. A local rank that could
// not be passed memory gets a host of its own: no other rank can pass it memory either.
func (d *Driver) host(rank int, said string) string {
	switch {
	case d.o.Hosts != nil:
		return d.o.Hosts[rank]
	case d.o.LinksOnly, d.conns[rank].Local && !d.local[rank]:
		return fmt.Sprint("that of rank ", rank)
	}
	return said
}

// Open returns the driver's end of the queue, after Admit. The Hub's Close closes all links.
func (d *Driver) Open() *fanin.Hub {
	var driver *ring.Driver
	if slices.Contains(d.local, true) {
		driver = d.segment.Driver()
		d.segment = nil
	}
	for rank, conn := range d.conns {
		if d.local[rank] {
			continue
		}
		d.links[rank] = link.Accept(conn, conn.Session, link.Options{Log: d.o.Log})
		if driver != nil {
			driver.Drop(rank) // its part of the ring has no reader
		}
	}
	d.hub = fanin.New(driver, d.links)
	return d.hub
}

// PID returns the process of an admitted rank in this PID namespace, 0 for a rank of another host
// or namespace.
func (d *Driver) PID(rank int) int { return d.conns[rank].PeerPID() }

// End describes how the connection of a rank ended.
type End struct {
	Err error
	// Final says that Err is the whole cause: the rank sent its reason, or its host is out of
	// reach. Otherwise the launcher reports the cause later.
	Final bool
	// Cut says that the connection failed: the rank may live.
	Cut bool
}

// WatchRank waits for the end of a rank's connection.
func (d *Driver) WatchRank(rank int) End {
	if l := d.links[rank]; l != nil {
		<-l.Down()
		err := l.Err()
		cut := errors.Is(err, link.ErrSilent) || errors.Is(err, link.ErrCut)
		var closed *link.PeerClosed
		switch {
		case errors.As(err, &closed) && closed.Reason != rankEnding:
			return End{errors.New(closed.Reason), true, false}
		case errors.Is(err, link.ErrSilent):
			return End{err, true, cut}
		}
		return End{err, false, cut}
	}
	var closing Closing
	switch err := Receive(d.conns[rank], &closing); {
	case err == nil:
		return End{errors.New(closing.Reason), true, false}
	case errors.Is(err, io.EOF):
		return End{errors.New("its process is gone"), false, false}
	default:
		return End{err, false, false}
	}
}

// Beside accepts connections that a rank opens beside its link, until end is called. The channel
// holds the newest connection; an older one that was not received is closed.
func (d *Driver) Beside(rank int) (conns <-chan *handshake.Conn, end func()) {
	c := make(chan *handshake.Conn, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.beside[rank] = c
	return c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.beside, rank)
		d.closeQueued(c)
	}
}

func (d *Driver) closeQueued(c chan *handshake.Conn) {
	select {
	case old := <-c:
		old.Close()
	default:
	}
}

// deliver sends a connection to the receiver that Beside registered, else closes it. Only Resume
// calls it.
func (d *Driver) deliver(conn *handshake.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.beside[conn.Peer.Rank]
	if c == nil {
		conn.Close()
		return
	}
	d.closeQueued(c)
	c <- conn // has room: only this fills it
}

// Resume accepts ranks that dial again after their link was cut, and connections beside a link,
// until ctx ends or Close is called.
func (d *Driver) Resume(ctx context.Context) {
	for slices.Contains(d.local, false) {
		conn, err := d.listener.Accept(ctx)
		if err != nil {
			return
		}
		rank := conn.Peer.Rank
		if d.links[rank] == nil || conn.Peer.Resume == nil {
			conn.Close()
			continue
		}
		if conn.Peer.Resume.Beside {
			d.deliver(conn)
			continue
		}
		if err := d.links[rank].Resume(conn, *conn.Peer.Resume); err != nil {
			d.o.Log.Warn("rank could not go on with its link", "rank", rank, "error", err)
			conn.Close()
		}
	}
}

// Close closes the listener, the connection of each rank that uses the ring, and every connection
// and segment that no Hub owns.
func (d *Driver) Close() error {
	err := errors.Join(d.listener.Close(), d.releaseSegment())
	for rank, conn := range d.conns {
		if conn != nil && (d.hub == nil || d.local[rank]) {
			conn.Close() // fails where the rank has gone before
		}
	}
	return err
}

// releaseSegment frees the ring's memory if Open has not passed it to a Hub.
func (d *Driver) releaseSegment() error {
	if d.segment == nil {
		return nil
	}
	s := d.segment
	d.segment = nil
	return s.Driver().Close()
}
