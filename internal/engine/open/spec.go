package open

import (
	"cmp"
	"encoding/json"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Spec is what the configuration and the model's folder say of the engines of a server. It does not
// change: another layout, another size of the caches and another number of engines are other ones.
type Spec struct {
	Config *config.Config
	// Null, unless it is nil, makes ranks that compute nothing.
	Null   *Null
	folder checkpoint.Folder
	dir    string // absolute; "" for the built-in model
	// Files are those of the folder that count, the same for all engines; nil for the built-in
	// model.
	Files *Files
	// tokenizerDir is the folder of --tokenizer, absolute; "" for the model's own.
	tokenizerDir string
	Model        *model.Config
	Info         Info
	dtype        compute.DType
	cacheDType   compute.DType
	Ranks        int
	Stages       layout.Stages
	// Groups are those of the layers in the KV cache.
	Groups grouping.Groups
	// overrides are the members of --hf-overrides that go before config.json's.
	overrides map[string]json.RawMessage
	// fromHub says that dir is a snapshot of a Hub repo, which other nodes can fetch too.
	fromHub bool
	// Share is for how many ranks each of several nodes has room, 0 for one machine; Slots is for
	// how many all have of an engine, which has fewer when it has shrunk.
	Share, Slots int
	// bounds are those of this machine, before anything was loaded. needs is what a rank of each
	// stage takes, modelBytes what the tensors of the model's files do; planned is the plan of this
	// machine.
	bounds     memory.Bounds
	gpus       []gpus.GPU // those of this machine that ranks may have
	overPeers  bool       // no ranks of a group sum by NCCL: it is not there, or not needed
	noLibrary  bool       // no rank's products are cuBLASLt's
	needs      []memory.Rank
	modelBytes int64
	Planned    *memory.Plan
	// draft is the model that guesses tokens, nil for none; draftNeed is what the rank that samples
	// takes for it.
	draft     *draftModel
	draftNeed memory.Rank
}

// WithBlocks is the specification with KV caches of so many blocks.
func (s *Spec) WithBlocks(blocks int64) *Spec {
	o := *s
	o.setBlocks(blocks)
	return &o
}

// WithEngines is the specification of a server of so many engines.
func (s *Spec) WithEngines(n int) *Spec {
	o, cfg := *s, *s.Config
	cfg.Parallel.SetEngines(n)
	o.Config = &cfg
	return &o
}

// Engines is how many engines are opened.
func (s *Spec) Engines() int { return s.Config.Parallel.Engines() }

// RanksHere is for how many ranks this machine has room, if it is not Ray that places them.
func (s *Spec) RanksHere() int {
	return cmp.Or(s.Share, s.Ranks*s.Engines())
}

// Scheduling is what the scheduler is told.
func (s *Spec) Scheduling() schedule.Config {
	c := s.Config
	tokens := c.Schedule.MaxNumBatchedTokens
	// All tokens of an encoder's text are in one step, and no keys and values are kept.
	encoder := s.Model != nil && s.Model.Encoder
	chunked, threshold := c.Schedule.ChunkedPrefill, c.Schedule.LongPrefillTokenThreshold
	if encoder {
		chunked, threshold = false, 0
	}
	if !chunked {
		// A prompt that is not cut must fit a step.
		tokens = max(tokens, s.Info.MaxModelLen)
	}
	return schedule.Config{
		Draft:             s.drafting(),
		MaxSeqs:           c.Schedule.MaxNumSeqs,
		MaxTokens:         tokens,
		MaxModelLen:       s.Info.MaxModelLen,
		BlockSize:         s.Info.BlockSize,
		Blocks:            s.Info.Blocks,
		Window:            compute.Window(s.Model.Cache(), s.Groups),
		Groups:            s.Groups,
		PrefixCaching:     c.Cache.PrefixCaching && !encoder,
		Snapshots:         s.snapshots(),
		Offload:           c.Cache.Offloading.Bytes() > 0 && !encoder && s.snapshots() == 0,
		ChunkedPrefill:    chunked,
		LongPrefillTokens: threshold,
		Priority:          c.Schedule.Policy == "priority",
		MaxAdapters:       c.LoRA.MaxLoras,
		MaxInFlight:       c.MaxInFlight(),
		Stages:            c.Parallel.Layout().PP,
	}
}

// Overridden is what goes before the model's config.json, as one text; "" is nothing.
func (s *Spec) Overridden() string {
	if len(s.overrides) == 0 {
		return ""
	}
	text, err := json.Marshal(s.overrides) // sorted by the keys
	if err != nil {
		return s.Config.Model.HFOverrides
	}
	return string(text)
}
