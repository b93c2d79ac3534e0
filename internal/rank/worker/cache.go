package worker

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/packed"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// packedKey names the file of the rank's packed weights: it is a hash of all that they follow from,
// the program among it, since another build may pack, or read the checkpoint, otherwise. It is ""
// where there is none: without a folder for it, and for models of which the files are not known.
func (r *rank) packedKey() string {
	init := &r.init
	if init.WeightsCache == "" || init.LoadFormat == "dummy" || init.Files == nil {
		return ""
	}
	program, err := machine.Program()
	if err != nil {
		return ""
	}
	values := []string{program, r.isa, init.DType, init.Quantization,
		fmt.Sprintf("rank %d of %d, layers %d to %d", r.group.Rank, r.group.Size, r.stage.From,
			r.stage.To)}
	if r.predicts() {
		values = append(values, "and the layer that predicts a token more")
	}
	for _, f := range init.Files {
		if checkpoint.Describes(f.Name) {
			values = append(values, fmt.Sprintf("%q %d %s", f.Name, f.Size, f.Sum))
		}
	}
	return packed.Key(values...)
}

// openPacked maps the rank's packed weights, if an earlier start has stored them.
func (r *rank) openPacked(key string) *packed.File {
	if key == "" {
		return nil
	}
	f, err := packed.Open(r.init.WeightsCache, key, r.threads)
	if err != nil {
		if !packed.IsMissing(err) {
			r.say(queue.WeightsCache{Failure: err.Error()})
		}
		return nil
	}
	return f
}

// saving is packed weights that are being stored.
type saving struct {
	stopped atomic.Bool
	done    sync.WaitGroup
	// over is guarded by the teller's lock: the driver was told that it has ended.
	over bool
}

// stop returns when the weights are not read any more; nil is one that has ended.
func (s *saving) stop() {
	if s != nil {
		s.stopped.Store(true)
		s.done.Wait()
	}
}

// storePacked has the weights of a model that was loaded from its files stored, beside what the
// rank computes, unless all came from the file already.
func (r *rank) storePacked(l *loaded) {
	key := r.packedKey()
	if key == "" {
		return
	}
	entries, err := l.entries()
	switch {
	case err != nil:
		r.say(queue.WeightsCache{Failure: err.Error()})
		return
	case entries == nil:
		r.say(queue.WeightsCache{Found: true, Bytes: l.packed.Bytes()})
		return
	}
	var bytes int64
	for _, e := range entries {
		for _, p := range e.Parts {
			bytes += int64(p.Size())
		}
	}
	s, replace, dir := new(saving), l.packed != nil, r.init.WeightsCache
	l.saving = s
	s.done.Go(func() {
		last := queue.WeightsCache{Over: true}
		switch err := packed.Save(dir, key, entries, replace, s.stopped.Load); {
		case err == nil:
			last.Stored, last.Bytes = true, bytes
		case !errors.Is(err, packed.ErrBusy) && !packed.IsStopped(err):
			last.Failure = err.Error()
		}
		r.teller.mu.Lock()
		defer r.teller.mu.Unlock()
		s.over = true
		r.teller.say(last)
	})
}

// entries are the weights of the model, and of the layer that predicts a token more, each once; nil
// if all came from the file.
func (l *loaded) entries() (all []layers.Entry, err error) {
	models := []*model.Model{l.model}
	if l.predictor != nil {
		models = append(models, l.predictor)
	}
	if !slices.ContainsFunc(models, (*model.Model).Made) {
		return nil, nil
	}
	has := map[string]bool{}
	for _, m := range models {
		entries, err := m.Entries()
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !has[e.Key] {
				has[e.Key], all = true, append(all, e)
			}
		}
	}
	return all, nil
}

// storing tells whether packed weights are being stored. Then the driver that the teller has will
// be told when that is over.
func (r *rank) storing() bool {
	r.teller.mu.Lock()
	defer r.teller.mu.Unlock()
	return r.weights.saving != nil && !r.weights.saving.over
}

// teller is the way to the driver of what is no answer. There is one while the rank has a group.
type teller struct {
	mu   sync.Mutex
	send func(record []byte) error
}

func (t *teller) set(send func(record []byte) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.send = send
}

// say tells the driver what became of cached weights.
func (r *rank) say(what queue.WeightsCache) {
	r.teller.mu.Lock()
	defer r.teller.mu.Unlock()
	r.teller.say(what)
}

// say is called with the lock.
func (t *teller) say(what queue.WeightsCache) {
	record, err := queue.AppendJSON(nil, queue.KindWeightsCache, what)
	if err == nil && t.send != nil {
		_ = t.send(record) // a driver that is gone ends this rank another way
	}
}
