package worker

import (
	"errors"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// An adapter comes as an update of the weights does: open, get where no memory can be mapped, and
// load. It needs no swap, for no request has it before the driver says so. Its tensors stay, so
// that it can be made again beside other weights, and for other ranks of the host, which may map
// them.

// adapterSet is the adapters of a rank.
type adapterSet struct {
	list []*adapter
	// staged is the one that was opened last and is not loaded, of the update coming.
	staged *weights.Staged
	coming weights.Update
}

// adapter is one that was opened.
type adapter struct {
	weights.Adapter
	update     string
	segments   []weights.Segment
	checkpoint *checkpoint.Checkpoint
	// making is what is made of it beside a model; nil when that is done, or not begun.
	making *layers.Adaptation
	beside *model.Model
}

// find is the adapter of an update, nil if it is not there.
func (s *adapterSet) find(update string) *adapter {
	i := slices.IndexFunc(s.list, func(a *adapter) bool { return a.update == update })
	if i < 0 {
		return nil
	}
	return s.list[i]
}

// open maps an adapter, if this rank can.
func (s *adapterSet) open(u weights.Update) (o weights.Opened, err error) {
	o = weights.Opened{Has: true, Host: weights.HostID()}
	if a := s.find(u.ID); a != nil {
		o.Segments = a.segments
		return o, nil
	}
	if s.staged == nil || s.coming.ID != u.ID || !s.staged.Complete() {
		s.drop()
		s.staged, s.coming = weights.Open(u), u
	}
	o.Has = s.staged.Complete()
	o.Segments, err = s.staged.Segments()
	return o, err
}

// adapterLoad makes some more of an adapter beside the weights in use.
func (w *worker) adapterLoad(update string) (done bool, err error) {
	r := w.rank
	if r.init.Null != nil {
		return true, nil
	}
	if r.weights.model == nil {
		return false, errors.New("the weights sleep: an adapter is loaded beside them")
	}
	done, err = r.adapters.load(update, r.weights.model)
	if bad := (*layers.NotFinite)(nil); errors.As(err, &bad) {
		err = &weights.UnsoundError{Err: bad}
	}
	return done, err
}

// perCall is how many weights of a model get what an adapter has beside them in one call.
const perCall = 4

// load makes some more of an adapter beside a model.
func (s *adapterSet) load(update string, m *model.Model) (done bool, err error) {
	a := s.find(update)
	if a == nil {
		if s.staged == nil || s.coming.ID != update || !s.staged.Complete() {
			return false, fmt.Errorf("adapter of update %s was not received", update)
		}
		a = &adapter{Adapter: *s.coming.Adapter, update: update}
		if a.segments, err = s.staged.Segments(); err != nil {
			return false, err
		}
		if a.checkpoint, err = s.staged.Checkpoint(); err != nil {
			return false, err
		}
		s.staged = nil
		s.list = append(s.list, a)
	}
	if m.Adapted(a.ID) {
		return true, nil
	}
	if a.beside != m {
		a.cancel()
		a.beside = m
		a.making = m.Adapt(a.ID, &a.Adapter.Adapter, model.FromCheckpoint(a.checkpoint))
	}
	if done, err = a.making.Step(perCall); done || err != nil {
		a.cancel()
	}
	return done, err
}

// cancel drops what is half made.
func (a *adapter) cancel() {
	if a.making != nil {
		a.making.Free()
	}
	a.making, a.beside = nil, nil
}

// drop gives up what was opened and not loaded.
func (s *adapterSet) drop() {
	if s.staged != nil {
		s.staged.Close()
		s.staged = nil
	}
}

// adaptersTrim drops all adapters but some.
func (w *worker) adaptersTrim(updates []string) (none rpc.None, err error) {
	r := w.rank
	r.adapters.drop()
	r.adapters.list = slices.DeleteFunc(r.adapters.list, func(a *adapter) bool {
		if slices.Contains(updates, a.update) {
			return false
		}
		a.cancel()
		if r.weights.model != nil {
			r.weights.model.Unadapt(a.ID)
		}
		err = errors.Join(err, a.checkpoint.Close())
		return true
	})
	return none, err
}

// close frees all of them, after the models that they were beside.
func (s *adapterSet) close() {
	s.drop()
	for _, a := range s.list {
		a.cancel()
		_ = a.checkpoint.Close() // of memory of this process
	}
	s.list = nil
}
