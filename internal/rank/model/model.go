// Package model holds the architectures: one file each, written in layers. A model is one rank's
// shard of one stage of a checkpoint: it turns the tokens of a batch of rows into hidden states,
// runs its layers over them and computes, for chosen rows, their logits.
package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// Stage is a run of consecutive layers, From to To-1 of the model's. The first stage has the token
// embedding as well, the last one the final norm and the output head. The zero Stage is all layers.
type Stage struct{ From, To int }

// Options say which part of a model Load reads.
type Options struct {
	// Group is the rank's place among those that share each layer.
	Group layers.Group
	// Stage is the layers it has a share of.
	Stage Stage
	// Strict refuses weights of which one element is infinite or NaN, wherever it is. Otherwise
	// those of a table that is looked up are let pass: only what asks for that row is unsound.
	Strict bool
	// Store, when not nil, has what an earlier load made (see [Model.Entries]). It is read until
	// the model is closed.
	Store layers.Store
	// Taps are layers, in ascending order, the hidden states before which Features has. All stages
	// are given all of them.
	Taps []int
	// CacheScales has keys and values stored with the checkpoint's scales, where it has some.
	CacheScales bool
	// Progress, when not nil, is called with the number of checkpoint bytes read so far.
	Progress func(bytes int64)
}

// Model is one rank's shard of one stage. Between its embedding, its layers and its head stands the
// hidden state: a tensor [rows][hidden size], the residual stream of each row of the batch after
// the layers so far, before any norm that belongs to what follows. It is the same on every rank of
// a tensor parallel group, and all that a stage needs of those before it. A step calls, in this
// order,
//
//	first stage    Embed, Layers; then Hidden is sent to the next stage
//	later stages   Receive, which is filled with what was sent; Layers; then Hidden is sent on
//	last stage     the same, and Logits instead of sending
//
// With Options.Taps, Tapped is sent beside Hidden, and ReceiveTapped is filled.
//
// One goroutine at a time calls its methods; every rank of a tensor parallel group calls the same
// ones in the same order, with the same batch and the same rows. They allocate only when a batch is
// larger than all before. After an error the hidden state is undefined.
type Model struct {
	arch   architecture
	stage  *stage
	hidden layers.Tensor
	picked layers.Tensor // rows chosen for logits
	// pass computes the layers of batch, of which cache has the keys and values.
	pass  func() error
	batch *compute.Batch
	cache compute.Cache
	// modules lists those of the stage that adapters may be of, which takes up to half a second.
	modules func() ([]lora.Shape, error)
}

// architecture is what models differ in.
type architecture interface {
	// embed makes x the hidden state before the first layer; only the first stage is asked.
	embed(x *layers.Tensor, b *compute.Batch)
	// forward runs the stage's layers over x.
	forward(x *layers.Tensor, b *compute.Batch, cache compute.Cache) error
	// logits computes the logits of all rows of x, which are of the hidden state after the last
	// layer, nil on ranks other than the first; only the last stage is asked.
	logits(x *layers.Tensor) (*layers.Tensor, error)
	// final is what the head multiplies of all rows of x; only the last stage is asked. It is the
	// model's own memory.
	final(x *layers.Tensor) *layers.Tensor
}

// stage is what an architecture is built with: the configuration, and the loader of the layers that
// the stage has.
type stage struct {
	Stage
	*layers.Loader
	cfg *Config
}

func (s *stage) first() bool { return s.From == 0 }
func (s *stage) last() bool  { return s.To >= s.cfg.Layers }

// lmHead makes the output head of a module, of width input features; tied it is the embedding.
func (s *stage) lmHead(module, embedding string, width int, opt layers.HeadOptions) *layers.Head {
	if s.cfg.TieEmbeddings {
		module = embedding
	}
	return s.Head(module, s.cfg.VocabSize, width, opt)
}

// gated makes a gated feed-forward block with SiLU, of width inner features, without biases.
func (s *stage) gated(prefix string, width int) *layers.GatedMLP {
	return s.GatedMLP(prefix, s.cfg.HiddenSize, width,
		layers.GatedMLPOptions{Activation: compute.SiLU})
}

