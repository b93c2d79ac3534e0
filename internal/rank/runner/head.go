package runner

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/link/step"
)

// head is what a head has yet to compute: positions of requests that plans list (Plan.Guess), of
// which the model has computed the hidden state and the token after which is known.
//
// A head computes them when a guess is asked for, when there are as many as it computes at a time,
// and when the request gives its slot up. Of other requests it computes and keeps nothing. What
// there is in a block is known by a hash of the tokens up to its end, as with a whole model. Hidden
// states do not come again, though: of a request of which it lacks some positions, because their
// blocks come from elsewhere or no plan listed it, a head knows the text behind those only, from
// the next block on, as if it began there (ahead.base). Then guesses are worse.
type head struct {
	queue  []queued
	hidden []float32 // of each, one after the other
	slots  []uint32  // those that have some, each once
	tables [][]int32 // of these
	table  []int32   // of a request that is listed for the first time
	text   guessed   // whose blocks are looked at
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

// drop forgets what is queued of a slot.
func (h *head) drop(slot uint32) {
	i := slices.Index(h.slots, slot)
	if i < 0 {
		return
	}
	h.slots = slices.Delete(h.slots, i, i+1)
	width, kept := len(h.hidden)/len(h.queue), 0
	for i, q := range h.queue {
		if q.slot != slot {
			h.queue[kept] = q
			copy(h.hidden[kept*width:], h.hidden[i*width:(i+1)*width])
			kept++
		}
	}
	h.queue, h.hidden = h.queue[:kept], h.hidden[:kept*width]
}

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
		if ok, err := g.reaches(row.Slot, pos); err != nil {
			return err
		} else if !ok {
			continue
		}
		w := &h.first
		if slices.ContainsFunc(p.Guess, func(a step.Guess) bool {
			return a.Slot == row.Slot && a.Tokens > 0
		}) {
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

// reaches says whether a head is to compute a position of a request, and finds out what it has of
// the request first.
func (g *guesser) reaches(slot uint32, pos int) (bool, error) {
	a, size := &g.r.slots[slot].ahead, g.r.opt.BlockSize
	if a.has == unknown {
		if pos > 0 { // what is queued may be what is in the blocks
			if err := g.computeQueued(); err != nil {
				return false, err
			}
		}
		g.head.table = g.blocks(g.head.table[:0], slot)
		g.recallBlocks(g.textOf(slot, g.head.table), pos/size)
		a.next = a.has
	}
	if pos != a.next {
		g.head.drop(slot)
		a.base = (pos + size - 1) / size * size
		a.has, a.next = a.base, a.base
	}
	if pos < a.next {
		return false, nil
	}
	a.next++
	return true, nil
}

// textOf is the text of a slot whose blocks are those of a table.
func (g *guesser) textOf(slot uint32, table []int32) *guessed {
	s := &g.r.slots[slot]
	g.head.text = guessed{slot: s, length: len(s.tokens), table: table}
	return &g.head.text
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
	if len(h.queue) == 0 {
		return nil
	}
	g.reset()
	b.Tables, b.States = b.Tables[:0], b.States[:0]
	h.tables = slices.Grow(h.tables[:0], len(h.slots))[:len(h.slots)]
	for i, slot := range h.slots {
		h.tables[i] = g.blocks(h.tables[i][:0], slot)
		b.Tables = append(b.Tables, h.tables[i][g.r.slots[slot].ahead.base/size:])
	}
	for i, t := range h.queue {
		seq := slices.Index(h.slots, t.slot)
		a := &g.r.slots[t.slot].ahead
		g.addAt(seq, h.tables[seq][t.position/size], t.position, t.next, a)
		a.has = t.position + 1
		for j := range g.seqs {
			if q := &g.seqs[j]; q.id == t.slot && t.position == q.length-2 {
				g.round, g.rows = append(g.round, j), append(g.rows, int32(i))
			}
		}
	}
	err := g.computeFrom(h.hidden)
	for i, slot := range h.slots {
		g.note(g.textOf(slot, h.tables[i]))
	}
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
