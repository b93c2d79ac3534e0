package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// An update of the weights has two phases. First every rank loads its share of the new ones beside the
// old: open, get where neither the driver's memory nor another rank's can be mapped, and load. When all have, each swaps them
// by a call that cannot fail, between the same two steps. Calls about an update that the rank has
// already are answered at once, so that a driver may repeat them.

// staging is an update that a rank does not compute with yet.
type staging struct {
	staged *weights.Staged
	// loaded is set once its share is loaded.
	loaded *loaded
}

// loaded is a share of a model, with what it was made of.
type loaded struct {
	// update is the update's id, "" for the model's own files; segments are where other ranks find it.
	update     string
	segments   []weights.Segment
	model      *model.Model
	checkpoint *checkpoint.Checkpoint // nil for dummy weights
	bytes      int64
}

func (l *loaded) close() {
	if l.model != nil {
		l.model.Close()
	}
	if l.checkpoint != nil {
		l.checkpoint.Close()
	}
	*l = loaded{update: l.update}
}

// retire closes what the rank does not compute with any more. The memory of the weights is kept for the
// next update: the system takes longer to find it than all else takes. Nobody waits for the rest but
// the next update.
func (r *rank) retire(before loaded) {
	if before.model != nil {
		before.model.Retire()
	}
	room := r.room
	if before.checkpoint == nil && room == nil {
		return
	}
	r.retiring.Go(func() {
		if before.checkpoint != nil {
			before.checkpoint.Close()
		}
		if room != nil {
			_ = r.spare.ReserveSent(room) // what is missing, the update will say
		}
	})
}

// dropRoom gives back the memory for updates that the rank is sent.
func (r *rank) dropRoom() {
	r.room = nil
	r.retiring.Wait()
	r.spare.Drop()
}

func (s *staging) close() {
	if s.staged != nil {
		s.staged.Close()
	}
	if s.loaded != nil {
		s.loaded.close()
	}
	*s = staging{}
}

// weightsOpen takes note of an update. It answers with weights.Opened.
func (w *worker) weightsOpen(args []byte) ([]byte, error) {
	var u weights.Update
	if err := json.Unmarshal(args, &u); err != nil {
		return nil, fmt.Errorf("decode update: %w", err)
	}
	r := w.rank
	o := weights.Opened{Has: true, Host: weights.Here()}
	switch l := r.staging.loaded; {
	case r.init.Null != nil:
	case r.weights.update == u.ID:
		o.Segments = r.weights.segments
	case l != nil && l.update == u.ID:
		o.Segments = l.segments
	default:
		if s := r.staging.staged; s == nil || s.ID() != u.ID || !s.Complete() {
			r.staging.close()
			r.staging.staged = weights.Open(u)
		}
		var err error
		if o.Segments, err = r.staging.staged.Segments(); err != nil {
			return nil, err
		}
		if o.Has = r.staging.staged.Complete(); o.Has && !r.staging.staged.Own() {
			r.dropRoom() // another rank is sent updates
		}
	}
	return json.Marshal(o)
}

// A transfer may break off getTries times with nothing come between; the second time is getPause later,
// the third twice that.
const (
	getTries = 3
	getPause = 200 * time.Millisecond
)

// weightsGet has the ranks that its argument lists get the update from the driver. Those answer with
// weights.Opened.
func (w *worker) weightsGet(args []byte) ([]byte, error) {
	var ranks []int
	if err := json.Unmarshal(args, &ranks); err != nil {
		return nil, fmt.Errorf("decode ranks: %w", err)
	}
	s := w.rank.staging.staged
	switch {
	case !slices.Contains(ranks, w.opt.Rank):
		return nil, nil
	case s == nil:
		return nil, fmt.Errorf("no update was opened")
	case w.opt.Beside == nil:
		return nil, fmt.Errorf("rank %d has no way to the driver but its queue", w.opt.Rank)
	}
	w.rank.retiring.Wait() // for the memory of the update before the last one
	if err := s.Make(&w.rank.spare); err != nil {
		return nil, err
	}
	for try := 1; !s.Complete(); try++ {
		before := s.Done()
		c, err := w.opt.Beside(uint64(before))
		if err == nil {
			err = s.Receive(c, func() { w.status.Set(status.Load, 0) })
			c.Close()
		}
		if s.Done() > before {
			try = 1
		}
		if err != nil && try == getTries {
			return nil, fmt.Errorf("get the update, of which %d bytes have come: %w", s.Done(), err)
		}
		if err != nil {
			time.Sleep(time.Duration(try) * getPause)
		}
	}
	o := weights.Opened{Has: true, Host: weights.Here()}
	var err error
	if o.Segments, err = s.Segments(); err != nil {
		return nil, err
	}
	return json.Marshal(o)
}

