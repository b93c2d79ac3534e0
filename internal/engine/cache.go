package engine

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/machine"
	"github.com/eagleray/eagleray/internal/model"
)

// sizeCache decides how many KV blocks each rank has: as many as the rank with the most layers has
// room for.
func (b *opening) sizeCache() error {
	c := &b.cfg.Cache
	b.info.BlockSize = c.BlockSize
	shape := model.CacheShape(b.model, slices.Max(b.info.StageLayers),
		b.cfg.Parallel.TensorParallelSize, 1, c.BlockSize, b.dtype)
	perBlock := int64(shape.BytesPerBlock())
	perSequence := (b.info.MaxModelLen + c.BlockSize - 1) / c.BlockSize
	blocks := int64(c.Blocks)
	switch {
	case blocks > 0:
	case c.MemoryBytes > 0:
		blocks = c.MemoryBytes / perBlock
	default:
		blocks = defaultBlocks(perBlock, int64(perSequence), int64(b.cfg.Schedule.MaxNumSeqs),
			int64(b.ranksHere()))
	}
	if blocks < int64(perSequence) {
		return fmt.Errorf("the KV cache of %d blocks of %d tokens (--kv-cache-memory-bytes) "+
			"cannot hold one sequence of --max-model-len %d: %d bytes are needed",
			blocks, c.BlockSize, b.info.MaxModelLen, int64(perSequence)*perBlock)
	}
	if blocks > 1<<27 {
		return fmt.Errorf("--kv-cache-memory-bytes asks for %d blocks, more than %d", blocks, 1<<27)
	}
	b.info.Blocks = int(blocks)
	b.info.CacheBytes = blocks * perBlock
	return nil
}

// Default size of a host's KV caches: vLLM's for CPUs, if half of what is free allows it. Memory is
// touched only when blocks come into use.
const defaultCacheBytes = 4 << 30

func defaultBlocks(perBlock, perSequence, seqs, ranks int64) int64 {
	budget := int64(defaultCacheBytes)
	if free, ok := machine.AvailableMemory(); ok {
		budget = min(budget, free/2)
	}
	return max(min(budget/ranks/perBlock, seqs*perSequence), perSequence)
}
