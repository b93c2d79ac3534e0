package engine

import (
	"path/filepath"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// backend is what starts the ranks: the flag's choice, else uni for one rank and mp for more.
func (s *Spec) backend() string {
	switch {
	case s.cfg.Parallel.Backend != "":
		return s.cfg.Parallel.Backend
	case s.ranks > 1 || s.cfg.Parallel.Nodes.Count > 1:
		return "mp"
	}
	return "uni"
}

// rankInit is what every rank receives on the model and its share.
func (s *Spec) rankInit() (queue.Init, error) {
	p := &s.cfg.Parallel
	init := queue.Init{
		Layout: p.Layout(), Stages: s.stages, ModelDir: s.dir, LoadFormat: s.cfg.Model.LoadFormat,
		DType: s.info.DType, ISA: p.CPUISA, Threads: p.CPUThreads, Seed: s.cfg.Model.Seed,
		Blocks: s.info.Blocks, BlockSize: s.info.BlockSize,
		MaxSeqs: s.cfg.Schedule.MaxNumSeqs, MaxModelLen: s.info.MaxModelLen,
	}
	init.Null = s.null.init(&s.info)
	if s.backend() != "uni" && init.Null == nil {
		init.Heap, init.HeapPerThread = s.heapOfRanks()
	}
	init.Constraints = s.constraintBytes()
	init.Tokenizer = s.tokenizerDir
	if !s.fromHub {
		return init, nil
	}
	// The snapshot's folder is named for its commit: all nodes load the same one.
	init.Repo, init.Revision = s.cfg.Model.Path, filepath.Base(s.dir)
	if dir := s.cfg.Model.DownloadDir; dir != "" {
		var err error
		if init.DownloadDir, err = filepath.Abs(dir); err != nil {
			return init, err
		}
	}
	return init, nil
}
