package open

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Files are the model files that all engines of a server load. Every group gets their identities,
// and its ranks load no other files. The built-in model has none; methods of nil do nothing.
type Files struct {
	// policy is --on-model-change. fixed is why other files cannot be adopted, "" if they can.
	policy, fixed string
	dir           string
	weights       bool
	leftAlone     time.Duration
	events        status.Listener

	// users counts the engines, and the opening of the first ones; the last to release closes the
	// files.
	users atomic.Int64
	// revision counts the adoptions.
	revision atomic.Int64

	mu     sync.Mutex
	Pinned *checkpoint.Pinned
	// id is the identity of the pinned files, wake lists the functions that are called when it
	// changes.
	id   atomic.Pointer[string]
	wake []*func()
	// tokenizer is the folder of --tokenizer; nil for the model's own.
	tokenizer *checkpoint.Pinned
	// draft is the folder of the draft model; nil for none.
	draft *checkpoint.Pinned
	// reported is the change that was last reported.
	reported string
}

// Values of --on-model-change.
const (
	keepModel   = "keep"
	refuseModel = "refuse"
	adoptModel  = "adopt"
)

// pinFiles holds the files of the model, from which everything is read then. What is missing is for
// checkWeights to say, after what is wrong with config.json.
func (r *resolver) pinFiles() error {
	if r.dir == "" || r.Null != nil {
		return nil
	}
	m := &Files{policy: r.Config.Recovery.OnModelChange, dir: r.dir, events: r.events,
		leftAlone: r.leftAlone,
		weights:   r.Config.Model.LoadFormat != "dummy"}
	var err error
	if m.Pinned, err = checkpoint.Pin(r.dir, m.weights); err != nil {
		r.pinErr = fmt.Errorf("model %q: %w", r.Info.Root, err)
		return nil
	}
	if checkpoint.HasGGUF(m.Pinned) {
		m.fixed = "a file of GGUF has more than weights, and only those are adopted"
	}
	m.users.Store(1)
	m.name()
	r.folder, r.Files, r.Info.Files = m.Pinned, m, m
	return nil
}

// checkWeights finds what is wrong with the files of weights before the tokenizer is missed: a
// folder of another kind has neither. Ranks see the rest as they load.
func (r *resolver) checkWeights() error {
	if r.pinErr != nil || r.Null != nil || r.Config.Model.LoadFormat == "dummy" {
		return r.pinErr
	}
	c, err := checkpoint.Open(r.folder)
	if err == nil {
		blocks := r.checks || r.Config.Model.WeightsCache == "" && c.Bytes() <= mostInspected
		err = errors.Join(model.CheckWeights(r.Model, model.FromCheckpoint(c), model.Stage{},
			blocks), c.Close())
	}
	if err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	return nil
}

// mostInspected is how large a file may be whose scales lie among the codes for these to be looked
// at by a server that starts, if nothing can have been packed before: all of it is read for that,
// 0.3 s a GiB with two threads, and read again by the ranks.
const mostInspected = 1 << 30

// name sets id to the identity of the pinned files.
func (m *Files) name() {
	id := checkpoint.Identity(m.Pinned.Files())
	m.id.Store(&id)
}

// identity names the pinned files; "" stands for none.
func (m *Files) identity() string {
	if m == nil {
		return ""
	}
	return *m.id.Load()
}

// Overwritten returns an error about a file of embeddings that was overwritten in place: the next
// step will fail. It returns nil while files are being adopted.
func (m *Files) Overwritten() error {
	if m == nil || !m.weights || m.policy == adoptModel || !m.mu.TryLock() {
		return nil
	}
	defer m.mu.Unlock()
	if lost := m.Pinned.Overwritten(); lost != nil {
		return lost
	}
	return nil
}

// part returns the identity of the files whose names satisfy of.
func (m *Files) part(of func(name string) bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return checkpoint.Identity(slices.DeleteFunc(m.Pinned.Files(),
		func(f checkpoint.File) bool { return !of(f.Name) }))
}

// Watch registers f, which is called after each adoption, until forget is called.
func (m *Files) Watch(f func()) (forget func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wake = append(m.wake, &f)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.wake = slices.DeleteFunc(m.wake, func(w *func()) bool { return w == &f })
	}
}

// Number returns the number of the current revision.
func (m *Files) Number() int64 {
	if m == nil {
		return 0
	}
	return m.revision.Load()
}

