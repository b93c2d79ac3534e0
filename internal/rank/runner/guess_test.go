package runner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/link/step"
)

// drafting is a driver of a runner whose draft model says what the model does but for some texts:
// else a guess is another one only if the draft model's cache holds something else than the text.
type drafting struct {
	*testing.T
	rng    *rand.Rand
	r      *Runner
	o      *oracle
	texts  [2][]int32
	blocks [2][]uint32 // held
	drafts [2][]int32  // for the next row
	// known are the full blocks of texts, as a prefix cache has them.
	// had are those that texts have had.
	known, had map[string]uint32
	free       []uint32
	plans      uint64

	asked, guessed, hits int
}

// flaw is that of the draft model.
const flaw = 5

func newDrafting(t *testing.T, seed uint64, rows int) *drafting {
	r, o := newRunner(t, true)
	d := &drafting{T: t, rng: rand.New(rand.NewPCG(seed, 3)), r: r, o: o,
		known: map[string]uint32{}, had: map[string]uint32{}}
	model := newOracle()
	model.flaw = flaw
	model.cache = make([]int32, blockSize*DraftBlocks(blocks, blockSize, len(d.texts)))
	r.guesser.use(r, &Draft{Model: model, MaxLen: maxLen, Rows: rows})
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
		case !ok && d.rng.IntN(2) == 0: // its keys and values come from elsewhere
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
		}
	}
	res := execute(d.T, d.r, d.o, p)
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
		if ask < 0 || wrong {
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
		text = slices.Clone(text)
		for j, g := range guess {
			if want := distort(follow(text), flaw); g != want {
				d.Fatalf("plan %d: guess %d of slot %d is %d, not %d", p.ID, j, i, g, want)
			}
			text = append(text, g)
		}
		d.drafts[i] = slices.Clone(guess)
	}
}

// TestGuess has two requests decode with the guesses of a draft model, some of which are made
// wrong, start again in blocks that they had or that others have had, and go without guesses for a
// while: all that is guessed follows from the text. With few rows at a time a guess comes later.
func TestGuess(t *testing.T) {
	hits := 0
	for seed := range uint64(40) {
		rows := []int{1000, 1000, 30, 8}[seed%4]
		d := newDrafting(t, seed, rows)
		for range 120 {
			d.step()
		}
		if rows == 1000 && d.guessed != d.asked || 5*d.guessed < d.asked {
			t.Errorf("seed %d: %d of %d guesses came", seed, d.guessed, d.asked)
		}
		hits += d.hits
	}
	if hits == 0 {
		t.Error("no block was found again")
	}
}
