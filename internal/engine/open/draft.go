package open

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/runner"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// draftRows is how many rows of decoding a step may have to verify guesses too: so many take little
// longer than one, because what takes the time is reading the weights.
const draftRows = 16

// draftChunk is how many rows a draft model computes at a time: those of prompts, before its first
// guess about a request. So many are computed well, and hold up no step for long.
const draftChunk = 512

// suffixVotes is how many places decide with the method suffix.
const suffixVotes = 32

// drafting is how the scheduler has tokens guessed.
func (s *Spec) drafting() draft.Config {
	g := &s.Config.Speculative
	c := draft.Config{Tokens: g.Tokens, Min: g.LookupMin, Max: g.LookupMax, Votes: 1,
		Requests: g.CachedRequests, Factor: g.MaxFactor, MinProb: g.MinProb, Rows: draftRows,
		Model: g.ByModel(), Head: g.ByHead()}
	if g.Method == config.Suffix {
		c.Votes = suffixVotes
	}
	if s.draft != nil {
		c.MaxLen = s.draft.maxLen
	}
	return c
}

// draftModel is the model that guesses tokens. Only the rank that samples has it.
type draftModel struct {
	// name is what --speculative-config calls it, dir its folder, absolute, "" for the built-in
	// one; repo is that of the Hub, "" for a folder that is not of it.
	name, dir, repo string
	folder          checkpoint.Folder
	config          *model.Config
	// stage is all its layers, or the model's that predicts a token more (model.PredictorStage).
	stage     model.Stage
	predictor bool
	// maxLen is how many positions it knows, of those that are served.
	maxLen int
}

// readDraft finds the draft model, and refuses one that cannot guess for the model.
func (r *resolver) readDraft() error {
	s := &r.Config.Speculative
	switch {
	case r.Null != nil:
	case s.Method == config.MTP:
		if err := r.findPredictor(); err != nil {
			return usage("--speculative-config: method %s: model %q predicts one token at a "+
				"time: %w", s.Method, r.Info.Root, err)
		}
	case s.Method == config.DraftModel || s.Method == config.Eagle3:
		if err := r.findDraft(s); err != nil {
			return fmt.Errorf("--speculative-config: draft model %q: %w", s.Model, err)
		}
	}
	return nil
}

// findPredictor finds the layer of the model's own checkpoint that predicts a token more.
func (r *resolver) findPredictor() error {
	if r.pinErr != nil {
		return nil // which checkWeights returns
	}
	d := &draftModel{name: r.Info.Root, folder: r.folder, config: r.Model,
		stage: model.PredictorStage(r.Model), predictor: true, maxLen: r.Info.MaxModelLen}
	if _, err := model.ReadBytes(d.config, model.Shapes(), layers.Group{Size: 1},
		d.stage); err != nil {
		return err
	}
	if err := r.checkDraftWeights(d); err != nil {
		return err
	}
	r.draft = d
	return nil
}

// checkDraftWeights finds what is wrong with the draft model's tensors.
func (r *resolver) checkDraftWeights(d *draftModel) error {
	if r.Config.Model.LoadFormat == "dummy" {
		return nil
	}
	src, end, err := r.draftSource(d)
	if err != nil {
		return err
	}
	return errors.Join(model.CheckWeights(d.config, src, d.stage, false), end())
}

// draftSource is the source of the draft model's tensors, until end is called.
func (s *Spec) draftSource(d *draftModel) (src layers.Source, end func() error, err error) {
	own, err := checkpoint.Open(d.folder)
	if err != nil {
		return nil, nil, err
	}
	src = model.FromCheckpoint(own)
	if d.config.Taps() == nil {
		return src, own.Close, nil
	}
	whole, err := checkpoint.Open(s.folder)
	if err != nil {
		return nil, nil, errors.Join(err, own.Close())
	}
	return model.WithEmbedding(src, model.FromCheckpoint(whole)), func() error {
		return errors.Join(own.Close(), whole.Close())
	}, nil
}

