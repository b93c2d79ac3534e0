package runner

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
)

// The shape of the tests' runner.
const (
	vocab     = 97
	blockSize = 16
	blocks    = 32
	maxSeqs   = 4
	maxLen    = 100
)

// oracle is a model whose next token follows from the token and the position of a row, and from
// what was written to the places that the row's block table names: a wrong layout gives a wrong
// token.
type oracle struct {
	cache   []int32 // by slot: the token written there
	next    []int32 // by row of the last batch
	hidden  compute.Tensor
	out     compute.Tensor // logits
	fail    error
	logits  int // rows asked for so far
	strange string
	flaw    int32 // see distort
	// states are what it keeps of requests, nil for nothing: then what follows is of them, too.
	states []int32
	// adapters are the ids that there are, adapted the runs of the last batch.
	adapters []uint32
	adapted  []compute.AdapterRows
}

// rows is a tensor in this process' memory.
func rows(n, width int) compute.Tensor {
	return compute.Tensor{Memory: hostMemory(make([]float32, n*width)), Rows: n, Width: width}
}

type hostMemory []float32

func (m hostMemory) Host() []float32 { return m }
func (hostMemory) Filled()           {}

func newOracle() *oracle { return &oracle{cache: make([]int32, blocks*blockSize)} }

func (o *oracle) Embed(b *compute.Batch) error {
	o.Receive(b.Rows())
	return nil
}

// Receive and Hidden are the rows of Layers, as the next stage gets them: of a width of two.
func (o *oracle) Receive(n int) *compute.Tensor {
	if n != o.hidden.Rows {
		o.hidden = rows(n, 2)
	}
	return &o.hidden
}

func (o *oracle) Hidden() *compute.Tensor { return &o.hidden }

func (o *oracle) Tapped() *compute.Tensor { return nil }

func (o *oracle) ReceiveTapped(int) *compute.Tensor { return nil }

func (o *oracle) Layers(b *compute.Batch, _ compute.Cache) error {
	if o.fail != nil {
		return o.fail
	}
	n := len(b.Tokens)
	if n == 0 || len(b.Slots) != n || len(b.Position) != n || len(b.Seq) != n {
		o.strange = fmt.Sprintf("lists of %d, %d, %d and %d rows", n, len(b.Slots), len(b.Position),
			len(b.Seq))
		return nil
	}
	for i, t := range b.Tokens {
		if t < 0 || t >= vocab || b.Slots[i] < 0 || int(b.Slots[i]) >= len(o.cache) ||
			b.Position[i] < 0 {
			o.strange = fmt.Sprintf("token %d at slot %d and position %d", t, b.Slots[i],
				b.Position[i])
			return nil
		}
		o.cache[b.Slots[i]] = t
	}
	o.next, o.adapted = o.next[:0], append(o.adapted[:0], b.Adapters...)
	for i := range b.Tokens {
		table := b.Tables[b.Seq[i]]
		sum := int32(7)
		for pos := range b.Position[i] + 1 {
			sum = (sum*31 + o.cache[table[pos/blockSize]*blockSize+pos%blockSize] + pos) % vocab
		}
		if o.states != nil && o.state(b, i) != sum {
			o.strange = fmt.Sprintf("the state of another text at position %d", b.Position[i])
		}
		o.next = append(o.next, distort(sum, o.flaw))
	}
	return nil
}

// state makes the state of a row's request that after the row.
func (o *oracle) state(b *compute.Batch, row int) int32 {
	s, pos := &o.states[b.States[b.Seq[row]]], b.Position[row]
	if pos == 0 {
		*s = 7
	}
	*s = (*s*31 + b.Tokens[row] + pos) % vocab
	if kept := b.Kept[row]; kept >= 0 {
		o.states[kept] = *s
	}
	return *s
}

// stateCache has the states of an oracle.
type stateCache struct {
	compute.Cache
	o *oracle
}

func (c stateCache) CopyState(to, from int) { c.o.states[to] = c.o.states[from] }

