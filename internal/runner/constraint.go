package runner

import (
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/constrain"
	"github.com/eagleray/eagleray/internal/grammars"
	"github.com/eagleray/eagleray/internal/sample"
)

// compileWait is how long a plan waits for a grammar when it samples for nobody else: the driver
// plans the request again at once.
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
	// spent says that to go on takes more work or memory than an answer may.
	spent bool
}

// bind returns what keeps an output, so far of these tokens, to a constraint; nil without one.
func (r *Runner) bind(c constrain.Spec, output []int32) *bound {
	if c.Kind == constrain.None {
		return nil
	}
	if r.opt.Grammars == nil {
		return &bound{lost: true}
	}
	return &bound{grammar: r.opt.Grammars.Start(c), tokens: slices.Clone(output)}
}

// releaseGrammars gives up the grammars of slots that have been freed.
func (r *Runner) releaseGrammars() {
	for i, b := range r.released {
		if b.grammar != nil {
			b.grammar.Release()
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
	}
}

// ready says whether the next token can be chosen now.
func (b *bound) ready() bool {
	return b.lost || !b.missed && b.grammar.Usable()
}

// advance leads the matcher, which is made when the grammar is compiled, through the output.
func (b *bound) advance() {
	if b.at == nil {
		m, err := b.grammar.Matcher()
		if err != nil {
			b.lost = true // the driver's compiler refused it, too, or this rank has no vocabulary
			return
		}
		b.at = m
	}
	for _, t := range b.tokens {
		// A token that ends the request is none of the grammar's. No other can fail, unless it takes
		// too much: it was chosen from the grammar's own.
		if b.lost = !b.at.Accept(t); b.lost {
			b.spent = b.at.Spent()
			return
		}
	}
	b.tokens = b.tokens[:0]
}

// mask appends the bits of the tokens of a vocabulary that may come next to dst, which is empty.
// When there is none it returns what stands in the place of a token, else 0.
func (b *bound) mask(dst []uint32, vocab int, p *sample.Params) (mask []uint32, none int32) {
	if !b.ready() {
		b.missed = true
		return dst, sample.Pending
	}
	if !b.lost {
		b.advance()
	}
	switch {
	case b.spent:
		return dst, sample.Spent
	case b.lost:
		return dst, sample.Stuck
	}
	words := max((vocab+31)/32, b.at.Words())
	mask = slices.Grow(dst, words)[:words]
	complete, ready := b.at.Mask(mask)
	if !ready {
		b.missed = true
		return dst, sample.Pending
	}
	if b.spent = b.at.Spent(); b.spent {
		b.lost = true
		return dst, sample.Spent
	}
	if complete {
		allow(mask, p.EOS)
		for _, t := range p.StopTokens {
			allow(mask, t)
		}
	}
	if !slices.ContainsFunc(mask, func(w uint32) bool { return w != 0 }) {
		return dst, sample.Stuck
	}
	return mask, 0
}

func allow(mask []uint32, token int32) {
	if token >= 0 && int(token) < 32*len(mask) {
		mask[token>>5] |= 1 << (token & 31)
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
