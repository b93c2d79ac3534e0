package runner

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Draft is a small model that guesses what comes after the tokens that the model samples. It is
// whole on the output rank, and keeps keys and values of its own in blocks of the same numbers, so
// that a request's block table is one of both caches; the blocks of each place among which requests
// are divided follow those of the place before. What it says changes no result.
type Draft struct {
	Model Model
	// Cache has DraftBlocks blocks.
	Cache compute.Cache
	// MaxLen is how many positions it knows at most, Rows how many it computes at a time.
	MaxLen, Rows int
}

// DraftBlocks is how many blocks the cache of a draft model has: those of the model's caches, and
// for each of so many requests some for guesses, for which the scheduler has given no blocks yet.
func DraftBlocks(blocks, blockSize, requests int) int {
	return blocks + requests*guessBlocks(blockSize)
}

// guessBlocks is how many blocks the guess of one request needs beyond those that it has.
func guessBlocks(blockSize int) int { return (step.MaxDrafts+blockSize-1)/blockSize + 1 }

// guesser has a draft model guess.
//
// A whole model computes nothing beside a step but when a guess is asked for. Then it makes up for
// all positions of the request that it has not computed: what its cache has of a request is a
// matter of the request's slot, and what it has in the blocks of a request that starts is known by
// hashes of the tokens, as prefix cache entries are. So it is right whatever happens to blocks:
// preemption, prefix cache hits, keys and values that come from elsewhere. For a head see there.
type guesser struct {
	r *Runner
	d *Draft
	// head is what a head has yet to compute.
	head head
	// hashes are, by block, that of all tokens up to its end whose keys and values the cache has; 0
	// for a block that is not full.
	hashes []uint64

	batch  compute.Batch
	seqs   []guessed
	round  []int   // of seqs, those that are guessed for
	rows   []int32 // of the batch, those of the round
	logits []float32
}

// guessed is a request of which tokens are being guessed.
type guessed struct {
	slot *slot
	id   uint32
	// length is that of its text, of which run are the last tokens; want is how many are guessed.
	length, want int
	run          []int32
	// table is the slot's, then blocks for guesses.
	table  []int32
	tokens []int32 // guessed so far
}

// ahead is what the draft model's cache has of a slot's request.
type ahead struct {
	// has is how many leading positions of the text those are, unknown before the first guess;
	// guess is the tokens of positions that follow, as they were guessed.
	has   int
	guess []int32
	// base is where the text begins that a head knows, at a block's beginning; next is the position
	// after those that it has or has queued.
	base, next int
	// hash is that of the first blocks of the text.
	hash   uint64
	blocks int
}

const unknown = -1

// reset begins a request: what follows from its text does so with its adapter.
func (a *ahead) reset(adapter uint32) {
	*a = ahead{has: unknown, guess: a.guess[:0], hash: uint64(adapter)}
}

// retract forgets what is in no block of the request any more, of which those left have so many
// positions.
func (a *ahead) retract(positions int) {
	a.has = min(a.has, positions)
	a.guess = a.guess[:min(len(a.guess), max(0, positions-a.has))]
}

// use has another draft model guess, nil for none; nothing is in its cache.
func (g *guesser) use(r *Runner, d *Draft) {
	g.r, g.d = r, d
	if d == nil {
		return
	}
	g.head.reset()
	n := r.opt.Blocks * r.opt.Layout.DP
	g.hashes = slices.Grow(g.hashes[:0], n)[:n]
	clear(g.hashes)
	for i := range r.slots {
		r.slots[i].ahead.reset(r.slots[i].adapter)
	}
}

// guess adds to the result of a plan what the draft model says comes next, of the requests that it
// asks for: but for those whose drafts were all wrong, that have ended, or whose constraint says
// what comes next.
func (g *guesser) guess(p *step.Plan, res *step.Result) error {
	if g.d == nil {
		return nil
	}
	if err := g.run(p, res); err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	return nil
}

func (g *guesser) run(p *step.Plan, res *step.Result) error {
	if g.r.opt.Head {
		if err := g.queueRows(p, res); err != nil {
			return err
		}
	}
	if len(p.Guess) == 0 {
		return nil
	}
	if g.begin(p, res); len(g.seqs) == 0 {
		return nil
	}
	if err := g.catchUp(); err != nil {
		return err
	}
	for len(g.round) > 0 {
		if err := g.choose(); err != nil {
			return err
		}
		next, rows := g.round[:0], g.rows[:0]
		for at, i := range g.round {
			if q := &g.seqs[i]; len(q.tokens) < q.want {
				next, rows = append(next, i), append(rows, g.rows[at])
			}
		}
		if g.round, g.rows = next, rows; len(next) == 0 {
			break
		}
		if err := g.goOn(); err != nil {
			return err
		}
	}
	for i := range g.seqs {
		if q := &g.seqs[i]; len(q.tokens) > 0 {
			d := step.AddDrafts(&res.Guessed, q.id)
			d.Tokens = append(d.Tokens, q.tokens...)
			if !g.r.opt.Head {
				g.noteOwn(q)
			}
		}
	}
	return nil
}

