package worker

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// times are when this rank received, began, executed and answered plans: the first ones since it
// was asked to record them, as many as list has room for.
type times struct{ list []queue.StepTimes }

// next returns where to write the times of a plan that was just received, nil when they are not
// recorded.
func (t *times) next() *queue.StepTimes {
	if len(t.list) == cap(t.list) {
		return nil
	}
	t.list = append(t.list, queue.StepTimes{Received: time.Now().UnixNano()})
	return &t.list[len(t.list)-1]
}

// maxTimes bounds what a call may ask for.
const maxTimes = 1 << 20

// stepTimes returns what was recorded as JSON, a list of queue.StepTimes, and records as many more
// plans as its argument, a number in JSON, says.
func (w *worker) stepTimes(args []byte) ([]byte, error) {
	var n int
	if err := json.Unmarshal(args, &n); err != nil {
		return nil, fmt.Errorf("number of plans: %w", err)
	}
	if n < 0 || n > maxTimes {
		return nil, fmt.Errorf("number of plans is %d, must be 0 to %d", n, maxTimes)
	}
	out, err := json.Marshal(w.times.list)
	w.times.list = make([]queue.StepTimes, 0, n)
	return out, err
}
