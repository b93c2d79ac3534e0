package tcp

import (
	"errors"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// allRanks and noRank stand for all other ranks and for none, in place of one rank.
const (
	allRanks = -1
	noRank   = -2
)

func includes(set, rank int) bool { return set == allRanks || set == rank }

// next starts the next step.
func (g *Group) next(tag uint64) step {
	g.seq++
	return step{seq: g.seq, tag: tag, guard: g.guard}
}

// aim sets up the next exchange: x goes to the ranks that to includes, and messages come from those
// that from includes, each into its rank's part of dst, which has each bytes.
func (g *Group) aim(x []byte, to, from int, dst []byte, each int) {
	for _, p := range g.peers {
		p.in, p.out, p.wants = nil, nil, includes(from, p.rank) && !p.quiet
		if includes(to, p.rank) {
			p.out = x
		}
		if p.wants {
			p.in = dst[p.rank*each : (p.rank+1)*each]
		}
	}
}

// exchange runs a step: it sends every rank the message that aim set, maybe an empty one, and waits
// for the wanted messages. The other messages are empty; the next step reads them.
func (g *Group) exchange(s step) error {
	size := 0
	for _, p := range g.peers {
		size = max(size, len(p.in), len(p.out))
		p.later, p.now = !p.wants && !p.quiet, s
	}
	var err error
	if size <= smallBytes {
		err = g.exchangeSmall(s)
	} else {
		err = g.exchangeLarge(s)
	}
	if err != nil {
		return err
	}
	for _, p := range g.peers {
		if p.later {
			p.owes, p.owed = true, s
		}
	}
	return nil
}

// exchangeLarge gives the step to the readers and writers.
func (g *Group) exchangeLarge(s step) error {
	for _, p := range g.peers {
		if !p.quiet {
			p.send(p.out, s)
		}
	}
	for _, p := range g.peers {
		p.postReceives()
	}
	return g.awaitAll()
}

// needs reports whether the step still needs something from the peer.
func (p *peer) needs() bool { return p.owes || p.wants }

// postReceives lets the reader receive what the step still needs from the peer, else watch the
// stream.
func (p *peer) postReceives() {
	if !p.needs() {
		p.post(receiveJob{kind: jobWatch})
		return
	}
	if p.owes {
		p.post(receiveJob{step: p.owed})
		p.owes = false
	}
	if p.wants {
		p.post(receiveJob{dst: p.in, step: p.now})
		p.wants = false
	}
}

// exchangeSmall does the step in the calling goroutine, if it does not take long.
func (g *Group) exchangeSmall(s step) error {
	now := time.Now()
	g.sendSmall(s, now)
	if err := g.drainReaders(); err != nil {
		return err
	}
	return g.receiveAll(g.peers, now)
}

// receiveAll receives what the step needs from some of the peers: in the calling goroutine, or,
// when that takes long, by the readers, while all streams are watched.
func (g *Group) receiveAll(from []*peer, now time.Time) error {
	wait := patience
	if len(g.peers) == 1 {
		wait = g.timeout // there is no other stream to watch
	}
	slow := false
	for _, p := range from {
		if !p.needs() {
			continue
		}
		if err := p.renew(now, wait); err != nil {
			return err
		}
		err := p.receiveNeeded()
		switch {
		case err == nil:
		case !errors.Is(err, errSlow):
			return err
		case len(g.peers) == 1:
			return p.lateError()
		default:
			slow = true
		}
	}
	if slow {
		g.postToReaders(from)
	}
	return g.awaitAll()
}

// postToReaders posts what the step still needs of some peers to their readers, and lets the
// readers watch all other streams.
func (g *Group) postToReaders(from []*peer) {
	for _, p := range from {
		p.postReceives()
	}
	for _, p := range g.peers {
		if p.idle() {
			p.post(receiveJob{kind: jobWatch})
		}
	}
}

// sendSmall sends what is aimed at the peers.
func (g *Group) sendSmall(s step, now time.Time) {
	header{kind: kindData, step: s}.encode(g.empty[:])
	frame, x := g.empty[:], []byte(nil)
	for _, p := range g.peers {
		if p.quiet {
			continue
		}
		if len(p.out) == 0 {
			p.sendSmall(g.empty[:], nil, s, now)
			continue
		}
		if len(x) != len(p.out) || &x[0] != &p.out[0] {
			x = p.out
			frame = g.frame(x, s)
		}
		p.sendSmall(frame, x, s, now)
	}
}

// frame makes the frame of a small message, which is good until the next one.
func (g *Group) frame(x []byte, s step) []byte {
	header{kind: kindData, length: uint32(len(x)), step: s}.encode(g.small)
	return g.small[:headerSize+copy(g.small[headerSize:], x)]
}

// receiveNeeded receives in the calling goroutine what the step still needs from the peer, a
// message of at most smallBytes.
func (p *peer) receiveNeeded() error {
	if p.owes {
		if err := p.receiveSmall(nil, p.owed); err != nil {
			return err
		}
		p.owes = false
	}
	if p.wants {
		if err := p.receiveSmall(p.in, p.now); err != nil {
			return err
		}
		p.wants = false
	}
	return nil
}

// drainReaders waits until all readers are idle, so that the caller may read the streams.
func (g *Group) drainReaders() error {
	for _, p := range g.peers {
		if !p.idle() {
			p.post(receiveJob{kind: jobYield})
		}
	}
	for _, p := range g.peers {
		for !p.idle() {
			<-g.events
		}
	}
	if g.ended.Load() {
		return g.abortCause()
	}
	return nil
}

// awaitAll waits until all jobs of the readers are done and the writers have copied all messages.
func (g *Group) awaitAll() error { return g.await(0) }

// await waits until each reader has at most left jobs, and each writer at most left messages to
// copy.
func (g *Group) await(left uint32) error {
	for {
		done := true
		for _, p := range g.peers {
			if w := p.failure.Load(); w != nil {
				return g.failure(w)
			}
			if w := p.stuck.Load(); w != nil {
				return g.failure(w)
			}
			if p.posted-p.received.Load() > left || p.sent-p.copied.Load() > left {
				done = false
			}
		}
		if done {
			return nil
		}
		if g.ended.Load() {
			return g.abortCause()
		}
		<-g.events
	}
}

// failure adds to a timeout all ranks that are missing.
func (g *Group) failure(w *collective.WaitError) error {
	if !errors.Is(w.Err, collective.ErrTimeout) {
		return w
	}
	all := &collective.WaitError{Missing: slices.Clone(w.Missing), Err: w.Err}
	for _, p := range g.peers {
		late := p.received.Load() != p.posted
		// Where another rank's notice ended the wait a moment before the time was up, the peer had
		// not come either.
		if f := p.failure.Load(); f != nil &&
			(errors.Is(f.Err, collective.ErrTimeout) || errors.Is(f.Err, collective.ErrAborted)) {
			late = true
		}
		if late && !slices.Contains(all.Missing, p.rank) {
			all.Missing = append(all.Missing, p.rank)
		}
	}
	slices.Sort(all.Missing)
	return all
}
