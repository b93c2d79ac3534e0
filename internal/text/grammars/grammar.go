package grammars

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Grammar is one constraint, compiled or about to be.
type Grammar struct {
	cache *Cache
	spec  constrain.Spec
	// These are guarded by the cache's mu: how many use it, that the cache does not find it any
	// more, that its tables are gone, the bytes of them and of the ways of its answers, those of
	// the tables, and when it was compiled, and those that count as idle.
	users               int
	forgotten, dropped  bool
	held, tables, fresh int
	idle                int
	// found caches the masks that a background goroutine has computed, by the sum of the answer's
	// tokens: the request that needs one asks again.
	found map[uint64]*found
	// full says that its tables have come to what they may.
	full atomic.Bool
	// making is held by the caller that compiles it; only the holder uses takesLong.
	making    chan struct{}
	takesLong bool
	ended     sync.Once
	done      chan struct{}
	err       error // known when done is closed
	// mu guards the tables of compiled, which grow with use.
	mu       sync.Mutex
	compiled *constrain.Compiled
	words    int
	// ways are the bytes of the ways of its answers.
	ways atomic.Int64
	// busy says that a goroutine holds mu that does what takes long.
	busy atomic.Bool
}

// found is what was found out about an answer.
type found struct {
	way
	mask      []uint32
	state     State
	accepting bool
}

// way is how far an answer has come: at is where the first done tokens of path lead, held is what
// that takes, in bytes, and sum is one of the tokens.
type way struct {
	at   *constrain.Matcher
	path []int32
	done int
	held int
	sum  uint64
}

// Release says that the caller of Start does not use the grammar any more, nor m, its Matcher or
// nil.
func (g *Grammar) Release(m *Matcher) {
	c := g.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if m != nil {
		g.releaseWay(&m.way)
	}
	if g.users--; g.users == 0 {
		c.using--
		c.markIdle(g)
	}
}

// releaseWay frees the memory of an answer's way. The caller holds the cache's mu.
func (g *Grammar) releaseWay(w *way) {
	g.ways.Add(int64(-w.held))
	if !g.dropped {
		g.held -= w.held
		g.cache.held -= w.held
	}
	*w = way{}
}

// grown counts what the tables of a grammar and the way of one of its answers have come to, and
// says whether they may stay so large: where all have too much together, those that have more than
// their share end. The caller holds the grammar's mu.
func (g *Grammar) grown(compiled *constrain.Compiled, w *way) bool {
	held := w.at.Held()
	tables := compiled.Held()
	all := tables + int(g.ways.Add(int64(held-w.held)))
	w.held = held
	c := g.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.dropped { // the request is gone that this was for
		return false
	}
	c.held += all - g.held
	g.held, g.tables = all, tables
	if most := int(c.most.Load()); compiled.Full() || c.held > most && all > most/max(1, c.using) {
		g.full.Store(true)
	}
	return !g.full.Load()
}

// finish sets the result of compiling; only the first call counts.
func (g *Grammar) finish(compiled *constrain.Compiled, err error) {
	g.ended.Do(func() {
		g.compiled, g.err = compiled, err
		close(g.done)
	})
}

// Done is closed when the grammar has been compiled, or has been found impossible.
func (g *Grammar) Done() <-chan struct{} { return g.done }

// Ready says whether Done is closed.
func (g *Grammar) Ready() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// Matcher returns where an answer begins. The grammar must be ready, and in use by the caller.
func (g *Grammar) Matcher() (*Matcher, error) {
	if g.err != nil {
		return nil, g.err
	}
	return &Matcher{grammar: g, compiled: g.compiled, words: g.words}, nil
}

// Matcher is how far one answer has come. Matchers of one grammar may be used by several
// goroutines, each by one.
type Matcher struct {
	grammar  *Grammar
	compiled *constrain.Compiled
	words    int
	way
}

// State is what came of a Next.
type State uint8

const (
	// Ready: the mask is there.
	Ready State = iota
	// Wait: the mask takes long and is made aside, or another one is. Once the grammar is Usable, a
	// new Matcher is to be asked with all tokens of the answer; this one is of no use any more.
	Wait
	// Lost: the grammar does not allow these tokens.
	Lost
	// Spent: to go on takes more work or memory than an answer may.
	Spent
)

// maxFound is how many answers are remembered of which has been found out what comes next.
const maxFound = 256