func (o *oracle) Adapted(id uint32) bool { return slices.Contains(o.adapters, id) }

func (o *oracle) Failed() error { return nil }
func (o *oracle) Finish() error { return nil }

func (o *oracle) Logits(of []int32) (*compute.Tensor, error) {
	o.logits += len(of)
	if len(of) != o.out.Rows {
		o.out = rows(len(of), vocab)
	}
	dst := o.out.Floats()
	for i, r := range of {
		for t := range vocab {
			// The next token is the most likely, those after it less and less.
			dst[i*vocab+t] = -float32((t - int(o.next[r]) + vocab) % vocab)
		}
	}
	return &o.out, nil
}

// Final is, of each row, the token that follows and its square.
func (o *oracle) Final(of []int32) (*compute.Tensor, error) {
	x := rows(len(of), 2)
	for i, r := range of {
		next := float32(o.next[r])
		copy(x.Row(i), []float32{next, next * next})
	}
	return &x, nil
}

func (o *oracle) Features(of []int32) (*compute.Tensor, error) { return o.Final(of) }

func (o *oracle) Reduce(x *compute.Tensor) *compute.Tensor { return x }

func (o *oracle) Close() {}

// distort is another token for one in so many; a flaw of 0 has none.
func distort(token, flaw int32) int32 {
	if flaw > 0 && token%flaw == 0 {
		return (token + 1) % vocab
	}
	return token
}

// follow is what the oracle says after these tokens.
func follow(tokens []int32) int32 {
	sum := int32(7)
	for pos, t := range tokens {
		sum = (sum*31 + t + int32(pos)) % vocab
	}
	return sum
}

func newRunner(t testing.TB, output bool) (*Runner, *oracle) {
	t.Helper()
	p := pool.New(2)
	t.Cleanup(p.Close)
	o := newOracle()
	rank := 1
	if output {
		rank = 0
	}
	return New(Options{Model: o, Pool: p, BlockSize: blockSize, Blocks: blocks, Vocab: vocab,
		MaxSeqs: maxSeqs, MaxModelLen: maxLen,
		Layout: layout.Layout{TP: 2}, Rank: rank, Status: new(status.Rank)}), o
}

func greedy() sample.Params {
	return sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: 50, EOS: -1}
}

// piece is what one request computes in a step. Its last token is one of those below, or comes with
// the plan.
type piece struct {
	slot, start, count uint32
	last               int32
	blocks             []uint32
}

// The last tokens of pieces that do not come with the plan.
const (
	prompt  = -1 // known since the request came; samples
	chunk   = -2 // the same, and samples nothing
	sampled = -3 // sampled before
)

func plan(id uint64, pieces ...piece) *step.Plan {
	p := &step.Plan{ID: id}
	for _, x := range pieces {
		row := step.Row{
			Slot: x.slot, Start: x.start, Count: x.count, Blocks: uint16(len(x.blocks)),
			Sample: x.last != chunk,
		}
		switch {
		case x.last >= 0:
			row.Source, row.Last = step.FromPlan, x.last
		case x.last == sampled:
			row.Source = step.FromSampler
		}
		p.Rows, p.Blocks = append(p.Rows, row), append(p.Blocks, x.blocks...)
	}
	return p
}

func execute(t testing.TB, r *Runner, o *oracle, p *step.Plan) *step.Result {
	t.Helper()
	var res step.Result
	if err := r.Execute(p, &res); err != nil || res.Plan != p.ID || o.strange != "" {
		t.Fatalf("plan %d: %v; %+v; the model got %s", p.ID, err, res, o.strange)
	}
	return &res
}

// tokens makes a prompt.
func tokens(n, seed int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*i + 13*seed) % vocab)
	}
	return out
}