func (r *resolver) findDraft(s *config.Speculative) error {
	d := &draftModel{name: s.Model, folder: builtin.Folder()}
	if s.Model != builtin.Name || IsFolder(s.Model) {
		at, err := hub.Locate(s.Model, s.Revision)
		if err != nil {
			return err
		}
		dir, err := r.download(at.Model, cmp.Or(s.Revision, at.Revision))
		if err != nil {
			return err
		}
		if dir != at.Model {
			d.repo = at.Model
		}
		if d.dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		if d.folder, err = r.draftFolder(dir); err != nil {
			return err
		}
	}
	raw, err := checkpoint.ReadConfig(d.folder)
	if err != nil {
		return err
	}
	if s.Method == config.Eagle3 {
		if d.config, err = model.ReadEagle3(raw, r.Model); err != nil {
			return &config.UsageError{Err: err}
		}
		if err := model.CheckTaps(r.Model, d.config.Taps()); err != nil {
			return &config.UsageError{Err: err}
		}
		d.stage = model.PredictorStage(d.config)
	} else {
		if d.config, err = model.ReadConfig(raw); err != nil {
			return err
		}
		d.stage = model.Stage{To: d.config.Layers}
	}
	if _, err := model.Architecture(d.config); err != nil {
		return err
	}
	if err := r.checkDraft(d); err != nil {
		return &config.UsageError{Err: err}
	}
	d.maxLen = min(r.Info.MaxModelLen, maxContext(d.config))
	d.config.Serve(d.maxLen)
	if err := r.checkDraftWeights(d); err != nil {
		return err
	}
	r.draft = d
	return nil
}

// draftFolder is the folder of the draft model, held like the model's.
func (r *resolver) draftFolder(dir string) (checkpoint.Folder, error) {
	if r.Files == nil {
		return checkpoint.Dir(dir)
	}
	held, err := checkpoint.Pin(dir, r.Files.weights)
	r.Files.draft = held
	return held, err
}

// checkDraft refuses a draft model whose tokens are others, or which reads what is not kept.
func (r *resolver) checkDraft(d *draftModel) error {
	switch c := d.config; {
	case c.Pools():
		return errors.New("it generates nothing")
	case c.VocabSize != r.Model.VocabSize:
		return fmt.Errorf("its vocabulary has %d tokens, that of %q has %d: they must be the same",
			c.VocabSize, r.Info.Root, r.Model.VocabSize)
	case compute.StateBytes(model.CacheLayers(c, d.stage.From, d.stage.To, 1)) > 0:
		return errors.New("it keeps a state of each request, which does not go back to the token " +
			"before a wrong guess")
	case compute.Window(r.Model.Cache(), grouping.Groups{}) > 0:
		return fmt.Errorf("all layers of %q have a sliding window: blocks that have left it are "+
			"gone for a draft model too", r.Info.Root)
	}
	return nil
}

// init is what the rank that samples is told of the draft model.
func (d *draftModel) init(stepRows int) *queue.Draft {
	if d == nil {
		return nil
	}
	i := &queue.Draft{Predictor: d.predictor, Taps: d.config.Taps(), Dir: d.dir,
		MaxModelLen: d.maxLen, Rows: min(stepRows, draftChunk)}
	if d.repo != "" {
		i.Repo, i.Revision = d.repo, hub.Commit(d.dir)
	}
	return i
}

// blockBytes is one block of the draft model's cache.
func (d *draftModel) blockBytes(blockSize int, dtype compute.DType) int64 {
	if d == nil {
		return 0
	}
	return int64(compute.CacheShape{Layers: model.CacheLayers(d.config, d.stage.From, d.stage.To,
		1), BlockSize: blockSize, DType: dtype}.BytesPerBlock())
}

// weighDraft finds out what the draft model takes.
func (s *Spec) weighDraft() error {
	d := s.draft
	if s.draftNeed = (memory.Rank{}); d == nil {
		return nil
	}
	var src layers.Source
	if s.Config.Model.LoadFormat != "dummy" {
		of, end, err := s.draftSource(d)
		if err != nil {
			return fmt.Errorf("draft model %q: %w", d.name, err)
		}
		defer end()
		src = of
	}
	f, err := model.Weigh(d.config, src, model.Use{Planner: s.planner(), Layout: layout.Layout{},
		Stage: d.stage, Rows: min(s.rows(), draftChunk),
		MaxLen: d.maxLen})
	if err != nil {
		return fmt.Errorf("draft model %q: %w", d.name, err)
	}
	size, places := s.Config.Cache.BlockSize, int64(s.Config.Parallel.Layout().DP)
	block := d.blockBytes(size, s.cacheDType)
	guesses := block * int64(runner.DraftBlocks(0, size, draftRows))
	s.draftNeed = memory.Rank{Draft: f.Packed + f.Vectors + f.Tables + guesses,
		Block: places * (block + 8), // and a hash
		Work:  f.Activations + draftRows*int64(d.config.VocabSize)*4, Loading: f.Unpacked}
	if taps := len(d.config.Taps()); d.predictor || taps > 0 {
		// Hidden states that it has yet to go on from, and those of other ranks as they come.
		rows := min(s.rows(), draftChunk)
		if l := s.Config.Parallel.Layout(); l.Rows() > 1 {
			rows += 2 * l.DP * s.rows()
		}
		s.draftNeed.Work += int64(rows*(1+taps)) * int64(d.config.HiddenSize) * 4
	}
	if s.Config.Model.LoadFormat == "dummy" {
		s.draftNeed.Loading += f.Tensors
	}
	return nil
}
