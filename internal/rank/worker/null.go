package worker

import (
	"time"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
)

// null executes plans without a model: see queue.Null. Stages wait for each other as those of a
// model do: they pass on a few bytes.
type null struct {
	queue.Null
	output bool
	// stages are the others, nil if there are none; this one is number stage, and the last one is.
	stages      join.Group
	stage, last int
	message     [8]byte
	// device is what is busy elsewhere.
	device device
}

// device executes plans one after the other, without a core of this machine. One that was there
// when the one before ended begins then, also when a busy machine notices that end late.
type device struct {
	// until is when the last plan ended; answered is when the rank was done with it, before with
	// the one before it.
	until, answered, before time.Time
}

// atOnce is less than a rank takes that has to wait for its next plan.
const atOnce = 50 * time.Microsecond

// execute passes the time of a step. Of two plans in flight one is sent when the one before the
// other was answered: it cannot begin earlier.
func (d *device) execute(step time.Duration) {
	begin := time.Now()
	if begin.Sub(d.answered) < atOnce {
		begin = d.until
		if d.before.After(begin) {
			begin = d.before
		}
	}
	d.until = begin.Add(step)
	time.Sleep(time.Until(d.until))
	d.before, d.answered = d.answered, time.Now()
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
		n.device.execute(n.StepTime)
		return
	}
	// A thread that computes does not sleep either.
	for began := time.Now(); time.Since(began) < n.StepTime; {
	}
}