// weightsLoad loads the rank's share of an update beside what it computes with.
func (w *worker) weightsLoad(id []byte) ([]byte, error) {
	r := w.rank
	switch {
	case r.init.Null != nil, r.weights.update == string(id),
		r.staging.loaded != nil && r.staging.loaded.update == string(id):
		return nil, nil
	case r.staging.staged == nil || r.staging.staged.ID() != string(id):
		return nil, fmt.Errorf("update %s was not opened", id)
	}
	r.retiring.Wait()
	segments, err := r.staging.staged.Segments()
	if err != nil {
		return nil, err
	}
	c, err := r.staging.staged.Checkpoint()
	if err != nil {
		return nil, err
	}
	l := &loaded{update: string(id), segments: segments, checkpoint: c}
	r.staging.staged = nil
	if l.model, err = model.Load(r.config, model.FromCheckpoint(c), r.device,
		model.Options{Group: r.group, Stage: r.stage, Strict: true,
			Progress: func(n int64) { l.bytes = n }}); err != nil {
		l.close()
		if bad := (*layers.NotFinite)(nil); errors.As(err, &bad) {
			err = &weights.UnsoundError{Err: bad}
		}
		return nil, err
	}
	r.staging.loaded = l
	return nil, nil
}

// weightsSwap has the rank compute with an update that it has loaded.
func (w *worker) weightsSwap(id []byte) ([]byte, error) {
	r := w.rank
	if r.init.Null != nil || r.weights.update == string(id) {
		return nil, nil
	}
	if r.staging.loaded == nil || r.staging.loaded.update != string(id) {
		return nil, fmt.Errorf("update %s was not loaded", id)
	}
	r.endTransfers() // what was computed is void, and the driver begins anew
	before := r.weights
	r.weights, r.staging.loaded = *r.staging.loaded, nil
	r.weightBytes = r.weights.bytes
	r.compute()
	r.retire(before)
	return nil, nil
}

// weightsDrop forgets an update that is not to be computed with.
func (w *worker) weightsDrop([]byte) ([]byte, error) {
	r := w.rank
	if l := r.staging.loaded; l != nil {
		r.staging.loaded = nil
		r.retire(*l)
	}
	r.staging.close()
	return nil, nil
}

// weightsRoom has the system find the memory that the rank needs for an update. It answers with
// weights.Opened, of which it knows the host.
func (w *worker) weightsRoom([]byte) ([]byte, error) {
	m := w.rank.weights.model
	if m == nil || w.rank.staging.loaded != nil { // it sleeps, or has an update beside
		return nil, nil
	}
	if err := m.Reserve(); err != nil {
		return nil, err
	}
	return json.Marshal(weights.Opened{Host: weights.Here()})
}

// weightsRoomSent has the system find memory for what the ranks of its argument, weights.Room, are sent.
func (w *worker) weightsRoomSent(args []byte) ([]byte, error) {
	var m weights.Room
	if err := json.Unmarshal(args, &m); err != nil {
		return nil, fmt.Errorf("decode room: %w", err)
	}
	r := w.rank
	if !slices.Contains(m.Ranks, w.opt.Rank) || r.weights.model == nil {
		return nil, nil
	}
	r.retiring.Wait()
	r.room = &m
	return nil, r.spare.ReserveSent(&m)
}

// sleep gives back the memory of what its argument, queue.Asleep as JSON, says, and takes that of all
// else again. Weights are those of the model's files then, unless an update follows.
func (w *worker) sleep(args []byte) ([]byte, error) {
	var asleep queue.Asleep
	if err := json.Unmarshal(args, &asleep); err != nil {
		return nil, fmt.Errorf("decode sleep: %w", err)
	}
	r := w.rank
	if r.init.Null != nil {
		return nil, nil
	}
	r.endTransfers()
	r.retiring.Wait()
	if asleep.Weights || asleep.KVCache {
		r.device.DropSpare()
		r.dropRoom()
	}
	switch {
	case asleep.Weights:
		r.staging.close()
		r.weights.close()
		r.weights = loaded{}
	case r.weights.model == nil && !asleep.Later:
		if err := r.loadModel(func(queue.Progress) error { return nil }); err != nil {
			return nil, err
		}
	}
	switch {
	case asleep.KVCache && r.cache != nil:
		if err := r.cache.Free(); err != nil {
			return nil, err
		}
		r.cache = nil
	case !asleep.KVCache && r.cache == nil:
		if err := r.newCache(); err != nil {
			return nil, err
		}
	}
	r.compute()
	return nil, nil
}

// newCache makes the KV cache.
func (r *rank) newCache() error {
	dtype, err := compute.ParseDType(r.init.DType)
	if err != nil {
		return err
	}
	shape := model.CacheShape(r.config, r.stage.To-r.stage.From, r.init.Layout.TP, r.init.Blocks,
		r.init.BlockSize, dtype)
	r.cache, err = r.device.NewCache(shape)
	return err
}

// compute has the runner use the weights and the cache of the moment. Those that sleep are missing: no
// plan is sent meanwhile.
func (r *rank) compute() {
	if run, ok := r.runner.(*runner.Runner); ok {
		run.Use(r.weights.model, r.cache)
	}
}
