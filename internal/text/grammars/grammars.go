// Package grammars compiles the constraints of requests, each once, away from the caller that asks
// for it, and keeps what it compiled for the requests that come later. The driver asks it whether a
// constraint can be enforced at all, and has the answer kept only; the rank that samples takes its
// masks from it. Both compile the same text, with the same budget, to the same grammar: nothing
// else crosses between them. What grammars hold is bounded, each and all together, and goes back to
// the operating system when they are gone.
package grammars

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// kept is how many grammars stay when no request uses them, keptText how many bytes of text they
// have together, and keptBytes of tables, as constrain.Compiled counts them, after sweepDelay.
const (
	kept       = 256
	keptText   = 16 << 20
	keptBytes  = 32 << 20
	sweepDelay = 10 * time.Second
)

// mostBytes is how many bytes the tables of all grammars and the ways of all answers have together,
// those in use included, and compileBytes how many one that is being compiled may come to. Tables
// that have come to freshBytes more than when they were compiled are for the answers that have
// begun: others begin with fresh ones, so that what many answers have found out does not end one.
// leastBytes is room for one that is compiled beside others in use.
const (
	mostBytes    = 512 << 20
	leastBytes   = 2 * compileBytes
	compileBytes = 64 << 20
	freshBytes   = 24 << 20
)

// mostAtOnce is how many compile at a time at most: each has memory.
const mostAtOnce = 4

// quick is how many operations may be done at once for a mask: some milliseconds, however they fall
// out.
const quick = 4000

// ErrClosed is why a grammar has not been compiled that was asked for when the cache was closed.
var ErrClosed = errors.New("grammars are closed")

// Cache compiles grammars over one vocabulary. Its methods may be called from several goroutines.
type Cache struct {
	vocabulary func() (*constrain.Vocabulary, error)
	limits     constrain.Limits
	// brief and long bound how many grammars compile at a time. Each first compiles within brief
	// limits; a grammar that exceeds them compiles in a slot of long, so that brief ones do not
	// wait for it.
	brief, long chan struct{}
	// aside bounds the long look-ups of masks at a time, each of another grammar.
	aside  chan struct{}
	closed chan struct{}
	// most is how many bytes all tables and ways may have together.
	most  atomic.Int64
	tasks sync.WaitGroup

	mu       sync.Mutex
	grammars map[constrain.Spec]*list.Element // of *Grammar
	recent   *list.List                       // the one used last is the first
	text     int
	// held are the bytes of all tables, idle those of grammars that no request uses, using how many
	// grammars are used, and compiling how many are being compiled.
	held, idle       int
	using, compiling int
	freed            chan struct{} // closed, and replaced, when there is more room
	sweeping         bool
	over             bool
	shed             shedder
}

// New returns a cache that compiles so many grammars at a time, at least one and at most four, and
// as many that take long. It calls vocabulary once, when the first grammar is compiled.
func New(vocabulary func() (*constrain.Vocabulary, error), atOnce int) *Cache {
	atOnce = min(max(1, atOnce), mostAtOnce)
	c := &Cache{
		vocabulary: sync.OnceValues(vocabulary),
		brief:      make(chan struct{}, atOnce), long: make(chan struct{}, atOnce),
		aside:  make(chan struct{}, max(2, runtime.GOMAXPROCS(0)/2)),
		closed: make(chan struct{}), grammars: map[constrain.Spec]*list.Element{},
		recent: list.New(), freed: make(chan struct{}),
	}
	c.most.Store(mostBytes)
	return c
}

// Limit sets how many bytes the tables of all grammars and the ways of all answers may have
// together, from 128 MiB to 512 MiB, which it is before.
func (c *Cache) Limit(bytes int64) { c.most.Store(min(max(bytes, leastBytes), mostBytes)) }

// Check says whether a constraint can be enforced: it compiles it, unless that has been done, or
// another caller is compiling it: then the result is cached already. An error is a *constrain.Error
// when the text is at fault. When no other request uses the grammar, its tables are dropped.
func (c *Cache) Check(ctx context.Context, s constrain.Spec) (kept bool, err error) {
	c.mu.Lock()
	g, isNew := c.get(s)
	c.mu.Unlock()
	err = c.await(ctx, g)
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.users == 0 && g.Ready() {
		c.drop(g)
	}
	return !isNew, err
}

