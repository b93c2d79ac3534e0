package kvtransfer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// Fetch is what a driver tells its ranks to fetch.
type Fetch struct {
	// ID is by what it can be cancelled, 0 for none.
	ID     uint64 `json:"id,omitempty"`
	Secret Secret `json:"secret"`
	// From is the agent of the producer's first rank.
	From Address `json:"from"`
	// Blocks are where they go, First the number of the first of them in the transfer; none only
	// tells the producer that nothing is needed.
	Blocks []uint32 `json:"blocks"`
	First  int      `json:"first"`
	// Digest names the contents that are expected.
	Digest Digest `json:"digest"`
	// Plan is the last one that may write to the blocks for what was in them before.
	Plan uint64 `json:"plan"`
	// Timeout bounds it all.
	Timeout time.Duration `json:"timeout"`
}

// Moved counts the bytes of blocks by the way that they came.
type Moved struct {
	// Memory is what came through shared memory, Link over TCP.
	Memory int64 `json:"memory"`
	Link   int64 `json:"link"`
}

// Fetch fetches this rank's part of blocks, and tells the producer when it has it, or has given it
// up. An error leaves the blocks in any state; when it has returned nothing writes to them.
func (a *Agent) Fetch(ctx context.Context, f *Fetch) (moved Moved, err error) {
	for _, b := range f.Blocks {
		if int64(b) >= int64(a.opt.Blocks) {
			return moved, fmt.Errorf("fetch block %d of %d", b, a.opt.Blocks)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	if f.ID > 0 {
		defer a.enter(f.ID, cancel)()
	}
	moved, err = a.attempt(ctx, f)
	if err != nil && ctx.Err() != nil && a.life.Err() == nil {
		// What has ended the fetch has ended its connections too.
		a.Go(func(ctx context.Context) { a.giveUp(ctx, f) })
	}
	return moved, err
}

// enter lets Cancel end a fetch, until the function is called that it returns.
func (a *Agent) enter(id uint64, cancel context.CancelFunc) (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.forsaken[:], id); i >= 0 {
		a.forsaken[i] = 0
		cancel()
	}
	a.fetching[id] = cancel
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.fetching, id)
	}
}

// Cancel ends a fetch: it returns soon, with an error, and the producer hears that nothing is
// needed any more. One that has not begun ends as it begins.
func (a *Agent) Cancel(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.fetching[id]; cancel != nil {
		cancel()
		return
	}
	a.forsaken[a.lost] = id
	a.lost = (a.lost + 1) % len(a.forsaken)
}

// goodbye bounds the word to a producer that is not read from any more.
const goodbye = 5 * time.Second

// giveUp tells the producer that this rank needs nothing any more.
func (a *Agent) giveUp(ctx context.Context, f *Fetch) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	p, err := a.dial(ctx, f.From)
	if err != nil {
		return // it gives the blocks up in its own time
	}
	defer p.close()
	_, _ = p.ask(a.handed(f))
}

// attempt is Fetch without an end from outside.
func (a *Agent) attempt(ctx context.Context, f *Fetch) (moved Moved, err error) {
	err = a.await(ctx, func() bool { return a.done.Load() >= f.Plan })
	if err != nil {
		return moved, fmt.Errorf("wait for plan %d: %w", f.Plan, err)
	}
	first, err := a.dial(ctx, f.From)
	if err != nil {
		return moved, err
	}
	defer first.close()
	if len(f.Blocks) > 0 {
		err = a.fetch(ctx, f, first, &moved)
	}
	_, doneErr := first.ask(a.handed(f))
	if err == nil && len(f.Blocks) == 0 {
		err = doneErr
	}
	return moved, err
}

// handed is what this rank says when it has what it needs.
func (a *Agent) handed(f *Fetch) *ask {
	return &ask{Op: "done", Secret: f.Secret, Rank: a.opt.Rank, Ranks: a.opt.Shape.Layout.World()}
}

// fetch reads from every rank that has some of this one's part.
func (a *Agent) fetch(ctx context.Context, f *Fetch, first *peer, moved *Moved) error {
	about, err := first.ask(&ask{Op: "describe", Secret: f.Secret})
	if err != nil {
		return err
	}
	if about.Shape == nil {
		return fmt.Errorf("the other engine does not say what it has")
	}
	theirs := about.Shape
	if err := theirs.sound(); err != nil {
		return err
	}
	if err := a.opt.Shape.check(theirs); err != nil {
		return err
	}
	pieces, err := theirs.cover(a.part)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		if p.rank >= len(about.Ranks) {
			return fmt.Errorf("the other engine has %d ranks, not %d", len(about.Ranks), p.rank+1)
		}
		from := first
		if at := about.Ranks[p.rank]; at != f.From {
			if from, err = a.dial(ctx, at); err != nil {
				return err
			}
		}
		err := a.readFrom(from, f, p.Part, moved)
		if from != first {
			from.close()
		}
		if err != nil {
			return fmt.Errorf("read from rank %d: %w", p.rank, errors.Join(err, ctx.Err()))
		}
	}
	return nil
}

// readFrom reads a part into the cache.
func (a *Agent) readFrom(from *peer, f *Fetch, p Part, moved *Moved) error {
	about, err := from.ask(&ask{Op: "read", Secret: f.Secret, Digest: f.Digest, Part: p,
		First: f.First,
		Count: len(f.Blocks)})
	if err != nil {
		return err
	}
	var want int64
	_ = a.each(p, f.Blocks, func(b []byte) error { want += int64(len(b)); return nil })
	if about.Bytes != want {
		return fmt.Errorf("%d bytes come, not %d", about.Bytes, want)
	}
	r, count := io.Reader(from.r), &moved.Link
	if from.memory != nil {
		r, count = &drainer{segment: from.memory, c: from.c, r: from.r}, &moved.Memory
	}
	return a.each(p, f.Blocks, func(b []byte) error {
		n, err := io.ReadFull(r, b)
		*count += int64(n)
		return err
	})
}

// peer is a connection to another engine's agent.
type peer struct {
	c net.Conn
	r *bufio.Reader
	// memory is what blocks go through; nil when they come over the connection.
	memory *segment
	// stop ends the watch of the context that ends the connection.
	stop func() bool
}

// dial connects to an agent, of this host by shared memory when that is to be had. The connection
// ends with ctx.
func (a *Agent) dial(ctx context.Context, at Address) (*peer, error) {
	config := handshake.ClientTLS(handshake.Endpoint{Fingerprint: at.Fingerprint})
	if at.Local != "" && a.local != nil {
		if c, memory, err := dialLocal(ctx, at.Local, config); err == nil {
			return newPeer(ctx, c, memory), nil
		}
	}
	d := tls.Dialer{Config: config}
	to := net.JoinHostPort(at.Host, strconv.Itoa(at.Port))
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return newPeer(ctx, c, nil), nil
}

func newPeer(ctx context.Context, c net.Conn, memory *segment) *peer {
	return &peer{c: c, r: bufio.NewReaderSize(c, buffered), memory: memory,
		stop: context.AfterFunc(ctx, func() { c.Close() })}
}

func (p *peer) close() {
	p.stop()
	p.c.Close()
	if p.memory != nil {
		p.memory.close()
	}
}

// ask asks for something and returns the answer; an error in it is an error here.
func (p *peer) ask(q *ask) (*answer, error) {
	if err := put(p.c, q); err != nil {
		return nil, err
	}
	var r answer
	if err := take(p.r, maxAnswer, &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, fmt.Errorf("the other engine says: %.200s", r.Error)
	}
	return &r, nil
}
