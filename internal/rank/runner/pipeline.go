package runner

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Broadcaster is what a runner needs of the ranks that share its layers, or divide rows with it.
type Broadcaster interface {
	Guarded
	// Broadcast sets b on every rank to the root's. All ranks call it with equally many bytes.
	Broadcast(b []byte, root int) error
}

// Messenger is what a runner needs of the other stages, in which each has its number.
type Messenger interface {
	Guarded
	// Send and Recv carry a message whose length both sides know. Messages between two stages
	// arrive in order, and several may be on the way.
	Send(b []byte, to int) error
	Recv(b []byte, from int) error
}

// forward computes the hidden states of the batch's rows: the first stage from their tokens, a
// later one from what the one before sends. All but the last send them on.
func (r *Runner) forward() error {
	m := r.opt.Model
	if r.first {
		if err := m.Embed(&r.batch); err != nil {
			return err
		}
	} else {
		n := r.batch.Rows()
		for _, x := range [...]*layers.Tensor{m.Receive(n), m.ReceiveTapped(n)} {
			if x == nil || n == 0 {
				continue
			}
			r.opt.Status.At(status.Within{Layer: r.opt.From, Awaits: status.Hidden})
			if err := r.opt.PP.Recv(x.Bytes(), r.place.PP-1); err != nil {
				return err
			}
			x.Memory.Filled()
		}
	}
	if err := m.Layers(&r.batch, r.opt.Cache); err != nil || r.last || r.batch.Rows() == 0 {
		return err
	}
	r.opt.Status.At(status.Within{Layer: r.opt.To - 1, Done: math.MaxUint8,
		Awaits: status.Hidden})
	for _, x := range [...]*layers.Tensor{m.Hidden(), m.Tapped()} {
		if x == nil {
			continue
		}
		if err := r.opt.PP.Send(x.Bytes(), r.place.PP+1); err != nil {
			return err
		}
	}
	return nil
}

// pushed is what the first rank of the first stage knows of the tokens that the output rank sends
// it. The output rank sends those of a plan as soon as it has sampled them, in the plan's order,
// and before its result. They are received in the order of the plans: when a row goes on from one
// of them, and else when the result of their plan has been applied. So the first stage waits only
// for tokens that it needs, and the output rank is never ahead of it by more than the plans in
// flight.
type pushed struct {
	plans []pushedPlan // oldest first
	slots []uint32     // that the tokens of all these plans are of
	b     []byte
}

// pushedPlan is a plan whose tokens have not been received.
type pushedPlan struct {
	id     uint64
	tokens int
	// guarded is the hash with which they are sent.
	guarded uint64
}

// expect notes the tokens that a plan samples.
func (r *Runner) expect(p *step.Plan) {
	q := &r.pushed
	before := len(q.slots)
	for i := range p.Rows {
		if row := &p.Rows[i]; row.Sample {
			r.slots[row.Slot].sampler = p.ID
			q.slots = append(q.slots, row.Slot)
		}
	}
	if n := len(q.slots) - before; n > 0 {
		q.plans = append(q.plans, pushedPlan{p.ID, n, r.guarded})
	}
}

// receive takes the tokens that the rows of a plan go on from, and those of plans that were
// answered before this one was made: no more than MaxInFlight are in flight.
func (r *Runner) receive(p *step.Plan) error {
	q := &r.pushed
	until := p.ID - min(p.ID, uint64(r.opt.MaxInFlight))
	for i := range p.Rows {
		if row := &p.Rows[i]; row.Source == step.FromSampler {
			until = max(until, r.slots[row.Slot].sampler)
		}
	}
	defer r.opt.PP.Guard(r.guarded)
	for len(q.plans) > 0 && q.plans[0].id <= until {
		plan := q.plans[0]
		r.opt.PP.Guard(plan.guarded)
		q.b = slices.Grow(q.b[:0], 4*plan.tokens)[:4*plan.tokens]
		r.opt.Status.At(status.Within{Awaits: status.Tokens})
		if err := r.opt.PP.Recv(q.b, r.opt.Layout.PP-1); err != nil {
			return err
		}
		for i, slot := range q.slots[:plan.tokens] {
			// A request that has gone on, or has given its slot up, needs it no more.
			if s := &r.slots[slot]; s.sampler == plan.id {
				s.sampled = int32(binary.LittleEndian.Uint32(q.b[4*i:]))
			}
		}
		q.plans = q.plans[:copy(q.plans, q.plans[1:])]
		q.slots = q.slots[:copy(q.slots, q.slots[plan.tokens:])]
	}
	return nil
}

// push sends the tokens of a plan to the first stage, of each row the last one: that is what a row
// can go on from before the driver knows it.
func (r *Runner) push(res *step.Result) error {
	if len(res.Slot) == 0 {
		return nil
	}
	b := r.shared[:0]
	for i := range res.Slot {
		run := res.Run(i)
		b = binary.LittleEndian.AppendUint32(b, uint32(following(run[len(run)-1])))
	}
	r.shared = b
	r.opt.Status.Set(status.Send, 0)
	return r.opt.PP.Send(b, 0)
}

// share tells the ranks of the first stage the tokens that the plan's rows take from the sampler.
// The plan says how many those are, so that the ranks agree on the message, and that there is none
// while every token comes with its plan.
func (r *Runner) share(p *step.Plan) error {
	if !r.first {
		return nil
	}
	b := r.shared[:0]
	for i := range p.Rows {
		if row := &p.Rows[i]; row.Source == step.FromSampler {
			b = binary.LittleEndian.AppendUint32(b, uint32(r.slots[row.Slot].sampled))
		}
	}
	r.shared = b
	if len(b) == 0 {
		return nil
	}
	r.opt.Status.At(status.Within{Awaits: status.Tokens})
	// From the first rank to those of its dimension, from each of them to those of the next one.
	for _, d := range []struct {
		group   Broadcaster
		reached bool
	}{{r.opt.DP, r.place.PCP == 0 && r.place.TP == 0}, {r.opt.PCP, r.place.TP == 0},
		{r.opt.TP, true}} {
		if d.group == nil || !d.reached {
			continue
		}
		if err := d.group.Broadcast(b, 0); err != nil {
			return err
		}
	}
	for i := range p.Rows {
		if row := &p.Rows[i]; row.Source == step.FromSampler {
			r.slots[row.Slot].sampled = int32(binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
	}
	return nil
}
