package schedule

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/link/step"
)

// placed are the workers of places, each of which sees its own part of every plan.
type placed struct {
	of     []*worker
	config Config
}

func newPlaced(c Config, places int) *placed {
	p := &placed{config: c}
	for range places {
		p.of = append(p.of, newWorker(c))
	}
	return p
}

// execute cuts a plan by the slots of the places.
func (w *placed) execute(p *step.Plan, vocab int) (*step.Result, error) {
	all := &step.Result{Plan: p.ID}
	blocks, drafts := p.Blocks, p.Drafts
	for i, own := range w.of {
		base := uint32(i * w.config.MaxSeqs)
		mine := func(slot uint32) bool { return slot/uint32(w.config.MaxSeqs) == uint32(i) }
		part := step.Plan{ID: own.plans + 1}
		for _, s := range p.Free {
			if mine(s) {
				part.Free = append(part.Free, s-base)
			}
		}
		for _, q := range p.New {
			if mine(q.Slot) {
				q.Slot -= base
				part.New = append(part.New, q)
			}
		}
		for _, row := range p.Rows {
			if mine(row.Slot) {
				row.Slot -= base
				part.Rows = append(part.Rows, row)
				part.Blocks = append(part.Blocks, blocks[:row.Blocks]...)
				blocks = blocks[row.Blocks:]
				part.Drafts = append(part.Drafts, drafts[:row.Drafts()]...)
				drafts = drafts[row.Drafts():]
			}
		}
		for _, g := range p.Guess {
			if mine(g.Slot) {
				part.Guess = append(part.Guess, step.Guess{Slot: g.Slot - base, Tokens: g.Tokens})
			}
		}
		for _, c := range p.Restore {
			if mine(c.Slot) {
				part.Restore = append(part.Restore, step.Snapshot{Slot: c.Slot - base,
					State: c.State})
			}
		}
		for _, c := range p.Save {
			if mine(c.Slot) {
				part.Save = append(part.Save, step.Snapshot{Slot: c.Slot - base, State: c.State})
			}
		}
		if len(part.Rows)+len(part.Free) == 0 {
			continue
		}
		r, err := own.execute(w.config, &part, vocab)
		if err != nil {
			return nil, fmt.Errorf("place %d: %w", i, err)
		}
		for j, slot := range r.Slot {
			all.Append(slot+base, r.Run(j)...)
		}
		for _, f := range r.Forced {
			f.Slot += base
			all.Forced = append(all.Forced, f)
		}
		for _, f := range r.Guessed {
			f.Slot += base
			all.Guessed = append(all.Guessed, f)
		}
		for _, l := range r.Logprobs {
			l.Slot += base
			all.Logprobs = append(all.Logprobs, l)
		}
		for _, l := range r.PromptLogprobs {
			l.Slot += base
			all.PromptLogprobs = append(all.PromptLogprobs, l)
		}
	}
	if len(blocks) > 0 {
		return nil, fmt.Errorf("plan %d: %d blocks are no place's", p.ID, len(blocks))
	}
	return all, nil
}

// TestPlaces walks at random: requests come, are given up, begin with blocks of another engine or
// leave theirs to one, and groups are lost with plans in flight. Every request has the output of a
// model that nothing disturbs, blocks are where they are said to be, and the tokens by which
// requests are divided are those that there are.
func TestPlaces(t *testing.T) {
	var moved placesMoved
	defer func() {
		if moved.came == 0 || moved.left == 0 {
			t.Errorf("%+v", moved)
		}
	}()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		places := 1 + r.IntN(4)
		c := Config{MaxSeqs: 1 + r.IntN(4), MaxModelLen: 64, BlockSize: 4, Blocks: 16 + r.IntN(20),
			ChunkedPrefill: true, PrefixCaching: r.IntN(2) == 0, MaxInFlight: 1 + r.IntN(3)}
		c.MaxTokens = c.MaxSeqs + r.IntN(24)
		if c.PrefixCaching && r.IntN(2) == 0 {
			c.Snapshots = 3
		} else if r.IntN(2) == 0 {
			c.Draft = draft.Config{Tokens: 5, Min: 1, Max: 3, Votes: 2, Requests: 9, Rows: 12,
				Model: r.IntN(2) == 0, MaxLen: 64}
		}
		if err := walkPlaces(r, c, places, &moved); err != nil {
			t.Fatalf("seed %d, %d places of %+v: %v", seed, places, c, err)
		}
	}
}

