package schedule

import (
	"errors"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Config limits what one plan may hold. The names in brackets are vLLM's.
type Config struct {
	// MaxSeqs is the number of requests that may run at once [max_num_seqs], and so of slots.
	MaxSeqs int
	// MaxTokens is the number of tokens computed in one step [max_num_batched_tokens], at least
	// MaxSeqs, so that every running request can advance in every step.
	MaxTokens int
	// MaxModelLen is the greatest number of tokens of a request, prompt and output together
	// [max_model_len].
	MaxModelLen int
	// BlockSize is the number of tokens per cache block [block_size], Blocks the number of blocks
	// [num_gpu_blocks]; together they must hold one request of MaxModelLen (see Least). No blocks
	// are a model without a cache, whose prompts are computed in one step: without ChunkedPrefill
	// and PrefixCaching.
	BlockSize, Blocks int
	// Window, if positive, is how many positions back layers with a window read at most: blocks
	// that have left it are free again. Then the cache must hold Least blocks only.
	Window int
	// Groups are those of the layers, each of which has blocks of its own; one group has a window
	// if there is a Window.
	Groups grouping.Groups
	// Snapshots, if positive, is how many states of requests can be kept beside those that run, for
	// models that keep one: a prefix is found as far as one was kept. One is kept of each prompt,
	// at the last border of blocks before its last token, where a chunk ends therefore; not without
	// ChunkedPrefill. Slots are followed by them.
	Snapshots int
	// PrefixCaching shares blocks between requests with equal beginnings [enable_prefix_caching].
	PrefixCaching bool
	// Offload has the blocks of requests stored elsewhere (see Store) when their prompts are
	// computed and when they end [kv_offloading_size]. It needs PrefixCaching, and no Snapshots.
	Offload bool
	// ChunkedPrefill cuts a prompt to what a step has left [enable_chunked_prefill]. Without it a
	// prompt is computed in one step, and MaxTokens must be at least MaxModelLen.
	ChunkedPrefill bool
	// LongPrefillTokens is the greatest number of tokens of one request in one step
	// [long_prefill_token_threshold], 0 for no limit. It needs ChunkedPrefill.
	LongPrefillTokens int
	// Priority orders requests by Request.Priority, then by arrival [scheduling_policy=priority];
	// without it by arrival only [fcfs].
	Priority bool
	// MaxAdapters is the number of adapters that requests may run with at once [max_loras]: one
	// that waits for another adapter starts when they are fewer. 0 is no limit.
	MaxAdapters int
	// Draft says how tokens are guessed that a step verifies beside those that it samples anyway;
	// not with Snapshots, because a state does not go back.
	Draft draft.Config
	// MaxInFlight is the number of plans that may await their results [max_concurrent_batches]; 0
	// is 1.
	MaxInFlight int
	// Stages is the number of stages that a plan passes through [pipeline_parallel_size]; 0 is 1.
	// With several, requests take turns so that each stage has a plan to compute: see Schedule; and
	// with ChunkedPrefill a plan has a part of MaxTokens only, so that prompts that come together
	// make a plan for every stage too.
	Stages int
	// place is the number of the scheduler's place: slots of those before have lower numbers.
	place int
}

// plansPerStage is into how many plans for each of several stages MaxTokens are cut: a pipeline
// that fills and drains once loses one part in so many and one.
const plansPerStage = 4

// Budget is how many tokens one plan may compute, at least one for each request that may run.
func (c *Config) Budget() int {
	if c.Stages <= 1 || !c.ChunkedPrefill {
		return c.MaxTokens
	}
	return max(c.MaxSeqs, c.MaxTokens/(plansPerStage*c.Stages))
}

// chunk is the most tokens of one request that a plan computes.
func (c *Config) chunk() int {
	n := min(c.Budget(), c.MaxModelLen)
	if c.LongPrefillTokens > 0 {
		n = min(n, c.LongPrefillTokens)
	}
	return n
}

func (c *Config) cache() *kvcache.Config {
	return &kvcache.Config{Blocks: c.Blocks, BlockSize: c.BlockSize,
		PrefixCaching: c.PrefixCaching, Window: c.Window, Groups: c.Groups, Chunk: c.chunk(),
		Snapshots: c.Snapshots}
}

// Least is how many blocks the cache has at least: those that a request of MaxModelLen holds at a
// time.
func (c *Config) Least() int {
	k := c.cache()
	k.Blocks = max(k.Blocks, 1)
	return k.Most(c.MaxModelLen)
}

// Tokens is how many tokens of requests of MaxModelLen the cache holds.
func (c *Config) Tokens() int {
	least := c.Least()
	if least == 0 {
		return 0
	}
	parts := (c.MaxModelLen + c.BlockSize - 1) / c.BlockSize
	return int(float64(c.Blocks)*float64(parts)/float64(least)) * c.BlockSize
}

// Longest is the greatest length of a request that the cache has room for.
func (c *Config) Longest() int { return c.cache().Longest() }

// validate refuses a configuration under which some request could never finish.
func (c Config) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"MaxSeqs", c.MaxSeqs}, {"MaxTokens", c.MaxTokens}, {"MaxModelLen", c.MaxModelLen},
		{"BlockSize", c.BlockSize},
	} {
		if f.value < 1 || f.value > math.MaxInt32 {
			return fmt.Errorf("schedule: %s is %d, must be 1 to %d", f.name, f.value, math.MaxInt32)
		}
	}
	if c.Blocks < 0 || c.Blocks > math.MaxInt32 {
		return fmt.Errorf("schedule: Blocks is %d, must be 0 to %d", c.Blocks, math.MaxInt32)
	}
	if c.Blocks == 0 && (c.ChunkedPrefill || c.PrefixCaching) {
		return errors.New("schedule: Blocks is 0, which leaves no ChunkedPrefill or PrefixCaching")
	}
	if c.Offload && (!c.PrefixCaching || c.Snapshots > 0) {
		return fmt.Errorf("schedule: Offload with PrefixCaching %v and Snapshots %d, must be true "+
			"and 0", c.PrefixCaching, c.Snapshots)
	}
	if c.MaxTokens < c.MaxSeqs {
		return fmt.Errorf("schedule: MaxTokens is %d, must be at least MaxSeqs (%d)",
			c.MaxTokens, c.MaxSeqs)
	}
	if most := (c.MaxTokens/c.BlockSize + 1) * c.Groups.Count(); most > step.MaxRowBlocks {
		return fmt.Errorf("schedule: a step of %d tokens may bring a request %d blocks of %d "+
			"tokens, must be at most %d", c.MaxTokens, most, c.BlockSize, step.MaxRowBlocks)
	}
	if c.LongPrefillTokens < 0 {
		return fmt.Errorf("schedule: LongPrefillTokens is %d, must not be negative",
			c.LongPrefillTokens)
	}
	if c.MaxInFlight < 0 {
		return fmt.Errorf("schedule: MaxInFlight is %d, must not be negative", c.MaxInFlight)
	}
	if c.Stages < 0 || c.Stages > 1 && c.MaxInFlight < c.Stages {
		return fmt.Errorf("schedule: Stages is %d, must not be negative nor more than "+
			"MaxInFlight (%d)", c.Stages, c.MaxInFlight)
	}
	if !c.ChunkedPrefill {
		if c.LongPrefillTokens > 0 {
			return fmt.Errorf("schedule: LongPrefillTokens is %d, which needs ChunkedPrefill",
				c.LongPrefillTokens)
		}
		if c.MaxTokens < c.MaxModelLen {
			return fmt.Errorf("schedule: MaxTokens is %d, must be at least MaxModelLen (%d) "+
				"without ChunkedPrefill", c.MaxTokens, c.MaxModelLen)
		}
	}
	if d := &c.Draft; d.Tokens < 0 || d.Tokens > step.MaxDrafts || d.Tokens > 0 &&
		!d.Model && (d.Min < 1 || d.Max < d.Min) {
		return fmt.Errorf("schedule: Draft is %+v, must be of at most %d Tokens, with a Min of 1 "+
			"to Max", *d, step.MaxDrafts)
	}
	if c.Window < 0 {
		return fmt.Errorf("schedule: Window is %d, must not be negative", c.Window)
	}
	if need := c.Least(); c.Blocks > 0 && need > c.Blocks {
		return fmt.Errorf("schedule: Blocks is %d, but one request of MaxModelLen %d needs %d "+
			"blocks of %d tokens; the cache holds requests of up to %d tokens", c.Blocks,
			c.MaxModelLen, need, c.BlockSize, c.cache().Longest())
	}
	return nil
}
