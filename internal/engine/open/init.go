package open

import (
	"path/filepath"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
)

// Backend is what starts the ranks: the flag's choice, else uni for one rank and mp for more.
func (s *Spec) Backend() string {
	switch {
	case s.Config.Parallel.Backend != "":
		return s.Config.Parallel.Backend
	case s.device() == queue.CUDA: // which is another program's
		return "mp"
	case s.Ranks > 1 || s.Config.Parallel.Nodes.Count > 1:
		return "mp"
	}
	return "uni"
}

// device is how ranks are told what computes.
func (s *Spec) device() string {
	if s.Config.Parallel.Device == config.CUDA {
		return queue.CUDA
	}
	return ""
}

// OnGPUs says that ranks compute on GPUs, for which there is a program of its own.
func (s *Spec) OnGPUs() bool {
	_, machine := queue.CUDAMachine()
	return s.device() == queue.CUDA && !machine
}

// RankInit is what every rank receives on the model and its share.
func (s *Spec) RankInit() (queue.Init, error) {
	p := &s.Config.Parallel
	init := queue.Init{
		Layout: p.Layout(), Stages: s.Stages, ModelDir: s.dir,
		LoadFormat: s.Config.Model.LoadFormat, Quantization: s.Config.Model.Quantization,
		Overrides: s.overrides,
		DType:     s.Info.DType, CacheDType: s.Info.CacheDType, Device: s.device(),
		Eager: p.Eager, Fast: p.CUDAFast, ISA: p.CPUISA,
		Threads: p.CPUThreads, Bind: p.CPUBind, Seed: s.Config.Model.Seed,
		Blocks: s.Info.Blocks, BlockSize: s.Info.BlockSize,
		Groups: s.Groups, MaxSeqs: s.slots(), MaxModelLen: s.Info.MaxModelLen,
		States: s.states(), DraftStates: s.draftStates(), RedundantExperts: p.EPLB.Redundant,
	}
	if s.Config.Speculative.Method != "" {
		init.DraftRows = draftRows
	}
	init.Draft = s.draft.init(s.rows())
	init.Null = s.Null.init(&s.Info)
	if s.Backend() != "uni" && init.Null == nil {
		init.Heap, init.HeapPerThread = s.heapOfRanks()
	}
	if dir := s.Config.Model.WeightsCache; dir != "" {
		var err error
		if init.WeightsCache, err = filepath.Abs(dir); err != nil {
			return init, err
		}
	}
	init.Constraints, init.Ends = s.ConstraintBytes(), s.Info.Ends()
	init.Tokenizer = s.tokenizerDir
	if !s.fromHub {
		return init, nil
	}
	// All nodes load the same snapshot.
	init.Repo, init.Revision = s.Config.Model.Path, hub.Commit(s.dir)
	if dir := s.Config.Model.DownloadDir; dir != "" {
		var err error
		if init.DownloadDir, err = filepath.Abs(dir); err != nil {
			return init, err
		}
	}
	return init, nil
}
