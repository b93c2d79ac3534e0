package worker

import (
	"errors"

	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// loadExperts makes the experts that this rank lacks of a layer's placement. Weights that sleep are
// loaded with it when they wake.
func (w *worker) loadExperts(e calls.Experts) (none rpc.None, err error) {
	r := w.rank
	switch {
	case r.init.Null != nil:
		return none, nil
	case r.group.Experts == nil:
		return none, errors.New("this rank holds a share of each expert")
	case r.weights.model == nil:
		return none, nil
	}
	r.weights.saving.stop() // of weights that are about to change
	return none, r.weights.model.LoadExperts(e.Layer, e.At)
}

// moveExperts makes a placement the one that counts, also for weights that are loaded later.
func (w *worker) moveExperts(e calls.Experts) (none rpc.None, err error) {
	r := w.rank
	switch {
	case r.init.Null != nil:
	case r.weights.model == nil:
		r.group.Experts.Put(e.Layer, e.At)
	default:
		r.weights.model.MoveExperts(e.Layer, e.At)
	}
	return none, nil
}

// dropExperts frees the experts that were made for a placement which is not to be.
func (w *worker) dropExperts(rpc.None) (none rpc.None, err error) {
	if m := w.rank.weights.model; m != nil {
		m.DropExperts()
	}
	return none, nil
}