// Load reads one rank's shard of a stage into the memory of d. An error names the tensor or the
// value of the configuration that does not fit; then nothing stays held.
func Load(c *Config, src layers.Source, d layers.Device, opt Options) (*Model, error) {
	l := layers.NewLoader(d, opt.Group, src, opt.Progress)
	if opt.Strict {
		l.Strict()
	}
	if opt.CacheScales {
		l.ScaleCache()
	}
	if opt.Store != nil {
		l.Reuse(opt.Store)
	}
	m, err := build(c, opt.Group, opt.Stage, l)
	if err != nil || opt.Taps == nil {
		return m, err
	}
	if err := m.tap(opt.Taps); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// build makes the layers of a rank's shard of a stage.
func build(c *Config, g layers.Group, s Stage, l *layers.Loader) (*Model, error) {
	fam, err := c.family()
	if err != nil {
		return nil, err
	}
	if err := checkShard(c, g.Size, g.Experts != nil); err != nil {
		return nil, err
	}
	if s == (Stage{}) {
		s.To = c.Layers
	}
	layered := fam.build
	switch {
	case s == PredictorStage(c):
		if layered = fam.predict; layered == nil {
			return nil, fmt.Errorf("%s has no layer that predicts a token more", fam.architecture)
		}
	case s.From < 0 || s.From >= s.To || s.To > c.Layers:
		return nil, fmt.Errorf("no stage of layers %d to %d in a model of %d",
			s.From, s.To-1, c.Layers)
	}
	if c.Scheme != nil {
		l.Use(c.Scheme)
	}
	m := &Model{stage: &stage{Stage: s, cfg: c, Loader: l},
		modules: sync.OnceValues(func() ([]lora.Shape, error) { return adaptable(c, s) })}
	m.pass = func() error { return m.arch.forward(&m.hidden, m.batch, m.cache) }
	if m.arch, err = layered(m.stage); err != nil {
		m.Close()
		return nil, fmt.Errorf("load %s: %w", fam.architecture, err)
	}
	l.Trim()
	return m, nil
}

// Close frees the weights. The model may not be used afterwards.
func (m *Model) Close() { m.stage.Free() }

// Retire is Close, but the memory of the weights is kept for the model that is loaded next on the
// device.
func (m *Model) Retire() { m.stage.Retire() }

// Reserve has the system find memory for another model like this one, unless the device keeps some.
func (m *Model) Reserve() error { return m.stage.Reserve() }

// LoadExperts, MoveExperts and DropExperts change which experts of a layer this rank holds: see
// [layers.Loader].
func (m *Model) LoadExperts(layer int, p balance.Placement) error {
	return m.stage.LoadExperts(layer, p)
}

// MoveExperts is described at LoadExperts.
func (m *Model) MoveExperts(layer int, p balance.Placement) { m.stage.MoveExperts(layer, p) }

// DropExperts is described at LoadExperts.
func (m *Model) DropExperts() { m.stage.DropExperts() }

// Made says that some of the weights did not come from Options.Store.
func (m *Model) Made() bool { return m.stage.Made() }

// Entries are the weights to be stored for the next load, valid until the model is closed.
func (m *Model) Entries() ([]layers.Entry, error) { return m.stage.Entries() }

// Embed makes the hidden state that of the batch's tokens before the first layer, [rows][hidden
// size]. Only the first stage can. Its error wraps [layers.ErrOverwritten] when the file of the
// table was overwritten.
func (m *Model) Embed(b *compute.Batch) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err = m.stage.Fault(v); err == nil {
			panic(v)
		}
	}()
	if !m.stage.first() {
		return errors.New("only the first stage of a model embeds tokens")
	}
	if b.Rows() == 0 {
		m.Receive(0)
		return nil
	}
	m.batch = m.stage.Begin(b)
	m.arch.embed(&m.hidden, m.batch)
	return m.stage.Intact() // after it was read
}

// Hidden is the hidden state: after Layers, what the next stage needs. It is the model's own
// memory, and changes with the next step.
func (m *Model) Hidden() *layers.Tensor { return &m.hidden }

// Receive gives the hidden state rows rows, to be filled with those of the stage before, and
// returns it.
func (m *Model) Receive(rows int) *layers.Tensor {
	m.stage.Resize(&m.hidden, rows, m.stage.cfg.HiddenSize)
	return &m.hidden
}

// Tapped is the hidden states before the layers of Options.Taps so far, side by side, nil for none.
// It is to Hidden as ReceiveTapped is to Receive.
func (m *Model) Tapped() *layers.Tensor {
	if d := m.tapping(); d != nil {
		return &d.tapped.Tensor
	}
	return nil
}

// ReceiveTapped gives room for as many rows of what Tapped is in the stage before, nil for none.
func (m *Model) ReceiveTapped(rows int) *layers.Tensor {
	d := m.tapping()
	if d == nil || d.given.Width == 0 {
		return nil
	}
	m.stage.Resize(&d.given, rows, d.given.Width)
	return &d.given
}