// begin lists the requests of which tokens are guessed.
func (g *guesser) begin(p *step.Plan, res *step.Result) {
	before := g.seqs[:cap(g.seqs)]
	g.seqs = g.seqs[:0]
	size := g.r.opt.BlockSize
	for _, ask := range p.Guess {
		i := slices.Index(res.Slot, ask.Slot)
		forced := slices.ContainsFunc(res.Forced, func(f step.Drafts) bool {
			return f.Slot == ask.Slot
		})
		if i < 0 || forced {
			continue
		}
		s, run := &g.r.slots[ask.Slot], res.Run(i)
		if s.ends(run[len(run)-1]) || s.drafted > 0 && len(run) == 1 {
			continue
		}
		n := len(g.seqs)
		q := guessed{slot: s, id: ask.Slot, run: run,
			length: len(s.tokens) - s.drafted + len(run)}
		q.want = min(int(ask.Tokens), step.MaxDrafts, g.d.MaxLen-q.length+1)
		if q.want < 1 {
			continue
		}
		if n < len(before) {
			q.table, q.tokens = before[n].table[:0], before[n].tokens[:0]
		}
		q.table = g.blocks(q.table, ask.Slot)
		first := g.r.opt.Blocks*g.r.opt.Layout.DP + n*guessBlocks(size)
		for i := 0; len(q.table)*size < q.length+q.want-1; i++ {
			q.table = append(q.table, int32(first+i))
		}
		g.seqs = append(g.seqs, q)
	}
}

// blocks appends the blocks of a slot, by their numbers in the draft model's cache: those of the
// first group of layers, which lacks none.
func (g *guesser) blocks(to []int32, slot uint32) []int32 {
	first := int32(g.r.opt.Blocks * g.r.home(slot))
	table := g.r.slots[slot].table
	for i := 0; i < len(table); i += len(g.r.caches) {
		b := table[i]
		if b >= 0 {
			b += first
		}
		to = append(to, b)
	}
	return to
}

// ends says whether a token, or what stands in the place of one, ends the output.
func (s *slot) ends(token int32) bool {
	return token < 0 || token == s.params.EOS && !s.params.IgnoreEOS ||
		slices.Contains(s.params.StopTokens, token)
}

// token is the one at a position of the text, or one that was guessed after it.
func (q *guessed) token(pos int) int32 {
	switch known := q.length - len(q.run); {
	case pos < known:
		return q.slot.tokens[pos]
	case pos < q.length:
		return q.run[pos-known]
	}
	return q.tokens[pos-q.length]
}

// catchUp computes the positions that the draft model lacks, as many as may be computed at a time,
// and lists the requests that it has none left of.
func (g *guesser) catchUp() error {
	if g.r.opt.Head {
		return g.computeQueued()
	}
	g.reset()
	g.round = g.round[:0]
	for i := range g.seqs {
		q := &g.seqs[i]
		g.recall(q)
		a := &q.slot.ahead
		to := min(q.length, a.has+g.d.Rows-g.batch.Rows())
		for pos := a.has; pos < to; pos++ {
			g.add(i, pos)
		}
		a.has = to
		if to < q.length {
			g.note(q)
			continue
		}
		g.rows = append(g.rows, int32(g.batch.Rows()-1))
		g.round = append(g.round, i)
	}
	return g.compute()
}

// recall finds out what the cache has of a request.
func (g *guesser) recall(q *guessed) {
	a := &q.slot.ahead
	if a.has == unknown {
		g.recallBlocks(q, min(g.r.reach(q.slot), q.length-1)/g.r.opt.BlockSize)
	}
	for _, t := range a.guess {
		if a.has >= q.length-1 || q.token(a.has) != t {
			break
		}
		a.has++
	}
	a.guess = a.guess[:0]
	// The last position is computed for its logits.
	a.has = min(a.has, q.length-1)
}

