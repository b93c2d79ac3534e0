package worker

import (
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/rank/calls"
)

// times records when this rank received, began, executed and answered plans, as many as list has
// room for.
type times struct{ list []calls.StepTimes }

// next returns where to write the times of a plan that was just received, nil when they are not
// recorded.
func (t *times) next() *calls.StepTimes {
	if len(t.list) == cap(t.list) {
		return nil
	}
	t.list = append(t.list, calls.StepTimes{Received: time.Now().UnixNano()})
	return &t.list[len(t.list)-1]
}

// maxTimes bounds what a call may ask for.
const maxTimes = 1 << 20

// stepTimes returns what was recorded, and records n plans more.
func (w *worker) stepTimes(n int) ([]calls.StepTimes, error) {
	if n < 0 || n > maxTimes {
		return nil, fmt.Errorf("number of plans is %d, must be 0 to %d", n, maxTimes)
	}
	recorded := w.times.list
	w.times.list = make([]calls.StepTimes, 0, n)
	return recorded, nil
}
