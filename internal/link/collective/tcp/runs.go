package tcp

import (
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// AllToAllV is that of shm.Group. Ranks without a connection have, and get, nothing.
//
// meanwhile, if it is not nil, is called when the runs are on their way, before the wait for
// others.
func (g *Group) AllToAllV(dst, x []float32, counts, got []int,
	meanwhile func()) ([]float32, error) {
	into := dst[:0]
	err := g.do(collective.AllToAllV, func() error {
		clear(got)
		all, err := g.allToAll(dst, x, counts, collective.Arrivals{Got: got}, meanwhile)
		if err == nil {
			into = all
		}
		return err
	})
	return into, err
}

// AllToAll is that of shm.Group. The parts of ranks without a connection stay as they are.
func (g *Group) AllToAll(dst, x []float32, counts, lengths []int) error {
	return g.do(collective.AllToAll, func() error {
		in := collective.Arrivals{Got: lengths, Known: true}
		_, err := g.allToAll(dst, x, counts, in, nil)
		return err
	})
}

func (g *Group) allToAll(dst, x []float32, counts []int, in collective.Arrivals,
	meanwhile func()) ([]float32, error) {
	if err := in.Check(len(dst), counts, g.ranks, len(x)); err != nil {
		return nil, err
	}
	s, now := g.next(collective.Tag(in.Op(), 0, 0)), time.Now()
	own := g.sendRuns(x, counts, s, now)
	if meanwhile != nil {
		meanwhile()
		now = time.Now()
	}
	if err := in.Add(g.rank, len(own), g.names); err != nil {
		return nil, err
	}
	there, err := g.awaitHeaders(now)
	if err != nil {
		return nil, err
	}
	if !there {
		if err := g.readRuns(s); err != nil {
			return nil, err
		}
	}
	longest := 0
	for _, p := range g.peers {
		if p.quiet {
			continue
		}
		size := len(p.run)
		if there {
			if size, err = p.runSize(s); err != nil {
				return nil, err
			}
		}
		if err := in.Add(p.rank, size/4, g.names); err != nil {
			return nil, err
		}
		p.now, p.long = run(s, size), size > smallBytes
		longest = max(longest, size)
	}
	if dst, err = in.Resize(dst); err != nil {
		return nil, err
	}
	g.placeRuns(dst, own, in.Got, there)
	if longest <= smallBytes {
		return dst, g.receiveAll(g.peers, now)
	}
	if p := g.peers[0]; len(g.peers) == 1 && p.wants {
		// There is no other stream to watch, and none to read beside this one.
		p.wants = false
		if err := p.receive(p.in, p.now); err != nil {
			return nil, err
		}
	}
	for _, p := range g.peers {
		if p.needs() {
			p.postReceives()
		}
	}
	return dst, g.awaitAll()
}

// run is the step of a message of so many bytes in an all-to-all, whose own tag has no size.
func run(s step, size int) step {
	s.tag += uint64(size)
	return s
}

// sendRuns sends every rank its run, and returns this rank's own.
func (g *Group) sendRuns(x []float32, counts []int, s step, now time.Time) (own []float32) {
	at := 0
	for rank, n := range counts {
		if rank == g.rank {
			own = x[at : at+n]
		} else if p := g.byRank[rank]; p != nil {
			p.out = collective.Bytes(x[at : at+n])
		}
		at += n
	}
	for _, p := range g.peers {
		if p.quiet {
			continue
		}
		if s := run(s, len(p.out)); len(p.out) <= smallBytes {
			p.sendSmall(g.frame(p.out, s), p.out, s, now)
		} else {
			p.sendRun(p.out, s)
		}
	}
	return own
}

// awaitHeaders waits a few milliseconds for the next message of every rank, and reports whether the
// headers of all are in the buffers, which then belong to the caller. Where there is one other rank
// it waits as long as it may.
func (g *Group) awaitHeaders(now time.Time) (there bool, err error) {
	if there, err := g.awaitWatches(); !there || err != nil {
		return false, err
	}
	wait := patience
	if len(g.peers) == 1 {
		wait = g.timeout
	}
	for _, p := range g.peers {
		if p.quiet {
			continue
		}
		if err := p.renew(now, wait); err != nil {
			return false, err
		}
		err := p.awaitHeader()
		switch {
		case err == nil:
		case !errors.Is(err, errSlow):
			return false, err
		case len(g.peers) == 1:
			return false, p.lateError()
		default:
			return false, nil
		}
	}
	return true, nil
}

// awaitWatches waits a few milliseconds until the readers that keep watch have found a header, and
// reports whether they have. It interrupts none.
func (g *Group) awaitWatches() (there bool, err error) {
	waiting := false
	defer func() {
		if waiting {
			g.soon.Stop()
		}
	}()
	for _, p := range g.peers {
		for !p.quiet && !p.idle() {
			if g.ended.Load() {
				return false, g.abortCause()
			}
			if !waiting {
				waiting = true
				g.soon.Reset(patience)
			}
			select {
			case <-g.events:
			case <-g.soon.C:
				return false, nil
			}
		}
	}
	return true, nil
}

// awaitHeader reads until the header of this step is in the buffer, in the calling goroutine: with
// what follows, unless the last run was a long one, which is better read into its place.
func (p *peer) awaitHeader() error {
	if p.owes {
		if err := p.receiveSmall(nil, p.owed); err != nil {
			return err
		}
		p.owes = false
	}
	most := len(p.buf)
	if p.long {
		most = headerSize
	}
	if err := p.fill(headerSize, most); err != nil {
		return err
	}
	if h := decodeHeader(p.buf[p.r:]); h.kind == kindAbort {
		return p.aborted(h)
	}
	return nil
}

// readRuns has the readers receive all runs into the peers' memory.
func (g *Group) readRuns(s step) error {
	for _, p := range g.peers {
		if p.owes {
			p.post(receiveJob{step: p.owed})
			p.owes = false
		}
		if !p.quiet {
			p.post(receiveJob{kind: jobRun, step: s})
		} else if p.idle() {
			p.post(receiveJob{kind: jobWatch})
		}
	}
	return g.awaitAll()
}

// receiveRun is what a reader does for readRuns.
func (p *peer) receiveRun(s step) error {
	if err := p.setDeadline(time.Now().Add(p.g.timeout)); err != nil {
		return err
	}
	size, err := 0, p.fill(headerSize, headerSize)
	if err == nil {
		size, err = p.runSize(s)
	}
	if errors.Is(err, errSlow) {
		return p.lateError()
	}
	if err != nil {
		return err
	}
	if cap(p.run) < size {
		p.run = make([]byte, size)
	}
	p.run = p.run[:size]
	return p.receive(p.run, run(s, size))
}

// runSize returns the bytes of the run whose header is in the buffer, if that is one of this step.
func (p *peer) runSize(s step) (int, error) {
	size := collective.TagSize(decodeHeader(p.buf[p.r:]).step.tag)
	if err := p.expect(min(size, maxFrame), run(s, size), headerSize); err != nil {
		return 0, err
	}
	if size%4 != 0 || size/4 > p.g.most {
		return 0, fmt.Errorf("%w: run of %d bytes on rank %d: must be elements, at most %d",
			collective.ErrMismatch, size, p.name(), p.g.most)
	}
	return size, nil
}

// placeRuns sets where in the result each run goes, and copies those that are here.
func (g *Group) placeRuns(dst, own []float32, got []int, there bool) {
	at := 0
	for rank, n := range got {
		to := dst[at : at+n]
		at += n
		switch p := g.byRank[rank]; {
		case rank == g.rank:
			copy(to, own)
		case p == nil:
		case there:
			p.in, p.wants = collective.Bytes(to), true
		default:
			copy(collective.Bytes(to), p.run)
		}
	}
}
