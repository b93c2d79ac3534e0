package engine

import (
	"errors"

	"github.com/eagleray/eagleray/internal/compute/sample"
)

// errAdopted is why a group ends whose engine's files are not those that count any more.
var errAdopted = errors.New("another engine has adopted other files of the model")

// adopt takes note of the files that the newest group has loaded. If they are others than before,
// answers of which a part is known cannot go on: they would be two models'.
func (e *Engine) adopt() {
	if e.ranks.Revision == e.revision {
		return
	}
	e.revision = e.ranks.Revision
	waiting := map[*stream]int{}
	for _, q := range e.requests {
		if !q.Begun() {
			waiting[q.stream]++
		}
	}
	b := e.empty()
	b.how, b.err = sample.FinishError, ErrReplaced
	for key, q := range e.requests {
		if waiting[q.stream] == len(q.stream.choices) {
			continue
		}
		b.ended = append(b.ended, q)
		e.sched.Abort(key)
		delete(e.requests, key)
		e.further(key)
		e.renounce(q)
		e.transfers.withdraw(key)
	}
	e.forsake()
	e.batches <- b
	if e.transfers != nil {
		e.transfers.model, e.transfers.weights = e.launching.WeightsName()
	}
}