// recallBlocks finds out which leading blocks of a request the cache has, at most so many.
func (g *guesser) recallBlocks(q *guessed, most int) {
	a, size := &q.slot.ahead, g.r.opt.BlockSize
	a.has = 0
	for b := range most {
		h := hashBlock(a.hash, q, b, size)
		if block := q.table[b]; block < 0 || g.hashes[block] != h {
			return
		}
		a.hash, a.blocks, a.has = h, b+1, (b+1)*size
	}
}

// hashBlock is the hash of a text up to the end of a block, from that of the block before.
func hashBlock(h uint64, q *guessed, block, size int) uint64 {
	for pos := block * size; pos < (block+1)*size; pos++ {
		h = mix(h, uint64(q.token(pos)))
	}
	return h | 1
}

// note notes which blocks are full by now, of a text that is known from its beginning on.
func (g *guesser) note(q *guessed) {
	a, size := &q.slot.ahead, g.r.opt.BlockSize
	if a.base > 0 {
		return
	}
	for ; (a.blocks+1)*size <= a.has; a.blocks++ {
		a.hash = hashBlock(a.hash, q, a.blocks, size)
		g.hashes[q.table[a.blocks]] = a.hash
	}
}

// noteOwn notes what is in the request's own blocks by now. Of the last guess nothing was computed.
func (g *guesser) noteOwn(q *guessed) {
	a := &q.slot.ahead
	a.has = q.length
	a.guess = append(a.guess[:0], q.tokens[:len(q.tokens)-1]...)
	a.retract(g.r.reach(q.slot))
	g.note(q)
}

// reset begins a batch.
func (g *guesser) reset() {
	b := &g.batch
	b.Tokens, b.Slots, b.Position = b.Tokens[:0], b.Slots[:0], b.Position[:0]
	b.Seq, b.Tables, b.States = b.Seq[:0], b.Tables[:0], b.States[:0]
	g.rows = g.rows[:0]
	for i := range g.seqs {
		q := &g.seqs[i]
		b.Tables = append(b.Tables, q.table[q.slot.ahead.base/g.r.opt.BlockSize:])
		b.States = append(b.States, int32(i))
	}
}

// add adds a row to the batch: of a head the token is the one after the position.
func (g *guesser) add(seq, pos int) {
	q, token := &g.seqs[seq], pos
	if g.r.opt.Head {
		token++
	}
	g.addAt(seq, q.table[pos/g.r.opt.BlockSize], pos, q.token(token), &q.slot.ahead)
}

// addAt adds a row of a token whose keys and values go to a block.
func (g *guesser) addAt(seq int, block int32, pos int, token int32, a *ahead) {
	b, size := &g.batch, g.r.opt.BlockSize
	if int(block) < len(g.hashes) {
		g.hashes[block] = 0
	}
	b.Tokens = append(b.Tokens, token)
	b.Slots = append(b.Slots, block*int32(size)+int32(pos%size))
	b.Position = append(b.Position, int32(pos-a.base))
	b.Seq = append(b.Seq, int32(seq))
}

// goOn computes the newest guesses.
func (g *guesser) goOn() error {
	if g.r.opt.Head {
		return g.goOnFromHidden()
	}
	g.reset()
	for _, i := range g.round {
		g.rows = append(g.rows, int32(g.batch.Rows()))
		g.add(i, g.seqs[i].length+len(g.seqs[i].tokens)-1)
	}
	return g.compute()
}

// compute computes the batch.
func (g *guesser) compute() error {
	if g.batch.Rows() == 0 {
		return nil
	}
	if !g.r.opt.Head {
		if err := g.d.Model.Embed(&g.batch); err != nil {
			return err
		}
	}
	return g.d.Model.Layers(&g.batch, g.d.Cache)
}

// choose guesses a token of each request of the round: the one that the draft model's logits have
// drawn by what draws the model's.
func (g *guesser) choose() error {
	logits, err := g.d.Model.Logits(g.rows)
	if err != nil {
		return err
	}
	g.logits = logits.Floats()
	if err := g.d.Model.Failed(); err != nil {
		return err
	}
	if len(g.round) == 1 {
		g.Do(0, 0)
		return nil
	}
	g.r.opt.Pool.Run(g, len(g.round))
	return nil
}

// Do guesses a token of one request.
func (g *guesser) Do(chunk, thread int) {
	q, vocab := &g.seqs[g.round[chunk]], g.r.opt.Vocab
	s := q.slot
	t := g.r.sampling.samplers[thread].Sample(g.logits[chunk*vocab:(chunk+1)*vocab], &s.params,
		s.state, uint32(q.length+len(q.tokens)))
	q.tokens = append(q.tokens, max(t, 0))
}