// TestAnyChunking computes a prompt in pieces of every size beside another request that decodes:
// the tokens are those that follow, whatever the pieces and wherever the blocks are.
func TestAnyChunking(t *testing.T) {
	const length, more = 45, 20
	for size := uint32(1); size <= length; size++ {
		r, o := newRunner(t, true)
		other := tokens(5, 2)
		id := uint64(1)
		p := plan(id, piece{3, 0, 5, prompt, []uint32{9}})
		p.New = []step.NewRequest{{Slot: 3, PromptLen: 5, Tokens: other, Params: greedy()}}
		res := execute(t, r, o, p)
		decode := func() piece {
			other = append(other, res.Token[len(res.Token)-1])
			x := piece{3, uint32(len(other) - 1), 1, sampled, nil}
			if (len(other)-1)%blockSize == 0 {
				x.blocks = []uint32{uint32(10 + len(other)/blockSize)}
			}
			return x
		}
		text := tokens(length, 1)
		own := []uint32{31, 2, 17, 5, 8} // blocks in no order
		given := 0
		extend := func(end uint32) (b []uint32) {
			for ; given*blockSize < int(end); given++ {
				b = append(b, own[given])
			}
			return b
		}
		for start := uint32(0); start < length; start += size {
			id++
			n := min(size, length-start)
			last := int32(chunk)
			if start+n == length {
				last = prompt
			}
			p := plan(id, piece{1, start, n, last, extend(start + n)}, decode())
			if start == 0 {
				p.New = []step.NewRequest{{Slot: 1, PromptLen: length, Tokens: text,
					Params: greedy()}}
			}
			res = execute(t, r, o, p)
			if want := follow(other); res.Token[len(res.Token)-1] != want ||
				res.Slot[len(res.Slot)-1] != 3 {
				t.Fatalf("chunks of %d: the neighbour got %+v, not %d", size, res, want)
			}
			if len(res.Token) != map[int32]int{chunk: 1, prompt: 2}[last] {
				t.Fatalf("chunks of %d: %+v at %d", size, res, start)
			}
		}
		first := res.Token[0]
		for range more {
			text = append(text, first)
			if want := follow(text[:len(text)-1]); first != want {
				t.Fatalf("chunks of %d: token %d is %d, not %d", size, len(text), first, want)
			}
			id++
			res = execute(t, r, o, plan(id, piece{1, uint32(len(text) - 1), 1, sampled,
				extend(uint32(len(text)))}))
			first = res.Token[0]
		}
	}
}

// TestLast gives a rank that does not sample the tokens it cannot know, and one that samples tokens
// it knows.
func TestLast(t *testing.T) {
	for _, output := range []bool{true, false} {
		r, o := newRunner(t, output)
		text := tokens(4, 1)
		p := plan(1, piece{0, 0, 4, prompt, []uint32{4, 6}})
		p.New = []step.NewRequest{{Slot: 0, PromptLen: 4, Tokens: text, Params: greedy()}}
		for id := uint64(1); id < 20; id++ {
			asked := o.logits
			res := execute(t, r, o, p)
			if o.logits != asked+1 {
				t.Fatalf("%d rows of logits", o.logits-asked)
			}
			if want := follow(text); output && (len(res.Token) != 1 || res.Token[0] != want) ||
				!output && len(res.Token)+len(res.Slot) > 0 {
				t.Fatalf("output rank %v, step %d: %+v, want %d", output, id, res, want)
			}
			text = append(text, follow(text))
			p = plan(id+1, piece{0, uint32(len(text) - 1), 1, text[len(text)-1], nil})
		}
	}
}

