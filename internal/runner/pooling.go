package runner

import (
	"slices"

	"github.com/eagleray/eagleray/internal/status"
	"github.com/eagleray/eagleray/internal/step"
)

// pool adds rows of the hidden state to what their requests pool, and reports those that are
// complete. Only the output rank does. The sums are in float64 and in the order of the positions:
// they do not depend on how a prompt is cut, or on which rank computed a row.
func (r *Runner) pool(wants []want, res *step.Result) error {
	if !r.output {
		return nil
	}
	r.rows = r.rows[:0]
	for _, w := range wants {
		r.rows = append(r.rows, w.row)
	}
	x, err := r.opt.Model.Final(r.rows)
	if err != nil {
		return err
	}
	r.opt.Status.Set(status.Sample, 0)
	for i, w := range wants {
		s := &r.slots[w.slot]
		row := x.Row(i)
		if s.pooling == step.PoolMean {
			s.add(row)
		}
		if !w.last {
			continue
		}
		s.sampled = 0
		vector := res.Pool(w.slot, len(row))
		if s.pooling == step.PoolLast {
			copy(vector, row)
			continue
		}
		n := float64(s.promptLen)
		for j, sum := range s.pool {
			vector[j] = float32(sum / n)
		}
	}
	return nil
}

// add adds a state to the slot's sum.
func (s *slot) add(row []float32) {
	if len(s.pool) == 0 {
		s.pool = slices.Grow(s.pool, len(row))[:len(row)]
		clear(s.pool)
	}
	for j, v := range row {
		s.pool[j] += float64(v)
	}
}
