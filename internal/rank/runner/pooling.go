package runner

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
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
		if s.pooling == step.PoolMean {
			row = r.meanOf(s)
		}
		if !sample.Sound(row) {
			res.Append(w.slot, sample.Unsound)
			continue
		}
		copy(res.Pool(w.slot, len(row)), row)
	}
	return nil
}

// meanOf is that of a prompt whose states are summed, in the runner's memory.
func (r *Runner) meanOf(s *slot) []float32 {
	r.mean = r.mean[:0]
	for _, sum := range s.pool {
		r.mean = append(r.mean, float32(sum/float64(s.promptLen)))
	}
	return r.mean
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
