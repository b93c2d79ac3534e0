package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// stateRows are the rows of a batch that change the states of their sequences. A chunk of work is
// one part of the state of one sequence: rows are computed one after the other, in prefill too, so
// that no bits depend on how prompts are cut.
type stateRows struct {
	cache *attention.Cache
	layer int
	batch *compute.Batch
	// parts are those of a state, each of so many floats.
	parts, floats int
	// runs are the sequences of the batch; at is the first row of each that is computed now, of
	// rows at most.
	runs     runs
	at, rows int
}

// run has a task, which t is of, compute the chunks of s, a row of which is so much work.
func (t *stateRows) run(p *pool.Pool, task pool.Task, s stateRows, work int) {
	s.runs = t.runs
	*t = s
	longest := t.runs.find(t.batch)
	t.rows = max(1, pool.MostWork/work)
	for t.at = 0; t.at < longest; t.at += t.rows {
		p.Run(task, (len(t.runs)-1)*t.parts)
	}
	t.cache, t.batch = nil, nil // the caller's
}

// chunk is the part of the state, and the rows, of a chunk of work.
func (t *stateRows) chunk(i int) (part, from, to int) {
	run := i / t.parts
	from = int(t.runs[run]) + t.at
	return i % t.parts, from, min(int(t.runs[run+1]), from+t.rows)
}

// state is a part of the state of a row's sequence, zero before its first one.
func (t *stateRows) state(part, row int) []float32 {
	state := t.part(part, t.batch.States[t.batch.Seq[row]])
	if t.batch.Position[row] == 0 {
		clear(state)
	}
	return state
}

// copyOut stores a part of the state after a row, where the batch asks for that.
func (t *stateRows) copyOut(part, row int, state []float32) {
	if kept := t.batch.Kept; len(kept) > 0 && kept[row] >= 0 {
		copy(t.part(part, kept[row]), state)
	}
}

func (t *stateRows) part(part int, slot int32) []float32 {
	return t.cache.State(t.layer, int(slot))[part*t.floats:][:t.floats]
}

// runs are where the sequences begin among the rows of a batch, and their end.
type runs []int32

// find makes them those of a batch, and returns how many rows the longest has.
func (r *runs) find(b *compute.Batch) (longest int) {
	*r = (*r)[:0]
	for i, seq := range b.Seq {
		if i == 0 || b.Seq[i-1] != seq {
			*r = append(*r, int32(i))
		}
		longest = max(longest, i+1-int((*r)[len(*r)-1]))
	}
	*r = append(*r, int32(b.Rows()))
	return longest
}
