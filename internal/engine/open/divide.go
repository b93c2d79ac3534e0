package open

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// divide decides which share of the model each rank has.
func (s *Spec) divide() error {
	if err := s.divideLayers(); err != nil {
		return err
	}
	s.Info.Layout = s.Config.Parallel.Layout()
	s.Info.First = s.Config.Parallel.Balanced.First()
	s.Info.StageLayers = s.Stages.Counts(s.Model.Layers)
	return nil
}

func (s *Spec) divideLayers() error {
	p := &s.Config.Parallel
	s.Ranks = p.Layout().World()
	if n := p.Nodes.Count; n > 1 && s.Share == 0 {
		s.Share, s.Slots = s.Ranks*s.Engines()/n, s.Ranks
	}
	if err := model.CheckLayout(s.Model, p.Layout()); err != nil {
		return misfit(err)
	}
	if p.ExpertParallel {
		if _, err := s.ExpertRanks(nil); err != nil {
			return usage("--num-redundant-experts: %w", err)
		}
	}
	all := s.Model.Layers
	if split := p.PipelineLayerSplit; len(split) > 0 {
		sum := 0
		for _, n := range split {
			sum += n
		}
		if sum != all {
			return usage("--pipeline-layer-split %s has %d layers, the model has %d",
				config.Commas(split), sum, all)
		}
		s.Stages = layout.Split(split)
		return s.checkStages()
	}
	bytes, err := model.StepBytes(s.Model, p.TensorParallelSize)
	if err != nil {
		return fmt.Errorf("model %q: %w", s.Info.Root, err)
	}
	s.Stages = layout.Balance(bytes, p.PipelineParallelSize)
	return s.checkStages()
}

// checkStages refuses a stage whose layers keep nothing of a request: mixers and feed-forward
// blocks are layers of their own in some models.
func (s *Spec) checkStages() error {
	for i := range s.Config.Parallel.PipelineParallelSize {
		from, to := s.Stages.Range(i, s.Model.Layers)
		if len(model.CacheLayers(s.Model, from, to, 1)) == 0 {
			return usage("--pipeline-parallel-size %d: layers %d to %d, of a stage, have no "+
				"attention (--pipeline-layer-split divides them otherwise)",
				s.Config.Parallel.PipelineParallelSize, from, to-1)
		}
	}
	return nil
}

// misfit names the flag that asks for a layout which the model cannot have.
func misfit(err error) error {
	var m *model.Misfit
	if !errors.As(err, &m) {
		return err
	}
	flag, size := "tensor-parallel-size", m.Layout.TP
	if m.Stages {
		flag, size = "pipeline-parallel-size", m.Layout.PP
	}
	if m.Rows {
		flag, size = "prefill-context-parallel-size", m.Layout.PCP
	}
	return usage("--%s %d: %w", flag, size, err)
}

// Sizes are those of a layout that can be changed while an engine serves; 0 leaves one as it is.
type Sizes struct {
	// TP is the tensor parallel size, Places among how many places with one set of experts requests
	// are divided.
	TP, Places int
}

// String says which flags have them.
func (z Sizes) String() string {
	var parts []string
	if z.TP > 0 {
		parts = append(parts, fmt.Sprintf("tensor parallel size %d", z.TP))
	}
	if z.Places > 0 {
		parts = append(parts, fmt.Sprintf("data parallel size %d", z.Places))
	}
	return strings.Join(parts, ", ")
}

// Places is among how many places with one set of experts an engine's requests are divided, 0 for
// engines that share nothing.
func (s *Spec) Places() int {
	if !s.Config.Parallel.ExpertParallel {
		return 0
	}
	return s.Config.Parallel.Layout().DP
}

