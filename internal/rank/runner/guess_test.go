package runner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/step"
)

// drafting is a driver of a runner whose draft model says what the model does but for some texts:
// else a guess is another one only if the draft model's cache holds something else than the text.
type drafting struct {
	*testing.T
	rng    *rand.Rand
	r      *Runner
	o      *oracle
	model  *oracle // that guesses
	texts  [2][]int32
	blocks [2][]uint32 // held
	drafts [2][]int32  // for the next row
	// known are the full blocks of texts, as a prefix cache has them.
	// had are those that texts have had.
	known, had map[string]uint32
	free       []uint32
	plans      uint64

	asked, guessed, hits, behind int
	// head says that it is no model but a head; gaps that keys and values come from elsewhere, and
	// that plans do not list all rows of a request that a head guesses for.
	head, gaps bool
}

// headOracle is a head whose guess follows from the token after each position and from the hidden
// state there, but for the token after a block, which may be another one when the block is found
// again.
type headOracle struct {
	*oracle
	given compute.Tensor
}

func (o *headOracle) Receive(n int) *compute.Tensor {
	o.given = rows(n, 2)
	return &o.given
}

func (o *headOracle) Layers(b *compute.Batch, cache compute.Cache) error {
	own := *b
	own.Tokens = nil
	for i, t := range b.Tokens {
		own.Tokens = append(own.Tokens, seen(t, int32(o.given.Row(i)[0]), int(b.Position[i])))
	}
	if err := o.oracle.Layers(&own, cache); err != nil {
		return err
	}
	x, err := o.Final(indices(len(b.Tokens)))
	o.hidden = *x
	return err
}

// seen is what a head makes of the token after a position and the hidden state there.
func seen(next, hidden int32, pos int) int32 {
	if pos%blockSize == blockSize-1 {
		return hidden
	}
	return (3*next + hidden) % vocab
}

func indices(n int) (list []int32) {
	for i := range n {
		list = append(list, int32(i))
	}
	return list
}

// follows are the guesses of a text: of a model what it says itself, of a head what follows from
// what the model says of each beginning that is no shorter than base.
func (d *drafting) follows(text []int32, base, n int) (guess []int32) {
	text = slices.Clone(text)
	var all []int32 // seen
	for i := 1 + base; d.head && i < len(text); i++ {
		all = append(all, seen(text[i], follow(text[:i]), i-1))
	}
	for range n {
		next := distort(follow(text), flaw)
		if d.head {
			next = distort(follow(all), flaw)
			all = append(all, seen(next, next, len(all)))
		}
		text, guess = append(text, next), append(guess, next)
	}
	return guess
}

// flaw is that of the draft model.
const flaw = 5

func newDrafting(t *testing.T, seed uint64, rows int, head, gaps bool) *drafting {
	r, o := newRunner(t, true)
	d := &drafting{T: t, rng: rand.New(rand.NewPCG(seed, 3)), r: r, o: o,
		known: map[string]uint32{}, had: map[string]uint32{}, head: head,
		gaps: gaps}
	model := newOracle()
	model.flaw = flaw
	model.cache = make([]int32, blockSize*DraftBlocks(blocks, blockSize, len(d.texts)))
	d.model = model
	var guesses Model = model
	if head {
		guesses = &headOracle{oracle: model}
	}
	r.opt.Head = head
	r.guesser.use(r, &Draft{Model: guesses, MaxLen: maxLen, Rows: rows})
	for b := range uint32(blocks) {
		d.free = append(d.free, b)
	}
	d.rng.Shuffle(blocks, func(i, j int) { d.free[i], d.free[j] = d.free[j], d.free[i] })
	return d
}

// take takes a free block.
func (d *drafting) take(b uint32) {
	d.free = slices.DeleteFunc(d.free, func(o uint32) bool { return o == b })
	for text, of := range d.known {
		if of == b {
			delete(d.known, text)
		}
	}
}

