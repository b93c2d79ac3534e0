package runner

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/link/step"
)

// head is what a head has yet to compute: positions of requests, of which the model has computed
// the hidden state and the token after which is known.
//
// A head computes them when a guess is asked for, when there are as many as it computes at a time,
// and when the request gives its slot up, so that while none is asked for it costs little. What is
// in a block stays right with the block: where the prefix cache has keys and values of the model,
// it has those of the head. Only blocks that come from elsewhere, by a transfer or from a file,
// have none. Then guesses are worse.
type head struct {
	queue  []queued
	hidden []float32 // of each, one after the other
	slots  []uint32  // those that have some, each once
	tables [][]int32 // of these
	// first and then are what is queued of a plan: requests that guesses are asked for come then.
	first, then waiting
}

// waiting are positions of a plan that are to be queued, and their rows of the batch.
type waiting struct {
	of   []queued
	rows []int32
}

// queued is a position of a request.
type queued struct {
	slot     uint32
	position int
	next     int32 // the token after it
}

func (h *head) reset() { h.queue, h.hidden, h.slots = h.queue[:0], h.hidden[:0], h.slots[:0] }

// computeLeaving computes what there is of requests that give their slots up.
func (g *guesser) computeLeaving(slots []uint32) error {
	if g.d == nil || !slices.ContainsFunc(slots, func(s uint32) bool {
		return slices.Contains(g.head.slots, s)
	}) {
		return nil
	}
	g.seqs, g.round, g.rows = g.seqs[:0], g.round[:0], g.rows[:0]
	if err := g.computeQueued(); err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	return nil
}

// queueRows queues the hidden states of the rows of a plan, with the tokens after them. Those of
// requests that guesses are asked for come last: they are there when their turn comes.
func (g *guesser) queueRows(p *step.Plan, res *step.Result) error {
	g.seqs, g.round = g.seqs[:0], g.round[:0]
	h := &g.head
	for _, w := range [...]*waiting{&h.first, &h.then} {
		w.of, w.rows = w.of[:0], w.rows[:0]
	}
	for _, s := range g.r.states {
		row, pos := &p.Rows[s.seq], s.position
		next, ok := g.after(row, pos, res)
		if !ok || pos >= g.d.MaxLen {
			continue
		}
		w := &h.first
		if slices.ContainsFunc(p.Guess, func(a step.Guess) bool { return a.Slot == row.Slot }) {
			w = &h.then
		}
		w.of, w.rows = append(w.of, queued{row.Slot, pos, next}), append(w.rows, s.row)
	}
	for _, w := range [...]waiting{h.first, h.then} {
		for len(w.rows) > 0 {
			n := min(len(w.rows), g.d.Rows-len(h.queue))
			if n == 0 {
				if err := g.computeQueued(); err != nil {
					return err
				}
				continue
			}
			features, err := g.r.opt.Model.Features(w.rows[:n])
			if err != nil {
				return err
			}
			h.hidden = append(h.hidden, g.d.Model.Reduce(features).Floats()...)
			h.queue = append(h.queue, w.of[:n]...)
			for _, q := range w.of[:n] {
				if !slices.Contains(h.slots, q.slot) {
					h.slots = append(h.slots, q.slot)
				}
			}
			w.of, w.rows = w.of[n:], w.rows[n:]
		}
	}
	return nil
}

// after is the token after a position of a plan's row; there is none after a draft that was wrong.
func (g *guesser) after(row *step.Row, pos int, res *step.Result) (token int32, ok bool) {
	s := &g.r.slots[row.Slot]
	known := len(s.tokens) - s.drafted
	if pos+1 < known {
		return s.tokens[pos+1], true
	}
	i := slices.Index(res.Slot, row.Slot)
	if i < 0 {
		return 0, false
	}
	run := res.Run(i)
	if at := pos + 1 - known; at < len(run) {
		return run[at], run[at] >= 0
	}
	return 0, false
}

// computeQueued computes what is queued, and lists the requests whose last position was among it.
func (g *guesser) computeQueued() error {
	h, b, size := &g.head, &g.batch, g.r.opt.BlockSize
	g.reset()
	b.Tables, b.States = b.Tables[:0], b.States[:0]
	h.tables = slices.Grow(h.tables[:0], len(h.slots))[:len(h.slots)]
	for i, slot := range h.slots {
		h.tables[i] = g.blocks(h.tables[i][:0], slot)
		b.Tables = append(b.Tables, h.tables[i])
	}
	for i, t := range h.queue {
		seq := slices.Index(h.slots, t.slot)
		b.Tokens = append(b.Tokens, t.next)
		b.Slots = append(b.Slots,
			b.Tables[seq][t.position/size]*int32(size)+int32(t.position%size))
		b.Position = append(b.Position, int32(t.position))
		b.Seq = append(b.Seq, int32(seq))
		for j := range g.seqs {
			if q := &g.seqs[j]; q.id == t.slot && t.position == q.length-2 {
				g.round, g.rows = append(g.round, j), append(g.rows, int32(i))
			}
		}
	}
	err := g.computeFrom(h.hidden)
	h.reset()
	return err
}

// computeFrom computes the batch from the hidden states of its rows.
func (g *guesser) computeFrom(hidden []float32) error {
	x := g.d.Model.Receive(g.batch.Rows())
	copy(x.Floats(), hidden)
	if x.Rows > 0 {
		x.Memory.Filled()
	}
	return g.compute()
}

// goOnFromHidden computes the newest guesses from the hidden states that they were guessed from.
func (g *guesser) goOnFromHidden() error {
	x := g.d.Model.Hidden()
	g.head.hidden = g.head.hidden[:0]
	for _, row := range g.rows {
		g.head.hidden = append(g.head.hidden, x.Row(int(row))...)
	}
	g.reset()
	for at, i := range g.round {
		g.rows = append(g.rows, int32(at))
		g.add(i, g.seqs[i].length+len(g.seqs[i].tokens)-2)
	}
	err := g.computeFrom(g.head.hidden)
	g.head.hidden = g.head.hidden[:0]
	return err
}