// placesMoved counts the fetches that brought blocks, and the requests that left some.
type placesMoved struct{ came, left int }

// exchange answers some of the fetches that have been asked for, and returns the others.
func (w *placed) exchange(r *rand.Rand, p *Places, fetches []Fetch, prompts map[uint64][]int32,
	moved *placesMoved) []Fetch {
	return slices.DeleteFunc(fetches, func(f Fetch) bool {
		n := len(f.Blocks)
		switch r.IntN(6) {
		case 0, 1:
			return false
		case 2:
			n = 0
		default:
			w.of[f.Place].memorise(f, prompts[f.Key])
			moved.came++
		}
		p.Fetched(f.Key, n)
		return true
	})
}

// holds tells whether blocks that are handed over have the prompt's keys and values.
func (w *placed) holds(h *HandOver, prompt []int32) bool {
	size, s := w.config.BlockSize, uint64(0)
	for i, t := range prompt[:len(h.Blocks)*size] {
		s = state(s, t)
		if w.of[h.Place].memory[int(h.Blocks[i/size])*size+i%size] != s {
			return false
		}
	}
	return true
}

func walkPlaces(r *rand.Rand, c Config, places int, moved *placesMoved) error {
	const vocab = 5
	p, err := NewPlaces(c, places)
	if err != nil {
		return err
	}
	w := newPlaced(c, places)
	var due []*step.Result
	var plan step.Plan
	wanted, got := map[uint64]*Request{}, map[uint64][]int32{}
	next := uint64(1)
	prompts, pinned, fetches := map[uint64][]int32{}, map[uint64]*HandOver{}, []Fetch(nil)
	for turn := 0; turn < 300 || len(wanted) > 0; turn++ {
		if turn > 5000 {
			return fmt.Errorf("%d requests never end: %+v", len(wanted), p.Stats())
		}
		if turn < 200 && r.IntN(3) == 0 {
			q := &Request{Key: next, Prompt: make([]int32, 1+r.IntN(40))}
			for i := range q.Prompt {
				q.Prompt[i] = int32(r.IntN(2))
			}
			q.Params = sample.Params{MaxTokens: int32(1 + r.IntN(20)), EOS: 3, Logprobs: 0,
				PromptLogprobs: sample.NoLogprobs}
			if r.IntN(4) == 0 {
				q.Params.PromptLogprobs = 0
			}
			if c.Snapshots == 0 {
				q.HandOver = r.IntN(3) == 0
				if r.IntN(3) == 0 {
					q.Source, q.Remote = q.Key, r.IntN(len(q.Prompt)+1)
				}
			}
			next++
			wanted[q.Key], prompts[q.Key] = q, q.Prompt
			p.Add(q)
		}
		if r.IntN(40) == 0 {
			for _, key := range slices.Sorted(maps.Keys(wanted))[:min(1, len(wanted))] {
				if !p.Abort(key) {
					return fmt.Errorf("request %d is not known", key)
				}
				delete(wanted, key)
			}
		}
		if r.IntN(60) == 0 {
			p.PreemptAll(false)
			if r.IntN(2) == 0 {
				places = 1 + r.IntN(4)
				if err := p.Resize(places); err != nil {
					return err
				}
			}
			due, fetches, w = nil, nil, newPlaced(c, places)
			clear(pinned)
		}
		made := p.Schedule(&plan)
		for _, f := range p.Fetches(nil) {
			if len(f.Blocks) > 0 {
				fetches = append(fetches, f)
			}
		}
		if made {
			// What is executed is a copy: the next plan overwrites this one.
			raw := step.AppendPlan(nil, &plan)
			var sent step.Plan
			if err := step.DecodePlan(raw, &sent); err != nil {
				return err
			}
			result, err := w.execute(&sent, vocab)
			if err != nil {
				return err
			}
			due = append(due, result)
		}
		if len(due) > 0 && (len(due) == c.MaxInFlight || r.IntN(2) == 0) {
			if err := p.Check(due[0]); err != nil {
				return err
			}
			for _, o := range p.Update(due[0], nil) {
				got[o.Key] = append(got[o.Key], o.Tokens...)
				if o.Finish == sample.Unfinished {
					continue
				}
				q := wanted[o.Key]
				want, finish, _ := reference(c, q, vocab)
				if h := o.HandOver; h != nil {
					if pinned[o.Key] = h; !w.holds(h, q.Prompt) || h.Plan > p.Applied() {
						return fmt.Errorf("request %d does not hand %+v over", o.Key, h)
					}
					moved.left++
				}
				if !slices.Equal(got[o.Key], want) || o.Finish != finish {
					return fmt.Errorf("request %d has %v (%v), not %v (%v)", o.Key, got[o.Key],
						o.Finish, want, finish)
				}
				delete(wanted, o.Key)
			}
			due = due[1:]
		}
		fetches = w.exchange(r, p, fetches, prompts, moved)
		for _, key := range slices.Sorted(maps.Keys(pinned)) {
			if !w.holds(pinned[key], prompts[key]) {
				return fmt.Errorf("what request %d hands over changes", key)
			}
			if len(wanted) == 0 || r.IntN(4) == 0 {
				p.Release(key)
				delete(pinned, key)
			}
		}
		for i, s := range p.of {
			tokens := 0
			for _, q := range s.requests {
				tokens += len(q.tokens)
			}
			if tokens != s.tokens {
				return fmt.Errorf("place %d has %d tokens, counted are %d", i, tokens, s.tokens)
			}
			if err := s.check(); err != nil {
				return fmt.Errorf("place %d: %w", i, err)
			}
		}
	}
	for key := range pinned {
		p.Release(key)
	}
	for _, f := range fetches {
		p.Fetched(f.Key, 0)
	}
	if st := p.Stats(); st.Running+st.Waiting+st.Cache.Used+st.Fetching+st.Pinned > 0 {
		return fmt.Errorf("at the end: %+v", st)
	}
	return nil
}