// Acquire adds a user of the files.
func (m *Files) Acquire() {
	if m != nil {
		m.users.Add(1)
	}
}

// Release removes a user of the files. The last release closes them.
func (m *Files) Release() error {
	if m == nil || m.users.Add(-1) > 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.Pinned.Close()
	if m.tokenizer != nil {
		err = errors.Join(err, m.tokenizer.Close())
	}
	if m.draft != nil {
		err = errors.Join(err, m.draft.Close())
	}
	return err
}

// Resolve tells ranks that are about to start which files are theirs, after a look at those that
// are there by now. later says that no rank loads weights of the files. It returns the revision
// that was chosen; an error names what has changed.
func (m *Files) Resolve(init *queue.Init, later bool) (revision int64, err error) {
	init.Later = later
	if m == nil {
		return 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, lost := m.Pinned.Compare(m.weights && !later)
	switch {
	case m.policy == adoptModel && !later && (changed != nil || lost != nil):
		if err := m.adopt(); err != nil {
			return 0, err
		}
	case lost != nil:
		return 0, lost
	case changed != nil && m.policy == refuseModel:
		return 0, changed
	case changed != nil && m.reported != changed.Error():
		m.reported = changed.Error()
		m.events.Emit(status.ModelChanged{File: changed.Path, Identity: changed.Want,
			Now: changed.Got})
	}
	init.Files = known(m.Pinned.Files())
	if m.policy != refuseModel {
		init.Holder = os.Getpid()
	}
	if m.tokenizer != nil {
		init.TokenizerFiles = known(m.tokenizer.Files())
	}
	if m.draft != nil {
		init.DraftFiles = known(m.draft.Files())
	}
	return m.revision.Load(), nil
}

// leftAlone is how long the files of a folder must have been left alone before they are adopted: a
// program that replaces one after the other must not be met half-way.
const leftAlone = 2 * time.Second

// adopt pins the files that are in the folder now. Only weights may have changed.
func (m *Files) adopt() error {
	if m.fixed != "" {
		return fmt.Errorf("--on-model-change adopt: %s: restart the server", m.fixed)
	}
	now, err := checkpoint.Pin(m.dir, m.weights)
	if err != nil {
		return fmt.Errorf("--on-model-change adopt: %w", err)
	}
	before, after := m.Pinned.Files(), now.Files()
	if age := now.Age(); age < m.leftAlone {
		err = fmt.Errorf("--on-model-change adopt: the files of %s were written %v ago: they are "+
			"adopted when they have been left alone for %v", m.dir, age.Round(time.Millisecond),
			m.leftAlone)
	} else if name := other(before, after); name != "" {
		err = fmt.Errorf("--on-model-change adopt: %s is another file now, too, and only weights "+
			"are adopted by a server that runs: restart it", filepath.Join(m.dir, name))
	}
	if err != nil {
		return errors.Join(err, now.Close())
	}
	err = m.Pinned.Close()
	m.Pinned = now
	m.name()
	m.revision.Add(1)
	for _, f := range m.wake {
		(*f)()
	}
	m.events.Emit(status.ModelAdopted{Folder: m.dir, Identity: checkpoint.Identity(after),
		Before: checkpoint.Identity(before)})
	return err
}

// other returns the first file beside the weights that has changed, "" if there is none.
func other(before, after []checkpoint.File) string {
	without := func(list, other []checkpoint.File) string {
		for _, f := range list {
			if !checkpoint.IsWeights(f.Name) && !slices.Contains(other, f) {
				return f.Name
			}
		}
		return ""
	}
	if name := without(before, after); name != "" {
		return name
	}
	return without(after, before)
}

func known(files []checkpoint.File) []queue.File {
	list := make([]queue.File, len(files))
	for i, f := range files {
		list[i] = queue.File(f)
	}
	return list
}

// WeightsName names the model and its weights by content, wherever the files lie.
func (s *Spec) WeightsName() (model, weights string) {
	if s.Files == nil {
		return builtin.Name, "as it is built in"
	}
	model = s.Files.part(func(name string) bool {
		return name == "config.json" || checkpoint.IsGGUF(name)
	})
	if s.Config.Model.LoadFormat == "dummy" {
		return model, fmt.Sprintf("dummy %d", s.Config.Model.Seed)
	}
	return model, s.Files.part(checkpoint.IsWeights)
}
