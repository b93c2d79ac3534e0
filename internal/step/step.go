// Package step holds the records that cross from the driver to a worker and back, and their flat binary
// codec. A Plan carries deltas only: what a worker already knows of a request is not sent again.
package step

import "github.com/eagleray/eagleray/internal/sample"

// Plan is one step's work. The slices Slot, Start, Count, Last and NewBlocks are parallel: entry i is one
// scheduled request, in batch order.
type Plan struct {
	// ID numbers the plans of one engine from 1; the Result of a step carries the same number.
	ID uint64
	// Free lists slots whose state the worker drops before it looks at New (finished, aborted or preempted).
	Free []uint32
	// New lists requests the worker has not seen, or must forget and learn again after preemption.
	New []NewRequest
	// Slot is the small integer that names a request while it runs.
	Slot []uint32
	// Start is the absolute position of the first token computed in this step.
	Start []uint32
	// Count is the number of tokens computed; a request samples when Start+Count reaches the number of
	// tokens it has so far.
	Count []uint32
	// Last is the token at position Start+Count-1 when the worker cannot know it yet (sampled in an earlier
	// step), else -1.
	Last []int32
	// NewBlocks is how many entries of Blocks belong to the request: they extend its block table.
	NewBlocks []uint32
	// Blocks is the concatenation of all new blocks, in the order of Slot.
	Blocks []uint32
}

// NewRequest introduces a request to a worker.
type NewRequest struct {
	// Slot names the request from now on.
	Slot uint32
	// PromptLen is how many of Tokens are the prompt; the rest are output from before a preemption.
	PromptLen uint32
	// Tokens are all tokens known so far, prompt first.
	Tokens []int32
	// Blocks is the block table so far (prefix-cache hits). Blocks for this step come with Plan.Blocks.
	Blocks []uint32
	// Params is how its tokens are chosen.
	Params sample.Params
}

// Result answers one Plan.
type Result struct {
	// Plan is the ID of the plan answered.
	Plan uint64
	// Slot and Token are parallel: the token sampled for each request that reached its end of known tokens,
	// in batch order.
	Slot  []uint32
	Token []int32
	// Logprobs holds one entry per sampled token that asked for them, in batch order.
	Logprobs []Logprobs
	// PromptLogprobs holds the prompt positions computed in this step for requests that asked for them.
	PromptLogprobs []PromptLogprobs
}

// Logprobs describes the choice of one sampled token.
type Logprobs struct {
	Slot    uint32
	Sampled TokenLogprob
	// Top are the most likely tokens, most likely first.
	Top []TokenLogprob
}

// TokenLogprob is one token with its log-probability (natural log) and its rank (1 = most likely).
type TokenLogprob struct {
	Token   int32
	Rank    int32
	Logprob float32
}

// PromptLogprobs describes the prompt tokens at positions Start, Start+1, …: entry i is the prompt token at
// position Start+i given all before it.
type PromptLogprobs struct {
	Slot    uint32
	Start   uint32
	Entries []Logprobs
}
