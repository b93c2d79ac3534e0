package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// communicator lists the ranks of one dimension of the layout that a rank belongs to, with the
// memory and connections that its Group will own.
type communicator struct {
	dimension dimension
	// ranks are the members in their order, at is this rank's place; local are the places of the
	// members on this rank's host, this rank included.
	ranks []int
	at    int
	local []int
	// hosts is how many hosts the ranks are on.
	hosts int
	// memory is shared by the local ones, if there are several; conns, by place, lead to the
	// others.
	memory *os.File
	conns  []net.Conn
}

type dimension int

const (
	tp dimension = iota
	pp
	pcp
	dp
)

// communicators returns those of a rank, in the order of the dimensions.
func communicators(l layout.Layout, rank int) []*communicator {
	var all []*communicator
	for d, ranks := range map[dimension][]int{tp: l.TPGroup(rank), pp: l.PPGroup(rank),
		pcp: l.PCPGroup(rank), dp: l.DPGroup(rank)} {
		if len(ranks) > 1 {
			all = append(all, &communicator{dimension: d, ranks: ranks,
				at: slices.Index(ranks, rank), conns: make([]net.Conn, len(ranks))})
		}
	}
	slices.SortFunc(all, func(a, b *communicator) int { return int(a.dimension - b.dimension) })
	return all
}

func (c *communicator) close() {
	if c.memory != nil {
		c.memory.Close()
	}
	for _, conn := range c.conns {
		if conn != nil {
			conn.Close()
		}
	}
}

// meet connects this rank to the other ranks of its communicators. On an error Close gives back
// what there is.
func (r *Rank) meet() error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	listener, err := handshake.Listen(handshake.Options{Instance: r.id.Instance, Token: r.token,
		World: r.inv.World, Binary: r.id.Binary, TCP: r.Host(), Unix: true})
	if err != nil {
		return err
	}
	defer listener.Close()
	at := listener.Endpoint()
	if err := Send(r.conn, r.location(&at)); err != nil {
		return err
	}
	var rendezvous Rendezvous
	if err := Receive(r.conn, &rendezvous); err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	r.timeout, r.neighbours = rendezvous.Timeout, rendezvous.Neighbours
	if world := rendezvous.Layout.World(); world != r.inv.World {
		return fmt.Errorf("rendezvous: layout of %d ranks for %d", world, r.inv.World)
	}
	r.communicators = communicators(rendezvous.Layout, r.id.Rank)
	peers, err := r.expect(rendezvous)
	if err != nil {
		return fmt.Errorf("rendezvous: %w", err)
	}
	ctx, stop := r.whileDriver(ctx)
	err = r.connect(ctx, listener, peers)
	stop()
	if err != nil {
		_ = Send(r.conn, Connected{Failed: err.Error()}) // the driver may be what has gone
		return fmt.Errorf("%w: %w", ErrApart, err)
	}
	if err := Send(r.conn, Connected{}); err != nil {
		return err
	}
	// The driver's end of a link opens when all ranks are connected: before that this one's
	// heartbeats have no answer.
	if err := Receive(r.conn, new(Connected)); err != nil {
		return fmt.Errorf("wait until all ranks are connected: %w", err)
	}
	for _, c := range r.communicators {
		if err := c.shareMemory(); err != nil {
			return fmt.Errorf("memory of ranks %v: %w", c.ranks, err)
		}
	}
	return nil
}

// whileDriver returns a context that also ends with the driver, which says nothing while ranks
// connect. Nothing else reads the connection before stop has returned.
func (r *Rank) whileDriver(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer cancel()
		_, _ = r.conn.Read(make([]byte, 1))
	}()
	return ctx, func() {
		r.conn.SetReadDeadline(time.Unix(1, 0))
		<-read
		r.conn.SetReadDeadline(time.Time{})
	}
}

// peer is another rank with its place in a communicator.
type peer struct {
	Peer
	local bool // on this rank's host
	c     *communicator
	place int
}

// expect finds the places of the peers, which must be all other members of the communicators.
func (r *Rank) expect(v Rendezvous) (map[int]peer, error) {
	peers := map[int]peer{}
	for _, c := range r.communicators {
		hosts := map[int]bool{}
		for place, rank := range c.ranks {
			p := Peer{Rank: rank, Host: v.Host}
			if place != c.at {
				i := slices.IndexFunc(v.Peers, func(p Peer) bool { return p.Rank == rank })
				if i < 0 {
					return nil, fmt.Errorf("rank %d is missing among %d peers", rank, len(v.Peers))
				}
				p = v.Peers[i]
				peers[rank] = peer{p, p.Host == v.Host, c, place}
			}
			if hosts[p.Host] = true; p.Host == v.Host {
				c.local = append(c.local, place)
			}
		}
		c.hosts = len(hosts)
	}
	return peers, nil
}

// connect makes a connection to each peer: it dials those below and accepts those above.
func (r *Rank) connect(ctx context.Context, l *handshake.Listener, peers map[int]peer) error {
	above := 0
	for rank, p := range peers {
		if rank > r.id.Rank {
			above++
			continue
		}
		e := p.Endpoint
		if p.local {
			e.TCP = ""
		} else {
			e.Unix = ""
		}
		c, err := handshake.Dial(ctx, e, r.token, r.id)
		if err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		p.c.conns[p.place] = c
	}
	for range above {
		c, err := l.Accept(ctx)
		if err != nil {
			for rank, p := range peers {
				if p.c.conns[p.place] == nil {
					return fmt.Errorf("rank %d has not come: %w", rank, err)
				}
			}
			return err
		}
		p, known := peers[c.Peer.Rank]
		if !known || c.Peer.Rank <= r.id.Rank || p.c.conns[p.place] != nil || c.Local != p.local {
			c.Close()
			return fmt.Errorf("rank %d is not expected to come here in this way", c.Peer.Rank)
		}
		p.c.conns[p.place] = c
	}
	return nil
}

// shareMemory makes the shared memory of the ranks of this host, if they are several: the first
// rank creates it.
func (c *communicator) shareMemory() error {
	if len(c.local) < 2 {
		return nil
	}
	first := c.local[0]
	if c.at != first {
		var err error
		c.memory, err = c.conns[first].(*handshake.Conn).RecvFile()
		return err
	}
	var err error
	if c.memory, err = shm.Create(len(c.local), collective.MessageBytes); err != nil {
		return err
	}
	for _, place := range c.local[1:] {
		if err := c.conns[place].(*handshake.Conn).SendFile(c.memory); err != nil {
			return fmt.Errorf("rank %d: %w", c.ranks[place], err)
		}
	}
	return nil
}

// Host is the address at which other ranks can reach this one: the one by which it reaches the
// driver, or the driver's own when the two share a host.
func (r *Rank) Host() string {
	if a, ok := r.conn.LocalAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	if host, _, err := net.SplitHostPort(r.inv.Endpoint.TCP); err == nil {
		return host
	}
	return "127.0.0.1"
}

// hostID is equal for the processes that reach each other by abstract unix sockets, over which they
// can pass memory: those of one boot of one machine and one network namespace.
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err2 := os.Readlink("/proc/self/ns/net")
	name, err3 := os.Hostname()
	if errors.Join(err, err2, err3) != nil {
		return string(handshake.NewInstance()) // no host's
	}
	return strings.Join([]string{name, strings.TrimSpace(string(boot)), space}, " ")
}
