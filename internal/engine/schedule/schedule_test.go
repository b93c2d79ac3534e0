package schedule

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
)

var greedy = sample.Params{
	MaxTokens: 1 << 30, EOS: -1, Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs,
}

// loop is the engine's turn: plan as far ahead as may be, pretend to compute, update.
type loop struct {
	s    *Scheduler
	plan step.Plan
	// results are of the plans in flight, by their numbers.
	results []step.Result
	first   uint64
	out     []Output
}

func (l *loop) turn() bool {
	for l.s.Schedule(&l.plan) {
		r := &l.results[l.plan.ID%uint64(len(l.results))]
		r.Reset(l.plan.ID)
		for _, row := range l.plan.Rows {
			if row.Sample {
				r.Append(row.Slot, int32(l.plan.ID))
			}
		}
	}
	l.first++
	r := &l.results[l.first%uint64(len(l.results))]
	if l.s.Check(r) != nil {
		return false
	}
	l.out = l.s.Update(r, l.out[:0])
	return true
}

// decoding returns a loop with n requests that have left their prompts behind, with distinct
// prompts, up to ahead plans in flight, and a window, 0 for none.
func decoding(t testing.TB, n int, caching bool, ahead, window int) *loop {
	t.Helper()
	s, err := New(Config{
		Window:  window,
		MaxSeqs: n, MaxTokens: 8192, MaxModelLen: 1 << 20, BlockSize: 16, Blocks: 1 << 17,
		PrefixCaching: caching, ChunkedPrefill: true, MaxInFlight: ahead,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		prompt := make([]int32, 50+i%64)
		prompt[0] = int32(i)
		s.Add(&Request{Key: uint64(i), Prompt: prompt, Params: greedy})
	}
	l := &loop{s: s, results: make([]step.Result, ahead)}
	for range 20 {
		if !l.turn() {
			t.Fatal("idle")
		}
	}
	if s.Running() != n || len(l.out) != n {
		t.Fatalf("%d of %d requests run, %d outputs", s.Running(), n, len(l.out))
	}
	return l
}

// TestSteadyStateAllocates decodes across many block boundaries, with all digests and cache
// entries, with one to three plans in flight.
func TestSteadyStateAllocates(t *testing.T) {
	for ahead := 1; ahead <= 3; ahead++ {
		l := decoding(t, 256, true, ahead, 0)
		before := l.s.Stats().Cache.Entries
		got := testing.AllocsPerRun(200, func() {
			if !l.turn() {
				t.Fatal("idle")
			}
		})
		if got != 0 {
			t.Errorf("%d plans in flight: %v allocations per step", ahead, got)
		}
		if now := l.s.Stats().Cache.Entries; now < before+256*10 {
			t.Errorf("%d plans in flight: entries went from %d to %d", ahead, before, now)
		}
	}
}

// TestWindowBoundsBlocks decodes with a window, far beyond it: as many blocks are in use as it
// covers, and nothing is allocated.
func TestWindowBoundsBlocks(t *testing.T) {
	const n, window = 64, 100
	l := decoding(t, n, true, 2, window)
	got := testing.AllocsPerRun(500, func() {
		if !l.turn() {
			t.Fatal("idle")
		}
	})
	if used := l.s.Stats().Cache.Used; got != 0 || used > n*(window/16+2) {
		t.Errorf("%v allocations per step, %d blocks in use", got, used)
	}
}

// TestSnapshots has a prompt's chunk end at its last border of blocks, where its state is kept. The
// same prompt goes on from there, and so does one that was preempted.
func TestSnapshots(t *testing.T) {
	s, err := New(Config{MaxSeqs: 3, MaxTokens: 8, MaxModelLen: 40, BlockSize: 4, Blocks: 30,
		PrefixCaching: true, ChunkedPrefill: true, Snapshots: 2})
	if err != nil {
		t.Fatal(err)
	}
	prompt := make([]int32, 23)
	var p step.Plan
	// plan wants the next plan to compute count tokens of a slot from start on, to copy its state
	// from and to snapshots, -1 for none, and answers it.
	plan := func(start, count uint32, restore, save int) {
		t.Helper()
		state := func(list []step.Snapshot) int {
			if len(list) == 0 {
				return -1
			}
			return int(list[0].State) - 3
		}
		if !s.Schedule(&p) || len(p.Rows) != 1 || p.Rows[0].Start != start ||
			p.Rows[0].Count != count || state(p.Restore) != restore || state(p.Save) != save {
			t.Errorf("plan %+v; want %d tokens from %d, states %d and %d", p, count, start, restore,
				save)
		}
		r := &step.Result{Plan: p.ID}
		if p.Rows[0].Sample {
			r.Append(p.Rows[0].Slot, 7)
		}
		s.Update(r, nil)
	}
	add := func(key uint64, tokens int32) {
		params := greedy
		params.MaxTokens = tokens
		s.Add(&Request{Key: key, Prompt: prompt, Params: params})
	}
	add(1, 1)
	plan(0, 8, -1, -1)
	plan(8, 8, -1, -1)
	plan(16, 4, -1, 0)
	plan(20, 3, -1, -1)
	add(2, 9)
	plan(20, 3, 0, -1)
	for at := range uint32(3) {
		plan(23+at, 1, -1, -1)
	}
	s.PreemptAll(true)
	plan(20, 4, 0, 1) // the last border is after 24 of 27 tokens
	plan(24, 3, -1, -1)
	s.PreemptAll(false)
	plan(0, 8, -1, -1)
	if n := s.Stats().PromptTokens; n != 23+3 {
		t.Errorf("%d tokens of prompts: those of a preempted request count once", n)
	}
}

// TestChoicesShareAState has choices of one answer compute their prompt once, up to its last border
// of blocks.
func TestChoicesShareAState(t *testing.T) {
	s, err := New(Config{MaxSeqs: 20, MaxTokens: 64, MaxModelLen: 40, BlockSize: 4, Blocks: 90,
		PrefixCaching: true, ChunkedPrefill: true, Snapshots: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		s.Add(&Request{Key: uint64(i), Index: i, Prompt: make([]int32, 23), Params: greedy})
	}
	s.Add(&Request{Key: 9, Prompt: []int32{1, 2, 3, 4, 5, 6}, Params: greedy})
	var p step.Plan
	for _, want := range []struct{ rows, tokens int }{{2, 24}, {5, 14}} {
		s.Schedule(&p)
		r := &step.Result{Plan: p.ID}
		for _, row := range p.Rows {
			if row.Sample {
				r.Append(row.Slot, 7)
			}
		}
		if n := p.Tokens(); len(p.Rows) != want.rows || n != want.tokens {
			t.Errorf("%d rows of %d tokens, want %v: %+v", len(p.Rows), n, want, p.Rows)
		}
		s.Update(r, nil)
	}
}

// TestLeast wants a cache that holds a window and a step's chunk to be enough for a request of any
// length, and one block less to be refused.
func TestLeast(t *testing.T) {
	base := Config{MaxSeqs: 4, MaxTokens: 32, MaxModelLen: 1000, BlockSize: 16,
		ChunkedPrefill: true}
	for name, c := range map[string]struct {
		change func(c *Config)
		want   int
	}{
		"no window":      {func(*Config) {}, 63},
		"a window":       {func(c *Config) { c.Window = 64 }, 7},
		"smaller chunks": {func(c *Config) { c.Window, c.LongPrefillTokens = 64, 1 }, 5},
		"a wide window":  {func(c *Config) { c.Window = 5000 }, 63},
		"whole prompts": {func(c *Config) {
			c.Window, c.ChunkedPrefill, c.MaxTokens = 64, false, 1000
		}, 63},
		"a window of a token": {func(c *Config) { c.Window, c.LongPrefillTokens = 1, 1 }, 1},
	} {
		config := base
		c.change(&config)
		if got := config.Least(); got != c.want {
			t.Errorf("%s: %d blocks at least, not %d", name, got, c.want)
		}
		config.Blocks = c.want
		if _, err := New(config); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if config.Blocks--; config.Blocks > 0 {
			if _, err := New(config); err == nil ||
				!strings.Contains(err.Error(), "one request of MaxModelLen") {
				t.Errorf("%s with %d blocks: %v", name, config.Blocks, err)
			}
		}
	}
	base.Window, base.Blocks = -1, 1
	if _, err := New(base); err == nil || !strings.Contains(err.Error(), "Window is -1") {
		t.Error(err)
	}
}

// TestCheck refuses results that do not answer the plan, and Update survives them.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		result step.Result
		want   string
	}{
		{"another plan", result(7, 0, 5, 1, 6), "result of plan 7, but plan 1 is under way"},
		{"token missing", result(1, 0, 5), "lacks the token of slot 1 at index 1"},
		{"empty", result(1), "lacks the token of slot 0 at index 0"},
		{"wrong order", result(1, 1, 5, 0, 6), "lacks the token of slot 0 at index 0"},
		{"slot too many", result(1, 0, 5, 1, 6, 2, 7), "is for 3 slots, 2 were due"},
		{"negative token", result(1, 0, 5, 1, -6), "token -6 for slot 1"},
		{"unequal lists", step.Result{Plan: 1, Slot: []uint32{0, 1}}, "2 slots and 0 runs"},
		{"two tokens", step.Result{Plan: 1, Slot: []uint32{0, 1}, End: []uint32{1, 3},
			Token: []int32{5, 6, 7}}, "has 2 tokens for slot 1, 1 is due"},
		{"no token", step.Result{Plan: 1, Slot: []uint32{0, 1}, End: []uint32{0, 1},
			Token: []int32{5}}, "has 0 tokens for slot 0, 1 is due"},
	} {
		s, err := New(Config{MaxSeqs: 4, MaxTokens: 8, MaxModelLen: 8, BlockSize: 4, Blocks: 8,
			ChunkedPrefill: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(&c.result); err == nil || !strings.Contains(err.Error(),
			"no plan is under way") {
			t.Errorf("before any plan: %v", err)
		}
		s.Add(&Request{Key: 1, Prompt: []int32{1}, Params: greedy})
		s.Add(&Request{Key: 2, Prompt: []int32{2}, Params: greedy})
		// is cut, samples nothing
		s.Add(&Request{Key: 3, Prompt: []int32{3, 3, 3, 3, 3, 3, 3}, Params: greedy})
		var p step.Plan
		s.Schedule(&p)
		if err := s.Check(&c.result); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if len(c.result.Slot) == len(c.result.End) {
			s.Update(&c.result, nil)
			if err := s.check(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// result is the answer to a plan with a slot and its token by turns.
func result(plan uint64, list ...int32) (r step.Result) {
	r.Plan = plan
	for i := 0; i < len(list); i += 2 {
		r.Append(uint32(list[i]), list[i+1])
	}
	return r
}

// TestPlanMemory schedules into one Plan again and again: nothing of an older plan may show, and
// what the plan holds is not changed by what happens to the requests afterwards.
func TestPlanMemory(t *testing.T) {
	s, err := New(Config{MaxSeqs: 2, MaxTokens: 64, MaxModelLen: 32, BlockSize: 4, Blocks: 16,
		ChunkedPrefill: true})
	if err != nil {
		t.Fatal(err)
	}
	prompt := []int32{1, 2, 3}
	s.Add(&Request{Key: 1, Prompt: prompt, Params: greedy})
	var p step.Plan
	s.Schedule(&p)
	sent := p.New[0]
	answer := result(1, 0, 9)
	s.Update(&answer, nil)
	if len(sent.Tokens) != 3 || &sent.Tokens[0] == &prompt[0] {
		t.Errorf("the plan shares tokens with the caller: %v", sent.Tokens)
	}
	sent.Tokens = append(sent.Tokens, 77) // a worker may keep the slice and append to it
	s.Schedule(&p)
	if len(p.New) != 0 || len(p.Rows) != 1 || p.Rows[0].Last != 9 {
		t.Errorf("second plan %+v", p)
	}
	answer = result(2, 0, 10)
	s.Update(&answer, nil)
	s.Abort(1)
	if !s.Schedule(&p) || len(p.Free) != 1 || len(p.Rows)+len(p.New)+len(p.Blocks) != 0 {
		t.Errorf("third plan %+v", p)
	}
	answer = result(3)
	s.Update(&answer, nil)
	if s.Schedule(&p) || len(p.Free) != 0 {
		t.Errorf("fourth plan %+v", p)
	}
}

// TestOutputBeyondReserve decodes past the room made in advance.
func TestOutputBeyondReserve(t *testing.T) {
	l := decoding(t, 1, true, 1, 0)
	for range reserveTokens + 100 {
		if !l.turn() {
			t.Fatal("idle")
		}
	}
	if err := l.s.check(); err != nil {
		t.Fatal(err)
	}
	if got := len(l.s.running[0].tokens); got != 50+20+reserveTokens+100 {
		t.Fatalf("%d tokens", got)
	}
}

// BenchmarkDecode is one step, Schedule and Update, of 256 requests that decode. Requests are
// replaced by new ones outside the clock when they get long.
func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name    string
		caching bool
		ahead   int
	}{{"cache", true, 1}, {"no-cache", false, 1}, {"ahead", true, 2}} {
		b.Run(c.name, func(b *testing.B) {
			l := decoding(b, 256, c.caching, c.ahead, 0)
			b.ReportAllocs()
			b.ResetTimer()
			for n := range b.N {
				if n%2000 == 1999 {
					b.StopTimer()
					l = decoding(b, 256, c.caching, c.ahead, 0)
					b.StartTimer()
				}
				l.turn()
			}
		})
	}
}

// TestTooManyBlocksPerRow refuses a step that could bring one request more blocks than a row can
// name.
func TestTooManyBlocksPerRow(t *testing.T) {
	c := Config{MaxSeqs: 1, MaxTokens: 1 << 16, MaxModelLen: 1 << 17, BlockSize: 1, Blocks: 1 << 18,
		ChunkedPrefill: true}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(),
		"65537 blocks of 1 tokens, must be at most 65535") {
		t.Errorf("%v", err)
	}
	c.MaxTokens = 1<<16 - 2
	if _, err := New(c); err != nil {
		t.Error(err)
	}
}
