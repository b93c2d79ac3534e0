// Package model holds the architectures: one file each, on one seam. A model is one rank's shard of a
// checkpoint; it computes the hidden states of a batch of rows and, for chosen rows, their logits.
package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
)

// Chunks is the fixed number of pieces in which the sums of row-parallel matrices are cut, so that any tensor
// parallel size that divides it gives the same bits.
const Chunks = 8

// Model is one rank's shard of a model. Its methods are called from one goroutine at a time.
type Model interface {
	// Forward runs the layers over the batch, writing keys and values to the cache. Every rank of a tensor
	// parallel group calls it with the same batch. It allocates only when a batch is larger than all before.
	Forward(b *compute.Batch, cache *attention.Cache) error
	// Logits computes the logits of the chosen rows of the last Forward: on rank 0 dst is
	// [len(rows)][vocabulary]; other ranks pass nil. Every rank calls it with the same rows.
	Logits(dst []float32, rows []int32) error
	// Close frees the weights.
	Close()
}

// Comm is what a shard needs of its tensor parallel group.
type Comm interface {
	// AllReduce replaces x by its sum over the ranks, added as a balanced binary tree over ranks.
	AllReduce(x []float32) error
	// Gather concatenates x of all ranks, in rank order, into dst on root.
	Gather(dst, x []float32, root int) error
}

// Shard says which part of a model a rank holds.
type Shard struct {
	// Rank is the rank within its tensor parallel group of Size ranks.
	Rank, Size int
	// Comm may be nil when Size is 1.
	Comm Comm
	// OnLayer, when not nil, is called at the start of each layer, and before (waiting) and after each wait for
	// other ranks in it.
	OnLayer func(layer int, waiting bool)
}

// Source gives tensors by name; checkpoint.Checkpoint is the usual one.
type Source interface {
	// Tensor returns the named tensor, which must have the given shape.
	Tensor(name string, shape ...int) (checkpoint.Tensor, error)
	// Has tells whether the checkpoint has the tensor.
	Has(name string) bool
	// Release tells that the bytes of t will not be read again.
	Release(t checkpoint.Tensor)
}

type builder func(l *loader) (Model, error)

func builders() map[string]builder {
	return map[string]builder{
		"LlamaForCausalLM":    newLlama,
		"MistralForCausalLM":  newMistral,
		"Qwen2ForCausalLM":    newQwen2,
		"Qwen3ForCausalLM":    newQwen3,
		"Qwen3MoeForCausalLM": newQwen3Moe,
		"OPTForCausalLM":      newOPT,
	}
}

// Architectures lists the supported names of config.json's "architectures", sorted.
func Architectures() []string {
	var names []string
	for n := range builders() {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Architecture is the supported one of config.json's architectures; the error names what was asked for.
func Architecture(c *checkpoint.Config) (string, error) {
	if builders()[c.Architecture] != nil {
		return c.Architecture, nil
	}
	return "", fmt.Errorf("architecture %q is not supported (supported: %s)",
		strings.Join(c.Architectures, ", "), strings.Join(Architectures(), ", "))
}

// CheckShard tells whether the model of c can be cut into size tensor parallel ranks.
func CheckShard(c *checkpoint.Config, size int) error {
	if size < 1 || Chunks%size != 0 {
		return fmt.Errorf("tensor parallel size %d does not divide %d", size, Chunks)
	}
	if c.Heads%size != 0 {
		return fmt.Errorf("%d attention heads cannot be divided among tensor parallel size %d", c.Heads, size)
	}
	if c.KVHeads%size != 0 && size%c.KVHeads != 0 {
		return fmt.Errorf("%d key/value heads cannot be divided among tensor parallel size %d", c.KVHeads, size)
	}
	if c.FFNDim%size != 0 {
		return fmt.Errorf("ffn_dim %d cannot be divided among tensor parallel size %d", c.FFNDim, size)
	}
	for i := range c.Layers {
		name, width := "intermediate_size", c.IntermediateSize
		if c.SparseLayer(i) {
			name, width = "moe_intermediate_size", c.MoEIntermediateSize
		}
		if width%size != 0 {
			return fmt.Errorf("%s %d cannot be divided among tensor parallel size %d", name, width, size)
		}
	}
	if (size-1)*vocabularyShare(c, size) >= c.VocabSize {
		return fmt.Errorf("vocab_size %d cannot be divided among tensor parallel size %d", c.VocabSize, size)
	}
	return nil
}

// vocabularyShare is the number of output features of each rank's head; the last rank has what is left.
func vocabularyShare(c *checkpoint.Config, size int) int { return (c.VocabSize + size - 1) / size }

// LocalKVHeads is the number of key/value heads a rank of a group of size holds: with more ranks than heads
// each head is held by several.
func LocalKVHeads(c *checkpoint.Config, size int) int { return max(1, c.KVHeads/size) }

// CacheShape is the shape of the KV cache of a rank in a group of size tensor parallel ranks.
func CacheShape(c *checkpoint.Config, size, blocks, blockSize int, dtype compute.DType) compute.CacheShape {
	return compute.CacheShape{Layers: c.Layers, Blocks: blocks, BlockSize: blockSize,
		KVHeads: LocalKVHeads(c, size), HeadDim: c.HeadDim, DType: dtype}
}

// Load reads one rank's shard of the weights into d's layout. progress, when not nil, is told the number of
// checkpoint bytes read so far.
func Load(c *checkpoint.Config, src Source, d *cpu.Device, s Shard, progress func(bytes int64)) (Model, error) {
	arch, err := Architecture(c)
	if err != nil {
		return nil, err
	}
	if err := CheckShard(c, s.Size); err != nil {
		return nil, err
	}
	if s.OnLayer == nil {
		s.OnLayer = func(int, bool) {}
	}
	l := &loader{cfg: c, src: src, dev: d, shard: s, progress: progress}
	m, err := builders()[arch](l)
	if err != nil {
		l.free()
		return nil, fmt.Errorf("load %s: %w", arch, err)
	}
	return m, nil
}
