// Package step holds the records that cross from the driver to a worker and back, and their flat
// binary codec. A Plan carries deltas only: what a worker already knows of a request is not sent
// again.
package step

import (
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Plan is one step's work.
//
// Every rank executes every plan once, in the order of the IDs, and applies its parts in this
// order: it drops the slots in Free, learns the requests in New, extends the block tables by
// Blocks, takes over the last token of each row from its source, copies the states in Restore,
// writes the keys and values of all rows to the cache, attends, copies the states in Save, and
// samples where a row says so. So a slot or a block that one plan gives up may be given out again
// in the same plan, and a block counts as computed as soon as it is in a plan: whatever reads it
// comes in the same plan or a later one; a saved state is read by later ones. The driver relies on
// that
// when it sends a plan before it has the result of the one before, and when it makes a block a
// prefix cache entry at planning time (kvcache.Manager.Grow).
type Plan struct {
	// ID numbers the plans of one engine from 1; the Result of a step carries the same number.
	ID uint64
	// Free lists slots whose requests are over or preempted.
	Free []uint32
	// New lists requests the ranks have not seen, or must learn again after preemption.
	New []NewRequest
	// Rows are the scheduled requests in batch order, each at most once.
	Rows []Row
	// Blocks are the new blocks of all rows, one row after the other.
	Blocks []uint32
	// Drafts are tokens that may come next, of all rows that have some (Row.Drafts), one row after
	// the other.
	Drafts []int32
	// Guess lists requests of Rows whose next tokens the draft model is to guess, which sample, and
	// those of which a head is to have the rows of this plan for a guess to come, of no token.
	Guess []Guess
	// Restore says which of the requests in New go on from a state that was kept, Save the state of
	// which rows is kept. Both are empty where the model has none (compute.State).
	Restore, Save []Snapshot
}

// Guess is a request of which at most so many tokens are guessed.
type Guess struct{ Slot, Tokens uint32 }

// Snapshot is a state that is kept of a request, beside those of the requests that run.
type Snapshot struct {
	// Slot names the request, State is where the state is kept (compute.CacheShape.States).
	Slot, State uint32
}

// Row is one request's part of a plan: its positions Start to Start+Count-1 are computed.
//
// A row that goes on from one token may have drafts after it, which make it longer: then a token is
// sampled after each of its positions in turn, up to the first that is not the draft at the next
// one. Those are what steps without drafts would sample, one each. What the row has brought to the
// caches behind them counts for nothing: the request's next row starts at the last one of them, and
// blocks that only drafts needed are no longer the request's.
type Row struct {
	// Slot names the request.
	Slot uint32
	// Start is the position of the first token computed, Count the number of tokens.
	Start, Count uint32
	// Last is the last token before the drafts when Source is FromPlan, else 0.
	Last int32
	// Blocks is how many entries of Plan.Blocks extend the request's block table. It has 16 bits,
	// so that a row of 20 bytes has no padding and crosses as it lies in memory.
	Blocks uint16
	// Source says where a rank has the last token before the drafts from.
	Source Source
	// Sample says that the token after the last position is sampled in this step; with drafts,
	// those before it too.
	Sample bool
}

// Drafts is how many of the row's tokens are drafts: all but the first, where that is one that its
// request has just got.
func (r *Row) Drafts() int {
	if r.Source == FromRequest {
		return 0
	}
	return max(int(r.Count), 1) - 1
}

// NoBlock stands in a block table for a block that the request does not have, because its positions
// have left the windows of all layers. Ranks do not read it.
const NoBlock = math.MaxUint32

// MaxRowBlocks is the most blocks that one row can bring.
const MaxRowBlocks = math.MaxUint16

// MaxDrafts is the most drafts that one row can have.
const MaxDrafts = 32

// Source is where a rank has the last token of a row before its drafts from. Those before it are
// known since NewRequest.Tokens or an earlier row.
type Source uint8

// The sources of a token.
const (
	// FromRequest is NewRequest.Tokens: the row is prefill.
	FromRequest Source = iota
	// FromPlan is Row.Last.
	FromPlan
	// FromSampler is the token sampled by the last plan that sampled for the slot. The driver may
	// not know it yet.
	FromSampler
)

// Tokens returns how many tokens the plan computes.
func (p *Plan) Tokens() int {
	n := 0
	for i := range p.Rows {
		n += int(p.Rows[i].Count)
	}
	return n
}

// NewRequest introduces a request to a worker.
type NewRequest struct {
	// Slot names the request from now on.
	Slot uint32
	// PromptLen is how many of Tokens are the prompt; the rest are output from before a preemption.
	PromptLen uint32
	// Tokens are all tokens known so far, prompt first.
	Tokens []int32
	// Blocks is the block table so far (prefix-cache hits), a block of each group of layers in
	// turn, with NoBlock for those that no layer reads any more. Blocks for this step come with
	// Plan.Blocks.
	Blocks []uint32
	// Params is how its tokens are chosen.
	Params sample.Params
	// Constraint is the language that its output keeps to.
	Constraint constrain.Spec
	// Pooling makes it a request for hidden states: its one token is 0 and means nothing.
	Pooling Pooling
	// Second is where the second text of a pair begins in the prompt, whose tokens are of another
	// type; 0 is a prompt of one text.
	Second uint32
	// Adapter is the id of the adapter that it is computed with, 0 for none.
	Adapter uint32
}

// Result answers one Plan.
type Result struct {
	// Plan is the ID of the plan answered.
	Plan uint64
	// Slot lists the rows that sampled, in batch order. The tokens sampled for Slot[i], in the
	// order of their positions, are Token[End[i-1]:End[i]], from 0 for the first (see Run): at
	// least one.
	Slot, End []uint32
	Token     []int32
	// Logprobs holds one entry per sampled token of a request that asked for them, in the order of
	// Token.
	Logprobs []Logprobs
	// PromptLogprobs holds the prompt positions computed in this step for requests that asked for
	// them.
	PromptLogprobs []PromptLogprobs
	// Pooled holds what rows that sampled pooled instead, in the order of Slot.
	Pooled []Pooled
	// Forced says of slots that have sampled what tokens will come next, most probably, and Guessed
	// what the draft model says of slots of Plan.Guess: they are drafts to take.
	Forced, Guessed []Drafts
}

// Drafts are tokens that may follow those sampled for a slot.
type Drafts struct {
	Slot   uint32
	Tokens []int32
}

// Reset empties the result and makes it the answer to a plan. It keeps the memory.
func (r *Result) Reset(plan uint64) {
	r.Plan = plan
	r.Slot, r.End, r.Token = r.Slot[:0], r.End[:0], r.Token[:0]
	r.Logprobs, r.PromptLogprobs = r.Logprobs[:0], r.PromptLogprobs[:0]
	r.Pooled, r.Forced, r.Guessed = r.Pooled[:0], r.Forced[:0], r.Guessed[:0]
}

// AddDrafts adds drafts of a slot to a list, and returns them to be filled.
func AddDrafts(list *[]Drafts, slot uint32) *Drafts {
	n := len(*list)
	if n < cap(*list) {
		*list = (*list)[:n+1]
	} else {
		*list = append(*list, Drafts{})
	}
	d := &(*list)[n]
	d.Slot, d.Tokens = slot, d.Tokens[:0]
	return d
}

// Append adds the tokens sampled for a slot.
func (r *Result) Append(slot uint32, tokens ...int32) {
	r.Token = append(r.Token, tokens...)
	r.Slot = append(r.Slot, slot)
	r.End = append(r.End, uint32(len(r.Token)))
}

// Pool adds the answer of a slot that pools, and returns its vector of so many elements, to be
// filled.
func (r *Result) Pool(slot uint32, width int) []float32 {
	r.Append(slot, 0)
	n := len(r.Pooled)
	if n < cap(r.Pooled) {
		r.Pooled = r.Pooled[:n+1]
	} else {
		r.Pooled = append(r.Pooled, Pooled{})
	}
	p := &r.Pooled[n]
	p.Slot, p.Vector = slot, slices.Grow(p.Vector[:0], width)[:width]
	return p.Vector
}

// Extend adds a token to those of the slot that was appended last.
func (r *Result) Extend(token int32) {
	r.Token = append(r.Token, token)
	r.End[len(r.End)-1]++
}

// Run returns the tokens sampled for Slot[i], in the memory of the result.
func (r *Result) Run(i int) []int32 {
	if i == 0 {
		return r.Token[:r.End[0]]
	}
	return r.Token[r.End[i-1]:r.End[i]]
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

// PromptLogprobs describes the prompt tokens at positions Start, Start+1, …: entry i is the prompt
// token at position Start+i given all before it.
type PromptLogprobs struct {
	Slot    uint32
	Start   uint32
	Entries []Logprobs
}

// Digest is a hash of what a rank has made of a plan and of those before it: equal on all ranks
// that execute it.
type Digest struct {
	Plan uint64 `json:"plan"`
	Hash uint64 `json:"hash"`
}