// ExpertRanks are what the experts of a layer are placed on, where ranks hold whole ones. nodes are
// those of all ranks; of several stages the first one's count.
func (s *Spec) ExpertRanks(nodes []int) (balance.Ranks, error) {
	p := &s.Config.Parallel
	return balance.Spread(s.Model.Experts(), p.EPLB.Redundant, p.Layout().ExpertNodes(0, nodes))
}

// Smaller are the sizes of a layout with fewer ranks: of one place less, or else of half the tensor
// parallel size, and so on. It is the largest with at most so many ranks, or the smallest of all
// where there is none; its ranks may need more memory than they have. Zero is that none is smaller.
func (s *Spec) Smaller(ranks int) (z Sizes) {
	o := s.WithEngines(s.Engines())
	p := &o.Config.Parallel
	for {
		switch {
		case s.Places() > 0 && p.DataParallelSize > 1:
			p.DataParallelSize--
		case p.TensorParallelSize > 1:
			p.TensorParallelSize /= 2
		default:
			return z
		}
		if o.lowerRedundant(); o.divide() != nil {
			continue
		}
		z.TP = p.TensorParallelSize
		if s.Places() > 0 {
			z.Places = p.DataParallelSize
		}
		if o.Ranks <= ranks {
			return z
		}
	}
}

// lowerRedundant makes the copies of experts no more than ranks can hold: one of each on each rank.
func (s *Spec) lowerRedundant() {
	p := &s.Config.Parallel
	if _, shares := p.Layout().Experts(0); p.ExpertParallel {
		p.EPLB.Redundant = min(p.EPLB.Redundant, s.Model.Experts()*(shares-1))
	}
}

// ShrunkTo is WithSizes for sizes of Smaller, with fewer copies of experts where ranks cannot have
// all.
func (s *Spec) ShrunkTo(z Sizes) (*Spec, error) { return s.withSizes(z, true) }

// WithSizes is the specification with a layout of other sizes. The KV cache of a place keeps its
// number of blocks, so that what the scheduler knows stays true. An error is a *Refused, but for
// files that cannot be read.
func (s *Spec) WithSizes(z Sizes) (*Spec, error) { return s.withSizes(z, false) }

func (s *Spec) withSizes(z Sizes, shrinks bool) (*Spec, error) {
	o := s.WithEngines(s.Engines())
	p := &o.Config.Parallel
	p.TensorParallelSize = cmp.Or(z.TP, p.TensorParallelSize)
	if z.Places > 0 {
		if !p.ExpertParallel {
			return nil, Refuse("data parallel size %d of one engine: it has no "+
				"--enable-expert-parallel", z.Places)
		}
		p.DataParallelSize = z.Places
	}
	if shrinks {
		o.lowerRedundant()
	}
	var bad *config.UsageError
	if err := o.divide(); errors.As(err, &bad) {
		return nil, &Refused{bad.Error()}
	} else if err != nil {
		return nil, err
	}
	if s.Share > 0 && !shrinks {
		o.Share, o.Slots = s.Share*o.Ranks/s.Slots, o.Ranks
		if err := checkShare(o.Share, s.Share, o.Slots, s.Slots, p.Layout()); err != nil {
			return nil, err
		}
	}
	if err := o.replan(); err != nil {
		return nil, err
	}
	if r := &p.Ray; r.BundleIndices != "" {
		return nil, Refuse("--bundle-indices %s lists the bundles of %d ranks for each engine, "+
			"which is the most and the least there can be", r.BundleIndices, s.Ranks)
	}
	return o, nil
}

// checkShare refuses ranks that cannot be divided among the nodes as those before were: a node has
// whole engines, or an equal part of one.
func checkShare(share, before, ranks, were int, l layout.Layout) error {
	if share*were == before*ranks && share > 0 && (share%ranks == 0 || ranks%share == 0) {
		return nil
	}
	return Refuse("%v makes %d ranks of an engine, of which %d nodes cannot "+
		"have equal parts: a multiple of %d ranks can be divided", l, ranks, were/max(1, before),
		were/max(1, before))
}
