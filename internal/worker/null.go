package worker

import (
	"time"

	"github.com/eagleray/eagleray/internal/join"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
)

// null executes plans without a model: see queue.Null. Stages wait for each other as those of a model
// do: what they hand on is a few bytes.
type null struct {
	queue.Null
	output bool
	// stages are the others, nil if there are none; this one is number stage, and the last one is.
	stages      join.Group
	stage, last int
	message     [8]byte
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
	if n.stage > 0 {
		if err := n.stages.Recv(n.message[:], n.stage-1); err != nil {
			return err
		}
	}
	if n.StepTime > 0 && len(p.Rows) > 0 {
		n.compute()
	}
	if n.stage == n.last {
		return nil
	}
	return n.stages.Send(n.message[:], n.stage+1)
}

// compute passes the time of a step.
func (n *null) compute() {
	if n.Elsewhere {
		time.Sleep(n.StepTime)
		return
	}
	// A thread that computes does not sleep either.
	for began := time.Now(); time.Since(began) < n.StepTime; {
	}
}
