package runner

import (
	"math"
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
	states := x.Floats()
	if err := r.opt.Model.Failed(); err != nil {
		return err
	}
	for i, w := range wants {
		s := &r.slots[w.slot]
		row := states[i*x.Width : (i+1)*x.Width]
		s.add(row, w.position)
		if !w.last {
			continue
		}
		s.sampled = 0
		switch {
		case s.pooling == step.PoolAll:
			row = s.states
			s.states = nil // it may be large
		case s.pooling.ReadsAll():
			row = r.pooled(s)
		}
		if !sample.Sound(row) {
			res.Append(w.slot, sample.Unsound)
			continue
		}
		copy(res.Pool(w.slot, len(row)), row)
	}
	return nil
}

// pooled is what a prompt of which all has been added has, in the runner's memory.
func (r *Runner) pooled(s *slot) []float32 {
	n := float64(s.promptLen)
	by := 1.0
	switch s.pooling {
	case step.PoolMean:
		by = n
	case step.PoolMeanSqrt:
		by = math.Sqrt(n)
	case step.PoolWeighted:
		by = n * (n + 1) / 2
	}
	r.mean = r.mean[:0]
	for _, sum := range s.pool {
		r.mean = append(r.mean, float32(sum/by))
	}
	return r.mean
}

// add adds the state at a position to what the slot pools.
func (s *slot) add(row []float32, position int) {
	if !s.pooling.ReadsAll() {
		return
	}
	if s.pooling == step.PoolAll {
		if position == 0 {
			s.states = make([]float32, 0, s.promptLen*len(row))
		}
		s.states = append(s.states, row...)
		return
	}
	if position == 0 {
		s.pool = slices.Grow(s.pool[:0], len(row))[:len(row)]
		for j, v := range row {
			s.pool[j] = float64(v)
		}
		return
	}
	switch s.pooling {
	case step.PoolMean, step.PoolMeanSqrt:
		for j, v := range row {
			s.pool[j] += float64(v)
		}
	case step.PoolWeighted:
		weight := float64(position + 1)
		for j, v := range row {
			s.pool[j] += weight * float64(v)
		}
	case step.PoolMax:
		for j, v := range row {
			s.pool[j] = max(s.pool[j], float64(v)) // NaN where either is
		}
	}
}