// Start returns the grammar of a spec for an answer with some output, and compiles it in the
// background unless that has been done. It does not wait. The caller must Release the grammar. A
// cache whose Start is used must be closed.
func (c *Cache) Start(s constrain.Spec, output []int32) *Grammar {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, isNew := c.get(s)
	if g.dropped || (g.full.Load() || g.tables > g.fresh+freshBytes) && !g.waitedFor(output) {
		c.remove(c.grammars[s]) // of its tables there is nothing, or too much
		g, isNew = c.get(s)
	}
	if g.users++; g.users == 1 {
		c.using++
		c.idle -= g.idle
		g.idle = 0
	}
	switch {
	case !isNew:
	case c.over:
		g.finish(nil, ErrClosed)
	default:
		c.tasks.Go(func() { _ = c.await(context.Background(), g) })
	}
	return g
}

// get returns the grammar of a spec, which is new when the spec is. The caller holds mu.
func (c *Cache) get(s constrain.Spec) (g *Grammar, isNew bool) {
	if e := c.grammars[s]; e != nil {
		c.recent.MoveToFront(e)
		return e.Value.(*Grammar), false
	}
	g = &Grammar{cache: c, spec: s, done: make(chan struct{}), making: make(chan struct{}, 1)}
	e := c.recent.PushFront(g)
	c.grammars[s] = e
	c.text += len(s.Text)
	for c.recent.Len() > kept || c.text > keptText && c.recent.Len() > 1 {
		c.remove(c.recent.Back()) // requests that use it keep it
	}
	return g, true
}

// remove forgets a grammar. The caller holds mu.
func (c *Cache) remove(e *list.Element) {
	g := c.recent.Remove(e).(*Grammar)
	delete(c.grammars, g.spec)
	c.text -= len(g.spec.Text)
	if g.forgotten = true; g.users == 0 && g.Ready() {
		c.drop(g)
	}
}

// drop drops the tables of a grammar that no request uses. The caller holds mu.
func (c *Cache) drop(g *Grammar) {
	if g.dropped {
		return
	}
	g.dropped, g.compiled, g.found = true, nil, nil
	c.held -= g.held
	c.idle -= g.idle
	c.shed.add(c, g.held)
	g.held, g.idle = 0, 0
	c.free()
}

// markIdle counts the bytes of a grammar that no request uses as idle, or drops a grammar that will
// not be found again. The caller holds mu.
func (c *Cache) markIdle(g *Grammar) {
	if !g.Ready() || g.dropped {
		return
	}
	if g.forgotten || g.full.Load() {
		c.drop(g)
		return
	}
	g.idle = g.held
	c.idle += g.idle
	if c.idle > keptBytes && !c.sweeping && !c.over {
		c.sweeping = true
		c.tasks.Go(c.sweep)
	}
}

