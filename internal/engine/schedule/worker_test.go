package schedule

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// worker is a model of a worker: it knows only what plans tell it and refuses a plan it could not
// execute. Its cache memory holds, per position, a hash of all tokens up to there, which is what
// keys and values of that position depend on. So a wrong block table, a stale or foreign block, a
// skipped position, or an unknown token is seen when attention reads. So is a wrong state: where
// the model keeps one of each request, it is the hash of all tokens computed so far.
type worker struct {
	blockSize int
	// groups are those of the layers, of which whole read all positions, the others those of a
	// window.
	groups, whole, window int
	memory                []uint64
	written               []uint64 // the plan that has written each cell
	slots                 map[uint32]*slot
	// states are those of slots, then snapshots; kept are the plans that wrote them.
	states, kept []uint64
	plans        uint64
	// choose, when not nil, picks the token of a slot instead of the model.
	choose func(slot uint32) int32
	// compiling is how often the constraints of requests are not compiled yet.
	compiling map[constrain.Spec]int
}

type slot struct {
	tokens []int32
	// sampled is the token after tokens when the last plan has sampled it.
	sampled []int32
	drafted int // of tokens, the last ones, that are drafts
	known   int // tokens before sampled
	prompt  int
	blocks  []uint32
	next    int // position to be computed next
	params  sample.Params
	// constraint is of the request, missed says that a token has not been chosen for it.
	constraint constrain.Spec
	missed     bool
}

func newWorker(c Config) *worker {
	whole := c.Groups.Whole
	if whole == 0 && c.Window == 0 {
		whole = 1
	}
	return &worker{blockSize: c.BlockSize, window: c.Window, groups: c.Groups.Count(), whole: whole,
		memory:  make([]uint64, c.Blocks*c.BlockSize),
		written: make([]uint64, c.Blocks*c.BlockSize), slots: map[uint32]*slot{},
		states: make([]uint64, c.MaxSeqs+c.Snapshots), kept: make([]uint64, c.MaxSeqs+c.Snapshots),
		compiling: map[constrain.Spec]int{}}
}

// replace makes a worker in the place of another one: it knows no slot, and has the other's memory
// if that is remembered.
func (w *worker) replace(c Config, remembered bool) *worker {
	next := newWorker(c)
	next.plans, next.compiling = w.plans, w.compiling
	if remembered {
		next.memory, next.written = w.memory, w.written
		next.states, next.kept = w.states, w.kept
	}
	return next
}

// spoil destroys what plans after the given one have written.
func (w *worker) spoil(after uint64) {
	for i, plan := range w.written {
		if plan > after {
			w.memory[i] = 0xdead
		}
	}
	for i, plan := range w.kept {
		if plan > after {
			w.states[i] = 0xdead
		}
	}
}

// memorise writes what a fetch of a prompt's blocks brings.
func (w *worker) memorise(f Fetch, prompt []int32) {
	h := uint64(0)
	for i, t := range prompt {
		h = state(h, t)
		for g := range w.groups {
			b := i/w.blockSize*w.groups + g - f.First
			if b >= 0 && b < len(f.Blocks) && f.Blocks[b] != step.NoBlock {
				w.memory[int(f.Blocks[b])*w.blockSize+i%w.blockSize] = h + uint64(g)
			}
		}
	}
}