// TestPreemption frees a request and brings it back with its output, in other blocks and beside a
// new one in its old slot.
func TestPreemption(t *testing.T) {
	r, o := newRunner(t, true)
	text := tokens(6, 1)
	p := plan(1, piece{0, 0, 6, prompt, []uint32{1}})
	params := greedy()
	params.RepetitionPenalty = 1.5
	p.New = []step.NewRequest{{Slot: 0, PromptLen: 6, Tokens: text, Params: params}}
	for id := uint64(2); id < 8; id++ {
		res := execute(t, r, o, p)
		text = append(text, res.Token...)
		p = plan(id, piece{0, uint32(len(text) - 1), 1, sampled, nil})
	}
	undisturbed := execute(t, r, o, p).Token[0]
	p = plan(20, piece{2, 0, uint32(len(text)), prompt, []uint32{30}}, piece{0, 0, 3, prompt,
		[]uint32{1}})
	p.Free = []uint32{0}
	p.New = []step.NewRequest{{Slot: 2, PromptLen: 6, Tokens: text, Params: params}, {Slot: 0,
		PromptLen: 3, Tokens: tokens(3, 9), Params: greedy()}}
	res := execute(t, r, o, p)
	if !slices.Equal(res.Slot, []uint32{2, 0}) || res.Token[0] != undisturbed ||
		res.Token[1] != follow(tokens(3, 9)) {
		t.Errorf("%+v, without preemption token %d", res, undisturbed)
	}
}

// TestParamsOfEarlierPlans has requests keep the lists of their parameters when the memory of the
// plan that brought them holds later ones.
func TestParamsOfEarlierPlans(t *testing.T) {
	r, o := newRunner(t, true)
	var p step.Plan // decoded into the same memory again and again, as a worker does
	start := func(slot uint32, params sample.Params) *step.Plan {
		next := plan(uint64(slot)+1, piece{slot, 0, 3, prompt, []uint32{slot}})
		next.New = []step.NewRequest{{Slot: slot, PromptLen: 3, Tokens: tokens(3, 1),
			Params: params}}
		if err := step.DecodePlan(step.AppendPlan(nil, next), &p); err != nil {
			t.Fatal(err)
		}
		return &p
	}
	free := follow(tokens(3, 1))
	lists := []func(p *sample.Params, token int32){
		func(p *sample.Params, token int32) { p.AllowedTokens = []int32{token} },
		func(p *sample.Params, token int32) {
			p.LogitBias = []sample.Bias{{ID: token, Value: 1000}}
		},
		func(p *sample.Params, token int32) { p.BadWords = [][]int32{{token}} },
		func(p *sample.Params, token int32) { p.MinTokens, p.StopTokens = 9, []int32{token} },
	}
	for i, set := range lists {
		mine, other := greedy(), greedy()
		for _, f := range lists {
			f(&other, 55)
		}
		set(&mine, []int32{33, 33, free, free}[i])
		first := execute(t, r, o, start(0, mine)).Token[0]
		if first == free || i < 2 && first != 33 {
			t.Fatalf("list %d does not act: token %d, %d without it", i, first, free)
		}
		execute(t, r, o, start(1, other))
		again := plan(9, piece{0, 0, 3, prompt, nil})
		if token := execute(t, r, o, again).Token[0]; token != first {
			t.Errorf("list %d: token %d, and %d beside a later request", i, first, token)
		}
		execute(t, r, o, &step.Plan{ID: 10, Free: []uint32{0, 1}})
	}
}

// TestPrefix starts a request whose first block is in the cache already.
func TestPrefix(t *testing.T) {
	r, o := newRunner(t, true)
	text := tokens(20, 1)
	p := plan(1, piece{0, 0, 20, prompt, []uint32{3, 4}})
	p.New = []step.NewRequest{{Slot: 0, PromptLen: 20, Tokens: text, Params: greedy()}}
	want := execute(t, r, o, p).Token[0]
	p = plan(2, piece{1, 16, 4, prompt, []uint32{8}})
	p.New = []step.NewRequest{{Slot: 1, PromptLen: 20, Tokens: text, Blocks: []uint32{3},
		Params: greedy()}}
	if res := execute(t, r, o, p); len(o.next) != 4 || res.Token[0] != want {
		t.Errorf("%d rows, %+v, want %d", len(o.next), res, want)
	}
}

