package engine

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Spec is what the configuration and the model's folder say of the engines of a server. It does not
// change: another layout, another size of the caches and another number of engines are other ones.
type Spec struct {
	cfg *config.Config
	// null, unless it is nil, makes ranks that compute nothing.
	null   *Null
	folder checkpoint.Folder
	dir    string // absolute; "" for the built-in model
	// files are those of the folder that count, the same for all engines; nil for the built-in model.
	files *modelFiles
	// tokenizerDir is the folder of --tokenizer, absolute; "" for the model's own.
	tokenizerDir string
	model        *checkpoint.Config
	info         Info
	dtype        compute.DType
	ranks        int
	stages       layout.Stages
	// fromHub says that dir is a snapshot of a Hub repo, which other nodes can fetch too.
	fromHub bool
	// share is how many ranks each of several nodes has, 0 for one machine.
	share int
	// bounds are those of this machine, before anything was loaded. needs is what a rank of each stage
	// takes, modelBytes what the tensors of the model's files do; planned is the plan of this machine.
	bounds     memory.Bounds
	needs      []memory.Rank
	modelBytes int64
	planned    *memory.Plan
}

// withBlocks is the specification with KV caches of so many blocks.
func (s *Spec) withBlocks(blocks int64) *Spec {
	o := *s
	o.setBlocks(blocks)
	return &o
}

// withEngines is the specification of a server of so many engines.
func (s *Spec) withEngines(n int) *Spec {
	o, cfg := *s, *s.cfg
	cfg.Parallel.DataParallelSize = n
	o.cfg = &cfg
	return &o
}

// withShare is the specification with nodes of so many ranks.
func (s *Spec) withShare(ranks int) *Spec {
	o := *s
	o.share = ranks
	return &o
}

// engines is how many engines are opened.
func (s *Spec) engines() int { return max(1, s.cfg.Parallel.DataParallelSize) }

// ranksHere is how many ranks this machine has, if it is not Ray that places them.
func (s *Spec) ranksHere() int { return s.ranks * s.engines() / max(1, s.cfg.Parallel.Nodes.Count) }

// scheduling is what the scheduler is told.
func (s *Spec) scheduling() schedule.Config {
	c := s.cfg
	tokens := c.Schedule.MaxNumBatchedTokens
	if !c.Schedule.ChunkedPrefill {
		// A prompt that is not cut must fit a step.
		tokens = max(tokens, s.info.MaxModelLen)
	}
	return schedule.Config{
		MaxSeqs:           c.Schedule.MaxNumSeqs,
		MaxTokens:         tokens,
		MaxModelLen:       s.info.MaxModelLen,
		BlockSize:         s.info.BlockSize,
		Blocks:            s.info.Blocks,
		PrefixCaching:     c.Cache.PrefixCaching,
		ChunkedPrefill:    c.Schedule.ChunkedPrefill,
		LongPrefillTokens: c.Schedule.LongPrefillTokenThreshold,
		Priority:          c.Schedule.Policy == "priority",
		MaxInFlight:       c.MaxInFlight(),
		Stages:            c.Parallel.Layout().PP,
	}
}
