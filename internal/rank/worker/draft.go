package worker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
)

// draftModel is the model that guesses tokens, whole on the output rank. It has the device and the
// element types of the rank's model, and stays when that has other weights, but for the layer of
// the model's own checkpoint, which is a part of those (loaded.predictor).
type draftModel struct {
	config     *model.Config
	stage      model.Stage
	model      *model.Model
	checkpoint *checkpoint.Checkpoint // nil for dummy weights
	embedding  *checkpoint.Checkpoint // the model's, of a head without one; else nil
	cache      compute.Cache
}

// closeWeights frees the weights; the cache stays, and so does what is known of the model.
func (d *draftModel) closeWeights() {
	if d.model != nil {
		d.model.Close()
	}
	for _, c := range []*checkpoint.Checkpoint{d.checkpoint, d.embedding} {
		if c != nil {
			c.Close()
		}
	}
	d.model, d.checkpoint, d.embedding = nil, nil, nil
}

func (d *draftModel) close() {
	d.closeWeights()
	if d.cache != nil {
		d.cache.Free()
	}
}

// predicts says that the draft model is the layer behind the model's last one.
func (r *rank) predicts() bool {
	return r.init.Draft != nil && r.init.Draft.Predictor && r.output
}

// taps are the layers whose hidden states the draft model is given, from here or from another rank
// that has the rows; nil for none. All ranks keep them, which make the same sums in the same calls.
func (r *rank) taps() []int {
	if r.init.Draft == nil {
		return nil
	}
	return r.init.Draft.Taps
}

// loadPredictor loads the layer that predicts a token more of a source of the model's weights, if
// the rank has it.
func (r *rank) loadPredictor(l *loaded, src layers.Source, strict bool) (err error) {
	if !r.predicts() {
		return nil
	}
	opt := model.Options{Group: layers.Group{Size: 1}, Stage: model.PredictorStage(r.config),
		Strict: strict, CacheScales: r.scalesCache()}
	if l.packed != nil {
		opt.Store = l.packed
	}
	if l.predictor, err = model.Load(r.config, src, r.device, opt); err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	return nil
}

// updatePredictor is loadPredictor of an update. What that lacks of the layer itself, as trainers
// do that train none, stays what the model's files have.
func (r *rank) updatePredictor(l *loaded, src layers.Source) error {
	if !r.predicts() {
		return nil
	}
	own, _, err := model.Further(r.config)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(own, func(s checkpoint.Spec) bool { return !src.Has(s.Name) }) {
		return r.loadPredictor(l, src, true)
	}
	rest := model.Dummy(r.init.Seed)
	if r.init.LoadFormat != "dummy" {
		if l.own, err = checkpoint.Open(r.folder); err != nil {
			return fmt.Errorf("draft model: %w", err)
		}
		l.own.ReadSparsely()
		rest = model.FromCheckpoint(l.own)
	}
	if err := r.loadPredictor(l, model.WithFurther(src, rest, own), true); err != nil ||
		l.own == nil {
		return err
	}
	return l.own.CheckStable()
}

// loadDraft loads the draft model, if the rank has one that is not of the model's checkpoint.
func (r *rank) loadDraft(progress func(queue.Progress) error) error {
	init := r.init.Draft
	if init == nil || init.Predictor || !r.output || r.draft.model != nil {
		return nil
	}
	if err := r.readDraft(init, progress); err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	return nil
}

func (r *rank) readDraft(init *queue.Draft, progress func(queue.Progress) error) error {
	d := &r.draft
	folder, err := r.readDraftConfig(init, progress)
	if err != nil {
		return err
	}
	src := model.Dummy(r.init.Seed)
	if r.init.LoadFormat != "dummy" {
		if d.checkpoint, err = checkpoint.Open(folder); err != nil {
			return err
		}
		d.checkpoint.ReadSparsely()
		src = model.FromCheckpoint(d.checkpoint)
	}
	if d.checkpoint != nil && len(init.Taps) > 0 {
		if d.embedding, err = checkpoint.Open(r.folder); err != nil {
			return err
		}
		src = model.WithEmbedding(src, model.FromCheckpoint(d.embedding))
	}
	opt := model.Options{Group: layers.Group{Size: 1}, Stage: d.stage, CacheScales: r.scalesCache()}
	d.model, err = model.Load(d.config, src, r.device, opt)
	if err != nil || d.checkpoint == nil {
		return err
	}
	return d.checkpoint.CheckStable()
}

// readDraftConfig finds the folder of a draft model, and reads its configuration.
func (r *rank) readDraftConfig(init *queue.Draft,
	progress func(queue.Progress) error) (checkpoint.Folder, error) {
	at, d := r.init, &r.draft
	at.ModelDir, at.Files = init.Dir, at.DraftFiles
	at.Repo, at.Revision = init.Repo, init.Revision
	folder, err := modelFolder(at, progress)
	if err != nil {
		return nil, err
	}
	raw, err := checkpoint.ReadConfig(folder)
	if err != nil {
		return nil, err
	}
	if len(init.Taps) > 0 {
		d.config, err = model.ReadEagle3(raw, r.config)
	} else {
		d.config, err = model.ReadConfig(raw)
	}
	if err != nil {
		return nil, err
	}
	d.config.Serve(init.MaxModelLen)
	d.stage = model.Stage{To: d.config.Layers}
	if len(init.Taps) > 0 {
		d.stage = model.PredictorStage(d.config)
	}
	return folder, nil
}

// newDraftCache makes the KV cache of the draft model, if the rank has one.
func (r *rank) newDraftCache() error {
	if r.predicts() {
		r.draft.config, r.draft.stage = r.config, model.PredictorStage(r.config)
	}
	if r.draft.config == nil {
		return nil
	}
	dtype, err := compute.ParseCacheDType(cmp.Or(r.init.CacheDType, r.init.DType), 0)
	if err != nil {
		return err
	}
	d := &r.draft
	d.cache, err = r.device.NewCache(compute.CacheShape{
		Layers:    model.CacheLayers(d.config, d.stage.From, d.stage.To, 1),
		BlockSize: r.init.BlockSize, DType: dtype,
		Blocks: runner.DraftBlocks(r.init.Blocks*r.init.Layout.Sizes().DP, r.init.BlockSize,
			r.init.DraftRows)})
	return err
}

// guessing is what the runner guesses with; nil where no model does, or a part of it sleeps.
func (r *rank) guessing() *runner.Draft {
	m := r.draft.model
	if r.predicts() {
		m = r.weights.predictor
	}
	if m == nil || r.draft.cache == nil {
		return nil
	}
	i := r.init.Draft
	return &runner.Draft{Model: m, Cache: r.draft.cache, MaxLen: i.MaxModelLen, Rows: i.Rows}
}