// TestLogprobs reports the model's own logits whatever the sampling does, for prompts position by
// position.
func TestLogprobs(t *testing.T) {
	r, o := newRunner(t, true)
	r.pieceRows = 3 // so that they come in pieces
	text := tokens(8, 1)
	params := greedy()
	params.Logprobs, params.PromptLogprobs = 2, 1
	params.LogitBias = []sample.Bias{{ID: 11, Value: 1000}}
	p := plan(1, piece{0, 0, 5, chunk, []uint32{3}})
	p.New = []step.NewRequest{{Slot: 0, PromptLen: 8, Tokens: text, Params: params}}
	res := execute(t, r, o, p)
	if len(res.Token) != 0 || len(res.PromptLogprobs) != 1 {
		t.Fatalf("%+v", res)
	}
	// The logits are 0, -1, -2 …: what they are normalised by.
	sum := 0.0
	for i := range vocab {
		sum += math.Exp(-float64(i))
	}
	check := func(start int, entries []step.Logprobs, n int) {
		t.Helper()
		if len(entries) != n {
			t.Fatalf("%d entries from %d, not %d", len(entries), start, n)
		}
		for i, e := range entries {
			at := start + i
			best := follow(text[:at])
			away := (text[at] - best + vocab) % vocab
			want := -float64(away) - math.Log(sum)
			if e.Sampled.Token != text[at] || e.Sampled.Rank != away+1 ||
				math.Abs(float64(e.Sampled.Logprob)-want) > 1e-4 || len(e.Top) != 1 ||
				e.Top[0].Token != best || e.Top[0].Rank != 1 {
				t.Errorf("position %d: %+v, want %d of rank %d with %.4f, best %d", at, e, text[at],
					away+1, want, best)
			}
		}
	}
	check(int(res.PromptLogprobs[0].Start), res.PromptLogprobs[0].Entries, 5)
	res = execute(t, r, o, plan(2, piece{0, 5, 3, prompt, nil}))
	if len(res.PromptLogprobs) != 1 || res.PromptLogprobs[0].Start != 6 {
		t.Fatalf("%+v", res)
	}
	check(6, res.PromptLogprobs[0].Entries, 2)
	if len(res.Token) != 1 || res.Token[0] != 11 || len(res.Logprobs) != 1 {
		t.Fatalf("%+v", res)
	}
	l, best := res.Logprobs[0], follow(text)
	if l.Sampled.Token != 11 || l.Sampled.Rank != (11-best+vocab)%vocab+1 || len(l.Top) != 2 ||
		l.Top[0].Token != best || l.Top[1].Token != (best+1)%vocab {
		t.Errorf("%+v, best %d", l, best)
	}
	// Processed ones are of what the choice was made by, those of the prompt the model's.
	params.Processed = true
	p = plan(3, piece{1, 0, 8, prompt, []uint32{4}})
	p.New = []step.NewRequest{{Slot: 1, PromptLen: 8, Tokens: text, Params: params}}
	res = execute(t, r, o, p)
	check(int(res.PromptLogprobs[0].Start), res.PromptLogprobs[0].Entries, 7)
	l = res.Logprobs[0]
	if l.Sampled != (step.TokenLogprob{Token: 11, Rank: 1}) || len(l.Top) != 2 ||
		l.Top[0] != l.Sampled || l.Top[1].Token != (best+1)%vocab || l.Top[1].Logprob > -900 {
		t.Errorf("processed: %+v, best %d", l, best)
	}
	// As logits they are the model's own, those of the prompt too.
	params.Processed, params.AsLogits = false, true
	p = plan(4, piece{2, 0, 8, prompt, []uint32{5}})
	p.New = []step.NewRequest{{Slot: 2, PromptLen: 8, Tokens: text, Params: params}}
	res = execute(t, r, o, p)
	for i, e := range res.PromptLogprobs[0].Entries {
		if want := float32(1 - e.Sampled.Rank); e.Sampled.Logprob != want || len(e.Top) != 1 ||
			e.Top[0].Logprob != 0 {
			t.Errorf("position %d: %+v, want the logits %v and 0", i+1, e, want)
		}
	}
	l = res.Logprobs[0]
	for _, e := range append(l.Top, l.Sampled) {
		if want := -float32((e.Token - best + vocab) % vocab); e.Logprob != want {
			t.Errorf("token %d has the logit %v, not %v", e.Token, e.Logprob, want)
		}
	}
}