// grow gives a request blocks for so many positions.
func (d *drafting) grow(i, positions int) (more []uint32) {
	for len(d.blocks[i])*blockSize < positions {
		b := d.free[d.rng.IntN(len(d.free))]
		d.take(b)
		d.blocks[i], more = append(d.blocks[i], b), append(more, b)
	}
	return more
}

// shrink takes the blocks from a request that so many positions do not need.
func (d *drafting) shrink(i, positions int) {
	keep := min(len(d.blocks[i]), (positions+blockSize-1)/blockSize)
	d.free = append(d.free, d.blocks[i][keep:]...)
	d.blocks[i] = d.blocks[i][:keep]
}

// start starts a request again, or another one that begins as some did.
func (d *drafting) start(p *step.Plan, i int) {
	d.shrink(i, 0)
	d.drafts[i] = nil
	if p.ID > 1 {
		p.Free = append(p.Free, uint32(i))
	}
	if text := d.texts[i]; len(text) == 0 || len(text) > maxLen-30 || d.rng.IntN(2) == 0 {
		d.texts[i] = append(tokens(1+d.rng.IntN(50), 1), int32(d.rng.IntN(vocab)))
	}
	text := d.texts[i]
	q := step.NewRequest{Slot: uint32(i), PromptLen: uint32(len(text)),
		Tokens: slices.Clone(text), Params: greedy()}
	for n := blockSize; n < len(text); n += blockSize {
		b, ok := d.known[fmt.Sprint(text[:n])]
		switch {
		case d.rng.IntN(20) == 0:
		case !ok && d.gaps && d.rng.IntN(2) == 0: // its keys and values come from elsewhere
			if b, ok = d.had[fmt.Sprint(text[:n])]; !ok || !slices.Contains(d.free, b) {
				b = d.free[d.rng.IntN(len(d.free))]
			}
			d.take(b)
			ok = true
			copy(d.o.cache[b*blockSize:], text[n-blockSize:n])
			d.known[fmt.Sprint(text[:n])] = b
		}
		if !ok {
			break
		}
		d.free = slices.DeleteFunc(d.free, func(o uint32) bool { return o == b })
		d.blocks[i], q.Blocks = append(d.blocks[i], b), append(q.Blocks, b)
		d.hits++
	}
	p.New = append(p.New, q)
	start := len(q.Blocks) * blockSize
	one := plan(p.ID, piece{uint32(i), uint32(start), uint32(len(text) - start), prompt,
		d.grow(i, len(text))})
	p.Rows, p.Blocks = append(p.Rows, one.Rows...), append(p.Blocks, one.Blocks...)
}

// goOn has a request decode, with drafts that are right but for one.
func (d *drafting) goOn(p *step.Plan, i int) {
	text := d.texts[i]
	drafts := d.drafts[i][:min(len(d.drafts[i]), maxLen-1-len(text))]
	if n := len(drafts); n > 0 && d.rng.IntN(2) == 0 {
		drafts[d.rng.IntN(n)] = 0
	}
	d.drafts[i] = drafts
	start := len(text) - 1
	x := piece{uint32(i), uint32(start), uint32(1 + len(drafts)), text[start],
		d.grow(i, len(text)+len(drafts))}
	one := plan(p.ID, x)
	p.Rows, p.Blocks = append(p.Rows, one.Rows...), append(p.Blocks, one.Blocks...)
	p.Drafts = append(p.Drafts, drafts...)
}

