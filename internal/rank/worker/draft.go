package worker

import (
	"cmp"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/packed"
	"github.com/eagleray/eagleray/internal/rank/runner"
)

// draftModel is the model that guesses tokens, whole on the output rank. It has the device and the
// element types of the rank's model, and stays when that has other weights.
type draftModel struct {
	config     *model.Config
	stage      model.Stage
	model      *model.Model
	checkpoint *checkpoint.Checkpoint // nil for dummy weights
	embedding  *checkpoint.Checkpoint // the model's, of a head without one; else nil
	packed     *packed.File           // of which the weights are a part, nil for none
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
	if d.packed != nil {
		d.packed.Close()
	}
	d.model, d.checkpoint, d.embedding, d.packed = nil, nil, nil, nil
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

// loadDraft loads the draft model, if the rank has one.
func (r *rank) loadDraft(progress func(queue.Progress) error) error {
	init := r.init.Draft
	if init == nil || !r.output || r.draft.model != nil {
		return nil
	}
	if err := r.readDraft(init, progress); err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	return nil
}

func (r *rank) readDraft(init *queue.Draft, progress func(queue.Progress) error) error {
	d, folder := &r.draft, r.folder
	d.config, d.stage = r.config, model.PredictorStage(r.config)
	if !init.Predictor {
		var err error
		if folder, err = r.readDraftConfig(init, progress); err != nil {
			return err
		}
	}
	var err error
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
	if init.Predictor {
		if d.packed = r.openPacked(r.packedKey()); d.packed != nil {
			opt.Store = d.packed
		}
	}
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
	if r.draft.model == nil || r.draft.cache == nil {
		return nil
	}
	i := r.init.Draft
	return &runner.Draft{Model: r.draft.model, Cache: r.draft.cache, MaxLen: i.MaxModelLen,
		Rows: i.Rows}
}
