package worker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/packed"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// An update of the weights has two phases. First every rank loads its share of the new ones beside
// the old: open, get where neither the driver's memory nor another rank's can be mapped, and load.
// When all have, each swaps them by a call that cannot fail, between the same two steps. Calls
// about an update that the rank has already are answered at once, so that a driver may repeat them.

// staging is an update that is not in use yet.
type staging struct {
	staged *weights.Staged
	// loaded is the rank's share of it, nil before WeightsLoad.
	loaded *loaded
}

// loaded is a rank's share of a model, with its sources.
type loaded struct {
	// update is the update's id, "" for the model's own files; segments is its memory, for other
	// ranks.
	update     string
	segments   []weights.Segment
	model      *model.Model
	checkpoint *checkpoint.Checkpoint // nil for dummy weights
	bytes      int64
	// predictor is the layer that predicts a token more, nil for none; own is the model's files
	// where an update lacks tensors of it, else nil.
	predictor *model.Model
	own       *checkpoint.Checkpoint
	// packed is the file of which the model's weights are a part, nil for none; saving is that
	// they are being stored.
	packed *packed.File
	saving *saving
}

func (l *loaded) close() {
	l.saving.stop()
	for _, m := range []*model.Model{l.model, l.predictor} {
		if m != nil {
			m.Close()
		}
	}
	for _, c := range []*checkpoint.Checkpoint{l.checkpoint, l.own} {
		if c != nil {
			c.Close()
		}
	}
	if l.packed != nil {
		l.packed.Close()
	}
	*l = loaded{update: l.update}
}

// retire closes weights that are no longer in use. Faulting in fresh memory dominates the update,
// so their memory is kept for the next one. The rest is freed in the background; only the next
// update waits for it.
func (r *rank) retire(before loaded) {
	before.saving.stop()
	for _, m := range []*model.Model{before.model, before.predictor} {
		if m != nil {
			m.Retire()
		}
	}
	if before.own != nil {
		before.own.Close()
	}
	if before.packed != nil {
		before.packed.Close()
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

// dropRoom frees the memory reserved for updates that the rank is sent.
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

// weightsOpen maps an update, if this rank can, and answers where it has it.
func (w *worker) weightsOpen(u weights.Update) (o weights.Opened, err error) {
	r := w.rank
	if u.Adapter != nil && r.init.Null == nil {
		return r.adapters.open(u)
	}
	r.adapters.drop()
	o = weights.Opened{Has: true, Host: weights.HostID()}
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
		if o.Segments, err = r.staging.staged.Segments(); err != nil {
			return o, err
		}
		if o.Has = r.staging.staged.Complete(); o.Has && !r.staging.staged.Own() {
			r.dropRoom() // another rank is sent updates
		}
	}
	return o, nil
}

// A transfer may break off getTries times with nothing come between; the second time is getPause
// later, the third twice that.
const (
	getTries = 3
	getPause = 200 * time.Millisecond
)

// weightsGet receives the update from the driver on the listed ranks; the others answer with the
// zero value.
func (w *worker) weightsGet(ranks []int) (o weights.Opened, err error) {
	s, spare := w.rank.staging.staged, &w.rank.spare
	if a := w.rank.adapters.staged; a != nil {
		s, spare = a, nil // it is kept for none
	}
	switch {
	case !slices.Contains(ranks, w.opt.Rank):
		return o, nil
	case s == nil:
		return o, fmt.Errorf("no update was opened")
	case w.opt.Beside == nil:
		return o, fmt.Errorf("rank %d has no way to the driver but its queue", w.opt.Rank)
	}
	w.rank.retiring.Wait() // for the memory of the update before the last one
	if err := s.Make(spare); err != nil {
		return o, err
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
			return o, fmt.Errorf("get the update, of which %d bytes have come: %w", s.Done(), err)
		}
		if err != nil {
			time.Sleep(time.Duration(try) * getPause)
		}
	}
	segments, err := s.Segments()
	return weights.Opened{Has: true, Host: weights.HostID(), Segments: segments}, err
}

// weightsLoad loads the rank's share of an update beside what it computes with.
func (w *worker) weightsLoad(id string) (none rpc.None, err error) {
	r := w.rank
	switch {
	case r.init.Null != nil, r.weights.update == id,
		r.staging.loaded != nil && r.staging.loaded.update == id:
		return none, nil
	case r.staging.staged == nil || r.staging.staged.ID() != id:
		return none, fmt.Errorf("update %s was not opened", id)
	}
	r.retiring.Wait()
	segments, err := r.staging.staged.Segments()
	if err != nil {
		return none, err
	}
	c, err := r.staging.staged.Checkpoint()
	if err != nil {
		return none, err
	}
	l := &loaded{update: id, segments: segments, checkpoint: c}
	r.staging.staged = nil
	opt := model.Options{Group: r.group, Stage: r.stage, Strict: true,
		CacheScales: r.scalesCache(), Taps: r.taps(), Progress: func(n int64) { l.bytes = n }}
	src := model.FromCheckpoint(c)
	if l.model, err = model.Load(r.config, src, r.device, opt); err == nil {
		err = r.updatePredictor(l, src)
	}
	if err != nil {
		l.close()
		if bad := (*layers.NotFinite)(nil); errors.As(err, &bad) {
			err = &weights.UnsoundError{Err: bad}
		}
		return none, err
	}
	r.staging.loaded = l
	return none, nil
}

