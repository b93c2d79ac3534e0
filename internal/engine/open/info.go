package open

import (
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
	"github.com/eagleray/eagleray/internal/text/grammars"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Info is what clients may know of the served model.
type Info struct {
	// Names are the names it is served under.
	Names []string
	// Root is where it came from.
	Root string
	// Defaults are what requests start from: generation config, ends of an output, vocabulary,
	// longest sequence.
	sample.Defaults
	// Tokenizer is nil when it was skipped: then prompts are token ids and outputs too.
	Tokenizer *tokenizer.Tokenizer
	// Grammars says which constraints can be enforced; it is nil without a tokenizer.
	Grammars *grammars.Cache
	// Template renders conversations; it is nil when the model has none.
	Template *chattemplate.Template
	// ToolTemplate is that of conversations with tools where the model has another one for these.
	ToolTemplate *chattemplate.Template
	// Pooling is how the model pools; nil for one that generates.
	Pooling *Pooling
	// Encoder says that the model has no KV cache, and says no tokens.
	Encoder bool
	// DType is what the model runs in, WeightBytes the size of all shards.
	DType       string
	WeightBytes int64
	// CacheDType is the type of the KV cache.
	CacheDType string
	// StepBytes is how much of the weights a step of one sequence reads, all ranks together.
	StepBytes int64
	// Engines is how many engines of this server serve the model, First the number of the first of
	// them among those of all servers: others have the rest.
	Engines, First int
	// Blocks and BlockSize are the KV cache of each rank, CacheBytes its size, CacheTokens how many
	// tokens it holds of sequences of MaxModelLen.
	Blocks, BlockSize int
	CacheBytes        int64
	CacheTokens       int
	// Layout is how the ranks of an engine divide the model, StageLayers how many of its layers
	// each stage has.
	Layout      layout.Layout
	StageLayers []int
	// Ranks are the workers, engine by engine.
	Ranks []queue.Ready

	Files *Files
}

// Folder is the model's, "" for the built-in one.
func (i *Info) Folder() string {
	if i.Files == nil {
		return ""
	}
	return i.Files.dir
}

// Identity names the files that answers come from, also as they are adopted; "" stands for the
// built-in model.
func (i *Info) Identity() string { return i.Files.identity() }

// Kernels says which instruction set this machine computes with, and why; asked is --cpu-isa.
func Kernels(asked string) string { return isa.Describe(asked) }
