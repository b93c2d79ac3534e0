package worker

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/model"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/runner"
	"github.com/eagleray/eagleray/internal/weights"
)

// An update of the weights has two phases. First every rank loads its share of the new ones beside the
// old: open, data where the driver's memory cannot be mapped, and load. When all have, each swaps them
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
	// update is the update's id, "" for the model's own files.
	update     string
	model      *model.Model
	checkpoint *checkpoint.Checkpoint // nil for dummy weights
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
	if before.checkpoint != nil {
		r.retiring.Go(func() { before.checkpoint.Close() })
	}
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

// weightsOpen takes note of an update. It answers with true unless the rank needs its data.
func (w *worker) weightsOpen(args []byte) ([]byte, error) {
	var u weights.Update
	if err := json.Unmarshal(args, &u); err != nil {
		return nil, fmt.Errorf("decode update: %w", err)
	}
	r := w.rank
	if r.init.Null != nil || r.weights.update == u.ID ||
		r.staging.loaded != nil && r.staging.loaded.update == u.ID {
		return []byte("true"), nil
	}
	r.staging.close()
	var err error
	if r.staging.staged, err = weights.Open(u); err != nil {
		return nil, err
	}
	return json.Marshal(r.staging.staged.Mapped())
}

// weightsData takes in a part of an update: the segment, the offset, and the bytes.
func (w *worker) weightsData(args []byte) ([]byte, error) {
	if len(args) < queue.WeightsHead {
		return nil, fmt.Errorf("%d bytes of weights are too short", len(args))
	}
	if s := w.rank.staging.staged; s != nil {
		return nil, s.Write(int(binary.LittleEndian.Uint32(args)),
			int64(binary.LittleEndian.Uint64(args[4:])), args[queue.WeightsHead:])
	}
	return nil, nil
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
	c, err := r.staging.staged.Checkpoint()
	if err != nil {
		return nil, err
	}
	l := &loaded{update: string(id), checkpoint: c}
	r.staging.staged = nil
	if l.model, err = model.Load(r.config, model.FromCheckpoint(c), r.device,
		model.Options{Group: r.group, Stage: r.stage}); err != nil {
		l.close()
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

// weightsRoom has the system find the memory that the rank needs for an update.
func (w *worker) weightsRoom([]byte) ([]byte, error) {
	m := w.rank.weights.model
	if m == nil || w.rank.staging.loaded != nil { // it sleeps, or has an update beside
		return nil, nil
	}
	return nil, m.Reserve()
}

// sleep gives back the memory of what its argument, queue.Asleep as JSON, says, and takes that of all
// else again. Weights are those of the model's files then: an update follows.
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
	}
	switch {
	case asleep.Weights:
		r.staging.close()
		r.weights.close()
		r.weights = loaded{}
	case r.weights.model == nil:
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
