package kvcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/link/step"
)

func tokens(from, to int) []int32 {
	var t []int32
	for i := from; i < to; i++ {
		t = append(t, int32(i))
	}
	return t
}

func newManager(t testing.TB, blocks, size int) *Manager {
	t.Helper()
	m, err := New(Config{Blocks: blocks, BlockSize: size, PrefixCaching: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// admit starts and grows a sequence over all of its tokens and returns the hit.
func admit(t testing.TB, m *Manager, s *Sequence, toks []int32) int {
	t.Helper()
	hit := m.Match(s, toks)
	if !m.Start(s, toks, hit, hit) || !m.Grow(s, toks, len(toks)) {
		t.Fatalf("no room for %d tokens, free %d", len(toks), m.free)
	}
	return hit
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Blocks: -1, BlockSize: 4}, "Blocks is -1"},
		{Config{Blocks: 1 << 40, BlockSize: 4}, "Blocks is 1099511627776"},
		{Config{Blocks: 4, BlockSize: 0}, "BlockSize is 0"},
		{Config{Blocks: 4, BlockSize: 4, Window: -1}, "Window is -1"},
		{Config{Blocks: 4, BlockSize: 4, Window: 8}, "Window is 8 and Chunk 0"},
		{Config{Blocks: 4, BlockSize: 4, Groups: grouping.Groups{Whole: 1, Windowed: 1}},
			"1 groups of whole contexts, 1 of windows with a Window of 0"},
		{Config{Blocks: 4, BlockSize: 4, Window: 4, Chunk: 1,
			Groups: grouping.Groups{Windowed: 2}}, "0 groups of whole contexts, 2 of windows"},
		{Config{Blocks: 4, BlockSize: 4, Snapshots: -1}, "Snapshots is -1"},
		{Config{Blocks: 4, BlockSize: 4, Window: 8, Chunk: 1, Snapshots: 2}, "2 and Window 8"},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v): %v, want %q", c.config, err, c.want)
		}
	}
}

func TestMatch(t *testing.T) {
	base := tokens(0, 12)
	other := slices.Clone(base)
	other[1] = 99
	tail := slices.Clone(base)
	tail[9] = 99
	for _, c := range []struct {
		name   string
		toks   []int32
		salt   string
		noRead bool
		want   int
	}{
		{"longer prompt takes all full blocks", tokens(0, 20), "", false, 12},
		{"one token must be left", base, "", false, 8},
		{"one token more than the entries", tokens(0, 13), "", false, 12},
		{"difference in the first block", other, "", false, 0},
		{"difference in the last block", append(slices.Clone(tail), 1), "", false, 8},
		{"shorter than a block", tokens(0, 3), "", false, 0},
		{"same tokens at another place", tokens(4, 12), "", false, 0},
		{"another salt", tokens(0, 20), "alice", false, 0},
		{"reading switched off", tokens(0, 20), "", true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newManager(t, 16, 4)
			first := NewSequence("", false)
			admit(t, m, &first, base)
			s := NewSequence(c.salt, c.noRead)
			if got := admit(t, m, &s, c.toks); got != c.want {
				t.Fatalf("hit %d tokens, want %d", got, c.want)
			}
			for i := range c.want / 4 {
				if s.Blocks()[i] != first.Blocks()[i] {
					t.Errorf("block %d is %d, want the shared %d", i, s.Blocks()[i],
						first.Blocks()[i])
				}
			}
			for _, b := range s.Blocks()[c.want/4:] {
				if slices.Contains(first.Blocks(), b) {
					t.Errorf("block %d is shared without a hit", b)
				}
			}
			if err := m.Check([]*Sequence{&first, &s}, [][]int32{base, c.toks}); err != nil {
				t.Fatal(err)
			}
			queries, hits := uint64(len(base)+len(c.toks)), uint64(c.want)
			if c.noRead {
				queries = uint64(len(base))
			}
			if st := m.Stats(); st.Queries != queries || st.Hits != hits {
				t.Errorf("queries %d hits %d, want %d and %d", st.Queries, st.Hits, queries, hits)
			}
		})
	}
}