func (d *drafting) step() {
	d.plans++
	p := &step.Plan{ID: d.plans}
	shared := func(i int) bool { // a block that another request has cannot be given back here
		return slices.ContainsFunc(d.blocks[i], func(b uint32) bool {
			return slices.Contains(d.blocks[1-i], b)
		})
	}
	for i := range d.texts {
		full := len(d.texts[i]) > maxLen-12
		if d.plans == 1 || (full || d.rng.IntN(12) == 0) && !shared(i) {
			d.start(p, i)
		} else if !full {
			d.goOn(p, i)
		}
		if d.rng.IntN(3) > 0 {
			p.Guess = append(p.Guess, step.Guess{Slot: uint32(i), Tokens: uint32(1 +
				d.rng.IntN(9))})
		} else if d.head && !(d.gaps && d.rng.IntN(2) == 0) {
			p.Guess = append(p.Guess, step.Guess{Slot: uint32(i)})
		}
	}
	res := execute(d.T, d.r, d.o, p)
	if d.model.strange != "" {
		d.Fatalf("plan %d: the draft model got %s", p.ID, d.model.strange)
	}
	for i := range d.texts {
		at := slices.Index(res.Slot, uint32(i))
		if at < 0 {
			continue
		}
		run := res.Run(at)
		wrong := len(d.drafts[i]) > 0 && len(run) == 1
		d.texts[i], d.drafts[i] = append(d.texts[i], run...), nil
		text := d.texts[i]
		for n := blockSize; n < len(text); n += blockSize {
			name := fmt.Sprint(text[:n])
			d.known[name] = d.blocks[i][n/blockSize-1]
			d.had[name] = d.known[name]
		}
		d.shrink(i, len(text)-1)
		ask := slices.IndexFunc(p.Guess, func(g step.Guess) bool { return g.Slot == uint32(i) })
		got := slices.IndexFunc(res.Guessed, func(g step.Drafts) bool {
			return g.Slot == uint32(i)
		})
		if ask < 0 || wrong || p.Guess[ask].Tokens == 0 {
			if got >= 0 {
				d.Fatalf("plan %d: a guess for slot %d", p.ID, i)
			}
			continue
		}
		d.asked++
		if got < 0 {
			continue
		}
		d.guessed++
		guess := res.Guessed[got].Tokens
		if want := min(int(p.Guess[ask].Tokens), maxLen-len(text)+1); len(guess) != want {
			d.Fatalf("plan %d: %d tokens guessed, not %d", p.ID, len(guess), want)
		}
		base := d.r.slots[i].ahead.base
		if want := d.follows(text, base, len(guess)); !slices.Equal(guess, want) {
			d.Fatalf("plan %d: guess of slot %d is %v, not %v", p.ID, i, guess, want)
		}
		if base > 0 {
			d.behind++
		}
		d.drafts[i] = slices.Clone(guess)
		if d.head { // what it says is seldom right
			text = slices.Clone(text)
			for j := range guess {
				d.drafts[i][j] = follow(text)
				text = append(text, d.drafts[i][j])
			}
		}
	}
}

// TestGuess has two requests decode with the guesses of a draft model, some of which are made
// wrong, start again in blocks that they had or that others have had, and go without guesses for a
// while: all that is guessed follows from the text. With few rows at a time a guess comes later. A
// head that has not seen some of a text guesses from what comes after.
func TestGuess(t *testing.T) {
	for _, tt := range []struct{ head, gaps bool }{{false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("head=%v,gaps=%v", tt.head, tt.gaps), func(t *testing.T) {
			testGuess(t, tt.head, tt.gaps)
		})
	}
}

func testGuess(t *testing.T, head, gaps bool) {
	hits, behind, guessed := 0, 0, 0
	for seed := range uint64(40) {
		rows := []int{1000, 1000, 30, 8}[seed%4]
		d := newDrafting(t, seed, rows, head, gaps)
		for range 120 {
			d.step()
		}
		late, share := rows != 1000, 5
		if head && gaps { // one that begins again in the midst of a block waits for the next
			late, share = true, 10
		}
		if !late && d.guessed != d.asked || share*d.guessed < d.asked {
			t.Errorf("seed %d: %d of %d guesses came", seed, d.guessed, d.asked)
		}
		hits, behind, guessed = hits+d.hits, behind+d.behind, guessed+d.guessed
	}
	if hits == 0 {
		t.Error("no block was found again")
	}
	if between := behind > 0 && behind < guessed; between != (head && gaps) {
		t.Errorf("%d of %d guesses are from a part of the text", behind, guessed)
	}
}
