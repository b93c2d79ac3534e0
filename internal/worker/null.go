package worker

import (
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
)

// null executes plans without a model: see queue.Null.
type null struct {
	queue.Null
	output bool
}

// Execute implements planRunner.
func (n *null) Execute(p *step.Plan, res *step.Result) error {
	res.Reset(p.ID)
	if n.output && len(n.Tokens) > 0 {
		for i := range p.Rows {
			if r := &p.Rows[i]; r.Sample {
				res.Append(r.Slot, n.Tokens[int(r.Slot+r.Start+r.Count)%len(n.Tokens)])
			}
		}
	}
	if n.StepTime > 0 && len(p.Rows) > 0 {
		// A thread that computes does not sleep either.
		for began := time.Now(); time.Since(began) < n.StepTime; {
		}
	}
	return nil
}
