package runner

import (
	"math/bits"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
)

// What ranks exchange has no names: a rank that is about to compute other rows, or the same ones
// from another cache, would give the others numbers that fit and are wrong, or numbers of another
// size, for which they wait. So before the first exchange of a plan a rank hashes what all of them
// must agree on, and every exchange compares the hashes (Guarded).
//
// Of each request in the plan that is all that plans have said of it, whatever a plan's row does,
// and what this rank has made of it: how many tokens and blocks it holds, which block is the last,
// and whether a token has been sampled after them. Which token that is only some ranks know.

// Guarded is a way to other ranks that compares hashes.
type Guarded interface {
	// Guard sets a hash that must be equal on ranks that meet in a following operation: else it
	// fails at once.
	Guard(h uint64)
}

// guard makes the hash of a plan, before its rows change what is known of their requests, and gives
// it to every way to other ranks.
func (r *Runner) guard(p *step.Plan) {
	if r.opt.Layout.World() == 1 {
		return
	}
	h := p.ID
	for _, id := range p.Free {
		h = mix(h, uint64(id))
	}
	for _, c := range p.Restore {
		h = mix(h, pack(int(c.Slot), int(c.State)))
	}
	for _, c := range p.Save {
		h = mix(h, pack(int(c.State), int(c.Slot)))
	}
	blocks, drafts := p.Blocks, p.Drafts
	for i := range p.Rows {
		row := &p.Rows[i]
		s := &r.slots[row.Slot]
		n, drafted := min(int(row.Blocks), len(blocks)), min(row.Drafts(), len(drafts))
		s.trail = trailOf(s, row, blocks[:n])
		for _, d := range drafts[:drafted] {
			s.trail = mix(s.trail, uint64(d))
		}
		blocks, drafts = blocks[n:], drafts[drafted:]
		h = mix(h, s.trail)
	}
	r.guarded = h
	if r.opt.Trail != nil {
		r.opt.Trail.add(p.ID, h)
	}
	for _, g := range [...]Broadcaster{r.opt.TP, r.opt.PCP, r.opt.DP} {
		if g != nil {
			g.Guard(h)
		}
	}
	if r.opt.PP != nil {
		r.opt.PP.Guard(h)
	}
}

// Trail is the hashes of the last plans that a rank has begun, by which it shows that it went the
// same way as the others. It outlives the runner.
type Trail struct {
	last [trailLength]step.Digest
	n    int
}

// trailLength is more than the plans that may be in flight.
const trailLength = 32

func (t *Trail) add(plan, hash uint64) {
	t.last[t.n%trailLength] = step.Digest{Plan: plan, Hash: hash}
	t.n++
}

// Plans are the last plans, oldest first.
func (t *Trail) Plans() []step.Digest {
	var plans []step.Digest
	for i := max(0, t.n-trailLength); i < t.n; i++ {
		plans = append(plans, t.last[i%trailLength])
	}
	return plans
}

// trailOf is the trail of a request after a row of it.
func trailOf(s *slot, row *step.Row, blocks []uint32) uint64 {
	flags := uint64(row.Source)<<1 | b2u(row.Sample)<<3 | b2u(s.sampled != noToken)<<4
	last := noSlot
	if n := len(s.table); n > 0 {
		last = int(s.table[n-1])
	}
	t := mix(s.trail^pack(int(row.Start), int(row.Count)), flags<<32^pack(int(row.Last), 0))
	t = mix(t^pack(len(s.tokens), len(s.table)), pack(last, int(row.Slot)))
	for _, b := range blocks {
		t = mix(t, uint64(b))
	}
	return t
}

// trailOfNew is the trail of a request before its first row.
func trailOfNew(n *step.NewRequest) uint64 {
	// Of the parameters only these decide which rows are computed.
	t := mix(pack(len(n.Tokens), len(n.Blocks)), pack(int(n.PromptLen),
		int(b2u(n.Params.PromptLogprobs != sample.NoLogprobs))|int(n.Pooling)<<1))
	t = mix(t, pack(int(n.Second), int(n.Adapter)))
	tokens := n.Tokens
	for ; len(tokens) > 1; tokens = tokens[2:] {
		t = mix(t, pack(int(tokens[0]), int(tokens[1])))
	}
	if len(tokens) > 0 {
		t = mix(t, uint64(tokens[0]))
	}
	for _, b := range n.Blocks {
		t = mix(t, uint64(b))
	}
	return t
}

func pack(low, high int) uint64 { return uint64(uint32(low)) | uint64(uint32(high))<<32 }

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// mix hashes two words: the halves of a product of 128 bits, of words that are flipped so that none
// that occurs is zero (as in wyhash).
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return high ^ low
}