// TestRefuses ends on a plan that does not fit what the runner knows, with an error that names what
// is wrong, and passes the model's own errors on.
func TestRefuses(t *testing.T) {
	with := func(p *step.Plan, change func(p *step.Plan)) *step.Plan {
		change(p)
		return p
	}
	request := step.NewRequest{Slot: 1, PromptLen: 3, Tokens: tokens(3, 1), Params: greedy()}
	fresh := func(change func(q *step.NewRequest)) *step.Plan {
		q := request
		change(&q)
		return &step.Plan{ID: 9, New: []step.NewRequest{q}}
	}
	withTokens := func(tokens []int32) *step.Plan {
		return fresh(func(q *step.NewRequest) { q.Tokens = tokens })
	}
	introduce := func(p *step.Plan) { p.New = []step.NewRequest{request} }
	for want, p := range map[string]*step.Plan{
		"frees slot 4 of 4":              {ID: 9, Free: []uint32{4}},
		"adapter 3, which is not loaded": fresh(func(q *step.NewRequest) { q.Adapter = 3 }),
		"slot 0, which is taken":         fresh(func(q *step.NewRequest) { q.Slot = 0 }),
		"slot 4, which is taken or out":  fresh(func(q *step.NewRequest) { q.Slot = 4 }),
		"3 tokens, 4 of them prompt":     fresh(func(q *step.NewRequest) { q.PromptLen = 4 }),
		"has 101 tokens":                 withTokens(make([]int32, maxLen+1)),
		"token 97 is outside":            withTokens([]int32{1, 2, vocab}),
		"token -1 is outside":            withTokens([]int32{1, 2, -1}),
		"slot 2, which holds no":         plan(9, piece{2, 0, 1, prompt, nil}),
		"slot 77, which holds no":        plan(9, piece{77, 0, 1, prompt, nil}),
		"is given 2 new blocks": with(plan(9, piece{0, 4, 1, 5, nil}),
			func(p *step.Plan) { p.Rows[0].Blocks = 2 }),
		"positions 4 to 4":             plan(9, piece{0, 4, 0, prompt, nil}),
		"positions 4 to 7 of 4 tokens": plan(9, piece{0, 4, 3, prompt, nil}),
		"samples after position 1 of 3": with(
			plan(9, piece{1, 0, 2, prompt, []uint32{5}}), introduce),
		"from position 5 after 4 tokens": plan(9, piece{0, 5, 1, sampled, nil}),
		"with a token that was not": with(
			plan(9, piece{1, 3, 1, sampled, []uint32{5}}), introduce),
		"and 2 drafts, 0 and 1 are": with(plan(9, piece{0, 4, 3, sampled, nil}),
			func(p *step.Plan) { p.Drafts = []int32{1} }),
		"draft 97 is outside": with(plan(9, piece{0, 4, 3, sampled, nil}),
			func(p *step.Plan) { p.Drafts = []int32{1, vocab} }),
		"goes on with token 5, but": plan(9, piece{0, 4, 1, 5, nil}),
		"positions 0 to 4294967295": plan(9, piece{0, 0, 1<<32 - 1, prompt, nil}),
		"and has blocks of 16": with(plan(9, piece{1, 0, 17, prompt, []uint32{5}}),
			func(p *step.Plan) { p.New = withTokens(tokens(17, 1)).New }),
		"block 32 of 32": with(plan(9, piece{1, 0, 3, prompt, []uint32{32}}), introduce),
		"block -1 of 32": with(plan(9, piece{1, 0, 3, prompt, []uint32{1<<32 - 1}}), introduce),
		"between slot 2 of 4 and state 5": with(plan(9, piece{0, 4, 1, 5, nil}),
			func(p *step.Plan) { p.Save = []step.Snapshot{{Slot: 2, State: 5}} }),
		"state 3 of 0": with(plan(9, piece{0, 4, 1, 5, nil}),
			func(p *step.Plan) { p.Restore = []step.Snapshot{{Slot: 0, State: 3}} }),
		"state 4 of 0": with(plan(9, piece{0, 4, 1, 5, nil}),
			func(p *step.Plan) { p.Save = []step.Snapshot{{Slot: 0, State: 4}} }),
		"token 97 is outside the": with(
			plan(9, piece{1, 3, 1, vocab, []uint32{5}}), introduce),
	} {
		t.Run(want, func(t *testing.T) {
			r, o := newRunner(t, true)
			first := plan(1, piece{0, 0, 4, prompt, []uint32{3}})
			first.New = []step.NewRequest{{Slot: 0, PromptLen: 4, Tokens: tokens(4, 1),
				Params: greedy()}}
			execute(t, r, o, first)
			var res step.Result
			if err := r.Execute(p, &res); err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "plan 9") {
				t.Errorf("error %v; the model got %q", err, o.strange)
			}
		})
	}
	r, o := newRunner(t, true)
	o.fail = errors.New("out of cheese")
	p := plan(1, piece{1, 0, 3, prompt, []uint32{3}})
	p.New = []step.NewRequest{request}
	var res step.Result
	if err := r.Execute(p, &res); !errors.Is(err, o.fail) {
		t.Error(err)
	}
}

