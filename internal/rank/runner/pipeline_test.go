package runner

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
)

// mail is the messages to and from one rank, by the other stage; nothing that is not there is
// waited for.
type mail struct {
	in, out map[int]*messages
}

type messages struct {
	bytes []byte
	sizes []int
}

var errWaits = errors.New("waits for a message that has not been sent")

func (m *mail) Guard(uint64) {}

func (m *mail) Send(b []byte, to int) error {
	q := m.out[to]
	q.bytes, q.sizes = append(q.bytes, b...), append(q.sizes, len(b))
	return nil
}

func (m *mail) Recv(b []byte, from int) error {
	q := m.in[from]
	if len(q.sizes) == 0 {
		return errWaits
	}
	if q.sizes[0] != len(b) {
		return errors.New("message of another length")
	}
	copy(b, q.bytes)
	q.bytes = q.bytes[:copy(q.bytes, q.bytes[len(b):])]
	q.sizes = q.sizes[:copy(q.sizes, q.sizes[1:])]
	return nil
}

// push is what the output rank does for a plan.
func (q *messages) push(tokens ...int32) {
	for _, t := range tokens {
		q.bytes = binary.LittleEndian.AppendUint32(q.bytes, uint32(t))
	}
	q.sizes = append(q.sizes, 4*len(tokens))
}

// newStage is a rank of so many stages of one rank each.
func newStage(t testing.TB, stage, stages, inFlight int) (*Runner, *oracle, *mail) {
	t.Helper()
	p := pool.New(1)
	t.Cleanup(p.Close)
	o := newOracle()
	m := &mail{in: map[int]*messages{}, out: map[int]*messages{}}
	for i := range stages {
		m.in[i], m.out[i] = new(messages), new(messages)
	}
	return New(Options{Model: o, Pool: p, BlockSize: blockSize, Blocks: blocks, Vocab: vocab,
		MaxSeqs: maxSeqs, MaxModelLen: maxLen, MaxInFlight: inFlight, PP: m,
		Layout: layout.Layout{PP: stages}, Rank: stage, From: stage, To: stage + 1,
		Status: new(status.Rank)}), o, m
}

// request is a new request of one token in a block of its own.
func request(p *step.Plan, slot uint32) {
	p.New = append(p.New, step.NewRequest{Slot: slot, PromptLen: 1, Tokens: []int32{1},
		Params: greedy()})
	x := plan(p.ID, piece{slot, 0, 1, prompt, []uint32{slot}})
	p.Rows, p.Blocks = append(p.Rows, x.Rows...), append(p.Blocks, x.Blocks...)
}

// TestFirstStageTakesTokens gives the first of two stages plans, and the tokens of each when its
// result could be known at the latest: it never waits for others, and takes those that a plan goes
// on from, of the request that they belong to.
func TestFirstStageTakesTokens(t *testing.T) {
	r, o, m := newStage(t, 0, 2, 3)
	tokens := m.in[1]
	run := func(p *step.Plan, want []int32) {
		t.Helper()
		execute(t, r, o, p)
		if !slices.Equal(r.batch.Tokens, want) {
			t.Errorf("plan %d computes tokens %v, not %v", p.ID, r.batch.Tokens, want)
		}
	}
	p := &step.Plan{ID: 1}
	request(p, 0)
	request(p, 1)
	run(p, []int32{1, 1})
	p = &step.Plan{ID: 2}
	request(p, 2)
	run(p, []int32{1})
	tokens.push(50, 51) // plan 1
	run(plan(3, piece{0, 1, 1, sampled, nil}), []int32{50})
	tokens.push(52) // plan 2
	tokens.push(53) // plan 3
	if len(tokens.sizes) != 2 {
		t.Fatalf("the tokens of plan 1 were not taken: %v", tokens.sizes)
	}
	// Of plan 2 nothing is needed, but its result is known before plan 5 is made.
	run(plan(4, piece{1, 1, 1, sampled, nil}), []int32{51})
	if len(tokens.sizes) != 2 {
		t.Errorf("plan 4 took tokens that nothing waits for: %v are left", tokens.sizes)
	}
	// Slot 0 gets another request: the token of plan 3 is not its own.
	p = &step.Plan{ID: 5, Free: []uint32{0}}
	request(p, 0)
	run(p, []int32{1})
	if len(tokens.sizes) != 1 {
		t.Errorf("plan 5 left %v", tokens.sizes)
	}
	tokens.push(54) // plan 4
	tokens.push(55) // plan 5
	run(plan(6, piece{0, 1, 1, sampled, nil}, piece{2, 1, 1, 52, nil}, piece{1, 2, 1, 54, nil}),
		[]int32{55, 52, 54})
	// A plan waits for the tokens that it needs, here those of plan 6.
	var res step.Result
	err := r.Execute(plan(7, piece{0, 2, 1, sampled, nil}), &res)
	if !errors.Is(err, errWaits) {
		t.Errorf("plan 7 goes on without its token: %v", err)
	}
}

