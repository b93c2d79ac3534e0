package worker

import (
	"cmp"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
)

// draftModel is the model that guesses tokens, whole on the output rank. It has the device and the
// element types of the rank's model, and stays when that has other weights.
type draftModel struct {
	config     *model.Config
	model      *model.Model
	checkpoint *checkpoint.Checkpoint // nil for dummy weights
	cache      compute.Cache
}

// closeWeights frees the weights; the cache stays, and so does what is known of the model.
func (d *draftModel) closeWeights() {
	if d.model != nil {
		d.model.Close()
	}
	if d.checkpoint != nil {
		d.checkpoint.Close()
	}
	d.model, d.checkpoint = nil, nil
}

func (d *draftModel) close() {
	d.closeWeights()
	if d.cache != nil {
		d.cache.Free()
	}
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
	at := r.init
	at.ModelDir, at.Files = init.Dir, at.DraftFiles
	at.Repo, at.Revision = init.Repo, init.Revision
	folder, err := modelFolder(at, progress)
	if err != nil {
		return err
	}
	raw, err := checkpoint.ReadConfig(folder)
	if err != nil {
		return err
	}
	d := &r.draft
	if d.config, err = model.ReadConfig(raw); err != nil {
		return err
	}
	d.config.Serve(init.MaxModelLen)
	src := model.Dummy(r.init.Seed)
	if r.init.LoadFormat != "dummy" {
		if d.checkpoint, err = checkpoint.Open(folder); err != nil {
			return err
		}
		d.checkpoint.ReadSparsely()
		src = model.FromCheckpoint(d.checkpoint)
	}
	d.model, err = model.Load(d.config, src, r.device,
		model.Options{Group: layers.Group{Size: 1}, CacheScales: r.scalesCache()})
	if err != nil || d.checkpoint == nil {
		return err
	}
	return d.checkpoint.CheckStable()
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
	c := r.draft.config
	r.draft.cache, err = r.device.NewCache(compute.CacheShape{
		Layers: model.CacheLayers(c, 0, c.Layers, 1), BlockSize: r.init.BlockSize, DType: dtype,
		Blocks: runner.DraftBlocks(r.init.Blocks, r.init.BlockSize, r.init.DraftRows)})
	return err
}

// guessing is what the runner guesses with; nil where no model does, or a part of it sleeps.
func (r *rank) guessing() *runner.Draft {
	if r.draft.model == nil || r.draft.cache == nil {
		return nil
	}
	return &runner.Draft{Model: r.draft.model, Cache: r.draft.cache,
		MaxLen: r.init.Draft.MaxModelLen, Rows: r.init.Draft.Rows}
}
