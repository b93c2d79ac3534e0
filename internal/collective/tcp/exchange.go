package tcp

import (
	"errors"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/collective"
)

// What stands for all other ranks, and for none of them, in place of one rank.
const (
	allRanks = -1
	noRank   = -2
)

func includes(set, rank int) bool { return set == allRanks || set == rank }

// next starts the next step.
func (g *Group) next(tag uint64) step {
	g.seq++
	return step{seq: g.seq, tag: tag}
}

// exchange is a step: x goes to some ranks, an empty message to the others; from some ranks a
// message comes into g.ins, for which it waits, and from the others an empty one, which the next
// step will read.
func (g *Group) exchange(x []byte, s step, to, from int) error {
	if g.ranks == 1 {
		return nil
	}
	for _, p := range g.peers {
		p.wants = includes(from, p.rank)
	}
	var err error
	if max(len(x), collective.TagSize(s.tag)) <= smallBytes {
		err = g.exchangeSmall(x, s, to)
	} else {
		err = g.exchangeLarge(x, s, to)
	}
	if err != nil {
		return err
	}
	for _, p := range g.peers {
		if !includes(from, p.rank) {
			p.owes, p.owed = true, s
		}
	}
	return nil
}

// exchangeLarge gives the step to the readers and writers.
func (g *Group) exchangeLarge(x []byte, s step, to int) error {
	for _, p := range g.peers {
		if includes(to, p.rank) {
			p.send(x, s)
		} else {
			p.send(nil, s)
		}
	}
	for _, p := range g.peers {
		g.postReceives(p, s)
	}
	return g.awaitAll()
}

// postReceives has the reader receive what the step still needs from the peer, and watch it in any
// case.
func (g *Group) postReceives(p *peer, s step) {
	if !p.owes && !p.wants {
		p.post(receiveJob{kind: jobWatch})
		return
	}
	if p.owes {
		p.post(receiveJob{step: p.owed})
		p.owes = false
	}
	if p.wants {
		p.post(receiveJob{dst: g.ins[p.rank], step: s})
		p.wants = false
	}
}

// exchangeSmall does the step in the calling goroutine, if it does not take long.
func (g *Group) exchangeSmall(x []byte, s step, to int) error {
	now := time.Now()
	g.sendSmall(x, s, to, now)
	if err := g.recall(); err != nil {
		return err
	}
	wait := patience
	if len(g.peers) == 1 {
		wait = g.timeout // there is no other stream to watch
	}
	slow := false
	for _, p := range g.peers {
		if !p.owes && !p.wants {
			continue
		}
		if err := p.renew(now, wait); err != nil {
			return err
		}
		err := g.receiveSmall(p, s)
		switch {
		case err == nil:
		case !errors.Is(err, errSlow):
			return err
		case len(g.peers) == 1:
			return p.late()
		default:
			slow = true
		}
	}
	if slow {
		for _, p := range g.peers {
			g.postReceives(p, s)
		}
	}
	return g.awaitAll()
}

func (g *Group) sendSmall(x []byte, s step, to int, now time.Time) {
	header{kind: kindData, step: s}.encode(g.empty[:])
	frame := g.empty[:]
	if to != noRank && len(x) > 0 {
		frame = g.small[:headerSize+copy(g.small[headerSize:], x)]
		header{kind: kindData, length: uint32(len(x)), step: s}.encode(frame)
	}
	for _, p := range g.peers {
		if includes(to, p.rank) {
			p.sendSmall(frame, x, s, now)
		} else {
			p.sendSmall(g.empty[:], nil, s, now)
		}
	}
}

func (g *Group) receiveSmall(p *peer, s step) error {
	if p.owes {
		if err := p.receiveSmall(nil, p.owed); err != nil {
			return err
		}
		p.owes = false
	}
	if p.wants {
		if err := p.receiveSmall(g.ins[p.rank], s); err != nil {
			return err
		}
		p.wants = false
	}
	return nil
}

// recall takes the streams back from the readers.
func (g *Group) recall() error {
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

// awaitAll waits until readers and writers have done all their jobs, as far as this rank needs
// them.
func (g *Group) awaitAll() error { return g.await(0) }

// await waits until no reader has more than so many jobs left, and no writer more than so many to
// copy from.
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