// TestEmptyPlan only frees, and computes nothing.
func TestAdapters(t *testing.T) {
	r, o := newRunner(t, true)
	o.adapters = []uint32{7, 8}
	p := plan(1, piece{0, 0, 3, prompt, []uint32{0}}, piece{1, 0, 2, prompt, []uint32{1}},
		piece{2, 0, 4, prompt, []uint32{2}}, piece{3, 0, 1, prompt, []uint32{3}})
	for slot, adapter := range []uint32{7, 0, 8, 8} {
		n := int(p.Rows[slot].Count)
		p.New = append(p.New, step.NewRequest{Slot: uint32(slot), PromptLen: uint32(n),
			Tokens: tokens(n, slot), Params: greedy(), Adapter: adapter})
	}
	res := execute(t, r, o, p)
	want := []compute.AdapterRows{{Adapter: 7, To: 3}, {Adapter: 8, From: 5, To: 10}}
	if !slices.Equal(o.adapted, want) {
		t.Errorf("adapters of rows %+v, want %+v", o.adapted, want)
	}
	// The requests keep theirs, the slot of one that ended does not.
	p = plan(2, piece{1, 2, 1, res.Token[1], nil}, piece{3, 1, 1, res.Token[3], nil},
		piece{0, 0, 2, prompt, []uint32{0}})
	p.Free = []uint32{0}
	p.New = []step.NewRequest{{PromptLen: 2, Tokens: tokens(2, 5), Params: greedy()}}
	execute(t, r, o, p)
	want = []compute.AdapterRows{{Adapter: 8, From: 1, To: 2}}
	if !slices.Equal(o.adapted, want) {
		t.Errorf("adapters of rows %+v, want %+v", o.adapted, want)
	}
}