// state is the hash of tokens[:n], continued from that of tokens[:n-1].
func state(before uint64, token int32) uint64 {
	h := before*0x9e3779b97f4a7c15 + uint64(token) + 1 // splitmix64's mixing
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// pick is the token that the model samples after tokens whose state is h.
func pick(h uint64, vocab int) int32 { return int32(h % uint64(vocab)) }

// execute runs a plan and samples tokens below vocab.
func (w *worker) execute(c Config, p *step.Plan, vocab int) (*step.Result, error) {
	if p.ID != w.plans+1 {
		return nil, fmt.Errorf("plan %d after plan %d", p.ID, w.plans)
	}
	w.plans = p.ID
	if err := w.learn(c, p); err != nil {
		return nil, fmt.Errorf("plan %d: %w", p.ID, err)
	}
	for _, c := range p.Restore {
		w.states[c.Slot] = w.states[c.State]
	}
	total, at, drafts := 0, 0, p.Drafts
	scheduled := map[uint32]bool{}
	for _, row := range p.Rows {
		if scheduled[row.Slot] {
			return nil, fmt.Errorf("plan %d: slot %d is scheduled twice", p.ID, row.Slot)
		}
		scheduled[row.Slot] = true
		if s := w.slots[row.Slot]; s != nil && s.over(c) {
			return nil, fmt.Errorf("plan %d: slot %d goes on beyond its longest output", p.ID,
				row.Slot)
		}
		n := int(row.Blocks)
		drafted := row.Drafts()
		if err := w.write(row, p.Blocks[at:at+n], drafts[:drafted], c.Snapshots > 0); err != nil {
			return nil, fmt.Errorf("plan %d: slot %d: %w", p.ID, row.Slot, err)
		}
		at, drafts = at+n, drafts[drafted:]
		total += int(row.Count)
	}
	for _, c := range p.Save {
		w.states[c.State], w.kept[c.State] = w.states[c.Slot], p.ID
	}
	for _, q := range p.New {
		if !scheduled[q.Slot] {
			return nil, fmt.Errorf("plan %d: slot %d is new but not scheduled", p.ID, q.Slot)
		}
	}
	if total > c.MaxTokens || len(w.slots) > c.MaxSeqs {
		return nil, fmt.Errorf("plan %d: %d tokens of %d, %d requests of %d",
			p.ID, total, c.MaxTokens, len(w.slots), c.MaxSeqs)
	}
	for id, s := range w.slots {
		// With stages requests take turns: see walk.turns.
		if !scheduled[id] && !s.over(c) && c.Stages <= 1 {
			return nil, fmt.Errorf("plan %d: slot %d runs and is not scheduled", p.ID, id)
		}
	}
	return w.attend(p, vocab)
}

// over tells whether the token sampled last ends the request, whatever it is: only such a request
// may be left out of a plan, because its reader would be stalled otherwise.
func (s *slot) over(c Config) bool {
	n := s.known + len(s.sampled)
	return len(s.sampled) > 0 && (n-s.prompt >= int(s.params.MaxTokens) || n >= c.MaxModelLen)
}

// learn obeys Free, then New.
func (w *worker) learn(c Config, p *step.Plan) error {
	for _, id := range p.Free {
		if w.slots[id] == nil {
			return fmt.Errorf("free slot %d is freed", id)
		}
		delete(w.slots, id)
	}
	for _, q := range p.New {
		if w.slots[q.Slot] != nil {
			return fmt.Errorf("slot %d is taken and given again", q.Slot)
		}
		if int(q.Slot) >= c.MaxSeqs {
			return fmt.Errorf("slot %d of %d", q.Slot, c.MaxSeqs)
		}
		if q.Params.PromptLogprobs != sample.NoLogprobs && len(q.Blocks) > 0 {
			return fmt.Errorf("slot %d wants prompt logprobs and begins at block %d", q.Slot,
				len(q.Blocks))
		}
		w.slots[q.Slot] = &slot{
			tokens: append([]int32(nil), q.Tokens...), prompt: int(q.PromptLen),
			blocks:     append([]uint32(nil), q.Blocks...),
			next:       len(q.Blocks) / w.groups * w.blockSize,
			params:     q.Params,
			constraint: q.Constraint,
		}
	}
	return nil
}

// write computes the positions of a row, which go on from a state if there are states.
func (w *worker) write(row step.Row, blocks []uint32, drafts []int32, states bool) error {
	s := w.slots[row.Slot]
	if s == nil {
		return fmt.Errorf("unknown")
	}
	start, count := int(row.Start), int(row.Count)
	if wrong := len(s.tokens) - start; s.drafted > 0 && wrong >= 0 && wrong <= s.drafted {
		s.tokens, s.next = s.tokens[:start], start
		s.blocks = s.blocks[:(start+w.blockSize-1)/w.blockSize*w.groups]
	}
	if start != s.next || count < 1 {
		return fmt.Errorf("computes %d tokens from %d, was at %d", count, start, s.next)
	}
	switch row.Source {
	case step.FromPlan:
		if len(s.sampled) > 0 && s.sampled[0] != row.Last {
			return fmt.Errorf("last token %d, %d was sampled", row.Last, s.sampled[0])
		}
		s.tokens = append(s.tokens, row.Last)
	case step.FromSampler:
		if len(s.sampled) == 0 {
			return fmt.Errorf("goes on from a token that was not sampled")
		}
		s.tokens = append(s.tokens, s.sampled[0])
	}
	s.tokens, s.drafted = append(s.tokens, drafts...), len(drafts)
	if row.Source != step.FromRequest {
		s.sampled = nil
		if start+count != len(s.tokens) {
			return fmt.Errorf("last token at %d, %d tokens known", start+count-1, len(s.tokens)-1)
		}
	}
	if start+count > len(s.tokens) {
		return fmt.Errorf("computes up to %d, knows %d tokens", start+count, len(s.tokens))
	}
	if row.Sample != (start+count == len(s.tokens)) {
		return fmt.Errorf("samples %v after %d of %d tokens", row.Sample, start+count,
			len(s.tokens))
	}
	s.blocks = append(s.blocks, blocks...)
	parts := (start + count + w.blockSize - 1) / w.blockSize
	if len(s.blocks) != parts*w.groups {
		return fmt.Errorf("%d positions in %d blocks", start+count, len(s.blocks))
	}
	h := uint64(0)
	for i, t := range s.tokens[:start+count] {
		if states && i > 0 && i == start && w.states[row.Slot] != h {
			return fmt.Errorf("goes on at %d from the state of something else", start)
		}
		h = state(h, t)
		for g := range w.groups {
			if i >= start {
				at := w.address(s, i, g)
				w.memory[at], w.written[at] = h+uint64(g), w.plans
			}
		}
	}
	w.states[row.Slot], w.kept[row.Slot] = h, w.plans
	s.next = start + count
	return nil
}

func (w *worker) block(s *slot, i, group int) uint32 {
	return s.blocks[i/w.blockSize*w.groups+group]
}

func (w *worker) address(s *slot, i, group int) int {
	return int(w.block(s, i, group))*w.blockSize + i%w.blockSize
}

// from is the first position that layers of a group read for the row at pos, and any after it.
func (w *worker) from(pos, group int) int {
	if group < w.whole {
		return 0
	}
	return max(0, pos-w.window+1)
}

// attend reads every position of every scheduled request that its rows see, as attention does after
// all writes of the step, and samples.
func (w *worker) attend(p *step.Plan, vocab int) (*step.Result, error) {
	r := &step.Result{Plan: p.ID}
	for _, row := range p.Rows {
		id, s := row.Slot, w.slots[row.Slot]
		h, known := uint64(0), uint64(0) // known is before the drafts
		for at, t := range s.tokens[:s.next] {
			h = state(h, t)
			if at == s.next-s.drafted-1 {
				known = h
			}
			for g := range w.groups {
				if at < w.from(int(row.Start), g) {
					continue
				}
				b := w.block(s, at, g)
				if b == step.NoBlock || w.memory[w.address(s, at, g)] != h+uint64(g) {
					return nil, fmt.Errorf("plan %d: slot %d: position %d, block %d of group %d "+
						"holds something else", p.ID, id, at, b, g)
				}
			}
		}
		if s.params.PromptLogprobs != sample.NoLogprobs {
			w.promptLogprobs(r, id, int(row.Start), int(row.Count))
		}
		for i := s.next - s.drafted; row.Sample; i++ {
			t := pick(known, vocab)
			if w.choose != nil {
				t = w.choose(id)
			}
			s.sampled, s.known = []int32{t}, i
			if left := w.compiling[s.constraint]; s.missed || left > 0 {
				w.compiling[s.constraint], s.missed, t = max(0, left-1), true, sample.Pending
			}
			if i == s.next-s.drafted {
				r.Append(id, t)
			} else {
				r.Extend(t)
			}
			if s.params.Logprobs != sample.NoLogprobs {
				r.Logprobs = append(r.Logprobs, step.Logprobs{Slot: id,
					Sampled: step.TokenLogprob{Token: t}})
			}
			if i == s.next || s.tokens[i] != t {
				break
			}
			known = state(known, t)
		}
		// A guess, of which the end is wrong.
		if last := len(r.Slot) - 1; row.Sample && known%2 == 0 {
			run := r.Run(last)
			list := &r.Forced
			if asked := slices.ContainsFunc(p.Guess, func(g step.Guess) bool {
				return g.Slot == id && g.Tokens > 0
			}); asked {
				list = &r.Guessed
			}
			f := step.AddDrafts(list, id)
			for next := state(known, run[len(run)-1]); len(f.Tokens) < 1+int(known%5); {
				f.Tokens = append(f.Tokens, pick(next, vocab))
				next = state(next, f.Tokens[len(f.Tokens)-1])
			}
			f.Tokens[len(f.Tokens)-1]++
		}
	}
	return r, nil
}

// promptLogprobs reports the prompt tokens after positions start to start+count.
func (w *worker) promptLogprobs(r *step.Result, id uint32, start, count int) {
	s := w.slots[id]
	l := step.PromptLogprobs{Slot: id, Start: uint32(start + 1)}
	for at := start + 1; at <= start+count && at < s.prompt; at++ {
		l.Entries = append(l.Entries, step.Logprobs{Slot: id,
			Sampled: step.TokenLogprob{Token: s.tokens[at]}})
	}
	if len(l.Entries) > 0 {
		r.PromptLogprobs = append(r.PromptLogprobs, l)
	}
}