// Next goes on by tokens. Where it is Ready it sets the bits of those that may come next in mask,
// which has Words at least, and clears the others (see constrain's); accepting says that the answer
// may end here. What it does takes some milliseconds at most: what takes longer is done by a
// goroutine.
func (m *Matcher) Next(tokens []int32, mask []uint32) (s State, accepting bool) {
	g := m.grammar
	if !g.lock() {
		return Wait, false
	}
	m.sum = sum(m.sum, tokens)
	m.path = append(m.path, tokens...)
	if f := g.recall(&m.way); f != nil {
		defer g.mu.Unlock()
		m.way = f.way
		clear(mask)
		copy(mask, f.mask)
		return f.state, f.accepting
	}
	if m.at == nil {
		m.at = m.compiled.Matcher()
	}
	if s, accepting, enough := m.next(mask, quick); enough {
		defer g.mu.Unlock()
		if !g.grown(m.compiled, &m.way) && s == Ready {
			return Spent, false
		}
		return s, accepting
	}
	f := &found{way: m.way, mask: make([]uint32, m.words)}
	m.way = way{}
	g.busy.Store(true)
	g.cache.tasks.Go(func() {
		g.cache.aside <- struct{}{}
		defer func() { <-g.cache.aside }()
		f.state, f.accepting, _ = f.next(f.mask, math.MaxInt)
		if !g.grown(m.compiled, &f.way) && f.state == Ready {
			f.state = Spent
		}
		g.remember(f)
		g.busy.Store(false)
		g.mu.Unlock()
	})
	return Wait, false
}

// Forced appends to dst the tokens, n at most, that will follow after a token which the last mask
// has: see constrain's. mask is scratch, as for Next. It takes a part of the time that Next may.
func (m *Matcher) Forced(dst []int32, after int32, n int, mask []uint32) []int32 {
	g := m.grammar
	if m.at == nil || m.done < len(m.path) || !g.lock() {
		return dst
	}
	defer g.mu.Unlock()
	at := m.at.Clone()
	if !at.TryAccept(after, quick) {
		return dst
	}
	return at.Forced(dst, n, mask[:m.words], quick/8)
}

// next is Next with at most so many operations, and says whether they were enough.
func (w *way) next(mask []uint32, operations int) (s State, accepting, enough bool) {
	all := operations == math.MaxInt
	for ; w.done < len(w.path); w.done++ {
		if !w.at.TryAccept(w.path[w.done], operations) {
			if w.at.Exhausted() {
				return Spent, false, all
			}
			return Lost, false, true
		}
		if !all {
			operations = max(operations-w.at.Taken(), 0)
		}
	}
	if accepting, enough = w.at.Try(mask, operations); !enough {
		return Spent, false, all
	}
	return Ready, accepting, true
}

// remember keeps what was found out until it is asked for; of too many one is forgotten.
func (g *Grammar) remember(f *found) {
	g.cache.mu.Lock()
	defer g.cache.mu.Unlock()
	if g.dropped {
		return
	}
	if g.found == nil {
		g.found = map[uint64]*found{}
	}
	for sum, old := range g.found {
		if sum == f.sum || len(g.found) >= maxFound {
			delete(g.found, sum)
			g.releaseWay(&old.way)
		}
	}
	g.found[f.sum] = f
}

// waitedFor says whether something was found out, or is being, that an answer with such an output
// may be waiting for: elsewhere it would have to be found out again, and again. The caller holds
// the cache's mu.
func (g *Grammar) waitedFor(output []int32) bool {
	f := g.found[sum(0, output)]
	return f != nil && slices.Equal(f.path, output) || g.busy.Load()
}

// sum goes on from that of the tokens before.
func sum(before uint64, tokens []int32) uint64 {
	for _, t := range tokens {
		before = (before ^ uint64(uint32(t)+1)) * 0x9E3779B97F4A7C15
	}
	return before
}

// recall is what was found out about an answer that has come to where w leads, nil if nothing was.
func (g *Grammar) recall(w *way) *found {
	g.cache.mu.Lock()
	defer g.cache.mu.Unlock()
	f := g.found[w.sum]
	if f == nil || !slices.Equal(f.path, w.path) {
		return nil
	}
	delete(g.found, w.sum)
	g.releaseWay(w)
	return f
}

// lock takes the grammar, unless it is not usable. It spins: what others do with a grammar that is
// usable takes microseconds, less than to sleep and to be woken.
func (g *Grammar) lock() bool {
	for spins := 1; !g.mu.TryLock(); spins++ {
		if g.busy.Load() {
			return false
		}
		if spins%(1<<12) == 0 {
			runtime.Gosched()
		}
	}
	return true
}

// Usable says whether a mask can be had now: the grammar has been compiled, or found impossible,
// and no mask is being made that takes long.
func (g *Grammar) Usable() bool { return g.Ready() && !g.busy.Load() }

// Await waits until the grammar is usable, but not for longer than some time.
func (g *Grammar) Await(most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-g.done:
	case <-timer.C:
	}
	for until := time.Now().Add(most); g.busy.Load() && time.Now().Before(until); {
		time.Sleep(most / 50)
	}
}

// Words is the least length of a mask.
func (m *Matcher) Words() int { return m.words }