func TestEmptyPlan(t *testing.T) {
	r, o := newRunner(t, true)
	res := step.Result{Slot: []uint32{1}, Token: []int32{2}, Logprobs: make([]step.Logprobs, 3)}
	if err := r.Execute(&step.Plan{ID: 4, Free: []uint32{0, 1, 2, 3}}, &res); err != nil ||
		o.next != nil || !reflect.DeepEqual(res, step.Result{Plan: 4,
		Slot: []uint32{}, Token: []int32{}, Logprobs: []step.Logprobs{}}) {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestAllocates nothing in steady decoding, greedy or not, also where ranks divide long prompts.
func TestAllocates(t *testing.T) {
	for _, l := range []layout.Layout{{}, {TP: 2, PCP: 2}} {
		t.Run(l.String(), func(t *testing.T) { checkAllocates(t, l, nil) })
	}
	t.Run("on a device", func(t *testing.T) { checkAllocates(t, layout.Layout{}, new(sampler)) })
}

func checkAllocates(t *testing.T, l layout.Layout, s Sampler) {
	r, o := newRunner(t, true)
	opt := r.opt
	opt.Layout, opt.Sampler = l, s
	r = New(opt)
	p := &step.Plan{ID: 1}
	for slot := range uint32(maxSeqs) {
		params := greedy()
		if slot%2 == 1 {
			params.Temperature, params.TopP, params.Seed = 0.8, 0.9, uint64(slot)
		}
		p.New = append(p.New, step.NewRequest{Slot: slot, PromptLen: 1, Tokens: []int32{1},
			Params: params})
		x := plan(1, piece{slot, 0, 1, prompt, []uint32{7 * slot, 7*slot + 1, 7*slot + 2, 7*slot +
			3, 7*slot + 4, 7*slot + 5, 7*slot + 6}})
		p.Rows, p.Blocks = append(p.Rows, x.Rows...), append(p.Blocks, x.Blocks...)
	}
	var res step.Result
	next := func() {
		if err := r.Execute(p, &res); err != nil || o.strange != "" {
			t.Fatal(err, o.strange)
		}
		p.ID++
		for i := range p.Rows {
			p.Rows[i].Start++
			p.Rows[i].Source, p.Rows[i].Blocks = step.FromSampler, 0
		}
	}
	next()
	p.New, p.Blocks = nil, nil
	for range 40 {
		next()
	}
	for i := range r.slots {
		// appending grows them now and then
		r.slots[i].tokens = slices.Grow(r.slots[i].tokens, maxLen)
	}
	if n := testing.AllocsPerRun(30, next); n > 0 {
		t.Errorf("%v allocations per step", n)
	}
}

// FuzzExecute runs plans of any bytes: whatever the codec lets through ends in an error or a
// result, never in a panic, and the model gets nothing that is out of range.
func FuzzExecute(f *testing.F) {
	good := plan(1, piece{1, 0, 3, prompt, []uint32{3}})
	params := greedy()
	params.Logprobs, params.PromptLogprobs, params.Temperature, params.TopK = 3, sample.AllLogprobs,
		0.7, 5
	params.LogitBias, params.AllowedTokens, params.BadWords = []sample.Bias{{ID: 300, Value: 2}},
		[]int32{1, 2, 900}, [][]int32{{1}, {2, 3}, nil}
	params.StopTokens, params.MinTokens, params.PresencePenalty = []int32{-4, 5}, 3, 0.5
	good.New = []step.NewRequest{{Slot: 1, PromptLen: 2, Tokens: tokens(3, 1), Params: params}}
	f.Add(step.AppendPlan(nil, good), step.AppendPlan(nil, plan(2, piece{1, 3, 1, 5, nil})), true)
	f.Add(step.AppendPlan(nil, good), step.AppendPlan(nil, plan(2, piece{1, 3, 1, 1 << 20, nil},
		piece{1, 0, 2, prompt, []uint32{9}})), false)
	f.Fuzz(func(t *testing.T, first, second []byte, output bool) {
		r, o := newRunner(t, output)
		var res step.Result
		for _, raw := range [][]byte{first, second} {
			var p step.Plan
			if step.DecodePlan(raw, &p) != nil {
				return
			}
			err := r.Execute(&p, &res)
			if o.strange != "" {
				t.Fatalf("the model got %s from %+v", o.strange, p)
			}
			if err != nil {
				return
			}
			for _, token := range res.Token {
				if token < 0 || token >= vocab {
					t.Fatalf("token %d of %+v", token, p)
				}
			}
		}
	})
}