// TestPlacesBalance wants requests to go where the fewest tokens are, and to a place that knows
// their beginning.
func TestPlacesBalance(t *testing.T) {
	c := Config{MaxSeqs: 8, MaxTokens: 512, MaxModelLen: 512, BlockSize: 16, Blocks: 64,
		ChunkedPrefill: true, PrefixCaching: true}
	p, err := NewPlaces(c, 3)
	if err != nil {
		t.Fatal(err)
	}
	prompt := func(n int, first int32) *Request {
		q := &Request{Key: uint64(first), Prompt: make([]int32, n), Params: sample.Params{
			MaxTokens: 4, EOS: -1, PromptLogprobs: sample.NoLogprobs}}
		for i := range q.Prompt {
			q.Prompt[i] = first + int32(i%7)
		}
		return q
	}
	for i, want := range []struct{ tokens, place int }{{300, 0}, {40, 1}, {50, 2}, {20, 1}, {80, 2},
		{30, 1}, {100, 1}} {
		q := prompt(want.tokens, int32(100*(i+1)))
		p.Add(q)
		if at, _ := p.Place(q.Key); at != want.place {
			t.Errorf("request %d of %d tokens is at %d, not %d", i, want.tokens, at, want.place)
		}
	}
	var plan step.Plan
	if !p.Schedule(&plan) {
		t.Fatal("no plan")
	}
	// What place 0 knows of a prompt is not an adapter's.
	adapted := prompt(310, 100)
	adapted.Key, adapted.Adapter = 9998, 1
	p.Add(adapted)
	if at, _ := p.Place(adapted.Key); at == 0 {
		t.Error("an adapter's prompt is where the model's is known")
	}
	// Place 0 has the most tokens, but of these all but a few are known there.
	again := prompt(310, 100)
	again.Key = 9999
	p.Add(again)
	if at, _ := p.Place(again.Key); at != 0 {
		t.Errorf("a prompt whose beginning place 0 knows is at %d", at)
	}
	// Of an answer's choices the first fetches the prompt from another engine.
	var at [2]int
	for i := range at {
		q := prompt(200, 800)
		q.Key, q.Source, q.Remote = uint64(10000+i), 10000, 192
		p.Add(q)
		at[i], _ = p.Place(q.Key)
	}
	if at[0] != at[1] {
		t.Errorf("choices of which one fetches for both are at %v", at)
	}
}
