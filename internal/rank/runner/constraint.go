package runner

import (
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// compileWait is how long a plan waits for a grammar when it samples for no other request: the
// driver plans the request again at once.
const compileWait = 10 * time.Millisecond

// bound keeps the output of one request within its constraint, on the output rank.
type bound struct {
	grammar *grammars.Grammar
	// at is where the output has come to but for tokens, which are those after it, nil until the
	// grammar is compiled.
	at     *grammars.Matcher
	tokens []int32
	// missed says that a token could not be chosen because the grammar was not compiled: what comes
	// after it is not of the output. lost says that the output is not what the grammar allows.
	missed, lost bool
	// least is how many tokens the output has, if the grammar lets it, before one that ends it;
	// outputs is how many it has, ends are those that are held back.
	least, outputs int
	ends           []int32
}

// bind returns what keeps an output, so far of these tokens, to a constraint; nil without one. It
// takes MinTokens over: what the grammar leaves no choice of is not held back.
func (r *Runner) bind(c constrain.Spec, p *sample.Params, output []int32) *bound {
	if c.Kind == constrain.None {
		return nil
	}
	if r.opt.Grammars == nil {
		return &bound{lost: true}
	}
	b := &bound{grammar: r.opt.Grammars.Start(c, output), tokens: slices.Clone(output),
		least: int(p.MinTokens), outputs: len(output)}
	p.MinTokens = 0
	return b
}

// releaseGrammars gives up the grammars of slots that have been freed.
func (r *Runner) releaseGrammars() {
	for i, b := range r.released {
		if b.grammar != nil {
			b.grammar.Release(b.at)
		}
		r.released[i] = nil
	}
	r.released = r.released[:0]
}

// Close gives up what the requests in all slots use.
func (r *Runner) Close() {
	for i := range r.slots {
		if b := r.slots[i].bound; b != nil {
			r.released = append(r.released, b)
			r.slots[i].bound = nil
		}
	}
	r.releaseGrammars()
}

// append goes on by a token of the output.
func (b *bound) append(token int32) {
	if !b.missed && !b.lost {
		b.tokens = append(b.tokens, token)
		b.outputs++
	}
}

// ready says whether the next token can be chosen now.
func (b *bound) ready() bool {
	return b.lost || !b.missed && b.grammar.Usable()
}

// mask appends the bits of the tokens of a vocabulary that may come next to dst, which is empty.
// When there is none it returns what stands in the place of a token, else 0.
func (b *bound) mask(dst []uint32, vocab int, p *sample.Params) (mask []uint32, none int32) {
	switch {
	case b.lost:
		return dst, sample.Stuck
	case !b.ready():
		b.missed = true
		return dst, sample.Pending
	}
	if b.at == nil {
		m, err := b.grammar.Matcher()
		if err != nil { // the driver's compiler refused it, too, or this rank has no vocabulary
			b.lost = true
			return dst, sample.Stuck
		}
		b.at = m
	}
	words := max((vocab+31)/32, b.at.Words())
	mask = slices.Grow(dst, words)[:words]
	state, accepting := b.at.Next(b.tokens, mask)
	b.tokens = b.tokens[:0]
	switch state {
	case grammars.Wait:
		b.missed = true
		return dst, sample.Pending
	case grammars.Spent:
		return dst, sample.Spent
	case grammars.Lost:
		// A token that ends the request is none of the grammar's, others were chosen from its own.
		b.lost = true
		return dst, sample.Stuck
	}
	if accepting {
		allow(mask, p.EOS)
		for _, t := range p.StopTokens {
			allow(mask, t)
		}
	}
	b.ends = b.ends[:0]
	if b.outputs < b.least {
		b.withhold(mask, p.EOS)
		for _, t := range p.StopTokens {
			b.withhold(mask, t)
		}
	}
	if !slices.ContainsFunc(mask, func(w uint32) bool { return w != 0 }) {
		if len(b.ends) == 0 {
			return dst, sample.Stuck
		}
		for _, t := range b.ends {
			allow(mask, t)
		}
	}
	return mask, 0
}

func allow(mask []uint32, token int32) {
	if token >= 0 && int(token) < 32*len(mask) {
		mask[token>>5] |= 1 << (token & 31)
	}
}

// withhold takes a token out of a mask that has it.
func (b *bound) withhold(mask []uint32, token int32) {
	if token >= 0 && sample.Allows(mask, token) {
		mask[token>>5] &^= 1 << (token & 31)
		b.ends = append(b.ends, token)
	}
}

// awaitGrammar waits for a grammar that is being compiled, or is busy, for a while, unless there is
// something else to sample.
func (r *Runner) awaitGrammar(wants []want) {
	var first *grammars.Grammar
	for _, w := range wants {
		b := r.slots[w.slot].bound
		if w.target >= 0 || b == nil || b.ready() {
			return
		}
		if first == nil && !b.missed {
			first = b.grammar
		}
	}
	if first != nil {
		first.Await(compileWait)
	}
}