// TestSnapshots finds a prefix as far as a state was kept of it by an earlier plan, gives up the
// one that was used the longest ago, and those that go with their block, with plans that were lost,
// or with all.
func TestSnapshots(t *testing.T) {
	m, err := New(Config{Blocks: 14, BlockSize: 4, PrefixCaching: true, Snapshots: 2})
	if err != nil {
		t.Fatal(err)
	}
	plan := uint64(0)
	// compute computes n positions of a prompt, and keeps its state at some; -1 keeps none.
	compute := func(toks []int32, at, want int) {
		t.Helper()
		plan++
		m.Plan(plan)
		s := NewSequence("", true)
		if !m.Start(&s, toks, 0, 0) || !m.Grow(&s, toks, len(toks)) {
			t.Fatal("no room")
		}
		if got := m.Snapshot(&s, at); got != want {
			t.Errorf("the state after %d of %v is kept in %d, not %d", at, toks, got, want)
		}
		m.Release(&s)
		if err := m.Check(nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	find := func(toks []int32, want, state int) {
		t.Helper()
		plan++
		m.Plan(plan)
		s := NewSequence("", false)
		hit := m.Match(&s, toks)
		if hit != want || m.State(&s, hit) != state {
			t.Errorf("%d tokens of %v are found, not %d with state %d", hit, toks, want, state)
		}
	}
	a, b, c := tokens(0, 14), tokens(100, 114), tokens(200, 214)
	compute(a, 8, 0)
	if s := NewSequence("", false); m.Match(&s, a) != 0 {
		t.Error("a state is found in the plan that keeps it")
	}
	find(a, 8, 0)
	find(tokens(0, 8), 0, -1) // its last token is before the state
	compute(b, 12, 1)
	compute(a, 8, -1) // is kept
	find(a, 8, 0)
	compute(c, 12, 1) // in the place of b's
	find(b, 0, -1)
	find(c, 12, 1)
	compute(tokens(300, 340), 0, -1) // takes blocks of all
	find(a, 0, -1)
	if n := m.Stats().Snapshots; n > 1 {
		t.Errorf("%d states are kept", n)
	}
	m.Reset()
	compute(a, 12, 0)
	first := plan
	compute(b, 4, 1)
	compute(a, 8, 0) // in the place of its first one
	m.Rewind(first)
	find(b, 0, -1)
	s := NewSequence("", true)
	if !m.Start(&s, c, 0, 0) || !m.Grow(&s, c, len(c)) {
		t.Fatal("no room")
	}
	first = plan
	plan++
	m.Plan(plan)
	m.Snapshot(&s, 8) // of blocks that an earlier plan computed
	m.Release(&s)
	find(c, 8, 0)
	m.Rewind(first)
	find(c, 0, -1)
	m.Reset()
	find(a, 0, -1)
	if n := m.Stats().Snapshots; n != 0 {
		t.Errorf("%d states are kept of nothing", n)
	}
}

func TestCachingOff(t *testing.T) {
	m, err := New(Config{Blocks: 8, BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	a, b := NewSequence("", false), NewSequence("", false)
	admit(t, m, &a, tokens(0, 12))
	if hit := admit(t, m, &b, tokens(0, 12)); hit != 0 {
		t.Fatalf("hit %d tokens with prefix caching off", hit)
	}
	if st := m.Stats(); st.Entries != 0 || st.Queries != 0 || st.Used != 6 {
		t.Fatalf("stats %+v", st)
	}
}

// TestEvictionOrder frees three prompts and watches which blocks are reused: never-filled ones
// first, then the least recently used sequence from its end, and a hit makes a prompt recent again.
func TestEvictionOrder(t *testing.T) {
	m := newManager(t, 7, 4)
	var s [3]Sequence
	toks := [3][]int32{tokens(0, 8), tokens(100, 108), tokens(200, 210)}
	for i := range s {
		s[i] = NewSequence("", false)
		admit(t, m, &s[i], toks[i])
	}
	old := make([][]uint32, 3)
	for i := range s {
		old[i] = slices.Clone(s[i].Blocks())
		m.Release(&s[i])
	}
	again := NewSequence("", false)
	if hit := admit(t, m, &again, toks[0]); hit != 4 {
		t.Fatalf("hit %d, want 4", hit)
	}
	// The second block of the prompt was computed anew, in the block that held no entry.
	if want := []uint32{old[0][0], old[2][2]}; !slices.Equal(again.Blocks(), want) {
		t.Fatalf("table %v, want %v", again.Blocks(), want)
	}
	m.Release(&again)
	var order []uint32
	for range 7 {
		order = append(order, m.allocate())
	}
	want := []uint32{old[0][1], old[1][1], old[1][0], old[2][1], old[2][0], old[2][2], old[0][0]}
	if !slices.Equal(order, want) {
		t.Fatalf("reused in order %v, want %v", order, want)
	}
	if st := m.Stats(); st.Evictions != 7 || st.Entries != 0 || st.Free != 0 {
		t.Fatalf("stats %+v", st)
	}
}

// TestStartWantsWholePrompt refuses a prompt that does not fit, also when hits are themselves free
// blocks.
func TestStartWantsWholePrompt(t *testing.T) {
	m := newManager(t, 4, 4)
	a := NewSequence("", false)
	admit(t, m, &a, tokens(0, 8))
	b := NewSequence("", false)
	long := tokens(0, 17)
	hit := m.Match(&b, long)
	if hit != 8 || m.Start(&b, long, hit, hit) {
		t.Fatalf("hit %d: 5 blocks fit into 4", hit)
	}
	m.Release(&a)
	if hit = m.Match(&b, long); hit != 8 || m.Start(&b, long, hit, hit) {
		t.Fatalf("hit %d: 5 blocks fit into 4 when the hits are free", hit)
	}
	if hit = m.Match(&b, long[:16]); hit != 8 || !m.Start(&b, long[:16], hit, hit) ||
		!m.Grow(&b, long, 16) {
		t.Fatalf("hit %d: 4 blocks do not fit into 4", hit)
	}
	if m.Grow(&b, long, 17) {
		t.Fatal("a fifth block came out of 4")
	}
	if len(b.Blocks()) != 4 {
		t.Fatalf("a refused Grow changed the table to %v", b.Blocks())
	}
	if err := m.Check([]*Sequence{&b}, [][]int32{long}); err != nil {
		t.Fatal(err)
	}
}

// TestReservedBlocksAreNobodyElses allocates blocks, and finds them only once they are computed.
func TestReservedBlocksAreNobodyElses(t *testing.T) {
	m := newManager(t, 8, 4)
	a, toks := NewSequence("", false), tokens(0, 12)
	if !m.Start(&a, toks, 0, 0) || !m.Allocate(&a, 12) {
		t.Fatal("no room for 12 tokens")
	}
	find := func(want int) {
		t.Helper()
		b := NewSequence("", false)
		if hit := m.Match(&b, tokens(0, 20)); hit != want {
			t.Errorf("hit %d tokens, want %d", hit, want)
		}
		if err := m.Check([]*Sequence{&a}, [][]int32{toks}); err != nil {
			t.Fatal(err)
		}
	}
	find(0)
	m.Cache(&a, toks, 8)
	find(8)
	if m.Allocate(&a, 33) || len(a.Blocks()) != 3 {
		t.Errorf("9 blocks of 8: %v", a.Blocks())
	}
	b := a
	a.Disown()
	m.Release(&a)
	if st := m.Stats(); st.Used != 3 {
		t.Errorf("a sequence gives back what it has given away: %+v", st)
	}
	m.Release(&b)
	find(8)
}

// TestSlide lets a sequence go on through a cache that holds a window and a chunk of it, and finds
// its prefix again by the last blocks alone: those before them hold something else by then.
func TestSlide(t *testing.T) {
	c := Config{Blocks: 5, BlockSize: 4, PrefixCaching: true, Window: 9, Chunk: 4}
	if got := c.Most(100); got != 4 {
		t.Fatalf("a sequence holds %d blocks", got)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	a, toks := NewSequence("", false), tokens(0, 41)
	if !m.Start(&a, toks, 0, 0) {
		t.Fatal("no room")
	}
	for n := 4; n <= 40; n += 4 {
		slid := m.Slide(&a, n-4)
		if gone := max(0, n-4-8) / 4; slid != (gone > 0) || a.gone != gone {
			t.Fatalf("%d blocks of %d positions are gone, slid: %v", a.gone, n-4, slid)
		}
		if !m.Grow(&a, toks, n) {
			t.Fatalf("no block for position %d of %v", n, a.Blocks())
		}
		if err := m.Check([]*Sequence{&a}, [][]int32{toks}); err != nil {
			t.Fatal(err)
		}
	}
	m.Release(&a)
	for _, x := range []struct {
		name string
		toks []int32
		hit  int
	}{
		{"all", toks, 40},
		{"the last block is not full", tokens(0, 39), 36},
		{"less than what is left", tokens(0, 28), 0},
		{"a beginning that is another", append([]int32{9}, tokens(1, 41)...), 0},
	} {
		b := NewSequence("", false)
		hit := m.Match(&b, x.toks)
		if hit != x.hit || !m.Start(&b, x.toks, hit, hit) || len(b.Blocks()) != hit/4 {
			t.Fatalf("%s: hit %d tokens, not %d: %v", x.name, hit, x.hit, b.Blocks())
		}
		for i, block := range b.Blocks() {
			if (block == step.NoBlock) != (i < (hit-8)/4) {
				t.Errorf("%s: table %v", x.name, b.Blocks())
			}
		}
		if err := m.Check([]*Sequence{&b}, [][]int32{x.toks}); err != nil {
			t.Fatal(err)
		}
		m.Release(&b)
	}
	// Blocks 6 to 8 come from elsewhere, of which the last two are read; none of them is known.
	b := NewSequence("other", false)
	if !m.Start(&b, toks, 0, 36) || !slices.Equal(b.Blocks(), slices.Repeat([]uint32{step.NoBlock},
		7)) {
		t.Errorf("table %v", b.Blocks())
	}
}

// TestGroups grows a sequence of layers of both kinds: of windows it holds what is read, of whole
// contexts all. Others find it by both, and a transfer brings what neither has.
func TestGroups(t *testing.T) {
	const gone = step.NoBlock
	c := Config{Blocks: 23, BlockSize: 4, PrefixCaching: true, Window: 9, Chunk: 4,
		Groups: grouping.Groups{Whole: 1, Windowed: 2}}
	if got := c.Most(40); got != 10+2*4 || c.Most(8) != 6 || c.Longest() != 15*4 {
		t.Fatalf("a sequence holds %d blocks, the longest has %d positions", got, c.Longest())
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	a, toks := NewSequence("", false), tokens(0, 41)
	if !m.Start(&a, toks[:40], 0, 0) {
		t.Fatal("no room")
	}
	for n := 4; n <= 40; n += 4 {
		m.Slide(&a, n-4)
		if !m.Grow(&a, toks, n) {
			t.Fatalf("no block for position %d of %v", n, a.Blocks())
		}
		if err := m.Check([]*Sequence{&a}, [][]int32{toks}); err != nil {
			t.Fatal(err)
		}
	}
	if used := m.Stats().Used; used != 10+2*3 {
		t.Errorf("%d blocks in use", used)
	}
	m.Release(&a)
	for _, x := range []struct {
		name string
		toks []int32
		hit  int
	}{
		{"all", toks, 40},
		{"the last block is not full", tokens(0, 39), 36},
		{"of windows it has gone", tokens(0, 24), 0},
		{"a beginning that is another", append([]int32{9}, tokens(1, 41)...), 0},
	} {
		b := NewSequence("", false)
		hit := m.Match(&b, x.toks)
		if hit != x.hit || !m.Start(&b, x.toks, hit, hit) || len(b.Blocks()) != 3*hit/4 {
			t.Fatalf("%s: hit %d tokens, not %d: %v", x.name, hit, x.hit, b.Blocks())
		}
		for i, block := range b.Blocks() {
			if (block == gone) != (i%3 > 0 && i/3 < (hit-8)/4) {
				t.Errorf("%s: table %v", x.name, b.Blocks())
			}
		}
		if err := m.Check([]*Sequence{&b}, [][]int32{x.toks}); err != nil {
			t.Fatal(err)
		}
		m.Release(&b)
	}
	// Parts up to the eighth come from elsewhere: of windows the last two are read.
	b := NewSequence("other", false)
	if !m.Start(&b, toks[:36], 0, 36) || m.Missing(0, 36) != 0 || len(b.Blocks()) != 7*3 {
		t.Fatalf("table %v", b.Blocks())
	}
	if !m.Allocate(&b, m.Ahead(36, 36)) {
		t.Fatal("no room")
	}
	for i, block := range b.Blocks() {
		if (block == gone) != (i%3 > 0 && i/3 < 7) {
			t.Fatalf("table %v", b.Blocks())
		}
	}
	m.Cache(&b, toks, 36)
	if err := m.Check([]*Sequence{&b}, [][]int32{toks}); err != nil {
		t.Fatal(err)
	}
	names, part := m.Digests(&b, toks, 25, 27), m.Digest(&b, toks, 9)
	if names[0] != NameOf(part, 1) || names[1] != NameOf(part, 2) || names[0] == names[1] {
		t.Errorf("names %x of %x", names, part)
	}
	pinned := m.Pin(&b, 8)
	m.Release(&b)
	if used := m.Stats().Used; used != 8+2 {
		t.Errorf("%d blocks are pinned", used)
	}
	m.Release(&pinned)
	if err := m.Check(nil, nil); err != nil {
		t.Fatal(err)
	}
}

// TestDigest names prompts and salts, with the prefix cache and without.
func TestDigest(t *testing.T) {
	seen := map[string]string{}
	for _, caching := range []bool{true, false} {
		m, err := New(Config{Blocks: 8, BlockSize: 4, PrefixCaching: caching})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			salt string
			toks []int32
			n    int
		}{{"", tokens(0, 9), 0}, {"", tokens(0, 9), 1}, {"", tokens(0, 9), 2}, {"x", tokens(0, 9),
			2},
			{"", tokens(1, 9), 2}} {
			s, name := NewSequence(c.salt, false), fmt.Sprint(c)
			d := m.Digest(&s, c.toks, c.n)
			if other, ok := seen[string(d[:])]; ok && other != name {
				t.Errorf("%s has the digest of %s", name, other)
			}
			seen[string(d[:])] = name
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d digests of 5 beginnings", len(seen))
	}
}

func TestReset(t *testing.T) {
	m := newManager(t, 4, 4)
	a := NewSequence("", false)
	admit(t, m, &a, tokens(0, 12))
	m.Release(&a)
	m.Reset()
	if err := m.Check([]*Sequence{&a}, [][]int32{tokens(0, 12)}); err != nil {
		t.Fatal(err)
	}
	b := NewSequence("", false)
	if hit := admit(t, m, &b, tokens(0, 12)); hit != 0 {
		t.Fatalf("hit %d tokens after Reset", hit)
	}
	if !slices.Equal(b.Blocks(), []uint32{0, 1, 2}) {
		t.Fatalf("table %v after Reset", b.Blocks())
	}
}

// TestRewind forgets what later plans were to compute, and nothing else.
func TestRewind(t *testing.T) {
	m := newManager(t, 8, 4)
	a := NewSequence("", false)
	m.Plan(1)
	admit(t, m, &a, tokens(0, 8))
	m.Plan(2)
	if !m.Grow(&a, tokens(0, 16), 16) {
		t.Fatal("no blocks")
	}
	m.Release(&a)
	for _, c := range []struct {
		plan uint64
		hit  int
	}{{2, 16}, {1, 8}, {0, 0}} {
		m.Rewind(c.plan)
		b := NewSequence("", false)
		if hit := m.Match(&b, tokens(0, 20)); hit != c.hit {
			t.Errorf("hit %d tokens after plan %d, wanted %d", hit, c.plan, c.hit)
		}
		if err := m.Check(nil, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRandomWalk runs sequences over a small vocabulary (so that prefixes meet by chance) and
// checks every invariant after every action, and every hit against a record of which tokens each
// block was filled with.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { walk(t, seed) })
	}
}

type walker struct {
	seq    Sequence
	tokens []int32
	salt   string
	at     int // positions grown to
}

func walk(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	size := 1 + rng.IntN(4)
	c := Config{Blocks: 4 + rng.IntN(20), BlockSize: size, PrefixCaching: true}
	if seed%2 == 1 {
		c.Window, c.Chunk = 1+rng.IntN(3*size), 1+rng.IntN(2*size)
		if seed%4 == 3 {
			c.Groups = grouping.Groups{Whole: 1 + rng.IntN(2), Windowed: 1 + rng.IntN(3)}
			c.Blocks *= c.Groups.Count()
		}
	} else if seed%4 == 0 {
		c.Snapshots = 1 + rng.IntN(4)
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	groups := c.Groups.Count()
	windowed := func(i int) bool { return i%groups >= c.whole() }
	filled := make([]string, m.Stats().Blocks) // salt and tokens up to the end of the block
	var live []*walker
	states := make([]string, c.Snapshots) // of the positions before
	hits := 0
	for plan := range uint64(2000) {
		m.Plan(plan)
		switch n := rng.IntN(10); {
		case n < 3:
			w := &walker{salt: []string{"", "s"}[rng.IntN(2)]}
			for range 1 + rng.IntN(4*size) {
				w.tokens = append(w.tokens, int32(rng.IntN(2)))
			}
			w.seq = NewSequence(w.salt, rng.IntN(5) == 0)
			free := m.Stats().Free
			hit := m.Match(&w.seq, w.tokens)
			if hit%size != 0 || hit >= len(w.tokens) || m.Stats().Free != free {
				t.Fatalf("hit %d of %d tokens, free %d then %d", hit, len(w.tokens), free,
					m.Stats().Free)
			}
			if !m.Start(&w.seq, w.tokens, hit, hit) {
				break
			}
			for i, b := range w.seq.Blocks() {
				if windowed(i) && i/groups < m.First(hit) {
					continue
				}
				if want := w.key(size, groups, i); filled[b] != want {
					t.Fatalf("hit block %d holds %q, want %q", i, filled[b], want)
				}
			}
			if at := m.State(&w.seq, hit); at >= 0 && states[at] != w.key(size, 1, hit/size-1) {
				t.Fatalf("state %d is of %q, not of %q", at, states[at],
					w.key(size, 1, hit/size-1))
			} else if at < 0 && hit > 0 && c.Snapshots > 0 {
				t.Fatalf("no state after %d tokens", hit)
			}
			hits += hit
			w.at = hit
			live = append(live, w)
		case n < 8 && len(live) > 0:
			w := live[rng.IntN(len(live))]
			if w.at == len(w.tokens) {
				w.tokens = append(w.tokens, int32(rng.IntN(2)))
			}
			to := w.at + 1 + rng.IntN(len(w.tokens)-w.at)
			if c.Window > 0 {
				to = min(to, w.at+c.Chunk)
				m.Slide(&w.seq, w.at)
			}
			for i, b := range w.seq.Blocks() { // what a position is about to read
				gone := windowed(i) && i/groups < m.First(w.at)
				if gone != (b == step.NoBlock) {
					t.Fatalf("block %d of a sequence at %d is %d", i, w.at, b)
				}
				if i/groups < w.at/size && b != step.NoBlock &&
					filled[b] != w.key(size, groups, i) {
					t.Fatalf("block %d holds %q, not %q", b, filled[b], w.key(size, groups, i))
				}
			}
			if !m.Grow(&w.seq, w.tokens, to) {
				break
			}
			for i := w.at / size * groups; i < to/size*groups; i++ {
				filled[w.seq.Blocks()[i]] = w.key(size, groups, i)
			}
			w.at = to
			if to%size == 0 {
				if at := m.Snapshot(&w.seq, to); at >= 0 {
					states[at] = w.key(size, 1, to/size-1)
				}
			}
			held := len(w.seq.Blocks()) - w.seq.gone*(groups-c.whole())
			if held > c.Most(to) {
				t.Fatalf("%d blocks held of %d positions, at most %d", held, to, c.Most(to))
			}
		case len(live) > 0:
			i := rng.IntN(len(live))
			m.Release(&live[i].seq)
			live = slices.Delete(live, i, i+1)
		}
		if err := check(m, live); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range live {
		m.Release(&w.seq)
	}
	if err := check(m, nil); err != nil {
		t.Fatal(err)
	}
	if st := m.Stats(); st.Used != 0 || hits == 0 {
		t.Fatalf("used %d blocks at the end, %d tokens hit", st.Used, hits)
	}
}

// key is what an entry of the table is filled with.
func (w *walker) key(size, groups, i int) string {
	return fmt.Sprint(w.salt, i%groups, w.tokens[:(i/groups+1)*size])
}

func check(m *Manager, live []*walker) error {
	var seqs []*Sequence
	var toks [][]int32
	for _, w := range live {
		seqs = append(seqs, &w.seq)
		toks = append(toks, w.tokens)
	}
	return m.Check(seqs, toks)
}

// TestCheckSees breaks each invariant and wants it reported, so that the walks mean something.
func TestCheckSees(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(*Manager, *Sequence)
		want   string
	}{
		{"reference lost", func(m *Manager, s *Sequence) { m.blocks[s.blocks[0]].refs = 0 },
			"references"},
		{"held twice", func(m *Manager, s *Sequence) { s.blocks[1] = s.blocks[0] }, "twice"},
		{"other tokens", func(m *Manager, s *Sequence) { m.blocks[s.blocks[0]].hash[0] ^= 1 },
			"other tokens"},
		{"wrong digest", func(m *Manager, s *Sequence) { s.digests[0][0] ^= 1 }, "digest 0"},
		{"entries beyond table", func(m *Manager, s *Sequence) { s.entries = 4 },
			"4 entries in a table of 3"},
		{"free counter", func(m *Manager, s *Sequence) { m.free-- }, "counter"},
		{"entry too early", func(m *Manager, s *Sequence) { m.blocks[s.blocks[2]].entry = true },
			"before it is full"},
		{"entry not listed", func(m *Manager,
			s *Sequence) {
			m.buckets[m.bucket(&m.blocks[s.blocks[1]].hash)] = none
		}, "hash table"},
	} {
		m := newManager(t, 8, 4)
		s := NewSequence("", false)
		toks := tokens(0, 10)
		admit(t, m, &s, toks)
		c.damage(m, &s)
		if err := m.Check([]*Sequence{&s}, [][]int32{toks}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestSteadyStateAllocates wants no allocation when sequences of reserved length come, fill blocks,
// evict and go.
func TestSteadyStateAllocates(t *testing.T) {
	m := newManager(t, 64, 16)
	s := NewSequence("", false)
	m.Reserve(&s, 64)
	toks := tokens(0, 1024)
	got := testing.AllocsPerRun(100, func() {
		s.digests = s.digests[:0]
		toks[0]++
		hit := m.Match(&s, toks)
		if !m.Start(&s, toks, hit, hit) {
			t.Fatal("no room")
		}
		for n := 1; n <= len(toks); n++ {
			m.Grow(&s, toks, n)
		}
		m.Release(&s)
	})
	if got != 0 {
		t.Fatalf("%v allocations per sequence of 64 blocks", got)
	}
}

// BenchmarkPrompt admits a prompt of 4096 tokens that is all in the cache but its last block.
func BenchmarkPrompt(b *testing.B) {
	m := newManager(b, 512, 16)
	toks := tokens(0, 4096)
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprintf("digests=%v", known), func(b *testing.B) {
			s := NewSequence("", false)
			m.Reserve(&s, 256)
			b.ReportAllocs()
			for b.Loop() {
				if !known {
					s.digests = s.digests[:0]
				}
				hit := m.Match(&s, toks)
				m.Start(&s, toks, hit, hit)
				m.Grow(&s, toks, len(toks))
				m.Release(&s)
			}
		})
	}
}

// TestMatchPrefersUsed shares the block that is in use rather than an equal free one, which would
// cost a free block.
func TestMatchPrefersUsed(t *testing.T) {
	for _, first := range []bool{true, false} {
		m := newManager(t, 4, 4)
		// A prompt of exactly one block is computed by each sequence itself: two equal entries.
		s := [2]Sequence{NewSequence("", false), NewSequence("", false)}
		admit(t, m, &s[0], tokens(0, 4))
		admit(t, m, &s[1], tokens(0, 4))
		freed, used := &s[0], &s[1]
		if !first {
			freed, used = used, freed
		}
		m.Release(freed)
		third := NewSequence("", false)
		if hit := admit(t, m, &third, tokens(0, 5)); hit != 4 ||
			third.Blocks()[0] != used.Blocks()[0] {
			t.Errorf("freed the first %v: hit %d, table %v, in use %v", first, hit, third.Blocks(),
				used.Blocks())
		}
		if st := m.Stats(); st.Used != 2 {
			t.Errorf("freed the first %v: %d blocks used", first, st.Used)
		}
	}
}

// TestTokensComeLater fills a block with positions whose tokens are not known: it is an entry once
// they are.
func TestTokensComeLater(t *testing.T) {
	m := newManager(t, 8, 4)
	a := NewSequence("", false)
	toks := tokens(0, 8)
	admit(t, m, &a, toks[:3])
	for n := 4; n <= 6; n++ {
		if !m.Grow(&a, toks[:3], n) || len(a.Blocks()) != (n+3)/4 {
			t.Fatalf("%d positions in blocks %v", n, a.Blocks())
		}
	}
	match := func(want int) {
		t.Helper()
		b := NewSequence("", false)
		if hit := m.Match(&b, toks); hit != want {
			t.Errorf("hit %d, want %d", hit, want)
		}
		if err := m.Check([]*Sequence{&a}, [][]int32{toks}); err != nil {
			t.Error(err)
		}
	}
	match(0)
	m.Cache(&a, toks[:4], 4)
	match(4)
	m.Cache(&a, toks[:6], 6)
	match(4)
}
