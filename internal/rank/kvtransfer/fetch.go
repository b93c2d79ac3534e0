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
	"github.com/eagleray/eagleray/internal/link/step"
)

// Fetch lists the blocks that ranks fetch in one transfer.
type Fetch struct {
	// ID names the fetch for Cancel; 0 is a fetch that is not cancelled.
	ID uint64 `json:"id,omitempty"`
	// Place is where the request is, among those of data parallel attention, whose ranks fetch.
	Place  int    `json:"place,omitempty"`
	Secret Secret `json:"secret"`
	// From is the agent of the producer's first rank.
	From Address `json:"from"`
	// Blocks are the destinations, First is the place of the first of them in the transfer, a
	// multiple of the groups of layers; step.NoBlock stands where none has a block. Without Blocks
	// the ranks only tell the producer to release its blocks.
	Blocks []uint32 `json:"blocks"`
	First  int      `json:"first"`
	// Digest names the expected contents.
	Digest Digest `json:"digest"`
	// Plan is the last plan that may write to the blocks for their previous owner.
	Plan uint64 `json:"plan"`
	// Timeout bounds the whole fetch.
	Timeout time.Duration `json:"timeout"`
}

// Moved counts the bytes of blocks by transport.
type Moved struct {
	// Memory counts bytes through shared memory, Link those over TCP.
	Memory int64 `json:"memory"`
	Link   int64 `json:"link"`
}

// Fetch fetches this rank's part of blocks, then tells the producer that it is done, also after a
// failure. After an error the blocks have undefined contents. Nothing writes to them once Fetch has
// returned.
func (a *Agent) Fetch(ctx context.Context, f *Fetch) (Moved, error) {
	for _, b := range f.Blocks {
		if b != step.NoBlock && int64(b) >= int64(a.opt.Blocks) {
			return Moved{}, fmt.Errorf("fetch block %d of %d", b, a.opt.Blocks)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	if f.ID > 0 {
		defer a.registerFetch(f.ID, cancel)()
	}
	moved, cut, err := a.attempt(ctx, f)
	if err != nil && (cut || ctx.Err() != nil) && a.life.Err() == nil {
		// The end of ctx has closed the fetch's connections too.
		a.Go(func(ctx context.Context) { a.sendDone(ctx, f) })
	}
	return moved, err
}

// registerFetch lets Cancel end a fetch, until deregister is called.
func (a *Agent) registerFetch(id uint64, cancel context.CancelFunc) (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.cancelled[:], id); i >= 0 {
		a.cancelled[i] = 0
		cancel()
	}
	a.fetching[id] = cancel
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.fetching, id)
	}
}

// Cancel ends a fetch: Fetch returns soon, with an error, and tells the producer to release its
// blocks. A fetch that has not begun fails when it begins.
func (a *Agent) Cancel(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.fetching[id]; cancel != nil {
		cancel()
		return
	}
	a.cancelled[a.oldest] = id
	a.oldest = (a.oldest + 1) % len(a.cancelled)
}

// doneTimeout bounds the message to a producer after a fetch was cancelled.
const doneTimeout = 5 * time.Second

// sendDone tells the producer that this rank needs no blocks.
func (a *Agent) sendDone(ctx context.Context, f *Fetch) {
	ctx, cancel := context.WithTimeout(ctx, doneTimeout)
	defer cancel()
	p, err := a.dial(ctx, f.From)
	if err != nil {
		return // the producer releases the blocks after its own timeout
	}
	defer p.close()
	_, _ = p.call(a.doneRequest(f))
}

// attempt is Fetch without cancellation. cut says that the producer was not told of its end, for
// lack of a connection.
func (a *Agent) attempt(ctx context.Context, f *Fetch) (moved Moved, cut bool, err error) {
	err = a.await(ctx, func() bool { return a.done.Load() >= f.Plan })
	if err != nil {
		return moved, false, fmt.Errorf("wait for plan %d: %w", f.Plan, err)
	}
	first, err := a.dial(ctx, f.From)
	if err != nil {
		return moved, false, err
	}
	defer first.close()
	if len(f.Blocks) > 0 {
		err = a.fetch(ctx, f, first, &moved)
	}
	if first.cut {
		return moved, true, err
	}
	_, doneErr := first.call(a.doneRequest(f))
	if err == nil && len(f.Blocks) == 0 {
		err = doneErr
	}
	return moved, false, err
}

// doneRequest returns the message that this rank needs no more blocks.
func (a *Agent) doneRequest(f *Fetch) *request {
	return &request{Op: "done", Secret: f.Secret, Rank: a.opt.Rank,
		Ranks: a.opt.Shape.Layout.World()}
}

// fetch reads from every rank that has a part of this rank's blocks.
func (a *Agent) fetch(ctx context.Context, f *Fetch, first *peer, moved *Moved) error {
	about, err := first.call(&request{Op: "describe", Secret: f.Secret})
	if err != nil {
		return err
	}
	if about.Shape == nil {
		return fmt.Errorf("the other engine does not say what it has")
	}
	if about.Version != version {
		return &IncompatibleError{"version of the exchange of KV blocks",
			strconv.Itoa(about.Version), strconv.Itoa(version)}
	}
	theirs := about.Shape
	if err := a.opt.Shape.check(theirs); err != nil {
		return err
	}
	if err := theirs.sound(); err != nil {
		return err
	}
	var pieces []piece
	for _, p := range a.opt.Shape.Parts(a.opt.Rank) {
		own, err := theirs.cover(p)
		if err != nil {
			return err
		}
		pieces = append(pieces, own...)
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
	about, err := from.call(&request{Op: "read", Secret: f.Secret, Digest: f.Digest, Part: p,
		First: f.First,
		Count: len(f.Blocks)})
	if err != nil {
		return err
	}
	want, err := a.opt.Shape.Bytes(p, f.Blocks)
	if err != nil {
		return err
	}
	if about.Bytes != want {
		return fmt.Errorf("%d bytes come, not %d", about.Bytes, want)
	}
	r, count := &drainer{peer: from}, &moved.Link
	if from.memory != nil {
		count = &moved.Memory
	}
	err = a.opt.Memory.Fill(a.spans(p, f.Blocks), func(b []byte) error {
		n, err := io.ReadFull(r, b)
		*count += int64(n)
		return err
	})
	from.cut = err != nil
	return err
}

// peer is a connection to another engine's agent.
type peer struct {
	c net.Conn
	r *bufio.Reader
	// memory carries the blocks; nil when they come over the connection.
	memory *segment
	// cut says that bytes of blocks may be on their way that are not read: no answer can follow.
	cut bool
	// stop detaches the connection from the context that closes it.
	stop func() bool
}

// dial connects to an agent, through shared memory where both are on this host and it can be
// passed. The connection ends with ctx.
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

// call sends a request and returns its answer.
func (p *peer) call(q *request) (*answer, error) {
	if err := writeMessage(p.c, q); err != nil {
		return nil, err
	}
	return p.receive()
}

// receive returns an answer; one with an error is an error.
func (p *peer) receive() (*answer, error) {
	var r answer
	if err := readMessage(p.r, maxAnswer, &r); err != nil {
		return nil, err
	}
	if r.Error != "" {
		return nil, fmt.Errorf("the other engine says: %.200s", r.Error)
	}
	return &r, nil
}