// sweep drops what is idle beyond keptBytes, after a while: a request that is preempted comes
// again.
func (c *Cache) sweep() {
	for {
		select {
		case <-time.After(sweepDelay):
		case <-c.closed:
			return
		}
		c.mu.Lock()
		c.trim(keptBytes)
		if c.sweeping = c.idle > keptBytes; !c.sweeping {
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// trim drops what has not been used for the longest time until so many bytes are idle. The caller
// holds mu.
func (c *Cache) trim(most int) {
	for e := c.recent.Back(); e != nil && c.idle > most; {
		g := e.Value.(*Grammar)
		e = e.Prev()
		if g.users == 0 && g.idle > 0 {
			c.drop(g)
		}
	}
}

// reserve waits until there is room to compile another grammar.
func (c *Cache) reserve(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		most := int(c.most.Load()) - (c.compiling+1)*compileBytes
		if c.held > most {
			c.trim(max(0, c.idle-(c.held-most)))
		}
		if c.held <= most {
			c.compiling++
			return nil
		}
		freed := c.freed
		c.mu.Unlock()
		var err error
		select {
		case <-freed:
		case <-c.closed:
			err = ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// await compiles the grammar, or waits until another caller has. A caller whose ctx ends leaves the
// work to the others.
func (c *Cache) await(ctx context.Context, g *Grammar) error {
	select {
	case <-g.done:
		return g.err
	case <-c.closed:
		g.finish(nil, ErrClosed)
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case g.making <- struct{}{}:
	}
	defer func() { <-g.making }()
	err := c.compileInTurn(ctx, g, c.brief, true)
	if err == nil && !g.Ready() {
		err = c.compileInTurn(ctx, g, c.long, false)
	}
	if err == ErrClosed {
		g.finish(nil, err)
	}
	if g.Ready() {
		return g.err
	}
	return err
}

// compileInTurn compiles a grammar once turns has a free slot, unless that has been done.
func (c *Cache) compileInTurn(ctx context.Context, g *Grammar, turns chan struct{},
	brief bool) error {
	if g.Ready() || brief && g.takesLong {
		return nil
	}
	select {
	case <-c.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case turns <- struct{}{}:
	}
	defer func() { <-turns }()
	if !brief {
		if err := c.reserve(ctx); err != nil {
			return err
		}
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.compiling--
			c.free()
		}()
	}
	c.compile(g, brief)
	return nil
}

// free wakes the callers of reserve. The caller holds mu.
func (c *Cache) free() {
	close(c.freed)
	c.freed = make(chan struct{})
}

// compile compiles a grammar. A brief one that takes more than there is to do for it TakesLong.
func (c *Cache) compile(g *Grammar, brief bool) {
	v, err := c.vocabulary()
	if err != nil {
		g.finish(nil, err)
		return
	}
	g.words = v.Words()
	before := allocated()
	limits := c.limits
	limits.Brief = brief
	compiled, err := compile(g.spec, v, limits)
	var wrong *constrain.Error
	g.takesLong = brief && errors.As(err, &wrong) && wrong.TooComplex
	c.mu.Lock()
	defer c.mu.Unlock()
	if !brief {
		c.shed.add(c, int(allocated()-before))
	}
	if g.takesLong {
		return
	}
	if compiled != nil {
		g.held = compiled.Held()
		g.tables, g.fresh = g.held, g.held
		c.held += g.held
	}
	g.finish(compiled, err)
	if g.users == 0 {
		c.markIdle(g)
	}
}

// compile turns a panic of the compiler, which would be a defect of it, into an error of the
// request that found it.
func compile(s constrain.Spec, v *constrain.Vocabulary,
	limits constrain.Limits) (g *constrain.Compiled, err error) {

	defer func() {
		if p := recover(); p != nil {
			g, err = nil, fmt.Errorf("compile a constraint of kind %v: panic: %v", s.Kind, p)
		}
	}()
	return constrain.Compile(s, v, limits)
}

// Close cancels the grammars that wait to be compiled, and waits for those being compiled. Compiled
// grammars stay usable.
func (c *Cache) Close() {
	c.mu.Lock()
	over := c.over
	c.over = true
	c.mu.Unlock()
	if !over {
		close(c.closed)
	}
	c.tasks.Wait()
}

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
	if s, accepting, enough := m.next(m.compiled, mask, quick); enough {
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
		f.state, f.accepting, _ = f.next(m.compiled, f.mask, math.MaxInt)
		if !g.grown(m.compiled, &f.way) && f.state == Ready {
			f.state = Spent
		}
		g.remember(f)
		g.busy.Store(false)
		g.mu.Unlock()
	})
	return Wait, false
}

// next is Next with at most so many operations, and says whether they were enough.
func (w *way) next(c *constrain.Compiled, mask []uint32, operations int) (s State, accepting,
	enough bool) {
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

// Vocabulary is what the compiler needs of a tokenizer: what its tokens stand for. Added tokens
// stand for themselves.
func Vocabulary(t *tokenizer.Tokenizer) *constrain.Vocabulary {
	tokens := make([][]byte, t.VocabSize())
	special := map[string]int32{}
	for id := range tokens {
		id := int32(id)
		text, ok := t.Token(id)
		switch {
		case !ok:
		case t.IsAdded(id):
			special[text] = id
		default:
			tokens[id] = t.TokenBytes(id)
		}
	}
	return constrain.NewVocabulary(tokens, special)
}
