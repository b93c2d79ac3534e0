package runner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// TestDrafts decodes two requests with drafts that are right up to some token, or at once wrong,
// while the logits are computed a few rows at a time, and the host or a device chooses: the tokens
// are those that follow without, a row brings one more than its drafts were right, and blocks that
// only drafts needed go back. A model that keeps states goes back to those before the drafts.
func TestDrafts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for i, rows := range []int{1, 2, 3, 100, 2, 100} {
		r, o := newRunner(t, true)
		r.pieceRows = rows
		if i > 3 {
			r.opt.Sampler = new(sampler)
		}
		if i%2 == 1 {
			o.states = make([]int32, maxSeqs+12)
			r = New(Options{Model: o, Cache: stateCache{o: o}, Pool: r.opt.Pool,
				Sampler: r.opt.Sampler, BlockSize: blockSize, Blocks: blocks, Vocab: vocab,
				MaxSeqs: maxSeqs, MaxModelLen: maxLen, States: len(o.states), DraftStates: 12,
				Layout: r.opt.Layout, Status: r.opt.Status})
			r.pieceRows = rows
		}
		texts := [][]int32{tokens(5, 1), tokens(9, 2)}
		held := []int{1, 1} // blocks
		params := greedy()
		params.Logprobs = 0
		p := plan(1, piece{0, 0, 5, prompt, []uint32{1}}, piece{1, 0, 9, prompt, []uint32{11}})
		for i, text := range texts {
			p.New = append(p.New, step.NewRequest{Slot: uint32(i), PromptLen: uint32(len(text)),
				Tokens: text, Params: params})
		}
		res := execute(t, r, o, p)
		accepted := 0
		for id := uint64(2); len(texts[0]) < maxLen-10 && len(texts[1]) < maxLen-10; id++ {
			p := &step.Plan{ID: id}
			var right [2]int
			for i := range texts {
				run := res.Run(i)
				texts[i] = append(texts[i], run...)
				start := len(texts[i]) - 1
				held[i] = min(held[i], (start+blockSize-1)/blockSize)
				text := slices.Clone(texts[i])
				drafts := rng.IntN(7)
				right[i] = rng.IntN(drafts + 1)
				for j := range drafts {
					next := follow(text)
					if j == right[i] {
						next = (next + 1) % vocab
					}
					text = append(text, next)
				}
				x := piece{slot: uint32(i), start: uint32(start), count: uint32(1 + drafts),
					last: sampled}
				if drafts%2 == 0 {
					x.last = texts[i][start]
				}
				for ; held[i]*blockSize < len(text); held[i]++ {
					x.blocks = append(x.blocks, uint32(10*i+held[i]+1))
				}
				one := plan(id, x)
				p.Rows, p.Blocks = append(p.Rows, one.Rows...), append(p.Blocks, one.Blocks...)
				p.Drafts = append(p.Drafts, text[start+1:]...)
			}
			res = execute(t, r, o, p)
			next := 0
			for i := range texts {
				run := res.Run(i)
				accepted += right[i]
				if len(run) != 1+right[i] {
					t.Fatalf("plan %d: %d tokens for drafts of which %d are right", id, len(run),
						right[i])
				}
				text := slices.Clone(texts[i])
				for _, token := range run {
					if token != follow(text) || res.Logprobs[next].Sampled.Token != token {
						t.Fatalf("plan %d: token %d of %v is not the one that follows: %+v", id,
							len(text), run, res.Logprobs)
					}
					text = append(text, token)
					next++
				}
			}
		}
		if accepted == 0 {
			t.Error("no draft was right")
		}
	}
}

// TestForcedOutside has a constraint force tokens of which the tokenizer knows the last two, and
// the model does not: they are no drafts.
func TestForcedOutside(t *testing.T) {
	r, o := newRunner(t, true)
	r.opt.DraftRows = 4
	r.opt.Grammars = grammars.New(func() (*constrain.Vocabulary, error) {
		letters := make([][]byte, vocab+2)
		for i := range letters {
			letters[i] = []byte{byte(i + 1)}
		}
		return constrain.NewVocabulary(letters, nil), nil
	}, 1)
	defer r.opt.Grammars.Close()
	spec := constrain.Spec{Kind: constrain.Regex, Text: "ABCAAB" + string(rune(vocab+1)) +
		string(rune(vocab+2))}
	<-r.opt.Grammars.Start(spec, nil).Done()
	p := plan(1, piece{1, 0, 3, prompt, []uint32{1}})
	p.New = []step.NewRequest{{Slot: 1, PromptLen: 3, Tokens: tokens(3, 1), Params: greedy(),
		Constraint: spec}}
	res := execute(t, r, o, p)
	if len(res.Forced) != 1 || len(res.Forced[0].Tokens) == 0 ||
		slices.Max(res.Forced[0].Tokens) >= vocab {
		t.Errorf("forced are %+v", res.Forced)
	}
}