// TestOutputRankPushes wants the last stage to send the tokens of each plan that samples, and to go
// on from its own.
func TestOutputRankPushes(t *testing.T) {
	r, o, m := newStage(t, 1, 2, 3)
	hidden := func(rows int) { m.in[0].sizes = append(m.in[0].sizes, 8*rows) }
	p := &step.Plan{ID: 1}
	request(p, 0)
	request(p, 1)
	hidden(2)
	m.in[0].bytes = make([]byte, 1000)
	res := execute(t, r, o, p)
	first := res.Token[1]
	hidden(1)
	again := execute(t, r, o, plan(2, piece{1, 1, 1, sampled, nil}))
	if want := follow([]int32{1, first}); again.Token[0] != want {
		t.Errorf("token %d follows, not %d", again.Token[0], want)
	}
	want := new(messages)
	want.push(res.Token...)
	want.push(again.Token...)
	if got := m.out[0]; !slices.Equal(got.bytes, want.bytes) || !slices.Equal(got.sizes,
		want.sizes) {
		t.Errorf("pushed %v, not %v", got, want)
	}
}

// TestMiddleStageChecks gives a stage that knows no sampled token plans that are wrong in all else.
func TestMiddleStageChecks(t *testing.T) {
	for _, c := range []struct {
		p    *step.Plan
		want string
	}{
		{plan(2, piece{0, 1, 1, sampled, nil}), ""},
		{plan(2, piece{0, 2, 1, sampled, nil}), "position 2 after 1 tokens"},
		{plan(2, piece{1, 1, 1, sampled, nil}), "slot 1, which holds no request"},
		{plan(2, piece{0, 1, 1, vocab, nil}), "outside the vocabulary"},
		{&step.Plan{ID: 2, Rows: []step.Row{{Start: 1, Count: 1, Source: step.FromPlan,
			Last: elsewhere}}}, "token -2 is outside the vocabulary"},
	} {
		r, _, m := newStage(t, 1, 3, 3)
		p := &step.Plan{ID: 1}
		request(p, 0)
		var res step.Result
		m.in[0].bytes, m.in[0].sizes = make([]byte, 100), []int{8, 8}
		if err := r.Execute(p, &res); err != nil {
			t.Fatal(err)
		}
		err := r.Execute(c.p, &res)
		if c.want == "" && err != nil || c.want != "" && (err == nil ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.p.Rows, err, c.want)
		}
		if c.want == "" && (len(m.out[2].sizes) != 2 || len(res.Token) > 0) {
			t.Errorf("%d messages went on; %+v", len(m.out[2].sizes), res)
		}
	}
	// A token that nothing sampled.
	r, _, m := newStage(t, 1, 3, 3)
	p := &step.Plan{ID: 1}
	request(p, 0)
	p.Rows[0].Sample = false
	var res step.Result
	m.in[0].bytes, m.in[0].sizes = make([]byte, 100), []int{8, 8}
	if err := r.Execute(p, &res); err != nil {
		t.Fatal(err)
	}
	err := r.Execute(plan(2, piece{0, 1, 1, sampled, nil}), &res)
	if err == nil || !strings.Contains(err.Error(), "a token that was not sampled") {
		t.Errorf("%v", err)
	}
}

// TestStagesAllocate nothing in steady decoding.
func TestStagesAllocate(t *testing.T) {
	var ranks [2]*Runner
	forth, back := new(messages), new(messages)
	for i := range ranks {
		var m *mail
		ranks[i], _, m = newStage(t, i, 2, 2)
		m.in[1-i], m.out[1-i] = back, forth
		if i == 1 {
			m.in[0], m.out[0] = forth, back
		}
	}
	p := &step.Plan{ID: 1}
	for slot := range uint32(maxSeqs) {
		p.New = append(p.New, step.NewRequest{Slot: slot, PromptLen: 1, Tokens: []int32{1},
			Params: greedy()})
		x := plan(1, piece{slot, 0, 1, prompt, []uint32{7 * slot, 7*slot + 1, 7*slot + 2, 7*slot +
			3, 7*slot + 4, 7*slot + 5, 7*slot + 6}})
		p.Rows, p.Blocks = append(p.Rows, x.Rows...), append(p.Blocks, x.Blocks...)
	}
	var res [2]step.Result
	next := func() {
		for i, r := range ranks {
			if err := r.Execute(p, &res[i]); err != nil {
				t.Fatal(err)
			}
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
	for _, r := range ranks {
		for i := range r.slots {
			r.slots[i].tokens = slices.Grow(r.slots[i].tokens, maxLen)
		}
	}
	if n := testing.AllocsPerRun(30, next); n > 0 {
		t.Errorf("%v allocations per plan", n)
	}
}