// Layers runs the stage's layers over the hidden state, which has the batch's rows, writing their
// keys and values to the cache. The cache has the stage's layers, its first one being layer 0.
//
// Where ranks divide rows, the last stage of the first of them then has more rows, and Features of
// more: the wanted ones of the others (see compute.Split).
//
// A batch without rows is of a place whose requests have none in a step of other places: it takes
// part in what they exchange.
func (m *Model) Layers(b *compute.Batch, cache compute.Cache) error {
	if err := m.layers(b, cache); err != nil {
		return err
	}
	if !m.stage.last() || b.Split.WantedShare == 0 {
		return nil
	}
	if d := m.tapping(); d != nil {
		if b.Rows() == 0 {
			d.tapped.Begin(0)
		}
		if err := m.stage.GatherWanted(&d.tapped.Tensor, &b.Split); err != nil {
			return err
		}
	}
	return m.stage.GatherWanted(&m.hidden, &b.Split)
}

func (m *Model) layers(b *compute.Batch, cache compute.Cache) error {
	if b.Rows() == 0 {
		return m.stage.Idle(b)
	}
	d := m.tapping()
	if !m.stage.first() {
		m.batch = m.stage.Begin(b)
		if more := m.batch.Rows() - b.Rows(); more > 0 {
			m.stage.Extend(&m.hidden, more)
			if d != nil && d.given.Width > 0 {
				m.stage.Extend(&d.given, more)
			}
		}
	}
	m.cache = cache
	if d != nil {
		d.tapped.Begin(m.batch.Rows())
	}
	err := m.stage.Run(m.batch, m.pass)
	if m.hidden.Rows = b.Rows(); d != nil {
		d.tapped.Rows = b.Rows()
	}
	if err != nil {
		return err
	}
	return m.stage.Failed()
}

// Logits computes the logits of the chosen rows of the hidden state, which it leaves as it is, so
// that rows may be asked for in pieces. They are [len(rows)][vocabulary] on rank 0, in memory of
// the model that the caller may change until it asks again, and nil on other ranks. Only the last
// stage can. It does not wait for the device: Failed says whether they are what they should be,
// once something has.
func (m *Model) Logits(rows []int32) (*layers.Tensor, error) {
	if !m.stage.last() {
		return nil, errors.New("only the last stage of a model has logits")
	}
	if len(rows) == 0 {
		return nil, nil
	}
	m.stage.Pick(&m.picked, &m.hidden, rows)
	return m.arch.logits(&m.picked)
}

// ExpertLoads are the rows that were sent to each expert of the stage's layers since the model was
// loaded, where the device counts them (see [layers.Loader.Loads]). They change with each step.
func (m *Model) ExpertLoads() []layers.LayerLoad { return m.stage.Loads() }

// Failed is the first error of the device, whichever step that was: what it computed since is
// undefined.
func (m *Model) Failed() error { return m.stage.Failed() }

// Finish waits until the device has computed all that it was asked for, and returns Failed.
func (m *Model) Finish() error { return m.stage.Finish() }

// Final computes the chosen rows of the hidden state after the final norm, which is
// [len(rows)][width] in the model's own memory, until its next step. Only the last stage can; no
// other rank takes part.
func (m *Model) Final(rows []int32) (*layers.Tensor, error) {
	if !m.stage.last() {
		return nil, errors.New("only the last stage of a model has a final hidden state")
	}
	m.stage.Pick(&m.picked, &m.hidden, rows)
	return m.arch.final(&m.picked), nil
}

// Features are what a head goes on from of the chosen rows: the hidden states before the layers of
// Options.Taps, side by side, else Final. They are the model's own memory, until its next step.
func (m *Model) Features(rows []int32) (*layers.Tensor, error) {
	d := m.tapping()
	if d == nil {
		return m.Final(rows)
	}
	m.stage.Pick(&m.picked, &d.tapped.Tensor, rows)
	return &m.picked, nil
}

// Reduce makes of a model's Features what Receive is filled with.
func (m *Model) Reduce(features *layers.Tensor) *layers.Tensor {
	if h, ok := m.arch.(*eagle); ok {
		return h.reduce(features)
	}
	return features
}

// Architectures lists the supported names of config.json's "architectures", sorted.
func Architectures() (names []string) {
	for _, f := range families() {
		names = append(names, f.architecture)
	}
	slices.Sort(names)
	return names
}

// Wholes lists the model types, sorted, of which the language model is served without what encodes
// images, video or audio.
func Wholes() []string { return slices.Sorted(maps.Keys(around)) }

// Architecture is the supported one of config.json's architectures; the error names what was asked
// for.
func Architecture(c *Config) (string, error) {
	fam, err := c.family()
	if err != nil {
		return "", err
	}
	return fam.architecture, nil
}