// weightsSwap puts the loaded update in use.
func (w *worker) weightsSwap(id string) (none rpc.None, err error) {
	r := w.rank
	if r.init.Null != nil || r.weights.update == id {
		return none, nil
	}
	if r.staging.loaded == nil || r.staging.loaded.update != id {
		return none, fmt.Errorf("update %s was not loaded", id)
	}
	r.endTransfers() // what was computed is void, and the driver begins anew
	before := r.weights
	r.weights, r.staging.loaded = *r.staging.loaded, nil
	r.weightBytes = r.weights.bytes
	r.compute()
	r.retire(before)
	return none, nil
}

// weightsDrop discards an update that is not in use.
func (w *worker) weightsDrop(rpc.None) (none rpc.None, err error) {
	r := w.rank
	if l := r.staging.loaded; l != nil {
		r.staging.loaded = nil
		r.retire(*l)
	}
	r.staging.close()
	return none, nil
}

// weightsRoom reserves the memory that the rank needs for an update, and answers with its host.
func (w *worker) weightsRoom(rpc.None) (o weights.Opened, err error) {
	m := w.rank.weights.model
	if m == nil || w.rank.staging.loaded != nil { // it sleeps, or has an update beside
		return o, nil
	}
	if err := m.Reserve(); err != nil {
		return o, err
	}
	return weights.Opened{Host: weights.HostID()}, nil
}

// weightsRoomSent reserves the memory for updates that the ranks in m are sent.
func (w *worker) weightsRoomSent(m weights.Room) (none rpc.None, err error) {
	r := w.rank
	if !slices.Contains(m.Ranks, w.opt.Rank) || r.weights.model == nil {
		return none, nil
	}
	r.retiring.Wait()
	r.room = &m
	return none, r.spare.ReserveSent(&m)
}

// sleep frees the memory of the parts that sleep, and allocates that of the others again. Weights
// are read from the model's files then, unless an update follows.
func (w *worker) sleep(asleep calls.Asleep) (none rpc.None, err error) {
	r := w.rank
	if r.init.Null != nil {
		return none, nil
	}
	r.endTransfers()
	r.retiring.Wait()
	switch {
	case asleep.Weights:
		r.staging.close()
		r.weights.close()
		r.weights = loaded{}
		r.draft.closeWeights()
		for _, n := range r.neighbours {
			if err := n.Sleep(); err != nil {
				return none, err
			}
		}
	case r.weights.model == nil && !asleep.Later:
		if err := r.loadModel(func(queue.Progress) error { return nil }); err != nil {
			return none, err
		}
	default:
		if err := r.loadDraft(func(queue.Progress) error { return nil }); err != nil {
			return none, err
		}
	}
	switch {
	case asleep.KVCache && r.cache != nil:
		err := r.cache.Free()
		if c := r.draft.cache; c != nil {
			err = errors.Join(err, c.Free())
		}
		if err != nil {
			return none, err
		}
		r.cache, r.draft.cache = nil, nil
	case !asleep.KVCache && r.cache == nil:
		if err := r.newCache(); err != nil {
			return none, err
		}
	}
	r.compute()
	if asleep.Weights || asleep.KVCache {
		r.device.DropSpare() // now that nothing refers to what sleeps
		r.dropRoom()
	}
	if !asleep.Weights {
		return none, r.connect(w.opt.Ended)
	}
	return none, nil
}

// scalesCache says that the checkpoint's scales are those of the KV cache, where it has some.
func (r *rank) scalesCache() bool { return r.init.CacheDType == compute.E4M3.String() }

// newCache makes the KV cache; an encoder has none.
func (r *rank) newCache() error {
	if r.config.Encoder {
		return nil
	}
	dtype, err := compute.ParseCacheDType(cmp.Or(r.init.CacheDType, r.init.DType), 0)
	if err != nil {
		return err
	}
	shape := compute.CacheShape{Layers: model.GroupedLayers(r.config, r.stage.From, r.stage.To,
		r.init.Layout.TP, r.init.Groups), Blocks: r.init.Blocks, BlockSize: r.init.BlockSize,
		DType: dtype, States: r.init.States}
	r.factors = r.factors[:0]
	for g := range r.init.Groups.Count() {
		r.factors = append(r.factors, shape.Factor(g))
	}
	if r.cache, err = r.device.NewCache(shape); err != nil {
		return err
	}
	return r.newDraftCache()
}

// compute passes the current weights and cache to the runner; parts that sleep are nil. No plan is
// sent while a part sleeps.
func (r *rank) compute() {
	if run, ok := r.runner.(*runner.Runner); ok {
		run.Use(r.weights.model, r.cache, r.guessing())
	}
}
