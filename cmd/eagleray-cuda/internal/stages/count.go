package stages

import (
	"context"
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
)

// count has a machine for PTX compute the steps of a tiny model, and reports what it counted beside
// the bytes of the floor: a machine has no times that say anything of a GPU.
func (r *run) count(ctx context.Context) (err error) {
	shape := tinyShape(64)
	cfg, err := shape.config()
	if err != nil {
		return err
	}
	var total ptx.Stats
	kernels := 0
	before := r.Machine.Observe
	r.Machine.Observe = func(_ string, s ptx.Stats) {
		kernels++
		total.Instructions += s.Instructions
		total.Mma += s.Mma
		total.GlobalRead += s.GlobalRead
		total.GlobalWritten += s.GlobalWritten
	}
	defer func() { r.Machine.Observe = before }()
	s, err := r.session(&shape, cfg, r.Seed, shape.batches[0], shape.context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.fill(&shape, r.Seed); err != nil {
		return err
	}
	for _, x := range []*step{s.decode(&shape, shape.batches[0]),
		s.prefill(&shape, shape.prefills[0])} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.wait(); err != nil {
			return err
		}
		total, kernels = ptx.Stats{}, 0
		_, _, calls, err := s.timed(x, 1)
		if err != nil {
			return err
		}
		r.report(Row{Name: x.name, Unit: "bytes", Floor: figure(x.work.Bytes()), Listed: true,
			Ours: figure(float64(total.GlobalRead + total.GlobalWritten)),
			Note: fmt.Sprintf("counted by lane, not timed; %d launches, %d kernels executed, %d "+
				"instructions of warps, %d of them products", calls, kernels, total.Instructions,
				total.Mma)})
	}
	r.summary = "counted on a machine: no times of a GPU"
	return nil
}
